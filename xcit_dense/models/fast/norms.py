"""Batch norm of channels-last maps on a CPU: exact sums, and nothing saved that can be computed again.

torch's batch norm adds up channels-last maps row by row in float32, which loses a digit in statistics and gradients
(stem of a 266 x 200 image: gradients off by 9e-6, here by 2e-6). Here torch's sums, which add in a tree, run over
pieces whose centred squares are combined exactly (Chan, Golub and LeVeque 1979).
"""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from . import pieces


def norm_act(x: Tensor, norm: nn.Module, gelu: bool) -> Tensor:
    """Norm of a map (B, C, H, W), and GELU behind it if wanted."""
    if (x.device.type != 'cpu' or pieces.is_traced() or not isinstance(norm, _BatchNorm)
            or sync_group(norm) is not None):
        x = norm(x)
        if not gelu:
            return x
        inplace = not torch.is_grad_enabled() and not pieces.is_traced()
        return torch.ops.aten.gelu_(x) if inplace else F.gelu(x)
    of_batch = uses_batch(norm)
    statistics = (None, None) if of_batch else (norm.running_mean, (norm.running_var + norm.eps).rsqrt())
    x, mean, rstd = _NormAct.apply(x, norm.weight, norm.bias, norm.eps, gelu, *statistics)
    if of_batch:
        update_running(norm, mean, rstd, x.numel() // x.shape[1])
    return x


def is_fusable(norm: nn.Module) -> bool:
    """Whether a norm is a factor and a shift in evaluation, which the convolution before or behind it can take."""
    return isinstance(norm, _BatchNorm) and norm.running_mean is not None


def uses_batch(norm: _BatchNorm) -> bool:
    """Whether a batch norm takes the statistics of the batch."""
    return norm.training or norm.running_mean is None


def sync_group(norm: _BatchNorm):
    """The processes that a synchronised norm shares the statistics of its batch with; None if it is alone."""
    if not (isinstance(norm, nn.SyncBatchNorm) and norm.training and dist.is_available() and dist.is_initialized()):
        return None
    group = norm.process_group or dist.group.WORLD
    return group if dist.get_world_size(group) > 1 else None


def batch_statistics(x: Tensor, eps: float):
    """Mean and reciprocal deviation of the channels of a map (B, C, H, W), in float32 at least.

    Raises:
        ValueError: One value has no deviation.
    """
    if x.numel() == x.shape[1]:
        raise ValueError(f'a batch norm in training needs more than one value per channel, got a map {tuple(x.shape)}')
    if x.is_cuda:
        return torch.batch_norm_stats(x, eps)
    rows, dtype = _rows(x), pieces.statistics_dtype(x)
    means, squares, counts = [], 0, []
    for part in _parts(rows):
        values = rows[part].to(dtype)
        means.append(values.mean(0))
        counts.append(len(values))
        squares = squares + (values - means[-1]).square_().sum(0)
    means, counts = torch.stack(means), torch.tensor(counts, dtype=dtype, device=x.device).unsqueeze(1)
    mean = (means * counts).sum(0) / len(rows)
    squares = squares + ((means - mean).square() * counts).sum(0)
    return mean, (squares / len(rows) + eps).rsqrt()


def variance_of(rstd: Tensor, eps: float) -> Tensor:
    """The variance behind a reciprocal deviation."""
    return (rstd.square().reciprocal() - eps).clamp_min(0)


@torch.no_grad()
def update_running(norm: _BatchNorm, mean: Tensor, rstd: Tensor, count):
    """Count a batch of ``count`` values a channel into the running statistics, as torch's batch norms do."""
    if not (norm.training and norm.track_running_stats):
        return
    norm.num_batches_tracked += 1
    momentum = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
    unbiased = variance_of(rstd, norm.eps) * (count / (count - 1))
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), momentum)


def _rows(x):
    """View a map (B, C, H, W) as rows of channels (B H W, C); a copy if it is not channels last."""
    return x.permute(0, 2, 3, 1).flatten(0, 2)


def _parts(rows):
    return pieces.divide(len(rows), -(-rows.numel() // pieces.PIECE_FLOATS))


class _NormAct(torch.autograd.Function):
    """gelu(batch norm(x)); keeps x for the backward. Without ``mean`` and ``rstd`` the batch's are taken."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, gelu, mean, rstd):
        ctx.gelu, ctx.of_batch = gelu, mean is None
        if ctx.of_batch:
            mean, rstd = batch_statistics(x, eps)
        x = x.contiguous(memory_format=torch.channels_last)
        out = torch.empty_like(x)
        rows, out_rows = _rows(x), _rows(out)
        scale, shift = _affine(mean, rstd, weight, bias)
        for part in _parts(rows):
            y = torch.addcmul(shift, rows[part], scale)
            out_rows[part] = F.gelu(y) if gelu else y
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        mean, rstd = mean.clone(), rstd.clone()  # an output that is an input would count as changed in place
        ctx.mark_non_differentiable(mean, rstd)
        return out, mean, rstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, *_):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        out = torch.empty_like(x)
        rows, grad_rows, out_rows = _rows(x), _rows(grad), _rows(out)
        scale, shift = _affine(mean, rstd, weight, bias)
        grad_bias, grad_weight = torch.zeros_like(mean), torch.zeros_like(mean)
        for part in _parts(rows):
            y = grad_rows[part]
            if ctx.gelu:
                y = torch.ops.aten.gelu_backward(y, torch.addcmul(shift, rows[part], scale).to(y.dtype))
            grad_bias += y.sum(0, dtype=mean.dtype)
            grad_weight += (y * (rows[part] - mean)).sum(0) * rstd
            out_rows[part] = y
        for part in _parts(rows):
            y = out_rows[part]
            if ctx.of_batch:
                y = y - grad_bias / len(rows) - (rows[part] - mean) * (rstd * grad_weight / len(rows))
            out_rows[part] = y * scale
        return (out, None if weight is None else grad_weight, None if bias is None else grad_bias, None, None, None,
                None)


def _affine(mean, rstd, weight, bias):
    scale = rstd if weight is None else rstd * weight
    return scale, -mean * scale if bias is None else bias - mean * scale
