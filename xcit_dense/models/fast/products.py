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
    products take twice the time. Up to 2^28 multiply-adds, 9 us on paper, cutting two factors takes longer.
    """
    is_large = dtype != a.dtype == torch.float32 and len(a) * len(b) * a.shape[1] > 1 << 28
    kernels = kernels_for(a[:0]) if is_large else None
    if kernels:
        return torch.mm(kernels.split(a, True), kernels.split(b, False).t(), out_dtype=a.dtype)
    return a @ b.t()


def linear(x: Tensor, weight: Tensor, bias=None) -> Tensor:
    """Linear layer in the type of ``x`` (B, n, I): ``weight`` (O, I) and ``bias`` (O), or one of each per sample.

    In float32 on a CPU it runs as a 1x1 convolution, which on several threads is oneDNN instead of MKL: 95 to 100
    instead of 65 to 80 billion multiply-adds per second for C to 4 C channels and back (C 384, n 2048, 2 cores of an
    AMD EPYC).
    """
    weight = weight.to(x.dtype)
    bias = None if bias is None else bias.to(x.dtype)
    if x.device.type == 'cpu' and x.dtype == torch.float32 and (weight.dim() == 2 or len(x) == 1):
        x, weight = x.unsqueeze(2).permute(0, 3, 1, 2), weight.reshape(*weight.shape[-2:], 1, 1)
        return F.conv2d(x, weight, None if bias is None else bias.flatten()).permute(0, 2, 3, 1).squeeze(2)
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    return torch.matmul(x, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def linear_backward(grad: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of the input of `linear`."""
    return linear(grad, weight.mT)
