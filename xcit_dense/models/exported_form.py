"""The backbone in the form that is fastest in runtimes.

It is the fused model, whose blocks are traced in the Gram form of XCA, with two changes that only help runtimes:

- An upsampling of the pyramid is a linear layer and a transposition instead of a transposed convolution. In float32
  that costs the same; in int8 it is a matrix product, for which onnxruntime has a kernel.
- The residual sum of LPI is computed on the map, before it becomes tokens again. Otherwise OpenVINO first reorders the
  map if sizes are not fixed (small 12 patch 16 at 512 x 512: 1.08 times as fast; onnxruntime 0.98 times).
"""
import copy

from torch import Tensor, nn

from . import fast
from .backbone import XCiT
from .block import XCABlock, is_as_built
from .drop_path import DropPath
from .fast import is_doubling, is_gelu, is_untouched
from .lpi import LPI
from .pyramid import PYRAMID_STRIDES
from .tokens import map_to_tokens, tokens_to_map


def to_exported_form(backbone: XCiT) -> XCiT:
    """Return a copy of a backbone, in evaluation mode, whose traced graph is fastest in runtimes.

    Its outputs differ from those of ``backbone`` only by rounding: relative 1e-5 at most in float32. What was
    replaced, wrapped or hooked is traced as it is.

    Args:
        backbone: The model, fused or not; it is not changed.
    """
    exported = copy.deepcopy(backbone).fuse()
    for block in exported.blocks:
        if (is_as_built(block) and type(block.local_mp) is LPI and type(block.drop_path) is DropPath
                and is_untouched(block.local_mp, block.drop_path)):
            block.__class__ = _Block
    for stride in exported.out_strides or ():
        name = f'fpn{PYRAMID_STRIDES.index(stride) + 1}'
        layers = _layers_of_doubling(getattr(exported, name))
        if layers:
            setattr(exported, name, _Doubled(layers))
    return exported


class _Block(XCABlock):
    """The block, in evaluation mode, with the residual sum of LPI on the map."""

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        y = fast.attend(self, x)  # when traced, in ordinary operations
        x = x + self.gamma1 * self.attn(self.norm1(x)) if y is None else y
        lpi = self.local_mp
        y = lpi.conv2(lpi.bn(lpi.act(lpi.conv1(tokens_to_map(self.norm3(x), height, width)))))
        x = map_to_tokens(tokens_to_map(x, height, width) + self.gamma3.view(-1, 1, 1) * y)
        return x + self.gamma2 * self.mlp(self.norm2(x))


def _layers_of_doubling(level):
    """Return the one or two doublings of a level and the GELU between them; None if there is anything else."""
    if type(level) is not nn.Sequential or not is_untouched(level):
        return None
    layers = [layer for layer in level if type(layer) is not nn.Identity]
    kinds = ''.join('d' if is_doubling(layer) else 'g' if is_gelu(layer) else '?' for layer in layers)
    return layers if kinds in ('d', 'dgd') and is_untouched(*layers) else None


class _Doubled(nn.Module):
    """A level that outputs 2 x 2 or 4 x 4 cells for each one: every doubling is a linear layer to 4 C channels.

    Args:
        layers: Transposed convolutions, and GELU between two of them.
    """

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(_linear_of(layer) if is_doubling(layer) else layer for layer in layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, h, w) to (B, C, 2h, 2w) or (B, C, 4h, 4w)."""
        B, _, height, width = x.shape
        x = x.permute(0, 2, 3, 1)
        times = 1
        for layer in self.layers:
            x = layer(x)
            if isinstance(layer, nn.Linear):
                x = x.unflatten(-1, (2, 2, -1))  # (B, h, w, 2, 2, ..., C)
                times *= 2
        rows = range(3, x.dim() - 1, 2)  # axes of the cells' rows; their columns follow each
        x = x.permute(0, 1, *rows, 2, *(axis + 1 for axis in rows), x.dim() - 1)
        return x.reshape(B, times * height, times * width, -1).permute(0, 3, 1, 2)


def _linear_of(conv):
    """Return the linear layer from a cell to the 2 x 2 cells of a transposed convolution, row by row."""
    linear = nn.Linear(conv.in_channels, 4 * conv.out_channels, conv.bias is not None)
    linear.weight = nn.Parameter(conv.weight.detach().permute(2, 3, 1, 0).flatten(0, 2).contiguous(), False)
    if conv.bias is not None:
        linear.bias = nn.Parameter(conv.bias.detach().repeat(4), False)
    return linear
