"""The parts of an XCiT block and of its input: stem, Fourier positions, LPI, FFN, the block.

Attribute names are those of the authors' released checkpoints, misspelling included, so that
published weights load by name.
"""
import math

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks import DropPath
from mmengine.registry import MODELS
from torch import Tensor, nn

from .archs import Arch
from .xca import XCA


def make_norm_factory(norm_cfg: dict):
    """Return a callable that builds the 2-d norm of ``norm_cfg`` for a number of channels.

    Raises:
        ValueError: ``norm_cfg`` is no dict with a ``type`` that the registry knows. The callable raises it where
            no such norm can be built.
    """
    if not isinstance(norm_cfg, dict) or 'type' not in norm_cfg:
        raise ValueError(f"norm_cfg must be a dict with a type, such as dict(type='BN'), got {norm_cfg!r}")
    if isinstance(norm_cfg['type'], str) and MODELS.get(norm_cfg['type']) is None:
        raise ValueError(f"norm_cfg: unknown type {norm_cfg['type']!r}; known are BN, SyncBN, GN and what is "
                         "registered in mmengine's MODELS")

    def build(channels):
        try:
            norm = build_norm_layer(norm_cfg, channels)[1]
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f'norm_cfg {norm_cfg!r} makes no norm of {channels} channels: {error}') from error
        if type(norm) is nn.LayerNorm:
            raise ValueError(f'norm_cfg must be a norm of maps (B, C, H, W) such as BN, SyncBN or GN, got {norm_cfg!r}')
        return norm

    return build


class ConvPatchEmbed(nn.Module):
    """Stem of 3x3 convolutions with stride 2 (paper, section 3.4; parity with the released dense model).

    Args:
        in_channels: Channels of the image.
        embed_dims: Channels C of a token.
        patch_size: 8 (three convolutions) or 16 (four).
        norm: Callable that makes a batch norm for a number of channels.
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int, norm):
        super().__init__()
        layers = []
        reduction = patch_size // 2
        while reduction >= 1:
            width = embed_dims // reduction
            conv = nn.Conv2d(in_channels, width, kernel_size=3, stride=2, padding=1, bias=False)
            layers += [nn.Sequential(conv, norm(width)), nn.GELU()]
            in_channels, reduction = width, reduction // 2
        self.proj = nn.Sequential(*layers[:-1])  # no GELU after the last

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, in_channels, H, W) to (B, C, Hp, Wp) with Hp = ceil(H / patch), Wp alike."""
        return self.proj(x)


class FourierPositions(nn.Module):
    """Fourier code of the token positions, projected to C channels (paper, section 3.4).

    Args:
        embed_dims: Channels C.
    """
    channels_per_axis = 32
    temperature = 10000

    def __init__(self, embed_dims: int):
        super().__init__()
        self.token_projection = nn.Conv2d(2 * self.channels_per_axis, embed_dims, kernel_size=1)

    def forward(self, height: int, width: int) -> Tensor:
        """Return the code of a grid, (C, height, width).

        A 1x1 convolution over concatenated row and column codes is the sum of a linear map of the
        row and one of the column, so the code of the grid is never built.
        """
        conv = self.token_projection
        rows, columns = conv.weight.flatten(1).split(self.channels_per_axis, dim=1)  # rows come first
        y = F.linear(self._code(height), rows)  # (height, C)
        x = F.linear(self._code(width), columns, conv.bias)  # (width, C)
        return y.t().unsqueeze(2) + x.t().unsqueeze(1)

    def _code(self, length: int) -> Tensor:
        """Return sines (even channels) and cosines (odd) of the 1-based positions, (length, channels_per_axis)."""
        weight = self.token_projection.weight
        # half types cannot count to the sizes of this task: at least float32 until the code is made
        dtype = torch.promote_types(weight.dtype, torch.float32)
        position = torch.arange(1, length + 1, dtype=dtype, device=weight.device)
        position = position * (2 * math.pi / (length + 1e-6))
        channel = torch.arange(0, self.channels_per_axis, 2, dtype=dtype, device=weight.device)
        angle = position[:, None] / self.temperature**(channel / self.channels_per_axis)
        return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1).to(weight.dtype)


class LPI(nn.Module):
    """Local patch interaction: two depthwise 3x3 convolutions on the token grid (paper, section 3.3).

    Args:
        embed_dims: Channels C.
        norm: Callable that makes a batch norm for a number of channels.
    """

    def __init__(self, embed_dims: int, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(embed_dims, embed_dims, kernel_size=3, padding=1, groups=embed_dims)
        self.act = nn.GELU()
        self.bn = norm(embed_dims)
        self.conv2 = nn.Conv2d(embed_dims, embed_dims, kernel_size=3, padding=1, groups=embed_dims)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Map tokens (B, N, C) of a grid with N = height * width to tokens (B, N, C)."""
        x = tokens_to_map(x, height, width)
        return map_to_tokens(self.conv2(self.bn(self.act(self.conv1(x)))))


class FFN(nn.Module):
    """C -> hidden -> C with exact GELU, on every token.

    Args:
        embed_dims: Channels C.
        hidden_dims: Channels between the two linear layers.
    """

    def __init__(self, embed_dims: int, hidden_dims: int):
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, N, C) to tokens (B, N, C)."""
        return self.fc2(self.act(self.fc1(x)))


class XCABlock(nn.Module):
    """One XCiT block: XCA, LPI and FFN, each with layer norm, LayerScale, stochastic depth and residual.

    Args:
        arch: The size.
        norm: Callable that makes a batch norm for a number of channels.
        drop_path_rate: Probability that a sample skips a branch in training.
    """

    def __init__(self, arch: Arch, norm, drop_path_rate: float):
        super().__init__()
        C = arch.embed_dims
        self.norm1 = nn.LayerNorm(C, eps=1e-6)
        self.attn = XCA(C, arch.num_heads, arch.qkv_bias)
        self.norm2 = nn.LayerNorm(C, eps=1e-6)
        self.mlp = FFN(C, int(C * arch.mlp_ratio))
        self.norm3 = nn.LayerNorm(C, eps=1e-6)
        self.local_mp = LPI(C, norm)
        self.gamma1 = nn.Parameter(torch.full((C, ), float(arch.eta)))
        self.gamma2 = nn.Parameter(torch.full((C, ), float(arch.eta)))
        self.gamma3 = nn.Parameter(torch.full((C, ), float(arch.eta)))
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Map tokens (B, N, C) of a grid with N = height * width to tokens (B, N, C)."""
        x = x + self.drop_path(self.gamma1 * self.attn(self.norm1(x)))
        # LPI before the FFN although its norm is number 3: so are the released models
        x = x + self.drop_path(self.gamma3 * self.local_mp(self.norm3(x), height, width))
        return x + self.drop_path(self.gamma2 * self.mlp(self.norm2(x)))


def tokens_to_map(x: Tensor, height: int, width: int) -> Tensor:
    """View tokens (B, N, C) as a map (B, C, height, width), channels last in memory.

    In a compiled graph it is a copy: inductor cannot order the strides of the view when height and
    width are dynamic (seen with torch 2.14).
    """
    x = x.transpose(1, 2).unflatten(2, (height, width))
    return x.contiguous() if torch.compiler.is_compiling() else x


def map_to_tokens(x: Tensor) -> Tensor:
    """View a map (B, C, H, W) as tokens (B, H * W, C)."""
    return x.flatten(2).transpose(1, 2)
