"""Batch norm of channels-last maps on a CPU: exact sums, and nothing saved that can be computed again.

torch's adds up channels-last maps row by row, which loses a digit; here its tree sums run over chunks.
"""
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from . import ops


def uses_batch(norm: _BatchNorm) -> bool:
    """Whether a batch norm uses the statistics of the batch."""
    return norm.training or norm.running_mean is None


@torch.no_grad()
def batch_norm(norm: _BatchNorm, x: Tensor, weight, bias):
    """Return what a batch norm computes of a map (B, C, H, W), which it may overwrite, and what `statistics_for` does.

    On a GPU without other processes it is torch's own, with fewer launches; the number of values is left out (0).
    """
    dtype, running = ops.statistics_dtype(x), (norm.running_mean, norm.running_var)
    if (x.is_cuda and uses_batch(norm) and sync_group(norm) is None and x.numel() > x.shape[1]
            and (running[0] is None or running[0].dtype == dtype)):
        tracked = norm.training and norm.track_running_stats
        momentum = _count_batch(norm) if tracked else 0.
        return *torch.ops.aten.native_batch_norm(x, *ops.converted(dtype, weight, bias), *running if tracked else
                                                 (None, None), True, momentum, norm.eps), x.new_empty(0)
    mean, rstd, count = statistics_for(norm, x)
    return normalise(x, mean, rstd, weight, bias, out=x), mean, rstd, count


@torch.no_grad()
def statistics_for(norm: _BatchNorm, x: Tensor):
    """Return mean and reciprocal deviation with which a batch norm treats a map (B, C, H, W).

    Those of the batch, which are added to the running ones, also with the number of values that they are from; for
    running ones it is None. All are in float32 at least.
    """
    if not uses_batch(norm):
        dtype = ops.statistics_dtype(norm.running_mean)
        # copies: a training forward pass may update them before the backward needs them
        return norm.running_mean.to(dtype, copy=True), (norm.running_var.to(dtype) + norm.eps).rsqrt(), None
    found = batch_statistics(x, norm.eps, sync_group(norm))
    update_running(norm, *found)
    return found


def sync_group(norm: _BatchNorm):
    """Return the processes with which a synchronised norm shares the statistics of its batch; None without others."""
    if not (isinstance(norm, nn.SyncBatchNorm) and norm.training and dist.is_available() and dist.is_initialized()):
        return None
    group = norm.process_group or dist.group.WORLD
    return group if dist.get_world_size(group) > 1 else None


def batch_statistics(x: Tensor, eps: float, group=None):
    """Return mean and reciprocal deviation of the channels (C) of a map, and how many values they are from (1).

    They are in float32 at least.

    Args:
        x: The map (B, C, H, W).
        eps: The eps of the norm.
        group: The processes that share the statistics, or None. They exchange the same data as torch's own
            SyncBatchNorm, so processes that use either one work together.

    `ValueError` if there is only one value per channel, which has no deviation.
    """
    count = x.numel() // x.shape[1]
    if group is None and count == 1:
        raise ValueError(f'a batch norm in training needs more than one value per channel, got a map {tuple(x.shape)}')
    own = *_own_statistics(x, eps), x.new_full((1, ), count, dtype=ops.statistics_dtype(x))
    if group is None:
        return own
    own = torch.cat(own)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group)
    means, rstds, counts = torch.stack(every).split((x.shape[1], x.shape[1], 1), dim=1)
    variances = torch.where(counts > 0, variance_of(rstds, eps), 0)  # a process without images sends zeros
    count = counts.sum(0)
    mean = (means * counts).sum(0) / count
    variance = ((variances + (means - mean).square()) * counts).sum(0) / count
    return mean, (variance + eps).rsqrt(), count


def _own_statistics(x, eps):
    if x.is_cuda:
        return torch.batch_norm_stats(x, eps)
    rows = _rows(x)
    mean = rows.mean(0, dtype=ops.statistics_dtype(x))
    squares = sum((rows[part] - mean).square_().sum(0) for part in _parts(rows))
    return mean, (squares / len(rows) + eps).rsqrt()


def normalise(x: Tensor, mean: Tensor, rstd: Tensor, weight, bias, out=None) -> Tensor:
    """Return the batch norm of a channels-last map (B, C, H, W) with given statistics.

    It is written to ``out``, which may be ``x``; None for a new map.

    Factor and shift stay in float32: for a channel that hardly varies they are large and of opposite sign, and half
    types would round them differently.
    """
    if x.is_cuda:
        return torch.batch_norm_elemt(x, *ops.converted(mean.dtype, weight, bias), mean, rstd, 0., out=out)
    scale, shift = _affine(mean, rstd, weight, bias)
    out = torch.empty_like(x, memory_format=torch.channels_last) if out is None else out
    rows, out_rows = _rows(x), _rows(out)
    for part in _parts(rows):
        _add_product(shift, rows[part], scale, out_rows[part])
    return out


