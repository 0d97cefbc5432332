"""Hooks of a run in any project: backbones fused for inference or compiled for training, an average of the weights."""
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
        """Fuse, unless `EMAHook` will exchange parameters with an average that is not fused."""
        if any(isinstance(hook, EMAHook) and not isinstance(hook, AverageHook) for hook in runner.hooks):
            runner.logger.info('the backbone is not fused: EMAHook exchanges its parameters')
        else:
            fuse_backbones(runner.model)


@HOOKS.register_module()
class CompileHook(Hook):
    """Trains the backbone under `torch.compile`, for any image size: ``custom_hooks=[dict(type='CompileHook')]``.

    The state dict stays as it is. On a CPU torch needs a C++ compiler for it.
    """

    def before_train(self, runner):
        """Compile; it happens at the first iteration and takes minutes."""
        for backbone in _backbones(runner.model):
            backbone.compile(dynamic=True)


@HOOKS.register_module()
class AverageHook(EMAHook):
    """Keeps a moving average of the weights beside the model, which itself is evaluated and saved.

    mmengine's `EMAHook` lets the average take the place of the model in evaluations and checkpoints. Here it stands
    in checkpoints as ``ema_state_dict``, from which a resumed run goes on, and nothing else is changed by it. Arguments
    are those of `EMAHook`.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._resumed = None

    def before_run(self, runner):
        """Make nothing yet: the model has no weights, and a test needs no average."""

    def after_load_checkpoint(self, runner, checkpoint):
        """Take the average of the run that goes on."""
        self._resumed = checkpoint.get('ema_state_dict') if is_resumed(runner) else None

    def before_train(self, runner):
        """Begin the average, or go on with it."""
        super().before_run(runner)
        if self._resumed is not None:
            self.ema_model.load_state_dict(self._resumed)
            self._resumed = None
        elif is_resumed(runner):
            runner.logger.warning('the checkpoint holds no average of the weights (AverageHook): it begins here')
        super().before_train(runner)

    def before_save_checkpoint(self, runner, checkpoint):
        """Save the average beside the model."""
        checkpoint['ema_state_dict'] = self.ema_model.state_dict()

    def before_val_epoch(self, runner):
        """Leave the model as it is."""

    def after_val_epoch(self, runner, metrics=None):
        """Leave the model as it is."""

    def before_test_epoch(self, runner):
        """Leave the model as it is."""

    def after_test_epoch(self, runner, metrics=None):
        """Leave the model as it is."""
