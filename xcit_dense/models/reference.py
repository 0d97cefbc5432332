"""XCiT as in the authors' code, written in ordinary operations: the reference, and the file to copy.

`XCiT` is tested and benchmarked against this model. To change the network, copy this file into your project, rename
the class, register it, and edit ``forward`` and what follows.
"""
import math

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS

from xcit_dense.models.backbone import XCiT
from xcit_dense.models.pyramid import PYRAMID_STRIDES


@MODELS.register_module()
class ReferenceXCiT(XCiT):
    """The authors' form: token-form XCA, LayerScale as a separate product, everything saved for the backward.

    Constructor, parameters and state dict are those of `XCiT`. The forward pass is written separately, so that a
    mistake in either of them shows. It calls the layers in `attn`, `local_mp` and `mlp` of a block, not these modules.
    """

    def forward(self, x):
        """Map images (B, in_channels, H, W) to the maps of `XCiT.forward`.

        Raises:
            ValueError: ``with_cp`` is set; the authors' form keeps everything.
        """
        if self.with_cp:
            raise ValueError('with_cp must be False, got True: ReferenceXCiT has no activation checkpointing')
        x = self.patch_embed.proj(x)
        height, width = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2)  # (B, N, C)
        positions = self.pos_embeder.token_projection(self._code(height, width))
        x = x + positions.flatten(2).transpose(1, 2)
        maps = []
        for i, block in enumerate(self.blocks):
            for gamma, branch in ((block.gamma1, _attend), (block.gamma3, _mix_locally), (block.gamma2, _feed)):
                x = x + _drop_path(gamma * branch(block, x, height, width), block.drop_path.rate, self.training)
            if i in self.out_indices:
                maps.append(_to_map(x, height, width).contiguous())
        if self.out_strides is None:
            return tuple(maps)
        levels = (getattr(self, f'fpn{PYRAMID_STRIDES.index(stride) + 1}') for stride in self.out_strides)
        return tuple(level(x) for level, x in zip(levels, maps, strict=True))

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


def _attend(block, x, height, width):
    """XCA with queries, keys and values of every token."""
    attn, x = block.attn, block.norm1(x)
    B, N, C = x.shape
    heads = attn.num_heads
    qkv = attn.qkv(x).reshape(B, N, 3, heads, C // heads).permute(2, 0, 3, 1, 4)  # (3, B, h, N, d)
    q, k, v = (part.transpose(-2, -1) for part in qkv)  # (B, h, d, N)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    attention = (q @ k.transpose(-2, -1) * attn.temperature).softmax(dim=-1)  # (B, h, d, d)
    attention = F.dropout(attention, attn.drop_rate, attn.training)
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
    """Stochastic depth: each sample skips the branch with probability ``rate``, the others are scaled up."""
    if not training or rate == 0:
        return x
    kept = torch.empty(x.shape[0], 1, 1, dtype=x.dtype, device=x.device).bernoulli_(1 - rate)
    return x * (kept / (1 - rate))


def _to_map(x, height, width):
    """Tokens (B, N, C) as a map (B, C, height, width)."""
    return x.permute(0, 2, 1).reshape(x.shape[0], x.shape[2], height, width)
