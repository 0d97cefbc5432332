"""Cross-covariance attention (XCA): attention between channels instead of tokens (paper, section 3.2)."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class XCA(nn.Module):
    r"""Cross-covariance attention.

    Per head, with queries Q, keys K and values V of shape (d, N),

    .. math:: \text{softmax}(\tau \, \hat Q \hat K^T) \, V,

    where the hat is the l2 norm over the N tokens. The attention matrix is d x d, so the cost is linear in N.

    Args:
        embed_dims: Channels C.
        num_heads: Heads h; each has d = C / h channels and its own temperature.
        qkv_bias: Whether the query-key-value projection has a bias.
        drop_rate: Probability that an entry of the attention matrix is dropped in training.
    """

    def __init__(self, embed_dims: int, num_heads: int, qkv_bias: bool = True, drop_rate: float = 0.):
        super().__init__()
        self.num_heads = num_heads
        self.drop_rate = drop_rate
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(embed_dims, embed_dims * 3, bias=qkv_bias)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Map normed tokens (B, N, C) to tokens (B, N, C)."""
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 4, 1)  # three of (B, h, d, N)
        attn = (unit(q) @ unit(k).transpose(-2, -1) * self.temperature).softmax(dim=-1)  # (B, h, d, d)
        attn = F.dropout(attn, self.drop_rate, self.training).to(v.dtype)
        x = attn @ v  # (B, h, d, N)
        return self.proj(x.permute(0, 3, 1, 2).reshape(B, N, C))


@torch.fx.wrap  # the types are not known when torch.fx traces a model
def unit(x: Tensor) -> Tensor:
    """Scale the last axis, the tokens, to length 1.

    The length is computed in float32 at least: over tens of thousands of tokens the squares overflow
    float16, in which the eps of 1e-12 is zero.
    """
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
    return (x / length.clamp_min(1e-12)).to(x.dtype)
