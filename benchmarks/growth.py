"""How time and memory grow with the number of tokens."""
import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import torch
from mmengine.device import get_device

from xcit_dense._utils.machine import kib, own_peak_memory
from xcit_dense.archs import get_arch

from .cells import expected_seconds, make_step, measure_cell
from .models import build_models

_POINTS = 7
#: Seconds. A model with a slower step is not measured on larger images: its time may grow with the tokens' square.
_LONGEST = 10


def growth_sizes(patch_size, max_tokens=400_000, min_tokens=1000):
    """Return the sides of square images, in pixels, whose number of tokens grows by a constant factor."""
    factor = (max_tokens / min_tokens)**(1 / (_POINTS - 1))
    sides = {round(math.sqrt(min_tokens * factor**i)) * patch_size for i in range(_POINTS)}
    return sorted(sides)


def fit_exponent(x, y) -> float:
    """Return b of the power law y = a * x ** b, fitted in logarithms."""
    if len(x) < 2:
        return math.nan
    return statistics.linear_regression([math.log(v) for v in x], [math.log(v) for v in y]).slope


def available_memory():
    """Return the memory that no process needs, in bytes."""
    return kib(Path('/proc/meminfo'), 'MemAvailable')


def growth_jobs(arch, *, dtype, mode, names, runs, max_tokens, rates):
    """Return jobs for `run_jobs` that measure one image each, from the smallest to the largest.

    A model that does not fit into memory, or will not, judging by the previous point, is skipped from there on, and its
    row says so. Times are those of `measure_cell`, with the untimed step as the only warmup.
    """
    peaks = {}  # tokens and bytes of the previous point, by model
    seconds = {}  # of a step at the previous point, by model
    arch = arch if isinstance(arch, str) else get_arch(arch)
    jobs = []
    for side in growth_sizes(get_arch(arch).patch_size, max_tokens):
        image = (side, side)

        def measure(image=image):
            return _measure_point(arch, image, dtype, mode, names, runs, rates, peaks, seconds)

        cost = expected_seconds(arch, image, batch=1, mode=mode, names=names, runs=runs, rates=rates)
        cost += 8 * len(names) if get_device() == 'cpu' else 0  # each needs its own process
        jobs.append((f'growth: {arch} {side}x{side} {dtype} {mode}', cost, measure))
    return jobs


def _measure_point(arch, image, dtype, mode, names, runs, rates, peaks, seconds):
    tokens = math.prod(-(-side // get_arch(arch).patch_size) for side in image)
    options = dict(batch=1, dtype=dtype, mode=mode)
    memory, failed = {}, {name: 'too slow' for name in names if seconds.get(name, 0) > _LONGEST}
    if get_device() == 'cpu':
        for name in [name for name in names if name not in failed]:
            before, peak = peaks.get(name, (tokens, 0))
            try:
                if peak is None or 1.5 * peak * tokens / before > available_memory():
                    raise MemoryError
                memory[name] = peak_bytes(name, arch, image, **options)
            except (MemoryError, BrokenProcessPool):  # a process that is killed for its memory breaks the pool
                failed[name] = 'out of memory'
            peaks[name] = tokens, memory.get(name)
    fitting = [name for name in names if name not in failed]
    cell = measure_cell(arch, image, names=fitting, runs=runs, warmup=0, rates=rates, **options)
    for row in cell['rows']:
        seconds[row['name']] = row.get('seconds', 0)
        if row['name'] in memory:
            row['peak_bytes'] = memory[row['name']]
    cell['rows'] += [dict(name=name, failed=reason) for name, reason in failed.items()]
    return cell


def exponents(cells) -> dict:
    """Return the exponents of seconds and peak bytes over tokens, by model, from the points of one growth."""
    found = {}
    for name in dict.fromkeys(row['name'] for cell in cells for row in cell['rows']):
        found[name] = {value: fit_exponent(*curve(cells, name, value)) for value in ('seconds', 'peak_bytes')}
    return found


def curve(cells, name, value):
    """Return tokens and values of one model for the points where it was measured."""
    points = [(cell['tokens'], row[value]) for cell in cells for row in cell['rows']
              if row['name'] == name and row.get(value)]
    return [tokens for tokens, _ in points], [value for _, value in points]


def peak_bytes(name, arch, image, *, batch, dtype, mode) -> int:
    """Return the peak memory of a step on the CPU, in addition to the model, measured in a separate process."""
    with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:
        return pool.submit(_step_memory, name, arch, image, batch, dtype, mode, torch.get_num_threads()).result()


def _step_memory(name, arch, image, batch, dtype, mode, threads):
    torch.set_num_threads(threads)
    model = build_models(arch, mode, [name])[name]
    make_step(model, torch.randn(1, 3, 64, 64), mode, dtype)()  # one-time set-up of libraries is not part of the step
    step = make_step(model, torch.randn(batch, 3, *image), mode, dtype)
    Path('/proc/self/clear_refs').write_text('5')  # resets the peak to the current memory
    before = kib(Path('/proc/self/status'), 'VmRSS')
    step()
    return own_peak_memory() - before
