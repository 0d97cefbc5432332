"""The FFN of a block; only the hidden layer is kept for the backward."""
import torch
from torch import nn

from ..ffn import FFN
from . import ops, residual
from .conditions import is_gelu, is_untouched, weight_and_bias


class Form(residual.Form):
    """See `xcit_dense.models.fast.residual.Form`."""

    def forward(self, given, x, keep, out):
        weight1, bias1, weight2, bias2 = given.weights
        y, _ = ops.normalise(x, given.norm, given.dtype)
        hidden = ops.linear(y, weight1, bias1)
        y = nn.functional.gelu(hidden) if given.trains else torch.ops.aten.gelu_(hidden)
        ops.add_branch(x, ops.linear, y, weight2, bias2, keep, out)
        return hidden,

    def backward(self, given, grad, x, keep, out, hidden):
        weight1, _, weight2, _ = given.weights
        inner = ops.gradient_of_branch(grad, keep, given.dtype, given.scale)
        grad_weight2, grad_bias2 = _gram(inner, nn.functional.gelu(hidden)), _sum(inner)
        inner = ops.linear_backward(inner, weight2)
        inner = torch.ops.aten.gelu_backward(inner, hidden, grad_input=inner)
        normed, statistics = ops.normalise(x, given.norm, given.dtype)
        grad_weight1, grad_bias1 = _gram(inner, normed), _sum(inner)
        inner = ops.linear_backward(inner, weight1)
        return [*ops.input_gradient(inner, x, given.norm, statistics, grad, given.scale, out), grad_weight1, grad_bias1,
                *residual.scaled_rows_backward(grad_weight2, grad_bias2, *given.parameters[2:])]


def is_as_built(mlp) -> bool:
    """Whether a module is an `FFN` that nobody modified."""
    if type(mlp) is not FFN:
        return False
    parts = mlp._modules
    fc1, act, fc2 = parts.get('fc1'), parts.get('act'), parts.get('fc2')
    return (type(fc1) is type(fc2) is nn.Linear and is_gelu(act) and is_untouched(mlp, fc1, act, fc2)
            and fc1.bias is not None and fc2.bias is not None)


def parameters_of(mlp):
    """Return the parameters of an `FFN`."""
    return *weight_and_bias(mlp.fc1), *weight_and_bias(mlp.fc2)


def _sum(x):
    return x.sum((0, 1), dtype=ops.statistics_dtype(x))


def _gram(a, b):
    return ops.gram(a.reshape(1, -1, a.shape[-1]), b.reshape(1, -1, b.shape[-1]), is_gradient=True).squeeze(0)
