"""From an image to tokens: 3x3 convolutions with stride 2 (paper, section 3.4)."""
from torch import Tensor, nn

from . import fast


class ConvPatchEmbed(nn.Module):
    """Stem of the authors' dense models: three convolutions for patch 8, four for 16, each with a ``norm``."""

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, norm):
        super().__init__()
        layers, reduction = [], patch_size // 2
        while reduction >= 1:
            width = embed_dims // reduction
            conv = nn.Conv2d(in_channels, width, kernel_size=3, stride=2, padding=1, bias=False)
            layers += [nn.Sequential(conv, norm(width)), nn.GELU()]
            in_channels, reduction = width, reduction // 2
        self.proj = nn.Sequential(*layers[:-1])  # no GELU after the last

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, in_channels, H, W) to (B, C, Hp, Wp) with Hp = ceil(H / patch), Wp = ceil(W / patch)."""
        return fast.run(self.proj, x)
