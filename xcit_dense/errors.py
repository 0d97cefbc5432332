"""Errors that a user can fix. The tools print their text without a traceback."""


class XCiTDenseError(RuntimeError):
    """Base of the errors of this package that tell the user what to do."""


class CheckpointError(XCiTDenseError):
    """A weight or checkpoint file is missing, damaged, unsafe or made for another model."""


class ConfigError(XCiTDenseError):
    """A config or a command-line option asks for something impossible."""


class DataError(XCiTDenseError):
    """A data set is missing or not laid out as its config says."""


class OutputError(XCiTDenseError):
    """A file cannot be written, or would overwrite a file that the tool did not write."""


class ExportError(XCiTDenseError):
    """A model cannot be exported, or an exported file does not compute what its checkpoint does."""


class SetupError(XCiTDenseError):
    """A framework is missing or has a version that does not work with the others.

    Not an `ImportError`, because mmengine replaces those by its own when it imports the package for a config.
    """


class MetricError(XCiTDenseError):
    """A metric of an evaluation is below the minimum that was asked for."""


class LossError(XCiTDenseError):
    """A loss is not finite."""


class OutOfMemory(XCiTDenseError):
    """A batch does not fit into memory."""


class Stopped(XCiTDenseError):
    """A training run got a signal to stop, and saved its state."""

    def __init__(self, message, number):
        super().__init__(message)
        self.number = number
