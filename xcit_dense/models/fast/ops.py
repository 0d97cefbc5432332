"""What the fast forms share: types, ranges of float16, products, norms, and the sum with the residual."""
import functools
import warnings
from contextlib import nullcontext
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

#: Floats in a chunk of C channels: 6.4 MB in float32, and four times that in the hidden layer of the FFN. Half of it
#: was slower; twice of it was 0 to 4% faster in training, and up to 7% slower in inference (2 cores of two EPYCs).
CHUNK_FLOATS = 1_600_000


class _NoAutocast:
    """Turns autocast off on GPUs; `torch.autocast` takes longer than a launch."""

    def __enter__(self):
        torch.set_autocast_enabled('cuda', False)

    def __exit__(self, *_):
        torch.set_autocast_enabled('cuda', True)


_NO_AUTOCAST, _AS_IT_IS = _NoAutocast(), nullcontext()


def split_range(length: int, count: int):
    """Cut ``range(length)`` into slices of equal length, or lengths that differ by one; none is empty."""
    count = max(1, min(count, length))
    bounds = [length * i // count for i in range(count + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def is_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the device of ``x``."""
    # not torch.amp.is_autocast_available: up to torch 2.11 no compiler can trace it
    return x.device.type != 'meta' and torch.is_autocast_enabled(x.device.type)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the type that products on ``x`` run in: autocast's type if it is on."""
    return torch.get_autocast_dtype(x.device.type) if is_autocast(x) and x.dtype != torch.float64 else x.dtype


def statistics_dtype(x: Tensor) -> torch.dtype:
    """Return the type of sums and of the small matrices computed from them: float32, or float64 for float64."""
    return torch.promote_types(x.dtype, torch.float32)


def converted(dtype: torch.dtype, *tensors):
    """Return contiguous tensors in a type; None stays None. For weights that every chunk reads: once, not each time."""
    return [None if t is None else t.to(dtype, memory_format=torch.contiguous_format).contiguous() for t in tensors]


def no_autocast(x: Tensor):
    """Return a context in which autocast is off, so that types are those in the code."""
    if not is_autocast(x):
        return _AS_IT_IS
    return (_NO_AUTOCAST if x.is_cuda and not torch.compiler.is_compiling() else
            torch.autocast(x.device.type, enabled=False))


def largest(x: Tensor, dim) -> Tensor:
    """Return the largest magnitude in float32, 1e-30 at least; ``dim`` stay as dimensions of length 1."""
    return torch.linalg.vector_norm(x, float('inf'), dim, keepdim=True, dtype=torch.float32).clamp_min_(1e-30)


def factors(x: Tensor, gamma, keep):
    """Return LayerScale (C) and the factors of the samples (B) or None for ones, as a branch needs them.

    A LayerScale of 1e-5 would push the weights that it is folded into out of float16's range, so in float16 its largest
    entry moves to ``keep``.
    """
    if keep is not None:
        keep = keep.to(statistics_dtype(x))
    if compute_dtype(x) == torch.float16:
        with torch.no_grad():
            scale = largest(gamma, 0)
        gamma, keep = gamma / scale, scale.expand(len(x)) if keep is None else keep * scale
    return gamma, keep


def gradient_scale(grad: Tensor, keep, dtype: torch.dtype):
    """Return what `gradient_of_branch` divides by before it rounds to float16; None for other types.

    The gradient of a branch is that of the block's output times a LayerScale of 1e-5, spread over thousands of tokens:
    below the smallest float16 except for the largest loss scales. After the division it is at most 1/8, so that sums
    over tokens stay in range.
    """
    if dtype != torch.float16:
        return None
    samples = torch.linalg.vector_norm(grad, float('inf'), (1, 2), dtype=torch.float32)
    return largest(samples * keep, 0).mul_(8)  # there is always a keep: see `factors`


def gradient_of_branch(grad: Tensor, keep, dtype: torch.dtype, scale=None) -> Tensor:
    """Return the gradient of a branch from that of the residual sum (b, n, C): times ``keep`` (b), over ``scale``."""
    factor = keep if scale is None else keep / scale
    if factor is None:
        return grad.to(dtype)
    return torch.mul(grad, factor.view(-1, 1, 1), out=torch.empty_like(grad, dtype=dtype))


def unscaled(scale, *grads):
    """Multiply gradients of parameters by ``scale`` again; any of them may be None."""
    if scale is None:
        return grads
    wide = iter(torch._foreach_mul([grad.to(scale.dtype) for grad in grads if grad is not None], scale.squeeze()))
    return [None if grad is None else next(wide) for grad in grads]


def gram(a: Tensor, b: Tensor, is_gradient: bool = False) -> Tensor:
    """Return a^T b (B, I, J) of (B, n, I) and (B, n, J), summed in float32 at least.

    In bfloat16 on a CPU, the product of a chunk is in bfloat16 if ``is_gradient``, as that of an ordinary layer is:
    88 instead of 44 billion multiply-adds per second (n 2048, I and J 384, one core of an AMD EPYC). Moments are not
    rounded: small differences of their entries count.
    """
    dtype = statistics_dtype(a)
    if a.dtype != dtype and a.is_cuda and hasattr(torch.ops.aten.bmm, 'dtype'):  # half factors, sums kept in float32
        if len(a) == 1:
            return torch.mm(a[0].t(), b[0], out_dtype=dtype).unsqueeze(0)
        return torch.bmm(a.mT, b, out_dtype=dtype)
    if a.dtype != dtype and not (is_gradient and a.device.type == 'cpu' and a.dtype == torch.bfloat16):
        wide = a.to(dtype)
        a, b = wide, wide if b is a else b.to(dtype)
    return torch.bmm(a.mT, b)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a b of (B, I, K) and (B, K, J)."""
    if a.is_cuda and not torch.is_grad_enabled():  # from torch 2.12 on, ``bmm`` and ``@`` take five times as long
        return torch.bmm(a, b, out=a.new_empty(a.shape[0], a.shape[1], b.shape[2]))
    return torch.bmm(a, b)


def small_product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a b^T of float32 matrices (M, K) and (N, K), of a branch that computes in ``dtype``.

    Where that is a half type, a GPU multiplies in bfloat16, each factor as a sum of three: as exact as float32, whose
    products take twice the time. Up to 2^28 multiply-adds, 9 us on paper, cutting two factors takes longer.
    """
    is_large = dtype != a.dtype == torch.float32 and len(a) * len(b) * a.shape[1] > 1 << 28
    if is_large and (kernels := kernels_for(a[:0])):
        return torch.mm(kernels.split(a, True), kernels.split(b, False).t(), out_dtype=a.dtype)
    return a @ b.t()


def linear(x: Tensor, weight: Tensor, bias=None) -> Tensor:
    """Linear layer in the type of ``x`` (B, n, I): ``weight`` (O, I) and ``bias`` (O), or one of each per sample.

    In float32 on a CPU it runs as a 1x1 convolution, which on several threads is oneDNN instead of MKL: 95 to 100
    instead of 65 to 80 billion multiply-adds per second for C to 4 C channels and back (C 384, n 2048, 2 cores of an
    AMD EPYC).
    """
    if weight.dtype != x.dtype:
        weight = weight.to(x.dtype)
    if bias is not None and bias.dtype != x.dtype:
        bias = bias.to(x.dtype)
    if x.device.type == 'cpu' and x.dtype == torch.float32 and (weight.dim() == 2 or len(x) == 1):
        x, weight = x.unsqueeze(2).permute(0, 3, 1, 2), weight.reshape(*weight.shape[-2:], 1, 1)
        return F.conv2d(x, weight, None if bias is None else bias.flatten()).permute(0, 2, 3, 1).squeeze(2)
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    return product(x, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def linear_backward(grad: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of the input of `linear`."""
    return linear(grad, weight.mT)


def add_branch(x: Tensor, layer, y: Tensor, weight: Tensor, bias: Tensor, keep, out: Tensor):
    """Write x + keep * layer(y, weight, bias) of tokens (b, n, C) to ``out``.

    Args:
        layer: The last linear layer of a branch, to tokens.
        weight: Of the layer.
        bias: (C) or (b, C).
        keep: (b) or None.
        out: As ``x``.
    """
    kernels = kernels_for(x)
    branch = layer(y, weight, None if kernels else bias)
    if kernels:
        kernels.add_branch(x, branch.contiguous(), bias, keep, out)
    elif keep is None:
        torch.add(x, branch, out=out)
    else:
        torch.addcmul(x, branch, keep.to(x.dtype).view(-1, 1, 1), out=out)


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
    if kernels := kernels_for(x):
        return kernels.layer_norm(x, *norm[:2], mean, norm[2], dtype), None
    y, *statistics = torch.native_layer_norm(x, x.shape[-1:], *norm)
    return (y if mean is None else y.to(mean.dtype).sub_(mean.unsqueeze(1))).to(dtype), statistics


def centre(x: Tensor, norm, dtype: torch.dtype):
    """Return the normed tokens (B, n, C) minus their mean, in a type, and that mean (B, C)."""
    if kernels := kernels_for(x):
        mean = kernels.layer_norm_mean(x, *norm)
        return kernels.layer_norm(x, *norm[:2], mean, norm[2], dtype), mean
    y = torch.native_layer_norm(x, x.shape[-1:], *norm)[0].to(statistics_dtype(x))
    mean = y.mean(1)
    return y.sub_(mean.unsqueeze(1)).to(dtype), mean


def input_gradient(inner: Tensor, x: Tensor, norm, statistics, grad: Tensor, scale, out: Tensor):
    """Write the gradient of a branch's input, times ``scale``, plus that of the residual ``grad`` to ``out``.

    ``inner`` (b, n, C) is the gradient of what `normalise` returned.

    Returns:
        The gradients of the norm's weight and bias.
    """
    if kernels := kernels_for(x):
        return kernels.layer_norm_backward(inner.contiguous(), x, norm[0], grad, scale, norm[2], out).unbind()
    inner, *sums = torch.ops.aten.native_layer_norm_backward(
        inner.to(x.dtype), x, x.shape[-1:], *statistics, *norm[:2], [True, *(p is not None for p in norm[:2])])
    if scale is None:
        torch.add(inner, grad, out=out)
    else:
        out.copy_(torch.addcmul(grad.to(scale.dtype), inner.to(scale.dtype), scale))
    return sums


def first_derivative_only(backward):
    """Make a hand-written backward raise an error when it is differentiated, which would give zeros or worse.

    Its steps are not part of a graph. If gradients are enabled in it, a caller wants to differentiate it.
    """

    @functools.wraps(backward)
    def run(ctx, *grads):
        if (torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()
                or any(torch._C._functorch.is_legacy_batchedtensor(grad) for grad in grads if grad is not None)):
            raise RuntimeError(
                "XCiT's fast path cannot be differentiated twice (create_graph=True, a gradient penalty, "
                'torch.autograd.functional.hessian) or for a batch of gradients (is_grads_batched=True). Run the '
                'forward pass, not only the backward pass, inside "with xcit_dense.set_fast(False):".')
        return backward(ctx, *grads)

    return staticmethod(run)


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
        from . import kernels, launching
        for _ in range(2):  # the second launch takes another way
            kernels.layer_norm_mean(torch.ones(1, 1, 1, device='cuda'), None, None, 1e-5)
    except Exception as error:  # Triton needs a C compiler and its own one, which can fail in many ways
        warnings.warn(f'XCiT trains slower on this GPU than it could: Triton cannot compile a kernel ({error})',
                      stacklevel=2)
        return None
    return launching.KERNELS
