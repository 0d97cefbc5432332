"""The FFN of a block in chunks of tokens; only the hidden layer is kept for the backward."""
import torch
from torch import Tensor, nn

from . import ops, products
from .switch import first_derivative_only
from .untouched import weight_and_bias


def parameters_of(mlp):
    """Return the parameters of an `FFN`."""
    return *weight_and_bias(mlp.fc1), *weight_and_bias(mlp.fc2)


def residual(x: Tensor, norm, gamma, keep, parameters) -> Tensor:
    """Return x + keep * gamma * FFN(norm(x)); arguments as in `xcit_dense.models.fast.xca.residual`."""
    return _FFNResidual.apply(x, keep, norm[2], torch.is_grad_enabled(), *norm[:2], *parameters, gamma)


class _FFNResidual(torch.autograd.Function):
    """x + keep * gamma * FFN(norm(x)); keeps x and the hidden layer before its GELU for the backward."""

    @staticmethod
    def forward(ctx, x, keep, eps, train, norm_weight, norm_bias, weight1, bias1, weight2, bias2, gamma):
        ctx.eps, ctx.dtype = eps, ops.compute_dtype(x)
        train = train and any(ctx.needs_input_grad)
        hidden = x.new_empty(*x.shape[:2], len(weight1), dtype=ctx.dtype) if train else None
        out = ops.empty_output(x, keep)
        with ops.no_autocast(x):
            first = ops.scaled_rows(weight1, bias1, None, ctx.dtype)
            second, bias = ops.scaled_rows(weight2, bias2, gamma, ctx.dtype)
            inside, outside = ops.places_of_bias(x, bias)
            for b, n in ops.chunks(x, keep, whole_samples=True):
                part, _ = ops.normalise(x[b, n], (norm_weight, norm_bias, eps), ctx.dtype)
                part = products.linear(part, *first)
                if train:
                    hidden, part = _store(hidden, part, (b, n)), nn.functional.gelu(part)
                else:
                    part = torch.ops.aten.gelu_(part)
                part = products.linear(part, second, inside)
                ops.add_branch(x[b, n], part, outside, None if keep is None else keep[b], out[b, n])
        ctx.save_for_backward(x, keep, norm_weight, norm_bias, weight1, bias1, weight2, bias2, gamma, hidden)
        return out

    @first_derivative_only
    def backward(ctx, grad):
        x, keep, norm_weight, norm_bias, weight1, bias1, weight2, bias2, gamma, hidden = ctx.saved_tensors
        grad = grad.contiguous()
        scale = ops.gradient_scale(grad, keep, ctx.dtype)
        grad_x = ops.empty_output(grad, keep)
        norm = norm_weight, norm_bias, ctx.eps
        with ops.no_autocast(x):
            first, = ops.converted(ctx.dtype, weight1)
            second, _ = ops.scaled_rows(weight2, bias2, gamma, ctx.dtype)

            def of_chunk(b, n):
                before = hidden[b, n]
                rounded, grad_bias2 = ops.gradient_of_branch(grad[b, n], None if keep is None else keep[b], ctx.dtype,
                                                             scale)
                grad2 = _gram(rounded, nn.functional.gelu(before))
                inner = products.linear_backward(rounded, before, second)  # of its input, only the shape counts
                inner = torch.ops.aten.gelu_backward(inner, before, grad_input=inner)
                grad_bias1 = products.sum_tokens(inner, grad_bias2.dtype)
                normed, statistics = ops.normalise(x[b, n], norm, ctx.dtype)
                grad1 = _gram(inner, normed)
                inner = products.linear_backward(inner, normed, first)
                sums = ops.input_gradient(inner, x[b, n], norm, statistics, grad[b, n], scale, grad_x[b, n])
                return [*sums, grad1, grad_bias1, grad2, grad_bias2.sum(0)]

            parts = ops.chunks(x, keep, whole_samples=True)
            *others, grad2, grad_bias2 = ops.summed(
                parts, of_chunk, (norm_weight, norm_bias, weight1, bias1, weight2, bias2))
            grads = *others, *ops.scaled_rows_backward(grad2, grad_bias2, weight2, bias2, gamma)
        return grad_x, None, None, None, *ops.unscaled(scale, *grads)


def _store(whole, part, where):
    """Write a part into a tensor and return the tensor; a part of the full size is returned itself."""
    if part.shape == whole.shape:
        return part
    whole[where] = part
    return whole


def _gram(a, b):
    return products.gram(a.reshape(1, -1, a.shape[-1]), b.reshape(1, -1, b.shape[-1]), is_gradient=True).squeeze(0)
