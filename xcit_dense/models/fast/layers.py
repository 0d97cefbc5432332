"""Stem and pyramid: sequences of strided convolutions, batch norms and GELUs.

On a CPU, strided convolutions have their own gradient of the weights: a product of the small map with patches of the
large one, gathered band by band in the cache. A training step of the stem of small 12 patch 8 at 800 x 1280 then takes
991 instead of 1214 ms, of the first level 343 instead of 607 ms (2 cores of an AMD EPYC).
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import ops
from .conditions import (
    are_plain,
    can_run,
    can_run_or_trace,
    is_batch_norm,
    is_doubling,
    is_gelu,
    is_halving,
    is_pointwise,
    is_untouched,
    weight_and_bias,
)
from .norms import NormAct, sync_group


def run(module: nn.Module, x: Tensor) -> Tensor:
    """Return ``module(x)`` of a map (B, C, H, W); layers that nobody modified run in fast forms.

    On devices other than a CPU, only the memory layout changes.
    """
    if not can_run(x):
        return module(x)
    x = x.contiguous(memory_format=torch.channels_last)  # the layout of tokens, and of the fastest convolutions
    if x.device.type != 'cpu':
        return module(x)
    layers = _flatten(module)
    while layers:
        layer = layers.pop(0)
        if not is_untouched(layer):
            x = layer(x)
        elif is_halving(layer) or is_doubling(layer):
            x = strided(x, layer) if are_plain(weight_and_bias(layer), x.dtype) else layer(x)
        elif is_batch_norm(layer) and sync_group(layer) is None and are_plain(weight_and_bias(layer), None):
            gelu = bool(layers) and is_gelu(layers[0]) and is_untouched(layers[0])
            x = NormAct.apply(x, layer.weight, layer.bias, layer, gelu)
            if gelu:
                layers.pop(0)
        else:
            x = layer(x)
    return x


def _flatten(module):
    """Return the layers of nested sequences, except sequences that must be called themselves."""
    if type(module) is not nn.Sequential or not is_untouched(module):
        return [module]
    return [layer for part in module for layer in _flatten(part)]


def project_code(conv: nn.Module, rows: Tensor, columns: Tensor):
    """Return a 1x1 convolution of the grid of ``rows`` (H, d) and ``columns`` (W, d): (1, C, H, W); None if modified.

    On concatenated codes it is the sum of a linear map of the row and one of the column. So the code of the grid is
    never built, and Inductor, which fails on its convolution on a CPU, can compile maps of any size.
    """
    if not (can_run_or_trace(rows) and is_pointwise(conv) and is_untouched(conv)
            and are_plain(weight_and_bias(conv), None)):
        return None
    weight_rows, weight_columns = conv.weight.flatten(1).split(rows.shape[1], dim=1)
    y, x = F.linear(rows, weight_rows), F.linear(columns, weight_columns, conv.bias)  # (H, C), (W, C)
    return (y.unsqueeze(1) + x).permute(2, 0, 1).unsqueeze(0)  # channels last in memory, as the stem's map


def strided(x: Tensor, conv) -> Tensor:
    """Run a 3x3 convolution with stride 2 and padding 1, or a 2x2 transposed one with stride 2."""
    if (not torch.is_grad_enabled() or x.dtype not in (torch.float32, torch.float64) or ops.is_autocast(x)
            or not conv.weight.requires_grad or conv.in_channels < 16):  # torch's own layer is as good
        return conv(x)
    return _Strided.apply(x, conv.weight, conv.bias, conv.padding[0], conv.transposed)


class _Strided(torch.autograd.Function):
    """Convolution or transposed convolution with stride 2."""

    @staticmethod
    def forward(ctx, x, weight, bias, padding, transposed):
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.transposed = padding, transposed
        conv = F.conv_transpose2d if transposed else F.conv2d
        return conv(x, weight, bias, stride=2, padding=padding)

    @ops.first_derivative_only
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
    """Sum, over the positions of ``small`` (B, I, h, w), its value times the patch of ``large`` (B, J, H, W) there.

    Patches have ``size`` rows and columns and are 2 apart; the first one starts ``padding`` outside.

    Returns:
        (I, J, size, size).
    """
    B, rows_out, height, width = small.shape
    J = large.shape[1]
    total = small.new_zeros(rows_out, size * size * J)
    small, large = small.permute(0, 2, 3, 1), large.permute(0, 2, 3, 1)
    make_patches = small.new_zeros if padding else small.new_empty  # without padding, patches are inside
    rows = max(1, ops.CHUNK_FLOATS // (size * size * width * J))  # whose patches fill a chunk
    for samples in ops.split_range(B, -(-B // max(rows // height, 1))):
        for part in ops.split_range(height, -(-height // rows)):
            source, values = large[samples], small[samples, part]
            patches = make_patches(*values.shape[:3], size, size, J)
            for i in range(size):
                to_rows, from_rows = _overlap(part.start, part.stop, i - padding, source.shape[1])
                for j in range(size):
                    to_columns, from_columns = _overlap(0, width, j - padding, source.shape[2])
                    patches[:, to_rows, to_columns, i, j] = source[:, from_rows, from_columns]
            total.addmm_(values.flatten(0, 2).t(), patches.view(-1, size * size * J))
    return total.view(rows_out, size, size, J).permute(0, 3, 1, 2).contiguous()


def _overlap(start, stop, shift, length):
    """Return which positions 2 p + shift, for p from ``start`` to ``stop``, are in ``range(length)``: as slices of
    p - start and of the positions.
    """
    first, last = max(start, -(shift // 2)), min(stop - 1, (length - 1 - shift) // 2)
    return slice(first - start, last + 1 - start), slice(2 * first + shift, 2 * last + shift + 1, 2)
