"""Hooks for the backbones of a run, in any mmdet or mmseg project: fused for inference, compiled for training."""
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import HOOKS

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
        if any(isinstance(hook, EMAHook) for hook in runner.hooks):
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
