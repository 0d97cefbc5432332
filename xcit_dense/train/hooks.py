"""Hooks for any project: fuse backbones for inference, compile them for training, average the weights."""
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import HOOKS

from ..compat.mmengine_private import is_resumed
from ..models import Trunk


def fuse_backbones(model):
    """Fuse every XCiT and `XCiTClassifier` in a model (see `XCiT.fuse`) and return the model."""
    for backbone in _backbones(model):
        backbone.fuse()
    return model


def _backbones(model):
    return [module for module in model.modules() if isinstance(module, Trunk)]


@HOOKS.register_module()
class FuseHook(Hook):
    """Fuses the backbone before a test run: ``custom_hooks=[dict(type='FuseHook')]``. Training runs are left alone."""

    def before_test(self, runner):
        """Fuse, unless `EMAHook` will swap parameters with an average that is not fused."""
        if any(isinstance(hook, EMAHook) and not isinstance(hook, AverageHook) for hook in runner.hooks):
            runner.logger.info('the backbone is not fused, because EMAHook swaps its parameters')
        else:
            fuse_backbones(runner.model)


@HOOKS.register_module()
class CompileHook(Hook):
    """Trains the blocks of the backbone with `torch.compile`: ``custom_hooks=[dict(type='CompileHook')]``.

    All of them share one graph, for any image size. The state dict does not change. On a CPU torch needs a C++
    compiler for it.
    """

    def before_train(self, runner):
        """Compile; this happens in the first iteration and takes a minute."""
        for backbone in _backbones(runner.model):
            backbone.compile_blocks()


@HOOKS.register_module()
class AverageHook(EMAHook):
    """Keeps a moving average of the weights next to the model; the model itself is evaluated and saved.

    mmengine's `EMAHook` replaces the model by the average in evaluations and checkpoints. Here the average is only
    added to checkpoints, as ``ema_state_dict``, from which a resumed run continues it. Arguments are those of
    `EMAHook`.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._resumed = None

    def before_run(self, runner):
        """Do nothing yet: the model has no weights, and a test needs no average."""

    def after_load_checkpoint(self, runner, checkpoint):
        """Keep the average of the resumed run."""
        self._resumed = checkpoint.get('ema_state_dict') if is_resumed(runner) else None

    def before_train(self, runner):
        """Start the average, or continue it."""
        super().before_run(runner)
        if self._resumed is not None:
            self.ema_model.load_state_dict(self._resumed)
            self._resumed = None
        elif is_resumed(runner):
            runner.logger.warning('the checkpoint has no average of the weights (AverageHook): a new average starts '
                                  'here')
        super().before_train(runner)

    def before_save_checkpoint(self, runner, checkpoint):
        """Save the average next to the model."""
        checkpoint['ema_state_dict'] = self.ema_model.state_dict()

    def before_val_epoch(self, runner):
        """Leave the model as it is."""

    def after_val_epoch(self, runner, metrics=None):
        """Leave the model as it is."""

    def before_test_epoch(self, runner):
        """Leave the model as it is."""

    def after_test_epoch(self, runner, metrics=None):
        """Leave the model as it is."""
