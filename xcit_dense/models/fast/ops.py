"""What the branches of a block share: chunks of tokens, types, norms, products, and the sum with the residual.

On a CPU, a branch runs in chunks of tokens that stay in the cache.

Temporary results of a chunk (a norm, the hidden layer of an FFN) never reach the main memory, and no large block is
requested from the operating system, which takes longer to allocate 98 MB (25 to 110 ms) than GELU to fill them (8 ms).
On other devices, everything is one chunk.
"""
import functools
import warnings
from contextlib import nullcontext
from itertools import pairwise

import torch
import torch.nn.functional as F
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
    return len(parts) == 1 and x[parts[0]].shape == x.shape


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
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


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
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def power_of_two(x: Tensor, dims) -> Tensor:
    """Return the power of two below the largest magnitude over ``dims`` (kept), to keep float16 in its range."""
    largest = torch.linalg.vector_norm(x.detach(), float('inf'), dims, keepdim=True).float().clamp_min(1e-30)
    return (largest.view(torch.int32) & 0x7F800000).view(torch.float32)  # the exponent of a float32 without its digits


def factors(x: Tensor, gamma, keep):
    """Return LayerScale (C) and the factors of the samples (B), each None for ones, in the form that a branch needs.

    A LayerScale of 1e-5 would push the weights that it is folded into out of float16's range, so in float16 its power
    of two moves to ``keep``.
    """
    if keep is not None:
        keep = keep.to(statistics_dtype(x))
    if gamma is not None and compute_dtype(x) == torch.float16:
        scale = power_of_two(gamma, 0)
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
    return power_of_two(largest if keep is None else largest * keep, 0) * 8


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


def gram(a: Tensor, b: Tensor, is_gradient: bool = False) -> Tensor:
    """Return a^T b (B, I, J) of (B, n, I) and (B, n, J), summed in float32 at least.

    In bfloat16 on a CPU, the product of a chunk is in bfloat16 if ``is_gradient``, as that of an ordinary layer is:
    88 instead of 44 billion multiply-adds per second (n 2048, I and J 384, one core of an AMD EPYC). Moments are not
    rounded: small differences of their entries count.
    """
    dtype = statistics_dtype(a)
    if a.dtype != dtype and a.is_cuda and hasattr(torch.ops.aten.bmm, 'dtype'):  # half factors, sums kept in float32
        return torch.bmm(a.mT, b, out_dtype=dtype)
    if a.dtype != dtype and not (is_gradient and a.device.type == 'cpu' and a.dtype == torch.bfloat16):
        wide = a.to(dtype)
        a, b = wide, wide if b is a else b.to(dtype)
    return torch.bmm(a.mT, b)


def small_product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a b^T of float32 matrices (M, K) and (N, K), of a branch that computes in ``dtype``.

    Where that is a half type, a GPU multiplies in bfloat16, each factor as a sum of three: as exact as float32, whose
    products take twice the time.
    """
    kernels = None if dtype == a.dtype or a.dtype != torch.float32 else kernels_for(a[:0])
    if kernels:
        return torch.mm(kernels.split(a, True), kernels.split(b, False).t(), out_dtype=a.dtype)
    return a @ b.t()


def linear(x: Tensor, weight: Tensor, bias=None) -> Tensor:
    """Linear layer in the type of ``x`` (B, n, I): ``weight`` (O, I) and ``bias`` (O), or one of each per sample.

    In float32 on a CPU it runs as a 1x1 convolution, which is oneDNN instead of MKL: 95 to 100 instead of 65 to 80
    billion multiply-adds per second for C to 4 C channels and back (C 384, n 2048, 2 cores of an AMD EPYC).
    """
    weight = weight.to(x.dtype)
    bias = None if bias is None else bias.to(x.dtype)
    if _is_convolution(x, weight):
        x, weight = _as_map(x), weight.reshape(*weight.shape[-2:], 1, 1)
        convolve = _onednn_convolution if _torch_would_take_mkl() else F.conv2d
        return convolve(x, weight, None if bias is None else bias.flatten()).permute(0, 2, 3, 1).squeeze(2)
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    return torch.matmul(x, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def linear_backward(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of ``x`` from that of ``linear(x, weight)``."""
    weight = weight.to(grad.dtype)
    if not _is_convolution(grad, weight):
        return torch.matmul(grad, weight)
    if _torch_would_take_mkl():
        return linear(grad, weight.mT)
    y, _, _ = torch.ops.aten.convolution_backward(
        _as_map(grad), _as_map(x), weight.view(*weight.shape[-2:], 1, 1), None, (1, 1), (0, 0), (1, 1), False,
        (0, 0), 1, (True, False, False))
    return y.permute(0, 2, 3, 1).squeeze(2)


def add_linear_backward(total: Tensor, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Add `linear_backward` with one weight per sample to ``total``, and return it."""
    if _is_convolution(grad, weight):
        return total.add_(linear_backward(grad, x, weight))
    return total.baddbmm_(grad, weight.to(grad.dtype))


def _is_convolution(x, weight):
    return x.device.type == 'cpu' and x.dtype == torch.float32 and (weight.dim() == 2 or len(x) == 1)


def _torch_would_take_mkl():
    """Whether torch runs 1x1 convolutions with MKL, as on one thread: half as fast as oneDNN on an AMD EPYC."""
    return torch.get_num_threads() == 1 and torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled


def _onednn_convolution(x, weight, bias):
    x = x.contiguous(memory_format=torch.channels_last)
    return torch.ops.aten.mkldnn_convolution(x, weight.contiguous(), bias, (0, 0), (1, 1), (1, 1), 1)


def _as_map(x):
    return x.unsqueeze(2).permute(0, 3, 1, 2)


def sum_tokens(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum (C) over the tokens (B, n, C), computed in ``dtype``.

    On a CPU torch first converts all tokens of another type, in new memory: 8.4 instead of 1.6 ms for 4096 tokens of
    1536 channels in bfloat16 (one core of an AMD EPYC).
    """
    if x.device.type != 'cpu' or x.dtype == dtype:
        return x.sum((0, 1), dtype=dtype)
    return sum(part.sum(0, dtype=dtype) for part in x.flatten(0, 1).split(256))


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
    """Return the module of Triton kernels if they run on ``x``, otherwise None: on NVIDIA GPUs, up to float32."""
    if (x.is_cuda and x.dtype != torch.float64 and x.is_contiguous() and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling() and not torch.jit.is_tracing()):
        return _load_kernels()
    return None


@functools.cache
def _load_kernels():
    """Return the module `kernels`, or None with a warning if Triton cannot compile here."""
    if (torch.version.cuda is None or not hasattr(torch.ops.aten.mm, 'dtype')  # of torch 2.8
            or torch.cuda.get_device_capability() < (7, 0)):
        return None
    try:
        from . import kernels
        kernels.scaled_rows(*torch.ones(2, 1, 1, device='cuda'), None, torch.float32)
    except Exception as error:  # Triton needs a C compiler and its own one, which can fail in many ways
        warnings.warn(f'XCiT trains slower on this GPU than it could: Triton cannot compile a kernel ({error})',
                      stacklevel=2)
        return None
    return kernels
