"""The norm of stem, LPI and pyramid, by its config."""
import torch
from mmcv.cnn import build_norm_layer
from mmengine.registry import MODELS
from mmengine.utils.dl_utils.parrots_wrapper import SyncBatchNorm
from torch import Tensor, nn


def make_norm_factory(norm_cfg: dict):
    """Return a callable that builds the 2-d norm of ``norm_cfg`` for a number of channels.

    Raises:
        ValueError: ``norm_cfg`` is no dict with a ``type`` that the registry knows. The callable raises it where
            no such norm can be built.
    """
    if not isinstance(norm_cfg, dict) or 'type' not in norm_cfg:
        raise ValueError(f"norm_cfg must be a dict with a type, such as dict(type='BN'), got {norm_cfg!r}")
    if isinstance(norm_cfg['type'], str) and MODELS.get(norm_cfg['type']) is None:
        raise ValueError(f"norm_cfg: unknown type {norm_cfg['type']!r}; known are BN, SyncBN, GN and what is "
                         "registered in mmengine's MODELS")

    def build(channels):
        try:
            norm = build_norm_layer(norm_cfg, channels)[1]
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f'norm_cfg {norm_cfg!r} makes no norm of {channels} channels: {error}') from error
        if type(norm) is nn.LayerNorm:
            raise ValueError(f'norm_cfg must be a norm of maps (B, C, H, W) such as BN, SyncBN or GN, got {norm_cfg!r}')
        if type(norm) is nn.InstanceNorm2d:
            norm.__class__ = InstanceNorm2d
        if type(norm) is SyncBatchNorm:  # the same, and a class of torch's own, which torch.fx does not look into
            norm.__class__ = nn.SyncBatchNorm
        return norm

    return build


class InstanceNorm2d(nn.InstanceNorm2d):
    """Instance norm with right gradients.

    torch's own are wrong on a CPU for a batch of one where the incoming gradient is channels last, as it is
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
