"""From token maps of one stride to a feature pyramid, as the authors' dense models do it."""
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from .fast.convs import Upsample2
from .fast.norms import is_fusable, norm_act

#: Strides that the pyramid can give, in the order of the released names fpn1 to fpn4.
PYRAMID_STRIDES = (4, 8, 16, 32)


def build_level(embed_dims: int, patch_size: int, stride: int, norm) -> nn.Module:
    """Build the layers that turn a token map of stride ``patch_size`` into a map of ``stride``.

    Args:
        embed_dims: Channels C, the same on both sides.
        patch_size: 8 or 16.
        stride: One of `PYRAMID_STRIDES`.
        norm: Callable that makes a batch norm for a number of channels.

    Returns:
        A module from (B, C, Hp, Wp) to (B, C, Hp * p / stride, Wp * p / stride), rounded down.
    """

    if stride > patch_size:
        return nn.MaxPool2d(kernel_size=stride // patch_size)
    if stride == patch_size:
        return nn.Identity()
    if stride * 2 == patch_size:
        return nn.Sequential(Upsample2(embed_dims))
    return UpsampleTwice(Upsample2(embed_dims), norm(embed_dims), nn.GELU(), Upsample2(embed_dims))


class UpsampleTwice(nn.Sequential):
    """Two transposed convolutions with a norm and GELU between them."""

    def forward(self, x):
        first, norm, _, second = self
        return second(norm_act(first(x), norm, gelu=True))


def fuse_level(level: nn.Module):
    """Take the batch norm of a level of `build_level` into the convolution before it, for inference."""
    if isinstance(level, UpsampleTwice) and is_fusable(level[1]):
        level[0], level[1] = fuse_conv_bn_eval(level[0], level[1], transpose=True), nn.Identity()
