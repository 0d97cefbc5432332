"""Time, memory and error of XCiT compared with the authors' form and other backbones, on this machine."""
import statistics
from contextlib import suppress
from functools import partial
from time import perf_counter

import torch
from mmengine.device import get_device

from xcit_dense._utils.text import first_line
from xcit_dense.archs import get_arch

from . import costs
from .models import build_models
from .runtimes import RUNTIMES

DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}
_WARMUP_ROUNDS = 2
#: As in a gradient scaler: without it float16 gradients underflow.
_LOSS_SCALES = {'float16': 2**12}


def machine_rates(dtypes) -> dict:
    """Return ``'matrix'``, multiply-adds per second, and on a GPU ``'copy'``, bytes per second, by dtype."""
    copy = dict(copy=costs.copy_rate()) if get_device() == 'cuda' else {}
    return {dtype: dict(matrix=costs.matrix_rate(DTYPES[dtype]), **copy) for dtype in dtypes}


def make_step(model, images, mode, dtype):
    """Return a function that runs inference, or a training step without the optimiser, once.

    Half types run under autocast. The loss is the sum over the maps of their mean squares.
    """

    parameters = [*model.parameters()]

    def infer():
        with torch.inference_mode(), _autocast(images, dtype):
            return model(images)

    def train():
        _backward(model, images, dtype)
        _drop_gradients(parameters)

    return infer if mode == 'inference' else train


def _autocast(images, dtype):
    return torch.autocast(images.device.type, DTYPES[dtype], enabled=dtype != 'float32')


def _backward(model, images, dtype):
    with _autocast(images, dtype):
        maps = model(images)
    (sum(x.float().square().sum() / x.numel() for x in maps) * _LOSS_SCALES.get(dtype, 1)).backward()
    return maps


def _drop_gradients(parameters):
    for parameter in parameters:
        parameter.grad = None


def saved_bytes(model, images, dtype) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, without parameters, buffers and images."""
    given = {t.untyped_storage().data_ptr() for t in (images, *model.parameters(), *model.buffers())}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # keeps its address in use; an output itself would refer to its own graph, for ever

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t), _autocast(images, dtype):
        maps = model(images)
    del maps
    return sum(size for address, size in kept.items() if address not in given)


def measure_cell(arch, image, *, batch, dtype, mode, names, runs, compiled=False, warmup=_WARMUP_ROUNDS, rates=None):
    """Measure models on the same images, interleaved in this process.

    Args:
        arch: Architecture of XCiT, for ours, the authors' form, timm's and the ViT.
        image: Height and width.
        batch: Number of images.
        dtype: Key of `DTYPES`.
        mode: One of `MODES`.
        names: As for `build_models`.
        runs: Number of timed rounds; each runs one step of every model.
        compiled: As for `build_models`.
        warmup: Rounds before the timed ones, in addition to one untimed step of every model for memory and errors.
        rates: Multiply-adds and copied bytes per second of the machine, as ``'matrix'`` and ``'copy'``. Without them
            the shares of these rates that ours reaches are omitted.

    Returns:
        A dict: the cell, and a dict per model in ``rows``. Times are seconds per batch. ``error`` and
        ``gradient_error`` of a row are relative to the authors' form in float32 (2-norm; worst map; all parameters as
        one vector).
        On a GPU ``host_seconds`` is the time after which a step returns, before the GPU is done, and ``gpu_seconds``
        that which the GPU needs alone: a step takes as long as the slower of the two.
    """
    images = torch.randn(batch, 3, *image, device=get_device())
    models = build_models(arch, mode, names, compiled, images.shape)
    seen, rows = {}, {name: _row_of(name, model) for name, model in models.items()}
    for name, model in models.items():
        try:
            seen[name] = _look_at(model, images, mode, dtype, rows[name])
        except torch.OutOfMemoryError:
            rows[name]['failed'] = 'out of memory'
            _drop_gradients(model.parameters())
        except torch.AcceleratorError:
            raise
        except RuntimeError as error:  # one model that does not compile costs only its own row
            rows[name]['failed'] = first_line(error)
            _drop_gradients(model.parameters())
    _add_errors(rows, seen, models, images, mode, dtype)
    steps = {name: make_step(models[name], images, mode, dtype) for name in seen}
    seen.clear()
    for name, seconds in time_interleaved(steps, runs, warmup).items():
        rows[name].update(seconds=statistics.median(seconds), fastest=min(seconds), slowest=max(seconds))
    for name in steps if images.is_cuda else ():
        host = statistics.median(costs.host_time(steps[name]) for _ in range(runs))
        rows[name].update(host_seconds=host, launches=costs.launches(steps[name])[0])
        with suppress(RuntimeError):  # not every model can be captured
            rows[name]['gpu_seconds'] = costs.gpu_time(steps[name])
    for name, row in rows.items():
        _relate(row, rows.get('authors', {}))
        if name in RUNTIMES and 'seconds' in row:
            row['times_ours'] = rows['ours']['seconds'] / row['seconds']
        form = name.removesuffix(', compiled')
        if form in ('ours', 'authors') and 'seconds' in row:
            count = costs.multiply_adds(arch, *image, training=mode == 'training', authors=form == 'authors')
            row['multiply_adds'] = batch * count
        if form == 'ours' and 'seconds' in row:
            _compare_with_machine(row, arch, image, batch, mode, DTYPES[dtype], rates or {})
    grid = [-(-side // get_arch(arch).patch_size) for side in image]
    return dict(arch=str(arch), image=list(image), tokens=grid[0] * grid[1], batch=batch, dtype=dtype, mode=mode,
                rows=list(rows.values()))


def _row_of(name, model):
    file = dict(file_bytes=model.file_bytes) if hasattr(model, 'file_bytes') else {}
    return dict(name=name, **file)


def _look_at(model, images, mode, dtype, row):
    """Run a step, write its memory into ``row`` and return maps and gradient."""
    if images.is_cuda:
        make_step(model, images, mode, dtype)()  # the first compiles, and allocates workspaces that others share
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    gradient = None
    if mode == 'training':
        maps = _backward(model, images, dtype)
        gradient = torch.cat([p.grad.float().cpu().flatten() for p in model.parameters() if p.grad is not None])
        gradient /= _LOSS_SCALES.get(dtype, 1)
        _drop_gradients(model.parameters())
    else:
        maps = make_step(model, images, mode, dtype)()
    maps = [x.detach().float().cpu() for x in maps]
    if images.is_cuda:
        row['peak_bytes'] = torch.cuda.max_memory_allocated() - before
    if mode == 'training' and not row['name'].endswith('compiled'):
        row['saved_bytes'] = saved_bytes(model, images, dtype)
    return maps, gradient


def _add_errors(rows, seen, models, images, mode, dtype):
    wanted = seen.get('authors')
    if dtype != 'float32' and wanted:  # the error of the half type in the authors' form is the reference for ours
        try:
            with costs.without_tf32():
                wanted = _look_at(models['authors'], images, mode, 'float32', dict(name='authors'))
        except torch.OutOfMemoryError:
            wanted = None
            _drop_gradients(models['authors'].parameters())
    for name, found in seen.items():
        if wanted and found is not wanted and (name.startswith(('ours', 'authors')) or name in RUNTIMES):
            rows[name].update(_errors(found, wanted))


def _errors(seen, wanted):
    errors = dict(error=max(((a - b).norm() / b.norm()).item() for a, b in zip(seen[0], wanted[0], strict=True)))
    if wanted[1] is not None:
        errors['gradient_error'] = ((seen[1] - wanted[1]).norm() / wanted[1].norm()).item()
    return errors


def time_interleaved(steps, runs, warmup=_WARMUP_ROUNDS):
    """Call functions in turn (A B C A B C) and return the seconds of each call after the warmup, by name."""
    seconds = {name: [] for name in steps}
    for _ in range(warmup + runs):
        for name, step in steps.items():
            seconds[name].append(costs.time_call(step))
    return {name: values[warmup:] for name, values in seconds.items()}


def _relate(row, authors):
    """Add to a row its speed and its memory relative to the authors' form."""
    if 'seconds' in row and 'seconds' in authors:
        row['times_as_fast'] = authors['seconds'] / row['seconds']
    for name in ('saved_bytes', 'peak_bytes'):
        if name in row and authors.get(name):
            row[name.replace('bytes', 'share')] = row[name] / authors[name]


