"""From token maps of one stride to a feature pyramid, as in the authors' dense models."""
import torch
import torch.nn.functional as F
from torch import nn

#: Strides that the pyramid can output, in the order of the released names fpn1 to fpn4.
PYRAMID_STRIDES = (4, 8, 16, 32)


def build_level(embed_dims: int, patch_size: int, stride: int, norm) -> nn.Module:
    """Build the layers that turn a token map of stride ``patch_size`` into a map of ``stride``.

    Args:
        embed_dims: Channels C, the same on both sides.
        patch_size: 8 or 16.
        stride: One of `PYRAMID_STRIDES`.
        norm: Callable that builds a batch norm for a number of channels.

    Returns:
        A module from (B, C, Hp, Wp) to (B, C, Hp * p / stride, Wp * p / stride), rounded down, at least 1.
    """
    if stride > patch_size:
        return MaxPool(kernel_size=stride // patch_size)
    if stride == patch_size:
        return nn.Identity()
    if stride * 2 == patch_size:
        return nn.Sequential(_double(embed_dims))
    return nn.Sequential(_double(embed_dims), norm(embed_dims), nn.GELU(), _double(embed_dims))


class MaxPool(nn.MaxPool2d):
    """Max pooling, also of maps with a side below its kernel, such as those of strips: of the cells that are there."""

    def forward(self, x):
        """Pool a map (B, C, H, W)."""
        # a graph that is exported is for all sizes; one that is traced is for those of its maps, which have the cells
        if isinstance(x, torch.fx.Proxy) or torch.compiler.is_exporting() or (
                not torch.jit.is_tracing() and min(x.shape[-2:]) < self.kernel_size):
            height, width = x.shape[-2:]
            bottom, right = (torch.sym_max(self.kernel_size - side, 0) for side in (height, width))
            x = F.pad(x, (0, right, 0, bottom), value=-torch.inf)
        return super().forward(x)


def _double(channels):
    return nn.ConvTranspose2d(channels, channels, kernel_size=2, stride=2)
