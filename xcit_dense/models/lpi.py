"""Local patch interaction (LPI): mixing of neighbouring tokens (paper, section 3.3)."""
from torch import Tensor, nn

from .tokens import map_to_tokens, tokens_to_map


class LPI(nn.Module):
    """Two depthwise 3x3 convolutions on the token grid, with GELU and batch norm between them."""

    def __init__(self, embed_dims: int, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(embed_dims, embed_dims, kernel_size=3, padding=1, groups=embed_dims)
        self.act = nn.GELU()
        self.bn = norm(embed_dims)
        self.conv2 = nn.Conv2d(embed_dims, embed_dims, kernel_size=3, padding=1, groups=embed_dims)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Map normed tokens (B, N, C) of a grid with N = height * width to tokens (B, N, C)."""
        x = tokens_to_map(x, height, width)
        x = self.conv2(self.bn(self.act(self.conv1(x))))
        return map_to_tokens(x)
