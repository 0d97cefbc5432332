"""Products of tokens with matrices, and of tokens with tokens."""
import torch
import torch.nn.functional as F
from torch import Tensor

from .ops import kernels_for, statistics_dtype


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
