"""The sum of a branch and its residual, in chunks and with a hand-written backward.

On a CPU, the FFN runs in chunks of tokens that stay in the cache, so its hidden layer needs no large block of memory,
which takes the operating system longer to allocate (98 MB: 25 to 110 ms) than GELU to fill (8 ms). XCA and LPI run one
or several whole images at a time. On a GPU everything is one chunk.
"""
from typing import NamedTuple

import torch
from torch import Tensor

from . import ops


class Pass(NamedTuple):
    """What the chunks of a forward or backward pass share."""
    norm: tuple  # weight, bias and eps of the layer norm before the branch
    parameters: tuple  # of the branch; LayerScale (C) is the last
    weights: tuple  # what `Form.prepare` returned
    dtype: torch.dtype  # in which tokens are multiplied
    trains: bool = True  # whether a backward follows
    scale: Tensor | None = None  # in a backward: see `ops.gradient_scale`


class Form:
    """A branch in its fast form. Chunks of its tokens have shape (b, n, C)."""

    #: What a chunk holds: some tokens of one sample or all of several ('tokens'), whole samples ('samples'), or the
    #: whole batch ('batch'). Samples whose factor is 0 are left out on a CPU, except with 'batch'.
    chunk = 'tokens'

    def prepare(self, dtype: torch.dtype, *parameters) -> tuple:
        """Return the weights that every chunk reads, in the types in which it needs them.

        Here those of a branch that begins and ends with a layer: LayerScale is folded into the last one.
        """
        return *ops.converted(dtype, *parameters[:2]), *scaled_rows(*parameters[-3:], dtype)

    def forward(self, given: Pass, x: Tensor, keep, out: Tensor) -> tuple:
        """Write x + keep * branch(norm(x)) to ``out`` and return what the backward needs, tensors or None.

        ``keep`` (b) may be None.
        """
        raise NotImplementedError

    def backward(self, given: Pass, grad: Tensor, x: Tensor, keep, out: Tensor, *kept) -> list:
        """Write the gradient of x, from that of the sum, to ``out``.

        Returns:
            The gradients of the norm's weight and bias and of the parameters, divided by ``given.scale``.
        """
        raise NotImplementedError


def residual(form: Form, x: Tensor, norm, keep, parameters) -> Tensor:
    """Return x + keep * branch(norm(x)); `mix.CancelsError` if the Gram form of XCA would lose digits.

    Args:
        x: Tokens (B, N, C).
        norm: Weight, bias and eps of the layer norm before the branch.
        keep: Factor of each sample (B), or None for ones: stochastic depth.
        parameters: Those of the branch, and LayerScale.
    """
    tensors = x, *norm[:2], *parameters
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _Residual.apply(form, keep, norm[2], *tensors)
    with torch.no_grad():
        return _forward(form, keep, norm[2], *tensors, trains=False)[0]


def _forward(form, keep, eps, x, norm_weight, norm_bias, *parameters, trains=True):
    """Return the sum, the weights of the pass, and what each chunk keeps."""
    dtype = ops.compute_dtype(x)
    with ops.no_autocast(x):
        weights = form.prepare(dtype, *parameters)
        given = Pass((norm_weight, norm_bias, eps), parameters, weights, dtype, trains)
        parts = chunks(x, keep, form.chunk)
        out, all_kept = _output(x, keep, parts), []
        for part in parts:
            kept = form.forward(given, _part(x, part), _samples(keep, part), _part(out, part))
            if trains:
                all_kept.append(kept)
    return out, weights, all_kept


