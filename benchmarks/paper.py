"""Time of a step on paper: what an H100 would need for its launches, bytes and products.

Each operation takes the longest of its bytes over the bandwidth, its FLOPs over the rate of its type, and 2
microseconds; a step takes the longer of their sum and 4 microseconds a launch. On paper there is no cache, no clock
that falls and no kernel that is worse than another, so only ratios mean something. It needs no GPU that computes: one
that counts will do (benchmarks/nullgpu).
"""
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from .cells import make_step
from .costs import launches
from .models import build_models

_BANDWIDTH, _HALF_RATE, _FULL_RATE = 3.35e12, 790e12, 60e12  # bytes and FLOPs per second
_LEAST, _LAUNCH = 2e-6, 4e-6  # seconds of an operation and of a launch
_VIEWS = {'_reshape_alias', '_unsafe_view', 'alias', 'as_strided', 'chunk', 'detach', 'empty', 'empty_like',
          'empty_strided', 'expand', 'is_same_size', 'lift_fresh', 'new_empty', 'new_empty_strided', 'permute',
          'promote_types', 'resize_', 'select', 'set_', 'slice', 'split', 'split_with_sizes', 'squeeze', 't',
          'transpose', 'unbind', 'unflatten', 'unsqueeze', 'view'}
_FILLS = {'fill_', 'full', 'new_full', 'new_zeros', 'ones', 'uniform_', 'zero_', 'zeros', 'zeros_like'}


class Paper(TorchDispatchMode):
    """Adds up bytes, FLOPs and seconds on paper of the operations that run in its context."""
    only_counts = True  # the fast path runs all the same

    def __init__(self):
        super().__init__()
        self.bytes = self.flops = self.seconds = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket not in flop_registry:  # inference mode leaves linear layers and others in one piece
            with self:
                out = func.decompose(*args, **kwargs or {})
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs or {})
        name = func.overloadpacket.__name__
        if name not in _VIEWS:
            written = _tensors([out])
            known = {t.data_ptr() for t in written}
            read = [] if name in _FILLS else [t for t in _tensors([*args, *(kwargs or {}).values()])
                                              if t.data_ptr() not in known or name.endswith('_')]
            flops, rate = _flops(func, args, kwargs or {}, out, read)
            moved = sum(map(_size, [*read, *written]))
            self.bytes, self.flops = self.bytes + moved, self.flops + flops
            self.seconds += max(moved / _BANDWIDTH, flops / rate, _LEAST)
        return out


def _flops(func, args, kwargs, out, read):
    """Return the FLOPs of an operation and the rate at which they run."""
    packet, half = func.overloadpacket, any(t.dtype.itemsize == 2 for t in read)
    rate = _HALF_RATE if half else _FULL_RATE
    if 'convolution' in packet.__name__ and any(t.dim() == 4 and t.shape[1] == 1 for t in read):  # depthwise
        return 18 * (2 * args[1] if 'backward' in packet.__name__ else out).numel(), _FULL_RATE
    if packet not in flop_registry:
        return 0, rate
    return flop_registry[packet](*args, **{k: v for k, v in kwargs.items() if k != 'out_dtype'}, out_val=out), rate


def _tensors(values):
    return [t for value in values for t in (value if isinstance(value, (list, tuple)) else [value])
            if isinstance(t, torch.Tensor)]


def _size(t):
    """Return the bytes of a tensor; expanded dimensions are read once."""
    count = t.element_size()
    for length, stride in zip(t.shape, t.stride(), strict=True):
        count *= length if stride else 1
    return count


def paper_jobs(arch, images, **options):
    """Return jobs for `benchmarks.cells.run_jobs`, one `measure_on_paper` per image size."""
    return [(f'{arch} {height}x{width} batch {options["batch"]} {options["dtype"]} {options["mode"]} on paper', 1,
             partial(measure_on_paper, arch, (height, width), **options)) for height, width in images]


def measure_on_paper(arch, image, *, batch, dtype, mode, names) -> dict:
    """Return a cell like `benchmarks.cells.measure_cell`, with what is counted of a step in the rows.

    Args:
        arch: Architecture of XCiT, for ours, the authors' form, timm's and the ViT.
        image: Height and width.
        batch: Number of images.
        dtype: Key of `benchmarks.cells.DTYPES`.
        mode: ``'training'`` or ``'inference'``.
        names: As for `benchmarks.models.build_models`.
    """
    rows = []
    for name in names:
        model = build_models(arch, mode, [name])[name]
        step = make_step(model, torch.randn(batch, 3, *image, device='cuda'), mode, dtype)
        step()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        peak = torch.cuda.max_memory_allocated() - before
        count, waits = launches(step)
        with Paper() as paper:
            step()
        rows.append(dict(name=name, launches=count, waits=waits, moved_bytes=paper.bytes, flops=paper.flops,
                         peak_bytes=peak, paper_seconds=max(paper.seconds, count * _LAUNCH)))
    for row in rows:
        row['times_ours'] = rows[0]['paper_seconds'] / row['paper_seconds']
    return dict(arch=arch, image=list(image), batch=batch, dtype=dtype, mode=mode, rows=rows)
