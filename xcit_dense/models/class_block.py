"""The class-attention block; the classifier ends with two of them (paper, section 3.3)."""
import torch
from torch import Tensor, nn

from ..archs import Arch
from .class_attention import ClassAttention
from .ffn import FFN


class ClassAttentionBlock(nn.Module):
    """One class-attention block, as the authors' code computes it.

    Patch tokens change too: by ``norm1``, with ``arch.tokens_norm`` by ``norm2``, and by the factor 2 in the last line.
    """

    def __init__(self, arch: Arch):
        super().__init__()
        C = arch.embed_dims
        self.norm1 = nn.LayerNorm(C, eps=1e-6)
        self.attn = ClassAttention(C, arch.num_heads, arch.qkv_bias)
        self.norm2 = nn.LayerNorm(C, eps=1e-6)
        self.mlp = FFN(C, int(C * arch.mlp_ratio))
        self.gamma1, self.gamma2 = (nn.Parameter(torch.full((C, ), float(arch.eta))) for _ in range(2))
        self.tokens_norm = arch.tokens_norm

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, 1 + N, C), the class token first, to tokens (B, 1 + N, C)."""
        y = self.norm1(x)
        x = x + self.gamma1 * torch.cat((self.attn(y), y[:, 1:]), dim=1)
        if self.tokens_norm:
            x = self.norm2(x)
            token, others = x[:, :1], x[:, 1:]
        else:
            token, others = self.norm2(x[:, :1]), x[:, 1:]
        return torch.cat((token + self.gamma2 * self.mlp(token), 2 * others), dim=1)

    def weights(self, x: Tensor) -> Tensor:
        """Return the attention (B, h, 1 + N) of the class token to tokens (B, 1 + N, C) before the block."""
        return self.attn.weights(self.norm1(x))