def _compare_with_machine(row, arch, image, batch, mode, dtype, rates):
    if 'matrix' in rates:
        row['floor_seconds'] = row['multiply_adds'] / rates['matrix']
        row['share_of_matrix_rate'] = row['floor_seconds'] / row['seconds']
    if 'copy' in rates:
        moved = batch * costs.moved_elements(arch, *image, training=mode == 'training') * dtype.itemsize
        row['share_of_copy_rate'] = moved / rates['copy'] / row['seconds']


def cell_jobs(arch, images, *, mode, batch, **options):
    """Return jobs for `run_jobs`, one `measure_cell` per image size; ``options`` are passed to it."""
    return [(f'{arch} {height}x{width} batch {batch} {options["dtype"]} {mode}',
             expected_seconds(arch, (height, width), batch=batch, mode=mode, **options),
             partial(measure_cell, arch, (height, width), batch=batch, mode=mode, **options))
            for height, width in images]


def expected_seconds(arch, image, *, batch, mode, names, runs, rates, **options) -> float:
    """Return roughly how many seconds `measure_cell` takes, for the progress report."""
    steps = len(names) * (runs + _WARMUP_ROUNDS + 1)
    return 3 + steps * batch * costs.multiply_adds(arch, *image, training=mode == 'training') / (0.4 * rates['matrix'])


def say(line):
    """Print a line of progress immediately, also into a file or pipe."""
    print(line, flush=True)


def run_jobs(jobs, report=say):
    """Run jobs one after the other, report which one runs and the time left, and yield their results.

    Args:
        jobs: Triples of a label, a cost in any unit and a function.
        report: Function that is called with each line.
    """
    start, done = perf_counter(), 0
    costs = [cost for _, cost, _ in jobs]
    for i, (label, cost, call) in enumerate(jobs):
        passed = perf_counter() - start
        left = f', {_minutes(passed / done * (sum(costs) - done))} left' if done else ''
        report(f'[{i + 1}/{len(jobs)}] {label} ({_minutes(passed)} passed{left})')
        yield call()
        done += cost


def _minutes(seconds):
    return f'{int(seconds) // 60}:{int(seconds) % 60:02d} min'
