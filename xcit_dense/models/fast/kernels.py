"""Triton kernels for NVIDIA GPUs, where passes over the tokens and launches cost more than products.

Each is an operator (``torch.ops.xcit_dense``), so that profilers and counters of operations see it. Sums are in float32
and in a fixed order. Tokens have shape (B, N, C) and are contiguous.
"""
import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import launch, operator

_PROGRAMS = 528  # of kernels that sum over tokens: four on each of the 132 processors of an H100


@functools.cache
def _tile(channels):
    """Return the tile of tokens and channels that a program holds."""
    block = triton.next_power_of_2(channels)
    return dict(ROWS=max(2048 // block, 1), BLOCK=block, num_warps=max(4, block // 512))


def _programs(x, rows):
    """Return how many programs share the tokens of a sample."""
    return min(-(-x.shape[1] // rows), -(-_PROGRAMS // x.shape[0]))


@triton.jit
def _normed(x, at, mask, C, eps):
    """Load rows; return them with mean 0 and deviation 1, and their reciprocal deviation."""
    x = tl.load(x + at, mask=mask, other=0.).to(tl.float32)
    x = tl.where(mask, x - (tl.sum(x, 1) / C)[:, None], 0.)
    rstd = 1 / tl.sqrt_rn(tl.sum(x * x, 1) / C + eps)
    return x * rstd[:, None], rstd


def _dense(*vectors):
    """Return vectors, or None, as kernels read them: users' may be parts of others."""
    return [None if vector is None else vector.contiguous() for vector in vectors]


@triton.jit
def _load_vector(vector, columns, C, other: tl.constexpr):
    if vector is None:
        values = tl.full(columns.shape, other, tl.float32)
    else:
        values = tl.load(vector + columns, mask=columns < C, other=0.).to(tl.float32)
    return values


@triton.jit
def _layer_norm(x, weight, bias, centre, out, N, C, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    sample, columns = tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = (rows < N)[:, None] & (columns < C)[None, :]
    at = (sample * N + rows)[:, None] * C + columns[None, :]
    y, _ = _normed(x, at, mask, C, eps)
    y = y * _load_vector(weight, columns, C, 1.)[None, :] + _load_vector(bias, columns, C, 0.)[None, :]
    if centre is not None:
        y -= _load_vector(centre + sample * C, columns, C, 0.)[None, :]
    tl.store(out + at, y, mask=mask)


@operator
def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, centre: Tensor | None, eps: float,
               dtype: torch.dtype) -> Tensor:
    """Return the layer norm of tokens, minus ``centre`` (B, C) of its sample if there is one, in a type."""
    B, N, C = x.shape
    out, tile = torch.empty_like(x, dtype=dtype), _tile(C)
    launch(_layer_norm, (-(-N // tile['ROWS']), B), x, *_dense(weight, bias), centre, out, N, C, eps, **tile)
    return out


@triton.jit
def _layer_norm_mean(x, weight, bias, sums, N, C, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    sample, columns = tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    weight, bias = _load_vector(weight, columns, C, 1.), _load_vector(bias, columns, C, 0.)
    total = tl.zeros((BLOCK, ), tl.float32)
    for start in range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < N)[:, None] & (columns < C)[None, :]
        y, _ = _normed(x, (sample * N + rows)[:, None] * C + columns[None, :], mask, C, eps)
        total += tl.sum(tl.where(mask, y * weight[None, :] + bias[None, :], 0.), 0)
    tl.store(sums + (sample * tl.num_programs(0) + tl.program_id(0)) * C + columns, total / N, mask=columns < C)


@operator
def layer_norm_mean(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return the mean (B, C) over the tokens of their layer norm."""
    B, N, C = x.shape
    tile = _tile(C)
    sums = x.new_empty(B, _programs(x, tile['ROWS']), C, dtype=torch.float32)
    launch(_layer_norm_mean, (sums.shape[1], B), x, *_dense(weight, bias), sums, N, C, eps, **tile)
    return sums.sum(1)


@triton.jit
def _layer_norm_backward(grad, x, weight, residual, scale, out, sums, N, C, eps,
                         ROWS: tl.constexpr, BLOCK: tl.constexpr):
    sample, columns = tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    weight = _load_vector(weight, columns, C, 1.)
    factor = 1. if scale is None else tl.load(scale)
    grad_weight, grad_bias = tl.zeros((BLOCK, ), tl.float32), tl.zeros((BLOCK, ), tl.float32)
    for start in range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < N)[:, None] & (columns < C)[None, :]
        at = (sample * N + rows)[:, None] * C + columns[None, :]
        y, rstd = _normed(x, at, mask, C, eps)
        g = tl.load(grad + at, mask=mask, other=0.).to(tl.float32)
        grad_weight += tl.sum(g * y, 0)
        grad_bias += tl.sum(g, 0)
        g *= weight[None, :]
        g = (g - (tl.sum(g, 1) / C)[:, None] - y * (tl.sum(g * y, 1) / C)[:, None]) * rstd[:, None]
        tl.store(out + at, tl.load(residual + at, mask=mask, other=0.).to(tl.float32) + factor * g, mask=mask)
    sums += (sample * tl.num_programs(0) + tl.program_id(0)) * 2 * C + columns
    tl.store(sums, grad_weight, mask=columns < C)
    tl.store(sums + C, grad_bias, mask=columns < C)


@operator
def layer_norm_backward(grad: Tensor, x: Tensor, weight: Tensor | None, residual: Tensor, scale: Tensor | None,
                        eps: float, out: Tensor) -> Tensor:
    """Write ``residual`` plus ``scale`` times the gradient of x to ``out``; return those of weight and bias (2, C)."""
    B, N, C = x.shape
    tile = _tile(C)
    sums = x.new_empty(B, _programs(x, tile['ROWS']), 2, C, dtype=torch.float32)
    launch(_layer_norm_backward, (sums.shape[1], B), grad, x, *_dense(weight), residual, scale, out, sums, N, C, eps,
           **tile)
    return sums.flatten(0, 1).sum(0)


@triton.jit
def _add_branch(x, branch, offset, keep, out, stride, step, N, C, BLOCK: tl.constexpr):
    sample = tl.program_id(1).to(tl.int64)
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask, at = places < N * C, sample * N * C + places
    y = tl.load(branch + at, mask=mask).to(tl.float32)
    y += tl.load(offset + sample * stride + places % C, mask=mask).to(tl.float32)
    if keep is not None:
        y *= tl.load(keep + sample * step)
    tl.store(out + at, tl.load(x + at, mask=mask).to(tl.float32) + y, mask=mask)


@operator
def add_branch(x: Tensor, branch: Tensor, offset: Tensor, keep: Tensor | None, out: Tensor) -> None:
    """Write x + keep * (branch + offset) of tokens to ``out``, with ``offset`` (C) or (B, C) and ``keep`` (B)."""
    B, N, C = x.shape
    launch(_add_branch, (-(-N * C // 1024), B), x, branch, offset, keep, out,
            C if offset.dim() == 2 else 0, 0 if keep is None else keep.stride(0), N, C, BLOCK=1024)


@triton.jit
def _scaled_rows_backward(grad, grad_bias, weight, bias, gamma, out, sums, K, BLOCK: tl.constexpr):
    row, M = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    factor, total = tl.load(gamma + row), tl.zeros((BLOCK, ), tl.float32)
    for start in range(0, K, BLOCK):
        at, mask = row * K + start + tl.arange(0, BLOCK), start + tl.arange(0, BLOCK) < K
        g = tl.load(grad + at, mask=mask, other=0.).to(tl.float32)
        total += g * tl.load(weight + at, mask=mask, other=0.)
        tl.store(out + at, g * factor, mask=mask)
    g = tl.load(grad_bias + row)
    tl.store(sums + row, g * factor)
    tl.store(sums + M + row, tl.sum(total, 0) + g * tl.load(bias + row))


@operator
def scaled_rows_backward(grad_weight: Tensor, grad_bias: Tensor, weight: Tensor, bias: Tensor,
                         gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `xcit_dense.models.fast.residual` computes under this name; the last two as one (2, C)."""
    out, sums = weight.new_empty(weight.shape, dtype=grad_bias.dtype), grad_bias.new_empty(2, len(bias))
    launch(_scaled_rows_backward, (len(bias), 1), *_dense(grad_weight, grad_bias, weight, bias, gamma), out, sums,
           weight[0].numel(), BLOCK=512)
    return out, sums


@functools.cache
def _square(d):
    """Return the tile of channels by channels of a head."""
    block = triton.next_power_of_2(d)
    return dict(BLOCK=block, num_warps=8 if block > 32 else 4)


@triton.jit
def _split(x, out, row_stride, column_stride, M, K, LEFT: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (rows < M) & (columns < K)
    rest = tl.load(x + rows.to(tl.int64) * row_stride + columns * column_stride, mask=mask)
    first = rest.to(tl.bfloat16)
    rest -= first.to(tl.float32)
    second = rest.to(tl.bfloat16)
    third = (rest - second.to(tl.float32)).to(tl.bfloat16)
    out += rows.to(tl.int64) * 6 * K + columns
    tl.store(out, first, mask=mask)
    tl.store(out + K, first if LEFT else second, mask=mask)
    tl.store(out + 2 * K, first if LEFT else third, mask=mask)
    tl.store(out + 3 * K, second if LEFT else first, mask=mask)
    tl.store(out + 4 * K, second, mask=mask)
    tl.store(out + 5 * K, third if LEFT else first, mask=mask)


@operator
def split(x: Tensor, left: bool) -> Tensor:
    """Write a float32 matrix (M, K) as a sum of three in bfloat16, and them next to each other (M, 6K).

    The order, 111223 on the left and 123121 on the right, makes the product of two such matrices that of the originals
    except for parts of 2^-24.
    """
    (M, K), out = x.shape, x.new_empty(x.shape[0], 6 * x.shape[1], dtype=torch.bfloat16)
    launch(_split, (-(-M // 32), -(-K // 32)), x, out, *x.stride(), M, K, LEFT=left, BLOCK=32)
    return out


@triton.jit
def _head_rows(means, sample, head, B, C, D, i, third: tl.constexpr):
    return tl.load(means + sample * 3 * C + third * C + head * D + i, mask=i < D, other=0.)


@triton.jit
def _attend(covariance, means, temperature, step, attn, cosine, inverse, mean_out, N, C, D, BLOCK: tl.constexpr):
    head, sample, B = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    i = tl.arange(0, BLOCK)
    row, column, inside = i[:, None], i[None, :], (i < D)[:, None] & (i < D)[None, :]
    mean_q, mean_k = _head_rows(means, sample, head, B, C, D, i, 0), _head_rows(means, sample, head, B, C, D, i, 1)
    corner = covariance + (head * 2 * D * B + sample) * 2 * D  # of the first row
    square_q = tl.load(corner + i * B * 2 * D + i, mask=i < D, other=1.) + N * mean_q * mean_q
    square_k = tl.load(corner + (D + i) * B * 2 * D + D + i, mask=i < D, other=1.) + N * mean_k * mean_k
    inverse_q, inverse_k = 1 / tl.sqrt_rn(tl.maximum(square_q, 1e-24)), 1 / tl.sqrt_rn(tl.maximum(square_k, 1e-24))
    c = tl.load(corner + row * B * 2 * D + D + column, mask=inside, other=0.) + N * mean_q[:, None] * mean_k[None, :]
    c *= inverse_q[:, None] * inverse_k[None, :]
    z = tl.where(inside, c * tl.load(temperature + head * step), float('-inf'))
    z = tl.exp(z - tl.where(i < D, tl.max(z, 1), 0.)[:, None])
    a = z / tl.where(i < D, tl.sum(z, 1), 1.)[:, None]
    at = ((head * D + row) * B + sample) * D + column
    tl.store(attn + at, a, mask=inside)
    tl.store(cosine + at, c, mask=inside)
    tl.store(inverse + (head * B + sample) * 2 * D + i, inverse_q, mask=i < D)
    tl.store(inverse + (head * B + sample) * 2 * D + D + i, inverse_k, mask=i < D)
    a = tl.sum(a * _head_rows(means, sample, head, B, C, D, i, 2)[None, :], 1)
    tl.store(mean_out + sample * C + head * D + i, a, mask=i < D)


@operator
def attend(covariance: Tensor, means: Tensor, temperature: Tensor,
           num_tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute what `xcit_dense.models.fast.mix` computes under this name."""
    h, d, B = len(covariance), covariance.shape[1] // 2, len(means)
    attn, inverse = covariance.new_empty(h, d, B, d), covariance.new_empty(h, B, 2 * d)
    cosine, mean_out = torch.empty_like(attn), means.new_empty(B, h * d)
    launch(_attend, (h, B), covariance, means, temperature, int(temperature.numel() > 1), attn, cosine, inverse,
            mean_out, num_tokens, h * d, d, **_square(d))
    return attn, cosine, inverse, mean_out


@triton.jit
def _attend_backward(grad_attn, grad_mean_out, means, attn, cosine, inverse, temperature, step, slopes,
                     grad_means, grad_temperature, mean_out, N, C, D, BLOCK: tl.constexpr):
    head, sample, H, B = tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1)
    i = tl.arange(0, BLOCK)
    row, column, inside = i[:, None], i[None, :], (i < D)[:, None] & (i < D)[None, :]
    mean_q, mean_k = _head_rows(means, sample, head, B, C, D, i, 0), _head_rows(means, sample, head, B, C, D, i, 1)
    mean_v = _head_rows(means, sample, head, B, C, D, i, 2)[None, :]
    at = ((head * D + row) * B + sample) * D + column
    a, c = tl.load(attn + at, mask=inside, other=0.), tl.load(cosine + at, mask=inside, other=0.)
    g_out = tl.load(grad_mean_out + sample * C + head * D + i, mask=i < D, other=0.)[:, None]
    g = tl.load(grad_attn + at, mask=inside, other=0.) + g_out * mean_v
    tl.store(mean_out + sample * C + head * D + i, tl.sum(a * mean_v, 1), mask=i < D)
    g = a * (g - tl.sum(g * a, 1)[:, None])  # of the softmax's argument
    tl.store(grad_temperature + sample * H + head, tl.sum(tl.sum(g * c, 1), 0))
    g *= tl.load(temperature + head * step)
    inverse += (head * B + sample) * 2 * D
    inverse_q, inverse_k = tl.load(inverse + i, mask=i < D, other=0.), tl.load(inverse + D + i, mask=i < D, other=0.)
    slope_q = tl.where(inverse_q > 0.999e12, 0., -tl.sum(g * c, 1) * inverse_q * inverse_q)
    slope_k = tl.where(inverse_k > 0.999e12, 0., -tl.sum(g * c, 0) * inverse_k * inverse_k)
    g *= inverse_q[:, None] * inverse_k[None, :]
    corner, line = slopes + (head * 2 * D * B + sample) * 2 * D, B * 2 * D
    tl.store(corner + row * line + D + column, g, mask=inside)
    tl.store(corner + (D + column) * line + row, g, mask=inside)
    tl.store(corner + row * line + column, tl.where(row == column, slope_q[:, None], 0.), mask=inside)
    tl.store(corner + (D + row) * line + D + column, tl.where(row == column, slope_k[:, None], 0.), mask=inside)
    grad_means += sample * 3 * C + head * D + i
    tl.store(grad_means, N * (tl.sum(g * mean_k[None, :], 1) + slope_q * mean_q), mask=i < D)
    tl.store(grad_means + C, N * (tl.sum(g * mean_q[:, None], 0) + slope_k * mean_k), mask=i < D)
    tl.store(grad_means + 2 * C, tl.sum(a * g_out, 0), mask=i < D)


@operator
def attend_backward(grad_attn: Tensor, grad_mean_out: Tensor, means: Tensor, attn: Tensor, cosine: Tensor,
                    inverse: Tensor, temperature: Tensor, num_tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute what `xcit_dense.models.fast.mix` computes under this name."""
    h, d, B, _ = attn.shape
    slopes, mean_out = attn.new_empty(h, 2 * d, B, 2 * d), torch.empty_like(grad_mean_out)
    grad_means, grad_temperature = torch.empty_like(means), attn.new_empty(B, h)
    launch(_attend_backward, (h, B), grad_attn, grad_mean_out, means, attn, cosine, inverse, temperature,
            int(temperature.numel() > 1), slopes, grad_means, grad_temperature, mean_out, num_tokens, h * d, d,
            **_square(d))
    return slopes, grad_means, grad_temperature.sum(0).view(h, 1, 1).sum_to_size(temperature.shape), mean_out
