"""Every private name of mmengine that the package uses, under a public name.

Written for mmengine 0.10.7. When you move to another version or to the fork, check this file first.
"""
from mmengine.hooks import CheckpointHook
from mmengine.optim import OptimWrapperDict
from mmengine.runner import Runner
from mmengine.visualization import LocalVisBackend

#: Functions of `mmengine.config.Config` whose frames hold, as ``filename``, the file that they read.
CONFIG_READERS = ('_file2dict', '_is_lazy_import', '_parse_lazy_import')


def _public(name):
    """A property that is another attribute, for reading and writing."""
    return property(lambda self: getattr(self, name), lambda self, value: setattr(self, name, value))


class OpenRunner(Runner):
    """Runner with public names for its loading options and for the initialisation of its weights."""

    #: File or address of the weights to start from, or None.
    loads_from = _public('_load_from')
    #: Whether the training continues from that file.
    resumes = _public('_resume')
    #: Whether the weights are in the model already.
    has_loaded = _public('_has_loaded')

    def init_weights(self):
        """Fill in the weights that the config asks for."""
        super()._init_model_weights()

    def _init_model_weights(self):
        self.init_weights()


def randomness_of(runner) -> dict:
    """Return ``randomness`` of a runner's config."""
    return runner._randomness_cfg


def is_resumed(runner) -> bool:
    """Whether the training of a runner continues from a checkpoint."""
    return runner._resume


def built_train_loop(runner):
    """Return a runner's training loop, or its config if not built yet, or None in a run without training."""
    return runner._train_loop


class OpenLoop:
    """Mixin for mmengine's training loops that makes their counters writable."""

    #: Iterations done.
    iterations = _public('_iter')
    #: Epochs done.
    epochs = _public('_epoch')
    #: Epochs and iterations of the whole run.
    max_epochs, max_iters = _public('_max_epochs'), _public('_max_iters')

    def update_val_interval(self):
        """Update the validation interval to that of the current epoch or iteration."""
        self._decide_current_val_interval()


class OpenCheckpointHook(CheckpointHook):
    """Hook with public names for the two methods that write checkpoints."""

    def save_step(self, runner, step, meta):
        """Save the checkpoint of an epoch or iteration."""
        super()._save_checkpoint_with_step(runner, step, meta)

    def save_best_of(self, runner, metrics):
        """Save a checkpoint whose metrics are the best so far."""
        super()._save_best_checkpoint(runner, metrics)

    def _save_checkpoint_with_step(self, runner, step, meta):
        self.save_step(runner, step, meta)

    def _save_best_checkpoint(self, runner, metrics):
        self.save_best_of(runner, metrics)


class OpenVisBackend(LocalVisBackend):
    """Local files of curves, with a public name for the method that writes a line."""

    def write_line(self, *args, **kwargs):
        """Write scalars to a file."""
        super()._dump(*args, **kwargs)

    def _dump(self, *args, **kwargs):
        self.write_line(*args, **kwargs)


def accumulated_steps(optim_wrapper) -> int:
    """Return over how many iterations an optimizer wrapper accumulates gradients."""
    return getattr(optim_wrapper, '_accumulative_counts', 1)


def awaits_gradients(optim_wrapper) -> bool:
    """Whether an optimizer wrapper, or one of several, has accumulated gradients and waits for more before its step."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        return any(map(awaits_gradients, optim_wrapper.values()))
    return (steps_of(optim_wrapper) or 0) % accumulated_steps(optim_wrapper) > 0


def steps_of(optim_wrapper):
    """Return how many iterations an optimizer wrapper has seen (several wrappers: by name), None if it does not count.
    """
    if isinstance(optim_wrapper, OptimWrapperDict):
        return {name: steps_of(wrapper) for name, wrapper in optim_wrapper.items()}
    return getattr(optim_wrapper, '_inner_count', None)


def set_steps(optim_wrapper, steps):
    """Set what `steps_of` returns."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        for name, number in steps.items():
            set_steps(optim_wrapper[name], number)
    else:
        optim_wrapper._inner_count = steps


#: The attributes of a `mmengine.logging.HistoryBuffer` that hold arrays of numbers, in the order of its arguments.
HISTORIES = ('_log_history', '_count_history')


def swaps_channels(preprocessor) -> bool:
    """Whether an `mmengine.model.ImgDataPreprocessor`, or mmdet's, swaps BGR and RGB."""
    return preprocessor._channel_conversion
