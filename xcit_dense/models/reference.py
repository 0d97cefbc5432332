"""XCiT in its released form: what `xcit_dense.XCiT` is measured and tested against."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from .backbone import XCiT
from .pyramid import PYRAMID_STRIDES


class PlainXCiT(XCiT):
    """The model as the authors run it: token-form XCA, LayerScale as a product of its own, everything saved.

    Constructor and state dict are those of `XCiT`. Only the parameters come from there: the forward pass is
    written out here, in ordinary operations, so that a mistake in one of the two shows. ``with_cp`` and
    ``attn_drop_rate`` have no effect, and there is nothing to fuse.
    """

    def forward(self, x):
        """Map images (B, in_channels, H, W) to the maps of `XCiT.forward`."""
        x = _run(self.patch_embed.proj, x)
        height, width = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2)  # (B, N, C)
        positions = self.pos_embeder.token_projection(self._code(height, width))
        x = x + positions.flatten(2).transpose(1, 2)
        maps = []
        for i, block in enumerate(self.blocks):
            for gamma, branch in ((block.gamma1, _attend), (block.gamma3, _mix_locally), (block.gamma2, _feed)):
                x = x + _drop_path(gamma * branch(block, x, height, width), block.drop_path_rate, self.training)
            if i in self.out_indices:
                maps.append(_to_map(x, height, width).contiguous())
        if self.out_strides is None:
            return tuple(maps)
        levels = (getattr(self, f'fpn{PYRAMID_STRIDES.index(stride) + 1}') for stride in self.out_strides)
        return tuple(_run(level, x) for level, x in zip(levels, maps, strict=True))

    def fuse(self):
        """Return the model as it is."""
        return self.eval()

    def _code(self, height, width):
        """Return sines and cosines of every row, then of every column, of a grid: (1, 64, height, width)."""
        weight = self.pos_embeder.token_projection.weight
        codes = []
        for length in (height, width):
            position = torch.arange(1, length + 1, dtype=torch.float32, device=weight.device) / (length + 1e-6)
            wave = 10000**(torch.arange(0, 32, 2, dtype=torch.float32, device=weight.device) / 32)
            angle = 2 * math.pi * position[:, None] / wave
            codes.append(torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1).t())  # (32, length)
        rows = codes[0][:, :, None].expand(-1, -1, width)
        columns = codes[1][:, None, :].expand(-1, height, -1)
        return torch.cat((rows, columns))[None].to(weight.dtype)


def _run(module, x):
    """Stem or level, with torch's own convolutions."""
    if isinstance(module, nn.Sequential):
        for part in module:
            x = _run(part, x)
        return x
    if isinstance(module, nn.ConvTranspose2d):
        return F.conv_transpose2d(x, module.weight, module.bias, stride=2)
    if isinstance(module, nn.Conv2d):
        return F.conv2d(x, module.weight, stride=2, padding=1)
    return module(x)


def _attend(block, x, height, width):
    """XCA with queries, keys and values of every token."""
    attn, x = block.attn, block.norm1(x)
    B, N, C = x.shape
    heads = attn.num_heads
    qkv = attn.qkv(x).reshape(B, N, 3, heads, C // heads).permute(2, 0, 3, 1, 4)  # (3, B, h, N, d)
    q, k, v = (part.transpose(-2, -1) for part in qkv)  # (B, h, d, N)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    attention = (q @ k.transpose(-2, -1) * attn.temperature).softmax(dim=-1)  # (B, h, d, d)
    return attn.proj((attention @ v).permute(0, 3, 1, 2).reshape(B, N, C))


def _mix_locally(block, x, height, width):
    """LPI on the token grid."""
    lpi = block.local_mp
    x = _to_map(block.norm3(x), height, width)
    x = lpi.conv2(lpi.bn(F.gelu(lpi.conv1(x))))
    return x.flatten(2).transpose(1, 2)


def _feed(block, x, height, width):
    """FFN of every token."""
    return block.mlp.fc2(F.gelu(block.mlp.fc1(block.norm2(x))))


def _drop_path(x, rate, training):
    """Stochastic depth: each sample skips the branch with probability ``rate``, the others make up for it."""
    if not training or rate == 0:
        return x
    kept = torch.empty(x.shape[0], 1, 1, dtype=x.dtype, device=x.device).bernoulli_(1 - rate)
    return x * (kept / (1 - rate))


def _to_map(x, height, width):
    """Tokens (B, N, C) as a map (B, C, height, width)."""
    return x.permute(0, 2, 1).reshape(x.shape[0], x.shape[2], height, width)
