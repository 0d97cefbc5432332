"""Stem, Fourier positions, and the block that puts XCA, LPI and FFN together.

Attribute names are those of the authors' released checkpoints, misspelling included, so that
published weights load by name.
"""
import math

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..archs import Arch
from .fast import pieces
from .fast.convs import StridedConv2d
from .fast.ffn import FFN
from .fast.lpi import LPI
from .fast.norms import is_fusable, norm_act
from .fast.xca import XCA


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
            layers += [nn.Sequential(StridedConv2d(in_channels, width), norm(width)), nn.GELU()]
            in_channels, reduction = width, reduction // 2
        self.proj = nn.Sequential(*layers[:-1])  # no GELU after the last

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, in_channels, H, W) to (B, C, Hp, Wp) with Hp = ceil(H / patch), Wp alike."""
        x = x.contiguous(memory_format=torch.channels_last)  # the layout of tokens, and of the fastest convolutions
        for i in range(0, len(self.proj), 2):
            conv, norm = self.proj[i]
            x = norm_act(conv(x), norm, gelu=i + 1 < len(self.proj))
        return x

    @torch.no_grad()
    def fuse(self):
        """Take the batch norms into the convolutions, for inference."""
        for layer in self.proj:
            if isinstance(layer, nn.Sequential) and is_fusable(layer[1]):
                layer[0], layer[1] = fuse_conv_bn_eval(*layer), nn.Identity()


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
        self._codes = {}  # by length, type and device

    def forward(self, height: int, width: int) -> Tensor:
        """Return the code of a grid, (C, height, width).

        A 1x1 convolution over concatenated row and column codes is the sum of a linear map of the
        row and one of the column, so the code of the grid is never built.
        """
        conv = self.token_projection
        rows, columns = conv.weight.flatten(1).split(self.channels_per_axis, dim=1)  # rows come first
        y = F.linear(self._code(height), rows)  # (height, C)
        x = F.linear(self._code(width), columns, conv.bias)  # (width, C)
        return (y.unsqueeze(1) + x).permute(2, 0, 1)  # channels last in memory, as the stem's map

    def _code(self, length: int) -> Tensor:
        """Return sines (even channels) and cosines (odd) of the 1-based positions, (length, channels_per_axis)."""
        weight = self.token_projection.weight
        key = length, weight.dtype, weight.device
        if not torch.compiler.is_compiling() and key in self._codes:
            return self._codes[key]
        # half types cannot count to the sizes of this task: at least float32 until the code is made
        dtype = pieces.statistics_dtype(weight)
        with torch.inference_mode(False):  # what is kept may serve a training step next
            position = torch.arange(1, length + 1, dtype=dtype, device=weight.device)
            position = position * (2 * math.pi / (length + 1e-6))
            channel = torch.arange(0, self.channels_per_axis, 2, dtype=dtype, device=weight.device)
            angle = position[:, None] / self.temperature**(channel / self.channels_per_axis)
            code = torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1).to(weight.dtype)
        if type(code) is Tensor and not torch.compiler.is_compiling():  # not the stand-ins of a tracer
            if len(self._codes) == 256:
                self._codes.clear()
            self._codes[key] = code
        return code


class XCABlock(nn.Module):
    """One XCiT block: XCA, LPI and FFN, each with layer norm, LayerScale, stochastic depth and residual.

    The branches read the weights of the layers in them and do not call those: forward hooks on a layer inside a block
    do not fire, and a layer put in its place is not called. Hooks on blocks are. There are no second derivatives.

    Args:
        arch: The size.
        norm: Callable that makes a batch norm for a number of channels.
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
        self.gamma1 = nn.Parameter(torch.full((C, ), float(arch.eta)))
        self.gamma2 = nn.Parameter(torch.full((C, ), float(arch.eta)))
        self.gamma3 = nn.Parameter(torch.full((C, ), float(arch.eta)))
        self.drop_path_rate = drop_path_rate

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Map tokens (B, N, C) of a grid with N = height * width to tokens (B, N, C)."""
        x = x.to(torch.promote_types(x.dtype, self.mlp.fc2.weight.dtype))  # under autocast the stem gives a half type
        x = self.attn.residual(x, self.norm1, *self._factors(x, self.gamma1))
        # LPI before the FFN although its norm is number 3: so are the released models
        x = self.local_mp.residual(x, self.norm3, *self._factors(x, self.gamma3), height, width)
        return self.mlp.residual(x, self.norm2, *self._factors(x, self.gamma2))

    def _factors(self, x, gamma):
        """LayerScale (C), which the branch takes into its weights, and the factor of each sample (B); None for ones."""
        keep = self._draw_keep(x)
        if gamma is not None and pieces.compute_dtype(x) == torch.float16 and not pieces.is_traced():
            # a LayerScale of 1e-5 would push the weights out of float16's range
            scale = pieces.power_of_two(gamma, 0)
            gamma, keep = gamma / scale, scale.expand(len(x)) if keep is None else keep * scale
        return gamma, keep

    @torch.no_grad()
    def fuse(self):
        """Take norms' affine parts, batch norm and LayerScale into the weights beside them, for inference."""
        self.attn.fuse(self.norm1, self.gamma1)
        self.local_mp.fuse(self.norm3, self.gamma3)
        self.mlp.fuse(self.norm2, self.gamma2)
        self.gamma1 = self.gamma2 = self.gamma3 = None
        for norm in (self.norm1, self.norm2, self.norm3):
            norm.weight = norm.bias = None

    def _draw_keep(self, x):
        """Stochastic depth: the factor of each sample (B), 0 or 1 / (1 - rate); None outside of training."""
        if not self.training or self.drop_path_rate == 0:
            return None
        kept = torch.rand(len(x), device=x.device) >= self.drop_path_rate
        return kept.to(pieces.statistics_dtype(x)) / (1 - self.drop_path_rate)