class _Residual(torch.autograd.Function):
    """x + keep * branch(norm(x)); keeps x and what the form returns for the backward."""

    @staticmethod
    def forward(ctx, form, keep, eps, x, *parameters):
        out, weights, kept = _forward(form, keep, eps, x, *parameters)
        weights = weights if x.is_cuda else ()  # there, a dozen launches for a block cost more than their memory
        ctx.form, ctx.eps, ctx.dtype = form, eps, ops.compute_dtype(x)
        ctx.counts = len(parameters), len(weights), len(kept[0]) if kept else 1
        ctx.save_for_backward(keep, x, *parameters, *weights, *(tensor for each in kept for tensor in each))
        return out

    @ops.first_derivative_only
    def backward(ctx, grad):
        keep, x, *others = ctx.saved_tensors
        num_parameters, num_weights, num_kept = ctx.counts
        parameters, others = others[:num_parameters], others[num_parameters:]
        weights, others = others[:num_weights], others[num_weights:]
        grad = grad.contiguous()
        parts = chunks(x, keep, ctx.form.chunk)
        out = _output(grad, keep, parts)
        totals = None if len(parts) == 1 else [
            None if p is None else torch.zeros_like(p, dtype=ops.statistics_dtype(p)) for p in parameters]
        with ops.no_autocast(x):
            given = Pass((*parameters[:2], ctx.eps), parameters[2:],
                         weights or ctx.form.prepare(ctx.dtype, *parameters[2:]), ctx.dtype,
                         scale=ops.gradient_scale(grad, keep, ctx.dtype))
            for i, part in enumerate(parts):
                grads = ctx.form.backward(given, _part(grad, part), _part(x, part), _samples(keep, part),
                                          _part(out, part), *others[i * num_kept:(i + 1) * num_kept])
                totals = grads if totals is None else [
                    None if total is None else total.add_(g) for total, g in zip(totals, grads, strict=True)]
        grads = [None if p is None else g for p, g in zip(parameters, totals, strict=True)]
        return None, None, None, out, *ops.unscaled(given.scale, *grads)


def scaled_rows(weight: Tensor, bias: Tensor, gamma: Tensor, dtype: torch.dtype):
    """Fold LayerScale (C) into the last layer of a branch: weight (C, ...) and bias (C), in a type."""
    return (torch.mul(weight, _rows_of(gamma, weight), out=weight.new_empty(weight.shape, dtype=dtype)),
            torch.mul(bias, gamma, out=bias.new_empty(bias.shape, dtype=dtype)))


def scaled_rows_backward(grad_weight: Tensor, grad_bias: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor):
    """Return the gradients of weight, bias and gamma from those of the output of `scaled_rows`."""
    if kernels := ops.kernels_for(grad_bias):
        grad_weight, sums = kernels.scaled_rows_backward(grad_weight, grad_bias, weight, bias, gamma)
        return grad_weight, *sums.unbind()
    grad_weight = grad_weight.to(grad_bias.dtype)
    grad_gamma = torch.addcmul((grad_weight * weight).flatten(1).sum(1), grad_bias, bias)
    return grad_weight * _rows_of(gamma, weight), grad_bias * gamma, grad_gamma


def _rows_of(gamma, weight):
    return gamma.view(-1, *[1] * (weight.dim() - 1))


def chunks(x: Tensor, keep, chunk: str) -> list:
    """Cut tokens (B, N, C) into indices ``(samples, tokens)`` of chunks as `Form.chunk`; None stands for all."""
    samples, tokens, channels = x.shape
    if x.device.type != 'cpu' or chunk == 'batch':  # reading keep would block a GPU
        return [None]
    kept = list(range(samples)) if keep is None else keep.nonzero().flatten().tolist()
    parts = ops.split_range(tokens, -(-tokens * channels // ops.CHUNK_FLOATS) if chunk == 'tokens' else 1)
    return [(run, part) for run in _runs(kept, max(ops.CHUNK_FLOATS // (tokens * channels), 1)) for part in parts]


def _runs(numbers, most: int):
    """Return rising ``numbers`` as slices of neighbours, each of ``most`` at most."""
    runs = []
    for number in numbers:
        if runs and runs[-1].stop == number and number - runs[-1].start < most:
            runs[-1] = slice(runs[-1].start, number + 1)
        else:
            runs.append(slice(number, number + 1))
    return runs


def _part(x, part):
    return x if part is None else x[part]


def _samples(keep, part):
    return keep if keep is None or part is None else keep[part[0]]


def _output(x, keep, parts):
    """Return a tensor to write the chunks to; it holds ``x`` where they may leave out samples."""
    return torch.empty_like(x) if keep is None or None in parts else x.clone()
