"""Strided convolutions of stem and pyramid; on a CPU with a faster gradient of their weights.

torch's weight gradient of these layers runs at a third to a half of the machine's matrix rate on channels-last maps.
Here it is a product of the small map with patches of the large one, gathered band by band in the cache. Forward and
backward on 2 cores of an AMD EPYC, small 12 patch 8 at 800 x 1280: stem 1214 to 991 ms, first level 607 to 343 ms.
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import pieces


class StridedConv2d(nn.Conv2d):
    """3x3 convolution with stride 2 and padding 1, without bias: (B, C, H, W) to (B, C', ceil(H/2), ceil(W/2))."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__(in_channels, out_channels, kernel_size=3, stride=2, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if _is_plain(x, self):
            return super().forward(x)
        return _Strided.apply(x, self.weight, self.bias, 1, False)


class Upsample2(nn.ConvTranspose2d):
    """2x2 transposed convolution with stride 2: (B, C, H, W) to (B, C, 2H, 2W)."""

    def __init__(self, channels: int):
        super().__init__(channels, channels, kernel_size=2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        if _is_plain(x, self):
            return super().forward(x)
        return _Strided.apply(x, self.weight, self.bias, 0, True)


def _is_plain(x, module):
    """Whether torch's own layer serves: without a CPU's weight gradient there is nothing to gain."""
    return (x.device.type != 'cpu' or pieces.is_traced() or not torch.is_grad_enabled()
            or x.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled('cpu')
            or not module.weight.requires_grad or module.in_channels < 16)


class _Strided(torch.autograd.Function):
    """Convolution or transposed convolution with stride 2."""

    @staticmethod
    def forward(ctx, x, weight, bias, padding, transposed):
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.transposed = padding, transposed
        conv = F.conv_transpose2d if transposed else F.conv2d
        return conv(x, weight, bias, stride=2, padding=padding)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.ops.aten.convolution_backward(
                grad, x, weight, None, (2, 2), (ctx.padding, ctx.padding), (1, 1), ctx.transposed, (0, 0), 1,
                (True, False, False))[0]
        if ctx.needs_input_grad[1]:
            small, large = (x, grad) if ctx.transposed else (grad, x)
            grad_weight = _weight_gradient(small, large, weight.shape[2], ctx.padding)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.sum((0, 2, 3))
        return grad_x, grad_weight, grad_bias, None, None


def _weight_gradient(small, large, size, padding):
    """Sum over the places of ``small`` (B, I, h, w) of its value times the patch of ``large`` (B, J, H, W) there.

    Patches have ``size`` rows and columns and lie 2 apart, the first one ``padding`` outside: (I, J, size, size).
    """
    B, rows_out, height, width = small.shape
    J = large.shape[1]
    total = small.new_zeros(rows_out, size * size * J)
    rows = max(1, pieces.PIECE_FLOATS // (2 * width * J))
    for b in range(B):
        source = large[b].permute(1, 2, 0)  # (H, W, J)
        for part in pieces.divide(height, -(-height // rows)):
            patches = small.new_zeros(part.stop - part.start, width, size, size, J)
            for i in range(size):
                to_rows, from_rows = _overlap(part.start, part.stop, i - padding, source.shape[0])
                for j in range(size):
                    to_columns, from_columns = _overlap(0, width, j - padding, source.shape[1])
                    patches[to_rows, to_columns, i, j] = source[from_rows, from_columns]
            total.addmm_(small[b, :, part].flatten(1), patches.view(-1, size * size * J))
    return total.view(rows_out, size, size, J).permute(0, 3, 1, 2).contiguous()


def _overlap(start, stop, shift, length):
    """Of the places 2 p + shift, for p from ``start`` to ``stop``, those in ``range(length)``: slices of p - start and
    of the places.
    """
    first, last = max(start, -(shift // 2)), min(stop - 1, (length - 1 - shift) // 2)
    return slice(first - start, last + 1 - start), slice(2 * first + shift, 2 * last + shift + 1, 2)
