"""Triton kernels for the C x C part of XCA in Gram form; see `xcit_dense.models.fast.kernels`."""
import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from .kernels import launch, operator


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
