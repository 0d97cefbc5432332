"""The LPI of a block: only its input is kept for the backward, and in inference it runs in bands of rows.

LayerScale is folded into the weight and bias of the second convolution.
"""
import torch
import torch.nn.functional as F
from torch import Tensor

from ..tokens import map_to_tokens, tokens_to_map
from . import ops
from .norms import (
    batch_statistics,
    normalise,
    normalise_backward,
    running_statistics,
    sync_group,
    update_running,
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
    of_batch = uses_batch(bn)
    if keep is None and not of_batch and not torch.is_grad_enabled():
        return _infer(x, norm, gamma, parameters, bn, height, width)
    statistics = (None, None) if of_batch else running_statistics(bn)
    out, mean, rstd, count = _LPIResidual.apply(x, keep, height, width, norm[2], bn.eps, sync_group(bn), *statistics,
                                                *norm[:2], *parameters, gamma)
    if of_batch:
        update_running(bn, mean, rstd, count)
    return out


@torch.no_grad()
def _infer(x, norm, gamma, parameters, bn, height, width):
    """Compute `residual` one band of rows after the other, so that what is between the layers stays in the cache."""
    out, dtype = torch.empty_like(x), ops.compute_dtype(x)
    weight1, bias1, bn_weight, bn_bias, weight2, bias2 = parameters
    with ops.no_autocast(x):
        mean, rstd = running_statistics(bn)
        weight2, bias2 = ops.scaled_rows(weight2, bias2, gamma)
        for b, top, bottom in _bands(x, height, width):
            # rows that conv2 reads of the band, and that conv1 reads for those
            top2, bottom2 = max(top - 1, 0), min(bottom + 1, height)
            top1, bottom1 = max(top - 2, 0), min(bottom + 2, height)
            y = ops.normalise(x[b, top1 * width:bottom1 * width], *norm)[0].to(dtype)
            y = _depthwise(tokens_to_map(y, bottom1 - top1, width), weight1, bias1)
            y = torch.ops.aten.gelu_(y[:, :, top2 - top1:bottom2 - top1])
            y = _depthwise(normalise(y, mean, rstd, bn_weight, bn_bias, out=y), weight2, bias2)
            y = y[:, :, top - top2:bottom - top2]
            band = slice(top * width, bottom * width)
            torch.add(x[b, band], map_to_tokens(y), out=out[b, band])
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


def _depthwise(x, weight, bias=None):
    return F.conv2d(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), padding=1, groups=len(weight))


def _depthwise_backward(grad, x, weight):
    """Gradients of x and of the weight."""
    return torch.ops.aten.convolution_backward(grad, x, weight.to(x.dtype), None, (1, 1), (1, 1), (1, 1), False,
                                               (0, 0), len(weight), (True, True, False))[:2]


class _LPIResidual(torch.autograd.Function):
    """x + keep * gamma * LPI(norm(x)); keeps x for the backward, nothing else of its size.

    Without ``mean`` and ``rstd``, those of the batch are used, over the processes of ``group`` if there is one. Also
    returns the mean, the reciprocal deviation and the number of values that they are from.
    """

    @staticmethod
    def forward(ctx, x, keep, height, width, eps, bn_eps, group, mean, rstd, norm_weight, norm_bias, weight1, bias1,
                bn_weight, bn_bias, weight2, bias2, gamma):
        ctx.shape, ctx.eps, ctx.group, ctx.dtype = (height, width), eps, group, ops.compute_dtype(x)
        ctx.count = None
        with ops.no_autocast(x):
            normed = ops.normalise(x, norm_weight, norm_bias, eps)[0].to(ctx.dtype)
            y = torch.ops.aten.gelu_(_depthwise(tokens_to_map(normed, height, width), weight1, bias1))
            if mean is None:
                mean, rstd, ctx.count = batch_statistics(y, bn_eps, group)
            weight, bias = ops.scaled_rows(weight2, bias2, gamma)
            y = map_to_tokens(_depthwise(normalise(y, mean, rstd, bn_weight, bn_bias, out=y), weight, bias))
            out = ops.add_branch(x, y, keep, torch.empty_like(x))
        ctx.save_for_backward(x, keep, mean, rstd, norm_weight, norm_bias, weight1, bias1, bn_weight, bn_bias, weight2,
                              bias2, gamma)
        mean, rstd = mean.clone(), rstd.clone()  # autograd would treat an input that is returned as changed in place
        others = [t for t in (mean, rstd, ctx.count) if isinstance(t, Tensor)]
        ctx.mark_non_differentiable(*others)
        return out, mean, rstd, ctx.count

    @first_derivative_only
    def backward(ctx, grad, *_):
        x, keep, mean, rstd, norm_weight, norm_bias, weight1, bias1, bn_weight, bn_bias, weight2, bias2, gamma = \
            ctx.saved_tensors
        grad = grad.contiguous()
        scale = ops.gradient_scale(grad, keep, ctx.dtype)
        with ops.no_autocast(x):
            normed, mean_x, rstd_x = ops.normalise(x, norm_weight, norm_bias, ctx.eps)
            normed = tokens_to_map(normed.to(ctx.dtype), *ctx.shape)
            before = _depthwise(normed, weight1, bias1)
            y = F.gelu(before)
            part, inner = ops.gradient_of_branch(grad, keep, ctx.dtype, scale)
            grad_bias2 = part.sum((0, 1), dtype=mean.dtype)
            inner = tokens_to_map(inner, *ctx.shape)
            weight, _ = ops.scaled_rows(weight2, bias2, gamma)
            inner, grad2 = _depthwise_backward(inner, normalise(y, mean, rstd, bn_weight, bn_bias), weight)
            grad2, grad_bias2, grad_gamma = ops.scaled_rows_backward(grad2.to(mean.dtype), grad_bias2, weight2,
                                                                        bias2, gamma)
            inner, *grad_bn = normalise_backward(inner, y, mean, rstd, bn_weight, ctx.count, ctx.group, in_place=True)
            inner = torch.ops.aten.gelu_backward(inner, before, grad_input=inner)
            grad_bias1 = inner.sum((0, 2, 3), dtype=mean.dtype)
            inner, grad1 = _depthwise_backward(inner, normed, weight1)
            inner = map_to_tokens(inner).to(x.dtype)
            inner, *grad_norm = ops.normalise_backward(inner, x, mean_x, rstd_x, norm_weight, norm_bias)
            grad_x = torch.empty_like(grad)
            ops.add_gradient(inner, grad, scale, grad_x)
        grads = (*grad_norm, grad1, grad_bias1, *grad_bn, grad2, grad_bias2, grad_gamma)
        wanted = (norm_weight, norm_bias, weight1, bias1, bn_weight, bn_bias, weight2, bias2, gamma)
        grads = [None if p is None else g for p, g in zip(wanted, grads, strict=True)]
        return (grad_x, None, None, None, None, None, None, None, None, *ops.unscaled(scale, *grads))
