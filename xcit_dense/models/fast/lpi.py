"""The LPI of a block: only its input is kept for the backward, and in inference it runs in bands of rows.

LayerScale is folded into the weight and bias of the second convolution.
"""
import torch
import torch.nn.functional as F
from torch import Tensor

from ..tokens import map_to_tokens, tokens_to_map
from . import ops
from .norms import (
    normalise,
    normalise_backward,
    running_statistics,
    statistics_for,
    sync_group,
    uses_batch,
)
from .switch import first_derivative_only
from .untouched import weight_and_bias


def parameters_of(lpi):
    """Return the parameters of an `LPI`."""
    return *weight_and_bias(lpi.conv1), *weight_and_bias(lpi.bn), *weight_and_bias(lpi.conv2)


def residual(x: Tensor, norm, gamma, keep, parameters, bn, height: int, width: int) -> Tensor:
    """Return x + keep * gamma * LPI(norm(x)); arguments as in `xcit_dense.models.fast.xca.residual`.

    ``bn`` is the batch norm, whose running statistics are updated or used.
    """
    if keep is None and not uses_batch(bn) and not torch.is_grad_enabled():
        return _infer(x, norm, gamma, parameters, bn, height, width)
    return _LPIResidual.apply(x, keep, height, width, norm[2], bn, *norm[:2], *parameters, gamma)


@torch.no_grad()
def _infer(x, norm, gamma, parameters, bn, height, width):
    """Compute `residual` one band of rows after the other, so that what is between the layers stays in the cache."""
    out, dtype = torch.empty_like(x), ops.compute_dtype(x)
    weight1, bias1, bn_weight, bn_bias, weight2, bias2 = parameters
    with ops.no_autocast(x):
        mean, rstd = running_statistics(bn)
        first = ops.scaled_rows(weight1, bias1, None, dtype)
        second, bias = ops.scaled_rows(weight2, bias2, gamma, dtype)
        inside, outside = ops.places_of_bias(x, bias)
        for b, top, bottom in _bands(x, height, width):
            # rows that conv2 reads of the band, and that conv1 reads for those
            top2, bottom2 = max(top - 1, 0), min(bottom + 1, height)
            top1, bottom1 = max(top - 2, 0), min(bottom + 2, height)
            y, _ = ops.normalise(x[b, top1 * width:bottom1 * width], norm, dtype)
            y = _depthwise(tokens_to_map(y, bottom1 - top1, width), *first)
            y = torch.ops.aten.gelu_(y[:, :, top2 - top1:bottom2 - top1])
            y = _depthwise(normalise(y, mean, rstd, bn_weight, bn_bias, out=y), second, inside)
            y = map_to_tokens(y[:, :, top - top2:bottom - top2])
            band = slice(top * width, bottom * width)
            ops.add_branch(x[b, band], y, outside, None, out[b, band])
    return out


def _bands(x, height, width):
    """Cut the grid of tokens (B, N, C) into ``(samples, first row, row after the last)``."""
    if x.device.type != 'cpu':
        return [(slice(None), 0, height)]
    # each band computes four rows more than it uses, so bands are larger than other chunks
    rows = 4 * ops.CHUNK_FLOATS // (width * x.shape[2])
    groups, rows = -(-len(x) // max(rows // height, 1)), max(rows, 8)
    return [(samples, part.start, part.stop) for samples in ops.split_range(len(x), groups)
            for part in ops.split_range(height, -(-height // rows))]


def _depthwise(x, weight, bias):
    return F.conv2d(x, weight, bias, padding=1, groups=len(weight))


def _depthwise_backward(grad, x, weight):
    """Gradients of x and of the weight."""
    return torch.ops.aten.convolution_backward(grad, x, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0),
                                               len(weight), (True, True, False))[:2]


class _LPIResidual(torch.autograd.Function):
    """x + keep * gamma * LPI(norm(x)); keeps x for the backward, nothing else of its size."""

    @staticmethod
    def forward(ctx, x, keep, height, width, eps, bn, norm_weight, norm_bias, weight1, bias1, bn_weight, bn_bias,
                weight2, bias2, gamma):
        ctx.shape, ctx.eps, ctx.dtype = (height, width), eps, ops.compute_dtype(x)
        ctx.group = sync_group(bn)
        with ops.no_autocast(x):
            first = ops.scaled_rows(weight1, bias1, None, ctx.dtype)
            second, bias = ops.scaled_rows(weight2, bias2, gamma, ctx.dtype)
            normed, _ = ops.normalise(x, (norm_weight, norm_bias, eps), ctx.dtype)
            y = torch.ops.aten.gelu_(_depthwise(tokens_to_map(normed, height, width), *first))
            mean, rstd, ctx.count = statistics_for(bn, y)
            y = normalise(y, mean, rstd, bn_weight, bn_bias, out=y)
            inside, outside = ops.places_of_bias(x, bias)
            y = map_to_tokens(_depthwise(y, second, inside))
            out = ops.add_branch(x, y, outside, keep, torch.empty_like(x))
        ctx.save_for_backward(x, keep, mean, rstd, norm_weight, norm_bias, weight1, bias1, bn_weight, bn_bias, weight2,
                              bias2, gamma)
        return out

    @first_derivative_only
    def backward(ctx, grad):
        x, keep, mean, rstd, norm_weight, norm_bias, weight1, bias1, bn_weight, bn_bias, weight2, bias2, gamma = \
            ctx.saved_tensors
        norm = norm_weight, norm_bias, ctx.eps
        grad = grad.contiguous()
        scale = ops.gradient_scale(grad, keep, ctx.dtype)
        with ops.no_autocast(x):
            first = ops.scaled_rows(weight1, bias1, None, ctx.dtype)
            second, _ = ops.scaled_rows(weight2, bias2, gamma, ctx.dtype)
            normed, statistics = ops.normalise(x, norm, ctx.dtype)
            normed = tokens_to_map(normed, *ctx.shape)
            before = _depthwise(normed, *first)
            y = F.gelu(before)
            inner, grad_bias2 = ops.gradient_of_branch(grad, keep, ctx.dtype, scale)
            inner, grad2 = _depthwise_backward(tokens_to_map(inner, *ctx.shape),
                                               normalise(y, mean, rstd, bn_weight, bn_bias), second)
            grads2 = ops.scaled_rows_backward(grad2, grad_bias2.sum(0), weight2, bias2, gamma)
            inner, *grad_bn = normalise_backward(inner, y, mean, rstd, bn_weight, ctx.count, ctx.group, in_place=True)
            inner = torch.ops.aten.gelu_backward(inner, before, grad_input=inner)
            grad_bias1 = inner.sum((0, 2, 3), dtype=mean.dtype)
            inner, grad1 = _depthwise_backward(inner, normed, first[0])
            grad_x = torch.empty_like(grad)
            grad_norm = ops.input_gradient(map_to_tokens(inner), x, norm, statistics, grad, scale, grad_x)
        grads = (*grad_norm, grad1, grad_bias1, *grad_bn, *grads2)
        wanted = (norm_weight, norm_bias, weight1, bias1, bn_weight, bn_bias, weight2, bias2, gamma)
        grads = [None if p is None else g for p, g in zip(wanted, grads, strict=True)]
        return grad_x, None, None, None, None, None, *ops.unscaled(scale, *grads)
