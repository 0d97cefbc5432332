"""What the branches of a block share: chunks of tokens, types, norms, products, and the sum with the residual.

On a CPU, a branch runs in chunks of tokens that stay in the cache.

Temporary results of a chunk (a norm, the hidden layer of an FFN) never reach the main memory, and no large block is
requested from the operating system, which takes longer to allocate 98 MB (25 to 110 ms) than GELU to fill them (8 ms).
On a GPU everything is one chunk, and what passes over the tokens runs in Triton kernels (`kernels_for`).
"""
import functools
import warnings
from contextlib import nullcontext
from itertools import pairwise

import torch
from torch import Tensor

#: Floats in a chunk of C channels: 6.4 MB in float32, and four times that in the hidden layer of the FFN. Half of it
#: was 1 to 10% slower; twice of it was 0 to 4% faster in training, and from 2% faster to 7% slower in inference (2
#: cores of two EPYCs).
CHUNK_FLOATS = 1_600_000


def chunks(x: Tensor, keep=None, whole_samples: bool = False):
    """Cut tokens (B, N, C) into indices ``(samples, tokens)`` of chunks.

    On a CPU, a chunk is a range of tokens of one sample, and samples with ``keep`` (B) of zero are left out: a branch
    that stochastic depth drops costs nothing there. With ``whole_samples``, neighbours that are small share a chunk.
    On other devices, reading ``keep`` would block the device.
    """
    samples, tokens, channels = x.shape
    if x.device.type != 'cpu':
        return [(slice(None), slice(None))]
    kept = list(range(samples)) if keep is None else keep.nonzero().flatten().tolist()
    parts = split_range(tokens, -(-tokens * channels // CHUNK_FLOATS))
    most = max(CHUNK_FLOATS // (tokens * channels), 1) if whole_samples else 1
    return [(run, part) for run in _runs(kept, most) for part in parts]


def is_whole(parts, x: Tensor) -> bool:
    """Whether `chunks` are a single one with all tokens (B, N, C)."""
    return len(parts) == 1 and (x.device.type != 'cpu' or x[parts[0]].shape == x.shape)


def _runs(numbers, most: int):
    """Return rising ``numbers`` as slices of neighbours, each of ``most`` at most."""
    runs = []
    for number in numbers:
        if runs and runs[-1].stop == number and number - runs[-1].start < most:
            runs[-1] = slice(runs[-1].start, number + 1)
        else:
            runs.append(slice(number, number + 1))
    return runs


def split_range(length: int, count: int):
    """Cut ``range(length)`` into slices of equal length, or lengths that differ by one; none is empty."""
    count = max(1, min(count, length))
    bounds = [length * i // count for i in range(count + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def empty_output(x: Tensor, keep=None) -> Tensor:
    """Return a tensor of the size of ``x`` to write `chunks` to; samples that they leave out are copied."""
    out = torch.empty_like(x)
    if keep is not None and x.device.type == 'cpu':
        for b in (keep == 0).nonzero().flatten().tolist():
            out[b] = x[b]
    return out


def is_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the device of ``x``."""
    device = x.device.type
    return _has_autocast(device) and torch.is_autocast_enabled(device)


_has_autocast = functools.cache(torch.amp.is_autocast_available)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the type that products on ``x`` run in: autocast's type if it is on."""
    return torch.get_autocast_dtype(x.device.type) if is_autocast(x) and x.dtype != torch.float64 else x.dtype


def statistics_dtype(x: Tensor) -> torch.dtype:
    """Return the type of sums and of the small matrices computed from them: float32, or float64 for float64."""
    return torch.promote_types(x.dtype, torch.float32)


def converted(dtype: torch.dtype, *tensors):
    """Return contiguous tensors in a type; None stays None. For weights that every chunk reads: once, not each time."""
    layout = torch.contiguous_format
    return [None if t is None else t.to(dtype, memory_format=layout).contiguous() for t in tensors]


def no_autocast(x: Tensor):
    """Return a context in which autocast is off, so that types are those in the code."""
    return torch.autocast(x.device.type, enabled=False) if is_autocast(x) else nullcontext()


def power_of_two(x: Tensor, factors=None, times: float = 1.) -> Tensor:
    """Return ``times`` the power of two below the largest magnitude (1) of a vector, times ``factors`` if given."""
    kernels = kernels_for(x)
    if kernels:
        return kernels.power_of_two(x, factors, times)
    largest = (x if factors is None else x * factors).abs().amax(0, keepdim=True)
    return exponent(largest) * times


def exponent(x: Tensor) -> Tensor:
    """Return the power of two below each positive number, 2^-100 at least: a float32 without its digits."""
    return (x.float().clamp_min(1e-30).view(torch.int32) & 0x7F800000).view(torch.float32)


def factors(x: Tensor, gamma, keep):
    """Return LayerScale (C) and the factors of the samples (B), each None for ones, as a branch needs them.

    A LayerScale of 1e-5 would push the weights that it is folded into out of float16's range, so in float16 its power
    of two moves to ``keep``.
    """
    if keep is not None:
        keep = keep.to(statistics_dtype(x))
    if gamma is not None and compute_dtype(x) == torch.float16:
        with torch.no_grad():
            scale = power_of_two(gamma)
        gamma, keep = gamma / scale, scale.repeat(len(x)) if keep is None else keep * scale
    return gamma, keep


def gradient_scale(grad: Tensor, keep, dtype: torch.dtype):
    """Return the power of two that `gradient_of_branch` divides by before it rounds to float16; None for other types.

    The gradient of a branch is that of the block's output times a LayerScale of 1e-5, spread over thousands of tokens:
    below the smallest float16 except for the largest loss scales. After the division it is at most 1/4, so that sums
    over tokens stay in range.
    """
    if dtype != torch.float16:
        return None
    largest = torch.linalg.vector_norm(grad, float('inf'), (1, 2)).float()
    return power_of_two(largest, keep, 8.)


def gradient_of_branch(grad: Tensor, keep, dtype: torch.dtype, scale=None):
    """Return the gradient of a branch from that of the residual sum (B, n, C): times ``keep`` (B), over ``scale``.

    Returns:
        The gradient in ``dtype``, for products, and its sum over the tokens (B, C) in full precision.
    """
    total, factor = grad.sum(1, dtype=statistics_dtype(grad)), keep
    if scale is not None:
        factor = scale.reciprocal().expand(len(grad)) if keep is None else keep / scale
    if factor is None:
        return grad.to(dtype), total
    factor = factor.to(total.dtype)
    rounded = torch.empty_like(grad, dtype=dtype)
    return torch.mul(grad, factor.view(-1, 1, 1), out=rounded), total * factor.unsqueeze(1)


def unscaled(scale, *grads):
    """Multiply gradients of parameters by ``scale`` again; any of them may be None."""
    if scale is None:
        return grads
    wide = iter(torch._foreach_mul([grad.to(scale.dtype) for grad in grads if grad is not None], scale.squeeze()))
    return [None if grad is None else next(wide) for grad in grads]


def add_branch(x: Tensor, branch: Tensor, offset, keep, out: Tensor):
    """Write x + keep * (branch + offset) on tokens (B, n, C) to ``out`` and return it.

    ``keep`` (B) may be None, and ``offset`` (C) or (B, C) must be where there are no `kernels_for` ``x``.
    """
    if offset is not None:
        kernels_for(x).add_branch(x, branch.contiguous(), offset, keep, out)
        return out
    if keep is None:
        return torch.add(x, branch, out=out)
    return torch.addcmul(x, branch, keep.to(x.dtype).view(-1, 1, 1), out=out)


def places_of_bias(x: Tensor, bias: Tensor):
    """Return a bias twice, once None: to be added in a product, and by the kernel that adds the branch to ``x``."""
    return (None, bias) if kernels_for(x) else (bias, None)


def normalise(x: Tensor, norm, dtype: torch.dtype, mean=None):
    """Layer norm over the channels, in a type.

    Args:
        x: Tokens (B, n, C).
        norm: Weight, bias and eps.
        dtype: The type of the result.
        mean: Subtracted from the result (B, C); None for nothing.

    Returns:
        It and what `input_gradient` needs.
    """
    kernels = kernels_for(x)
    if kernels:
        return kernels.layer_norm(x, *norm[:2], mean, norm[2], dtype), None
    y, *statistics = torch.native_layer_norm(x, x.shape[-1:], *norm)
    return (y if mean is None else y.to(mean.dtype).sub_(mean.unsqueeze(1))).to(dtype), statistics


def centre(x: Tensor, norm, dtype: torch.dtype):
    """Return the normed tokens (B, n, C) minus their mean, in a type, and that mean (B, C)."""
    kernels = kernels_for(x)
    if kernels:
        mean = kernels.layer_norm_mean(x, *norm)
        return kernels.layer_norm(x, *norm[:2], mean, norm[2], dtype), mean
    y = torch.native_layer_norm(x, x.shape[-1:], *norm)[0].to(statistics_dtype(x))
    mean = y.mean(1)
    return y.sub_(mean.unsqueeze(1)).to(dtype), mean


def input_gradient(inner: Tensor, x: Tensor, norm, statistics, grad: Tensor, scale, out: Tensor, row=None):
    """Write the gradient of a branch's input, times ``scale``, plus that of the residual ``grad`` to ``out``.

    ``inner`` (B, n, C) plus ``row`` (B, C) is the gradient of what `normalise` returned.

    Returns:
        The gradients of the norm's weight and bias.
    """
    kernels = kernels_for(x)
    if kernels:
        sums = kernels.layer_norm_backward(inner.contiguous(), x, norm[0], row, grad, scale, norm[2], out)
        return [None if p is None else s for p, s in zip(norm, sums.unbind(), strict=False)]
    if row is not None:
        inner = inner + row.unsqueeze(1)
    inner, *sums = torch.ops.aten.native_layer_norm_backward(
        inner.to(x.dtype), x, x.shape[-1:], *statistics, *norm[:2], [True, *(p is not None for p in norm[:2])])
    if scale is None:
        torch.add(inner, grad, out=out)
    else:
        out.copy_(torch.addcmul(grad.to(scale.dtype), inner.to(scale.dtype), scale))
    return sums


def summed(parts, function, parameters):
    """Add up what a function of ``(samples, tokens)`` returns for each chunk: a list of gradients of ``parameters``.

    Any of them may be None.
    """
    if len(parts) == 1:
        return function(*parts[0])
    totals = [None if p is None else torch.zeros_like(p, dtype=statistics_dtype(p)) for p in parameters]
    for part in parts:
        for total, value in zip(totals, function(*part), strict=True):
            if total is not None:
                total += value
    return totals


def scaled_rows(weight: Tensor, bias, gamma, dtype: torch.dtype):
    """Fold LayerScale (C) or None into the last layer of a branch: weight (C, ...) and bias (C) or None, in a type."""
    kernels = kernels_for(weight)
    if kernels and bias is not None:
        return kernels.scaled_rows(weight, bias, gamma, dtype)
    if gamma is not None:
        weight, bias = weight * _rows_of(gamma, weight), None if bias is None else bias * gamma
    return converted(dtype, weight, bias)


def scaled_rows_backward(grad_weight: Tensor, grad_bias: Tensor, weight: Tensor, bias: Tensor, gamma):
    """Return the gradients of weight, bias and gamma from those of the output of `scaled_rows`."""
    if gamma is None:
        return grad_weight, grad_bias, None
    kernels = kernels_for(grad_weight)
    if kernels:
        return kernels.scaled_rows_backward(grad_weight, grad_bias, weight, bias, gamma)
    grad_weight = grad_weight.to(grad_bias.dtype)
    grad_gamma = (grad_weight * weight).flatten(1).sum(1) + grad_bias * bias
    return grad_weight * _rows_of(gamma, weight), grad_bias * gamma, grad_gamma


def _rows_of(gamma, weight):
    return gamma.view(-1, *[1] * (weight.dim() - 1))


def kernels_for(x: Tensor):
    """Return the Triton kernels by name if they run on ``x``, otherwise None: on NVIDIA GPUs, up to float32."""
    if (x.is_cuda and x.dtype != torch.float64 and x.is_contiguous() and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling() and not torch.jit.is_tracing()):
        return _load_kernels()
    return None


@functools.cache
def _load_kernels():
    """Return the kernels; None with a warning if Triton cannot compile here."""
    if (torch.version.cuda is None or not hasattr(torch.ops.aten.mm, 'dtype')  # of torch 2.8
            or torch.cuda.get_device_capability() < (7, 0)):
        return None
    try:
        from . import kernels, kernels_of_heads  # noqa: F401
        kernels.KERNELS.scaled_rows(*torch.ones(2, 1, 1, device='cuda'), None, torch.float32)
    except Exception as error:  # Triton needs a C compiler and its own one, which can fail in many ways
        warnings.warn(f'XCiT trains slower on this GPU than it could: Triton cannot compile a kernel ({error})',
                      stacklevel=2)
        return None
    return kernels.KERNELS
