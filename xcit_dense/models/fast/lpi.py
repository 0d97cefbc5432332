"""The LPI of a block; besides its input, nothing of the size of the tokens is kept for the backward.

LayerScale is folded into the weight and bias of the second convolution.
"""
import torch
import torch.nn.functional as F

from ..lpi import LPI
from ..tokens import map_to_tokens, tokens_to_map
from . import ops, residual
from .conditions import is_batch_norm, is_depthwise, is_gelu, is_untouched, weight_and_bias
from .norms import batch_norm, normalise, normalise_backward, sync_group, uses_batch


class Form(residual.Form):
    """See `xcit_dense.models.fast.residual.Form`.

    Args:
        bn: The batch norm, whose running statistics are updated or used.
        height, width: Of the grid of tokens.
    """

    def __init__(self, bn, height: int, width: int):
        self.bn, self.shape = bn, (height, width)
        self.chunk = 'batch' if uses_batch(bn) else 'samples'
        self.group = sync_group(bn)

    def forward(self, given, x, keep, out):
        weight1, bias1, weight2, bias2 = given.weights
        y, _ = ops.normalise(x, given.norm, given.dtype)
        y = torch.ops.aten.gelu_(_depthwise(tokens_to_map(y, *self.shape), weight1, bias1))
        y, mean, rstd, count = batch_norm(self.bn, y, *given.parameters[2:4])
        ops.add_branch(x, lambda *args: map_to_tokens(_depthwise(*args)), y, weight2, bias2, keep, out)
        return mean, rstd, count

    def backward(self, given, grad, x, keep, out, mean, rstd, count):
        weight1, bias1, weight2, _ = given.weights
        bn_weight, bn_bias, *last = given.parameters[2:]
        normed, statistics = ops.normalise(x, given.norm, given.dtype)
        normed = tokens_to_map(normed, *self.shape)
        before = _depthwise(normed, weight1, bias1)
        y = F.gelu(before)
        inner = ops.gradient_of_branch(grad, keep, given.dtype, given.scale)
        grad_bias2 = inner.sum((0, 1), dtype=mean.dtype)
        inner, grad_weight2 = _depthwise_backward(tokens_to_map(inner, *self.shape),
                                                  normalise(y, mean, rstd, bn_weight, bn_bias), weight2)
        inner, *grads_bn = normalise_backward(inner, y, mean, rstd, bn_weight, count, self.group, in_place=True)
        inner = torch.ops.aten.gelu_backward(inner, before, grad_input=inner)
        grad_bias1 = inner.sum((0, 2, 3), dtype=mean.dtype)
        inner, grad_weight1 = _depthwise_backward(inner, normed, weight1)
        return [*ops.input_gradient(map_to_tokens(inner), x, given.norm, statistics, grad, given.scale, out),
                grad_weight1, grad_bias1, *grads_bn, *residual.scaled_rows_backward(grad_weight2, grad_bias2, *last)]


def is_as_built(lpi) -> bool:
    """Whether a module is an `LPI` that nobody modified."""
    if type(lpi) is not LPI:
        return False
    parts = lpi._modules
    conv1, act, bn, conv2 = parts.get('conv1'), parts.get('act'), parts.get('bn'), parts.get('conv2')
    return (is_depthwise(conv1) and is_gelu(act) and is_batch_norm(bn) and is_depthwise(conv2)
            and is_untouched(lpi, conv1, act, bn, conv2) and conv1.bias is not None and conv2.bias is not None)


def parameters_of(lpi):
    """Return the parameters of an `LPI`."""
    return *weight_and_bias(lpi.conv1), *weight_and_bias(lpi.bn), *weight_and_bias(lpi.conv2)


def _depthwise(x, weight, bias):
    return F.conv2d(x, weight, bias, padding=1, groups=len(weight))


def _depthwise_backward(grad, x, weight):
    """Gradients of x and of the weight."""
    return torch.ops.aten.convolution_backward(grad, x, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0),
                                               len(weight), (True, True, False))[:2]
