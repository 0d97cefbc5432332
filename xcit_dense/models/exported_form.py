"""The backbone in the form that is fastest in runtimes.

It is the fused model, whose blocks are traced in the Gram form of XCA, and compute the residual sum of LPI on the map,
before it becomes tokens again. Otherwise OpenVINO first reorders the map if sizes are not fixed (small 12 patch 16 at
512 x 512: 1.08 times as fast; onnxruntime 0.98 times).
"""
import copy

from torch import Tensor

from . import fast
from .backbone import XCiT
from .block import XCABlock, is_as_built
from .drop_path import DropPath
from .fast import is_untouched
from .lpi import LPI
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
