"""Triton kernels for NVIDIA GPUs, where passes over the tokens and launches cost more than products.

Each is an operator (``torch.ops.xcit_dense``), so that profilers and counters of operations see it. Sums are in float32
and in a fixed order. Tokens have shape (B, N, C) and are contiguous.
"""
import functools
from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from torch import Tensor

#: The kernels by name.
KERNELS = SimpleNamespace()
_library = torch.library.Library('xcit_dense', 'DEF')
_PROGRAMS = 528  # of kernels that sum over tokens: four on each of the 132 processors of an H100


def operator(function):
    """Add a function to `KERNELS` and to ``torch.ops.xcit_dense``; it may write to its argument ``out``.

    The dispatcher takes as long as a launch, so it is asked only where a mode looks at every operation.
    """
    name, changed = function.__name__, {'out'} & function.__annotations__.keys()
    _library.define(name + torch.library.infer_schema(function, mutates_args=changed))
    _library.impl(name, function, 'CompositeExplicitAutograd')
    dispatched = getattr(torch.ops.xcit_dense, name).default
    is_included, python = torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.Python
    setattr(KERNELS, name, lambda *args: (dispatched if is_included(python) else function)(*args))
    return function


def launch(kernel, grid, *args, **constants):
    """Run a kernel on the device of its first tensor."""
    device = args[0].get_device()
    if device == -1 or device == torch.cuda.current_device():  # -1: in the interpreter
        kernel[grid](*args, **constants)
    else:
        with torch.cuda.device_of(args[0]):
            kernel[grid](*args, **constants)


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
    launch(_layer_norm, (-(-N // tile['ROWS']), B), x, weight, bias, centre, out, N, C, eps, **tile)
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
    launch(_layer_norm_mean, (sums.shape[1], B), x, weight, bias, sums, N, C, eps, **tile)
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
    launch(_layer_norm_backward, (sums.shape[1], B), grad, x, weight, residual, scale, out, sums, N, C, eps, **tile)
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
