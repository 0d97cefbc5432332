"""Class attention: one token attends to all tokens (CaiT, arXiv 2103.17239, section 3; XCiT paper, section 3.3)."""
from torch import Tensor, nn


class ClassAttention(nn.Module):
    """Attention with one query, that of the class token. The cost is linear in the number of tokens.

    Arguments are those of `XCA`: channels C, heads h of d = C / h channels, and the bias of queries, keys and values.
    """

    def __init__(self, embed_dims: int, num_heads: int, qkv_bias: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dims, embed_dims * 3, bias=qkv_bias)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Map normed tokens (B, 1 + N, C), the class token first, to the output for the class token (B, 1, C)."""
        q, k, v = self._project(x)
        return self.proj((self._attend(q, k) @ v).transpose(1, 2).flatten(2))  # (B, h, 1, d) to (B, 1, C)

    def weights(self, x: Tensor) -> Tensor:
        """Return the attention (B, h, 1 + N) of the class token to normed tokens (B, 1 + N, C), to itself first."""
        q, k, _ = self._project(x)
        return self._attend(q, k).squeeze(2)

    def _project(self, x):
        """Return the query (B, h, 1, d) of the class token, and keys and values (B, h, 1 + N, d) of all."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return q[:, :, :1], k, v

    def _attend(self, q, k):
        return (q * q.shape[-1]**-0.5 @ k.mT).softmax(dim=-1)  # (B, h, 1, 1 + N)
