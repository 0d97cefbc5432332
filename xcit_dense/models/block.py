"""The XCiT block: XCA, LPI and FFN, each with layer norm, LayerScale, stochastic depth and residual."""
import torch
from torch import Tensor, nn

from ..archs import Arch
from . import fast
from .drop_path import DropPath
from .ffn import FFN
from .lpi import LPI
from .xca import XCA


class XCABlock(nn.Module):
    """One block of XCiT (paper, figure 1).

    Each line of `forward` may run in a faster form that computes the same (`xcit_dense.models.fast`). If a layer of
    the line was replaced, wrapped or hooked, the line itself runs.

    Args:
        arch: The size.
        norm: Callable that builds a batch norm for a number of channels.
        drop_path_rate: Probability that a sample skips a branch in training.
        attn_drop_rate: Probability that an entry of the attention is dropped in training.
    """

    def __init__(self, arch: Arch, norm, drop_path_rate: float = 0., attn_drop_rate: float = 0.):
        super().__init__()
        C = arch.embed_dims
        self.norm1 = nn.LayerNorm(C, eps=1e-6)
        self.attn = XCA(C, arch.num_heads, arch.qkv_bias, attn_drop_rate)
        self.norm2 = nn.LayerNorm(C, eps=1e-6)
        self.mlp = FFN(C, int(C * arch.mlp_ratio))
        self.norm3 = nn.LayerNorm(C, eps=1e-6)
        self.local_mp = LPI(C, norm)
        self.gamma1, self.gamma2, self.gamma3 = (nn.Parameter(torch.full((C, ), float(arch.eta))) for _ in range(3))
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Map tokens (B, N, C) of a grid with N = height * width to tokens (B, N, C)."""
        y = fast.attend(self, x)  # None if the plain line must run
        x = x + self.drop_path(self.gamma1 * self.attn(self.norm1(x))) if y is None else y
        # LPI comes before the FFN although its norm is number 3, as in the released models
        y = fast.mix_neighbours(self, x, height, width)
        x = x + self.drop_path(self.gamma3 * self.local_mp(self.norm3(x), height, width)) if y is None else y
        y = fast.feed_forward(self, x)
        return x + self.drop_path(self.gamma2 * self.mlp(self.norm2(x))) if y is None else y
