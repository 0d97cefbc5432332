"""The norm of stem, LPI and pyramid, from its config."""
import torch
from mmcv.cnn import build_norm_layer
from mmengine.registry import MODELS
from mmengine.utils.dl_utils.parrots_wrapper import SyncBatchNorm
from torch import Tensor, nn


def make_norm_factory(norm_cfg: dict):
    """Return a callable that builds the 2-d norm of ``norm_cfg`` for a number of channels.

    Without a registered ``type``, `ValueError` is raised; if the norm cannot be built, the callable raises it.
    """
    if not isinstance(norm_cfg, dict) or 'type' not in norm_cfg:
        raise ValueError(f"norm_cfg must be a dict with a type, such as dict(type='BN'), got {norm_cfg!r}")
    if isinstance(norm_cfg['type'], str) and MODELS.get(norm_cfg['type']) is None:
        raise ValueError(f"norm_cfg: unknown type {norm_cfg['type']!r}; use BN, SyncBN, GN or another norm that is "
                         "registered in mmengine's MODELS")

    def build(channels):
        try:
            norm = build_norm_layer(norm_cfg, channels)[1]
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f'norm_cfg {norm_cfg!r} cannot build a norm of {channels} channels: {error}') from error
        if type(norm) is nn.LayerNorm:
            raise ValueError(f'norm_cfg must be a norm of maps (B, C, H, W) such as BN, SyncBN or GN, got {norm_cfg!r}')
        if type(norm) is nn.InstanceNorm2d:
            norm.__class__ = InstanceNorm2d
        if type(norm) is SyncBatchNorm:  # the same as torch's own class, which torch.fx does not trace into
            norm.__class__ = nn.SyncBatchNorm
        return norm

    return build


class InstanceNorm2d(nn.InstanceNorm2d):
    """Instance norm with correct gradients.

    On a CPU, torch's own are wrong for a batch of one if the incoming gradient is channels last, as it is
    everywhere in this model (seen with torch 2.14).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape."""
        return _with_contiguous_gradient(super().forward(x))


@torch.fx.wrap
def _with_contiguous_gradient(x):
    if x.requires_grad:
        x.register_hook(Tensor.contiguous)
    return x