def normalise_backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight, count=None, group=None,
                       in_place=False):
    """Return the gradients of `normalise`: of x (B, C, H, W), weight (C) and bias (C).

    Args:
        grad: Gradient of its output.
        mean, rstd, weight: As in `normalise`.
        count: How many values (1; a GPU needs it only with a group) the statistics are from if they are those of the
            batch, otherwise None.
        group: The processes that share the statistics, or None.
        in_place: Whether the gradient of x may overwrite ``grad``.
    """
    grad = grad.contiguous(memory_format=torch.channels_last)
    if x.is_cuda:
        weight, = ops.converted(mean.dtype, weight)
        if count is not None and group is None:
            return torch.ops.aten.native_batch_norm_backward(
                grad, x, weight, None, None, mean, rstd, True, 0., [True, weight is not None, weight is not None])
        return _normalise_backward_on_gpu(grad, x, mean, rstd, weight, count, group)
    out = grad if in_place else torch.empty_like(grad)
    rows, grad_rows, out_rows = _rows(x), _rows(grad), _rows(out)
    total, product = torch.zeros_like(mean), torch.zeros_like(mean)
    for part in _parts(rows):
        total += grad_rows[part].sum(0, dtype=mean.dtype)
        product += (rows[part] - mean).mul_(grad_rows[part]).sum(0)
    grad_weight, grad_bias = product * rstd, total
    scale, _ = _affine(mean, rstd, weight, None)
    if count is not None:
        total, product = _over_processes(total, product, group)
        slope = -product * rstd.square() / count
        slope, shift = slope * scale, (-total / count - slope * mean) * scale
    for part in _parts(rows):
        if count is None:
            out_rows[part] = grad_rows[part] * scale
        else:
            _add_product(torch.addcmul(shift, rows[part], slope), grad_rows[part], scale, out_rows[part])
    return out, grad_weight, grad_bias


def _normalise_backward_on_gpu(grad, x, mean, rstd, weight, count, group):
    total, product, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
        grad, x, mean, rstd, weight, True, weight is not None, weight is not None)
    if count is None:
        scale, _ = _affine(mean, rstd, weight, None)
        return torch.mul(grad, scale.view(-1, 1, 1), out=torch.empty_like(grad)), grad_weight, grad_bias
    total, product = _over_processes(total, product, group)
    grad = torch.batch_norm_backward_elemt(grad, x, mean, rstd, weight, total, product, count.to(torch.int32))
    return grad, grad_weight, grad_bias


def _over_processes(total, product, group):
    """Add up two vectors over the processes of a group, or None."""
    if group is None:
        return total, product
    both = torch.cat((total, product))
    dist.all_reduce(both, group=group)
    return both.chunk(2)


def _add_product(x, a, b, out):
    """Write x + a b to ``out``, which may be of another type."""
    if out.dtype == x.dtype:
        torch.addcmul(x, a, b, out=out)
    else:
        out.copy_(torch.addcmul(x, a, b))


def variance_of(rstd: Tensor, eps: float) -> Tensor:
    """Return the variance from a reciprocal deviation."""
    return (rstd.square().reciprocal() - eps).clamp_min(0)


def update_running(norm: _BatchNorm, mean: Tensor, rstd: Tensor, count):
    """Add a batch of ``count`` (1) values per channel to the running statistics, as torch's batch norms do."""
    if not (norm.training and norm.track_running_stats):
        return
    momentum = _count_batch(norm)
    if norm.running_mean is None:
        return
    if mean.is_cuda and norm.running_mean.dtype == mean.dtype:
        torch.batch_norm_gather_stats_with_counts(mean, mean.unsqueeze(0), rstd.unsqueeze(0), norm.running_mean,
                                                  norm.running_var, momentum, norm.eps, count)
        return
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
    unbiased = variance_of(rstd, norm.eps) * (count / (count - 1))
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), momentum)


def _count_batch(norm):
    """Count a batch, and return the momentum with which it is added to the running statistics."""
    if norm.num_batches_tracked is None:
        return norm.momentum or 0.
    norm.num_batches_tracked.add_(1)
    return 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum


def _rows(x):
    """View a map (B, C, H, W) as rows of channels (B H W, C); a copy if it is not channels last."""
    return x.permute(0, 2, 3, 1).flatten(0, 2)


def _parts(rows):
    # smaller than the chunks of a product, which would gain nothing here: about the cache of one core
    return ops.split_range(len(rows), -(-4 * rows.numel() // ops.CHUNK_FLOATS) if rows.device.type == 'cpu' else 1)


class NormAct(torch.autograd.Function):
    """Batch norm of a map x (B, C, H, W) on a CPU, followed by GELU if ``gelu`` is True; keeps x for the backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, norm, gelu):
        ctx.gelu = gelu
        mean, rstd, count = statistics_for(norm, x)
        x = x.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x, weight, bias, mean, rstd, count)
        y = normalise(x, mean, rstd, weight, bias)
        return torch.ops.aten.gelu_(y) if gelu else y

    @ops.first_derivative_only
    def backward(ctx, grad):
        x, weight, bias, mean, rstd, count = ctx.saved_tensors
        if ctx.gelu:
            grad = torch.ops.aten.gelu_backward(grad, normalise(x, mean, rstd, weight, bias))
        out, grad_weight, grad_bias = normalise_backward(grad, x, mean, rstd, weight, count, in_place=ctx.gelu)
        return out, None if weight is None else grad_weight, None if bias is None else grad_bias, None, None


def _affine(mean, rstd, weight, bias):
    scale = rstd if weight is None else rstd * weight.to(rstd.dtype)
    return scale, -mean * scale if bias is None else bias.to(mean.dtype) - mean * scale
