"""Fused backbones for inference: in the tools, and as a hook for any mmdet or mmseg project."""
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import HOOKS

from ..backbone import XCiT


def fuse_backbones(model):
    """Fuse every `xcit_dense.XCiT` in a model (see `XCiT.fuse`) and return the model."""
    for module in model.modules():
        if isinstance(module, XCiT):
            module.fuse()
    return model


@HOOKS.register_module()
class FuseHook(Hook):
    """Fuses the backbone before a test run: ``custom_hooks=[dict(type='FuseHook')]``. Training runs are left alone."""

    def before_test(self, runner):
        """Fuse, unless `EMAHook` will exchange parameters with an average that is not fused."""
        if any(isinstance(hook, EMAHook) for hook in runner.hooks):
            runner.logger.info('the backbone is not fused: EMAHook exchanges its parameters')
        else:
            fuse_backbones(runner.model)
