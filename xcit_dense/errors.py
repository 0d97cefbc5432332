"""Errors that a user can mend. The tools print their text without a traceback."""


class XCiTDenseError(RuntimeError):
    """Base of the errors of this package that tell the user what to do."""


class CheckpointError(XCiTDenseError):
    """A weight or checkpoint file is missing, damaged, unsafe or made for another model."""


class ConfigError(XCiTDenseError):
    """A config or a command-line option asks for something that cannot be."""


class DataError(XCiTDenseError):
    """A data set is missing or not laid out as its config says."""


class OutputError(XCiTDenseError):
    """A file cannot be written, or would take the place of one that is not the tool's."""


class SetupError(XCiTDenseError):
    """A framework is missing or has a version that does not work with the others.

    No `ImportError`: mmengine would replace it by one of its own when it imports the package for a config.
    """


class MetricError(XCiTDenseError):
    """An evaluation fell short of what was asked of it."""


class LossError(XCiTDenseError):
    """A loss is not finite."""


class OutOfMemory(XCiTDenseError):
    """The memory does not hold a batch."""


class Stopped(XCiTDenseError):
    """A training was told to stop, and saved where it stood.

    Args:
        message: What was saved.
        number: The signal.
    """

    def __init__(self, message, number):
        super().__init__(message)
        self.number = number
