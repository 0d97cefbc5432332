"""What the branches of a block share: chunks of tokens, types, norms, products, and the sum with the residual.

On a CPU a branch runs in chunks of tokens that stay in the cache.

What is computed from a chunk and thrown away again (a norm, the hidden layer of an FFN) never reaches the main
memory, and no large block is asked of the operating system, which takes longer to hand out 98 MB (25 to 110 ms) than
GELU to fill them (8 ms). On other devices everything is one chunk.
"""
from contextlib import nullcontext
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

#: Floats in a chunk of C channels: 6.4 MB in float32, and four times that in the hidden layer of the FFN. Half as many
#: were 1 to 10% slower, twice as many 1 to 4% faster in training and 1 to 7% slower in inference (2 cores of an EPYC).
CHUNK_FLOATS = 1_600_000


def chunks(x: Tensor, keep=None):
    """Cut tokens (B, N, C) into indices ``(samples, tokens)`` of chunks.

    On a CPU a chunk is a run of tokens of one sample, and samples with ``keep`` (B) of zero are left out: a branch
    that stochastic depth drops costs nothing there. Elsewhere to look at ``keep`` would stop the device.
    """
    samples, tokens, channels = x.shape
    if x.device.type != 'cpu':
        return [(slice(None), slice(None))]
    kept = range(samples) if keep is None else keep.nonzero().flatten().tolist()
    parts = split_range(tokens, -(-tokens * channels // CHUNK_FLOATS))
    return [(slice(b, b + 1), part) for b in kept for part in parts]


def split_range(length: int, count: int):
    """Cut ``range(length)`` into slices of equal length, but for one."""
    bounds = [length * i // count for i in range(count + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def empty_output(x: Tensor, keep=None) -> Tensor:
    """A tensor of the size of ``x`` to write `chunks` to; samples that they leave out are copied."""
    out = torch.empty_like(x)
    if keep is not None and x.device.type == 'cpu':
        for b in (keep == 0).nonzero().flatten().tolist():
            out[b] = x[b]
    return out


def is_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the device of ``x``."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type that products on ``x`` run in: autocast's where it is on."""
    return torch.get_autocast_dtype(x.device.type) if is_autocast(x) and x.dtype != torch.float64 else x.dtype


def statistics_dtype(x: Tensor) -> torch.dtype:
    """The type of sums and of the small matrices made from them: float32, float64 for float64."""
    return torch.promote_types(x.dtype, torch.float32)


def no_autocast(x: Tensor):
    """Context in which types are what the code says."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def power_of_two(x: Tensor, dims) -> Tensor:
    """The power of two below the largest magnitude over ``dims``, which stay: what keeps float16 in its range."""
    return x.detach().abs().amax(dims, keepdim=True).float().clamp_min(1e-30).log2().floor().exp2()


def factors(x: Tensor, gamma, keep):
    """LayerScale (C) and the factors of the samples (B), either None for ones, as a branch on ``x`` takes them.

    A LayerScale of 1e-5 would push the weights that it is folded into out of float16's range: there its power of two
    moves to ``keep``.
    """
    if keep is not None:
        keep = keep.to(statistics_dtype(x))
    if gamma is not None and compute_dtype(x) == torch.float16:
        scale = power_of_two(gamma, 0)
        gamma, keep = gamma / scale, scale.expand(len(x)) if keep is None else keep * scale
    return gamma, keep


def gradient_scale(grad: Tensor, keep, dtype: torch.dtype):
    """The power of two that `gradient_of_branch` divides by before it rounds to float16; None for other types.

    The gradient of a branch is that of the block's output times a LayerScale of 1e-5 and over thousands of tokens:
    below the smallest float16 for all but the largest loss scales. What is left of it is up to 1/4, so that
    sums over tokens stay in range.
    """
    if dtype != torch.float16:
        return None
    largest = grad.detach().abs().amax((1, 2)).float()
    if keep is not None:
        largest = largest * keep.abs()
    return power_of_two(largest, 0) * 8


def gradient_of_branch(grad: Tensor, keep, dtype: torch.dtype, scale=None):
    """Gradient of a branch from that of what it is added to (B, n, C): times ``keep`` (B), over ``scale``.

    Returns:
        It as exact as it came, for sums, and in ``dtype``, for products.
    """
    if scale is not None:
        grad = grad.to(statistics_dtype(grad)) / scale
    if keep is not None:
        grad = grad * keep.to(grad.dtype).view(-1, 1, 1)
    return grad, grad.to(dtype)


def add_gradient(inner: Tensor, grad: Tensor, scale, out: Tensor):
    """Write to ``out`` the gradient of a branch's input, taken over ``scale``, plus that of the residual."""
    if scale is None:
        torch.add(inner, grad, out=out)
    else:
        out.copy_(torch.addcmul(grad.to(scale.dtype), inner.to(scale.dtype), scale))


def unscaled(scale, *grads):
    """Take ``scale`` off gradients of parameters, of which any may be None."""
    return grads if scale is None else [None if grad is None else grad * scale for grad in grads]


def add_branch(x: Tensor, branch: Tensor, keep, out: Tensor):
    """Write x + keep * branch on tokens (B, n, C) to ``out``; ``keep`` (B) may be None."""
    if keep is None:
        return torch.add(x, branch, out=out)
    return torch.addcmul(x, branch, keep.to(x.dtype).view(-1, 1, 1), out=out)


def normalise(x: Tensor, weight, bias, eps: float):
    """Layer norm over the channels; return it with the mean and reciprocal deviation that its backward takes."""
    return torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)


def normalise_backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight, bias):
    """Gradients of `normalise`: of x, weight and bias."""
    wanted = [True, weight is not None, bias is not None]
    return torch.ops.aten.native_layer_norm_backward(grad, x, x.shape[-1:], mean, rstd, weight, bias, wanted)


def add_gram(total: Tensor, a: Tensor, b: Tensor):
    """Add a^T b, (B, n, I) and (B, n, J), to ``total`` (B, I, J), which is summed in its own type."""
    if a.dtype == b.dtype == total.dtype:
        return total.baddbmm_(a.mT, b)
    if a.is_cuda and hasattr(torch.ops.aten.bmm, 'dtype'):  # half factors, sums kept in float32
        return total.add_(torch.bmm(a.mT, b.to(a.dtype), out_dtype=total.dtype))
    return total.baddbmm_(a.mT.to(total.dtype), b.to(total.dtype))


def linear(x: Tensor, weight: Tensor, bias=None) -> Tensor:
    """Linear layer in the type of ``x`` (B, n, I): ``weight`` (O, I) and ``bias`` (O), or those of each sample.

    In float32 on a CPU it runs as a 1x1 convolution, the same sums through oneDNN instead of MKL: 95 to 100 instead of
    65 to 80 billion multiply-adds a second for C to 4 C channels and back (C 384, n 2048, 2 cores of an AMD EPYC).
    """
    weight = weight.to(x.dtype)
    bias = None if bias is None else bias.to(x.dtype)
    if _is_convolution(x, weight):
        y = F.conv2d(_as_map(x), weight.view(*weight.shape[-2:], 1, 1), None if bias is None else bias.flatten())
        return y.permute(0, 2, 3, 1).squeeze(2)
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    return torch.matmul(x, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def linear_backward(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Gradient of ``x`` for that of ``linear(x, weight)``."""
    weight = weight.to(grad.dtype)
    if _is_convolution(grad, weight):
        y, _, _ = torch.ops.aten.convolution_backward(
            _as_map(grad), _as_map(x), weight.view(*weight.shape[-2:], 1, 1), None, (1, 1), (0, 0), (1, 1), False,
            (0, 0), 1, (True, False, False))
        return y.permute(0, 2, 3, 1).squeeze(2)
    return torch.matmul(grad, weight)


def _is_convolution(x, weight):
    return x.device.type == 'cpu' and x.dtype == torch.float32 and (weight.dim() == 2 or len(x) == 1)


def _as_map(x):
    return x.unsqueeze(2).permute(0, 3, 1, 2)


def zeros_like(*tensors):
    """Sums to start with, for `add_to`; None stays None."""
    return [None if t is None else torch.zeros_like(t, dtype=statistics_dtype(t)) for t in tensors]


def add_to(sums, values):
    """Add each value to its sum; where one is None there is nothing to add."""
    for total, value in zip(sums, values, strict=True):
        if total is not None:
            total += value


def scaled_rows(weight: Tensor, bias, gamma):
    """Take LayerScale (C) or None into the last layer of a branch: weight (C, ...) and bias (C) or None."""
    if gamma is None:
        return weight, bias
    return weight * _rows_of(gamma, weight), None if bias is None else bias * gamma


def scaled_rows_backward(grad_weight: Tensor, grad_bias: Tensor, weight: Tensor, bias: Tensor, gamma):
    """Gradients of weight, bias and gamma, for those of what `scaled_rows` gave."""
    if gamma is None:
        return grad_weight, grad_bias, None
    grad_gamma = (grad_weight * weight).flatten(1).sum(1) + grad_bias * bias
    return grad_weight * _rows_of(gamma, weight), grad_bias * gamma, grad_gamma


def _rows_of(gamma, weight):
    return gamma.view(-1, *[1] * (weight.dim() - 1))
