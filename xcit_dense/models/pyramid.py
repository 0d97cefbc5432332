"""From token maps of one stride to a feature pyramid, as in the authors' dense models."""
import torch
import torch.nn.functional as F
from torch import nn

#: Strides that the pyramid can output, in the order of the released names fpn1 to fpn4.
PYRAMID_STRIDES = (4, 8, 16, 32)


def build_level(embed_dims: int, patch_size: int, stride: int, norm) -> nn.Module:
    """Build the layers that turn a token map of stride ``patch_size`` into a map of ``stride``.

    It maps (B, C, Hp, Wp) to (B, C, Hp * p / stride, Wp * p / stride), rounded down, at least 1.
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
        height, width = x.shape[-2:]
        if self._may_be_small(x, height, width):
            bottom, right = (torch.sym_max(self.kernel_size - side, 0) for side in (height, width))
            x = F.pad(x, (0, right, 0, bottom), value=-torch.inf)
        return super().forward(x)

    def _may_be_small(self, x, height, width):
        if isinstance(x, torch.fx.Proxy):
            return True
        if torch.jit.is_tracing():  # a graph for the sizes that it is traced with
            return False
        if torch.compiler.is_exporting():  # a graph for a range of sizes
            from torch.fx.experimental.symbolic_shapes import statically_known_true
            return not all(statically_known_true(side >= self.kernel_size) for side in (height, width))
        return min(height, width) < self.kernel_size


def _double(channels):
    return nn.ConvTranspose2d(channels, channels, kernel_size=2, stride=2)
