"""The feed-forward network of a block."""
from torch import Tensor, nn


class FFN(nn.Module):
    """C -> hidden_dims -> C with exact GELU, on every token."""

    def __init__(self, embed_dims: int, hidden_dims: int):
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Map normed tokens (B, N, C) to tokens (B, N, C)."""
        return self.fc2(self.act(self.fc1(x)))
