"""Local patch interaction (LPI) of an XCiT block: mixing of neighbouring tokens.

The batch norm between the two convolutions becomes a factor and a shift in the weights of the second one, in training
with the statistics of the batch. A shift before a convolution that pads with zeros is a bias inside the map; along its
border the taps that read the padding must not count it, which is put right on the border lines alone.
"""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from . import pieces
from .norms import batch_statistics, is_fusable, sync_group, update_running, uses_batch, variance_of
from .xca import fuse_scale


class LPI(nn.Module):
    """Local patch interaction: two depthwise 3x3 convolutions on the token grid (paper, section 3.3).

    Args:
        embed_dims: Channels C.
        norm: Callable that makes a batch norm for a number of channels.
    """

    def __init__(self, embed_dims: int, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(embed_dims, embed_dims, kernel_size=3, padding=1, groups=embed_dims)
        self.act = nn.GELU()
        self.bn = norm(embed_dims)
        self.conv2 = nn.Conv2d(embed_dims, embed_dims, kernel_size=3, padding=1, groups=embed_dims)
        self.taps1 = self.taps2 = None  # of a fused module: the part of each bias that a tap adds, (C, 3, 3)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Map tokens (B, N, C) of a grid with N = height * width to tokens (B, N, C)."""
        x = self.conv1(tokens_to_map(x, height, width))
        x = self.act(subtract_outside(x, self.taps1))
        x = self.conv2(x if self.bn is None else self.bn(x))
        return map_to_tokens(subtract_outside(x, self.taps2))

    def residual(self, x: Tensor, norm: nn.LayerNorm, gamma, keep, height: int, width: int) -> Tensor:
        """Return x + keep * gamma * LPI(norm(x)); arguments as in `xcit_dense.xca.XCA.residual`."""
        bn = self.bn
        foldable = bn is None or isinstance(bn, _BatchNorm)
        of_batch = foldable and bn is not None and uses_batch(bn)
        fused = self.taps1 is not None
        if pieces.is_traced() or not foldable or fused and (of_batch or torch.is_grad_enabled()):
            return pieces.add_scaled(x, self(norm(x), height, width), gamma, keep)
        if keep is None and not of_batch and not torch.is_grad_enabled():
            return self._infer(x, norm, gamma, height, width)
        statistics = (None, None) if of_batch else (bn.running_mean, (bn.running_var + bn.eps).rsqrt())
        out, mean, rstd, count = _LPIResidual.apply(
            x, keep, height, width, norm.eps, bn.eps, sync_group(bn), *statistics, norm.weight,
            norm.bias, self.conv1.weight, self.conv1.bias, bn.weight, bn.bias, self.conv2.weight, self.conv2.bias,
            gamma)
        if of_batch:
            update_running(bn, mean, rstd, count)
        return out

    def fuse(self, norm: nn.LayerNorm, gamma: Tensor):
        """Take the norm's affine part, the batch norm and LayerScale into the convolutions, for inference."""
        self.taps1 = nn.Parameter((self.conv1.weight * norm.bias.view(-1, 1, 1, 1)).squeeze(1), False)
        self.conv1.bias += self.taps1.sum((1, 2))
        self.conv1.weight *= norm.weight.view(-1, 1, 1, 1)
        if is_fusable(self.bn):
            weight, bias, taps = self._fold(gamma)
            self.conv2.weight.copy_(weight)
            self.conv2.bias.copy_(bias)
            self.taps2, self.bn = nn.Parameter(taps, False), None
        else:
            fuse_scale(self.conv2, gamma)

    def _fold(self, gamma):
        """Weight, bias and taps of the second convolution behind a batch norm with running statistics."""
        bn = self.bn
        if bn is None:
            return self.conv2.weight, self.conv2.bias, self.taps2
        return _fold(bn.running_mean, (bn.running_var + bn.eps).rsqrt(), bn.weight, bn.bias, self.conv2.weight,
                     self.conv2.bias, gamma)

    @torch.no_grad()
    def _infer(self, x, norm, gamma, height, width):
        """`residual` of one band of rows after the other: what lies between the layers stays in the cache."""
        out, dtype = torch.empty_like(x), pieces.compute_dtype(x)
        with pieces.no_autocast(x):
            weight, bias, taps = self._fold(gamma)
            for b, top, bottom in _bands(x, height, width):
                # rows that conv2 reads of the band, and that conv1 reads for those
                top2, bottom2 = max(top - 1, 0), min(bottom + 1, height)
                top1, bottom1 = max(top - 2, 0), min(bottom + 2, height)
                y = pieces.normalise(x[b, top1 * width:bottom1 * width], norm.weight, norm.bias, norm.eps)[0].to(dtype)
                y = _depthwise(tokens_to_map(y, bottom1 - top1, width), self.conv1.weight, self.conv1.bias)
                y = y[:, :, top2 - top1:bottom2 - top1]
                y = torch.ops.aten.gelu_(subtract_outside(y, self.taps1, top2 == 0, bottom2 == height))
                y = _depthwise(y, weight, bias)[:, :, top - top2:bottom - top2]
                y = subtract_outside(y, taps, top == 0, bottom == height)
                band = slice(top * width, bottom * width)
                torch.add(x[b, band], map_to_tokens(y), out=out[b, band])
        return out


def tokens_to_map(x: Tensor, height: int, width: int) -> Tensor:
    """View tokens (B, N, C) as a map (B, C, height, width), channels last in memory.

    Of the views that hold the same numbers only this one has the batch's stride where oneDNN looks for it: with B 1 a
    depthwise convolution of 100 x 160 x 384 takes 3 ms, and 13 to 30 ms where the stride is wrong and it reorders.
    In a compiled graph it is a copy: inductor cannot order the strides of the view when height and
    width are dynamic (seen with torch 2.14).
    """
    x = x.unflatten(1, (height, width)).permute(0, 3, 1, 2)
    return x.contiguous() if torch.compiler.is_compiling() else x


def map_to_tokens(x: Tensor) -> Tensor:
    """View a map (B, C, H, W) as tokens (B, H * W, C)."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)


def subtract_outside(x: Tensor, taps, top: bool = True, bottom: bool = True) -> Tensor:
    """Subtract in place, from a map (B, C, H, W), what taps (C, 3, 3) add that lie outside of it; None adds nothing.

    ``top`` and ``bottom`` say whether the map ends there; left and right it always does.
    """
    if taps is None:
        return x
    taps = taps.to(x.dtype)
    lines = [(0, 0)] * top + [(2, -1)] * bottom  # row of the taps, row of the map
    x[..., 0] -= taps[:, :, 0].sum(1).unsqueeze(-1)
    x[..., -1] -= taps[:, :, 2].sum(1).unsqueeze(-1)
    for row, y in lines:
        x[:, :, y] -= taps[:, row].sum(1).unsqueeze(-1)
        x[:, :, y, 0] += taps[:, row, 0]  # the corners went twice
        x[:, :, y, -1] += taps[:, row, 2]
    return x


def _sum_inside(x):
    """Gradient of the taps for the gradient (B, C, H, W) of a map: for each tap the sum where it lies inside."""
    dtype = pieces.statistics_dtype(x)
    total = x.sum((0, 2, 3), dtype=dtype)
    rows = x[:, :, 0].sum((0, 2), dtype=dtype), 0, x[:, :, -1].sum((0, 2), dtype=dtype)
    columns = x[..., 0].sum((0, 2), dtype=dtype), 0, x[..., -1].sum((0, 2), dtype=dtype)
    inside = [total - rows[i] - columns[j] for i in range(3) for j in range(3)]
    for i, y in ((0, 0), (2, -1)):
        for j, z in ((0, 0), (2, -1)):
            inside[3 * i + j] += x[:, :, y, z].sum(0, dtype=dtype)
    return torch.stack(inside, 1).view(-1, 3, 3)


def _bands(x, height, width):
    """Cut the grid of tokens (B, N, C) into ``(samples, first row, row behind the last)``."""
    if x.device.type != 'cpu':
        return [(slice(None), 0, height)]
    # four rows more are computed than used, so that bands are taller than other pieces
    rows = max(8, 4 * pieces.PIECE_FLOATS // (width * x.shape[2]))
    return [(slice(b, b + 1), part.start, part.stop) for b in range(len(x))
            for part in pieces.divide(height, -(-height // rows))]


def _depthwise(x, weight, bias=None):
    return F.conv2d(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), padding=1, groups=len(weight))


def _depthwise_backward(grad, x, weight):
    """Gradients of x and of the weight."""
    return torch.ops.aten.convolution_backward(grad, x, weight.to(x.dtype), None, (1, 1), (1, 1), (1, 1), False,
                                               (0, 0), len(weight), (True, True, False))[:2]


def _fold(mean, rstd, bn_weight, bn_bias, weight, bias, gamma):
    """Weight, bias and taps of gamma * conv(batch norm(x)) as one convolution of x, all depthwise."""
    scale = rstd if bn_weight is None else rstd * bn_weight
    shift = -mean * scale if bn_bias is None else bn_bias - mean * scale
    if gamma is not None:
        weight, bias = weight * gamma.view(-1, 1, 1, 1), bias * gamma
    taps = (weight * shift.view(-1, 1, 1, 1)).squeeze(1)
    return weight * scale.view(-1, 1, 1, 1), bias + taps.sum((1, 2)), taps


def _statistics(x, eps, group):
    """Mean and reciprocal deviation of the channels of (B, C, H, W), and the number of values behind them."""
    mean, rstd = batch_statistics(x, eps)
    count = x.numel() // x.shape[1]
    if group is None:
        return mean, rstd, count
    own = torch.cat((mean, variance_of(rstd, eps), mean.new_full((1, ), count)))
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group)
    means, variances, counts = torch.stack(every).split((len(mean), len(mean), 1), dim=1)
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    variance = ((variances + (means - mean).square()) * counts).sum(0) / count
    return mean, (variance + eps).rsqrt(), count


class _LPIResidual(torch.autograd.Function):
    """x + keep * gamma * LPI(norm(x)); keeps x for the backward, nothing else of its size.

    Without ``mean`` and ``rstd`` the batch's are taken, over the processes of ``group`` if there is one. Gives out
    also the mean, the reciprocal deviation and the number of values behind them.
    """

    @staticmethod
    def forward(ctx, x, keep, height, width, eps, bn_eps, group, mean, rstd, norm_weight, norm_bias, weight1, bias1,
                bn_weight, bn_bias, weight2, bias2, gamma):
        ctx.shape, ctx.eps, ctx.group, ctx.of_batch = (height, width), eps, group, mean is None
        ctx.dtype, ctx.count = pieces.compute_dtype(x), None
        with pieces.no_autocast(x):
            normed = pieces.normalise(x, norm_weight, norm_bias, eps)[0].to(ctx.dtype)
            y = torch.ops.aten.gelu_(_depthwise(tokens_to_map(normed, height, width), weight1, bias1))
            if ctx.of_batch:
                mean, rstd, ctx.count = _statistics(y, bn_eps, group)
            weight, bias, taps = _fold(mean, rstd, bn_weight, bn_bias, weight2, bias2, gamma)
            y = map_to_tokens(subtract_outside(_depthwise(y, weight, bias), taps))
            out = pieces.add_branch(x, y, keep, torch.empty_like(x))
        ctx.save_for_backward(x, keep, mean, rstd, norm_weight, norm_bias, weight1, bias1, bn_weight, bn_bias, weight2,
                              bias2, gamma)
        mean, rstd = mean.clone(), rstd.clone()  # an output that is an input would count as changed in place
        others = [t for t in (mean, rstd, ctx.count) if isinstance(t, Tensor)]
        ctx.mark_non_differentiable(*others)
        return out, mean, rstd, ctx.count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, *_):
        x, keep, mean, rstd, norm_weight, norm_bias, weight1, bias1, *second = ctx.saved_tensors
        grad = grad.contiguous()
        with pieces.no_autocast(x):
            normed, mean_x, rstd_x = pieces.normalise(x, norm_weight, norm_bias, ctx.eps)
            normed = tokens_to_map(normed.to(ctx.dtype), *ctx.shape)
            before = _depthwise(normed, weight1, bias1)
            y = F.gelu(before)
            inner = grad if keep is None else grad * keep.to(x.dtype).view(-1, 1, 1)
            inner = tokens_to_map(inner.to(ctx.dtype), *ctx.shape)
            with torch.enable_grad():
                leaves = [None if t is None else t.detach().requires_grad_() for t in (mean, rstd, *second)]
                weight, bias, taps = _fold(*leaves)
            # the taps' sum is in the bias, which they get their gradient by, less what lies outside
            grad_taps = _sum_inside(inner)
            grad_bias = grad_taps[:, 1, 1]
            inner, grad_weight = _depthwise_backward(inner, y, weight.detach())
            found = iter(torch.autograd.grad(
                (weight, bias, taps), [t for t in leaves if t is not None],
                (grad_weight.to(weight.dtype), grad_bias, grad_taps - grad_bias.view(-1, 1, 1))))
            grad_mean, grad_rstd, *grad_second = (None if t is None else next(found) for t in leaves)
            if ctx.of_batch:
                if ctx.group is not None:
                    both = torch.stack((grad_mean, grad_rstd))
                    dist.all_reduce(both, group=ctx.group)
                    grad_mean, grad_rstd = both
                slope = -grad_rstd * rstd**3 / ctx.count
                shift = grad_mean / ctx.count - slope * mean  # both in float32: rounded, they are the same error in all
                inner = (inner + torch.addcmul(shift.view(-1, 1, 1), y, slope.view(-1, 1, 1))).to(y.dtype)
            inner = torch.ops.aten.gelu_backward(inner, before)
            grad_bias1 = inner.sum((0, 2, 3), dtype=pieces.statistics_dtype(inner))
            inner, grad_weight1 = _depthwise_backward(inner, normed, weight1)
            inner = map_to_tokens(inner).to(x.dtype)
            inner, *grad_norm = pieces.normalise_backward(inner, x, mean_x, rstd_x, norm_weight, norm_bias)
            grad_x = inner.add_(grad)
        grad_norm = [None if p is None else g for p, g in zip((norm_weight, norm_bias), grad_norm, strict=True)]
        return (grad_x, None, None, None, None, None, None, None, None, *grad_norm, grad_weight1, grad_bias1,
                *grad_second)
