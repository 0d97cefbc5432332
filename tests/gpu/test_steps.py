"""Steps: the same bits twice, no waiting for the device, no growing memory."""
import copy
import gc
import traceback
import warnings
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import pytest
import torch

from gpu.models import HALF_TYPES, build, loss_of, odd_images, recipe_sizes, step
from helpers.paths import ROOT
from xcit_dense._utils.text import first_line, listed
from xcit_dense.archs import PATCH_SIZES
from xcit_dense.models import set_fast

pytestmark = pytest.mark.gpu
#: Sizes of images in these steps.
_SIZES = 10
#: Memory may grow by this many bytes.
_GROWTH = 2**20


def test_deterministic(check):
    """Run steps twice in torch's deterministic mode and compare maps, gradients and statistics bit by bit."""
    rows, wrong = [], []
    for patch_size, (name, dtype), (kind, is_fast) in product(
            PATCH_SIZES, (('float32', None), *HALF_TYPES.items()), (('fast', True), ('plain', False))):
        model = build(check, patch_size, drop_path_rate=0.1).to(check.device)
        images = odd_images(check, patch_size).to(check.device)
        with set_fast(is_fast), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter('always')
            torch.use_deterministic_algorithms(True, warn_only=True)
            try:
                first, second = (_everything(copy.deepcopy(model), images, dtype) for _ in range(2))
            finally:
                torch.use_deterministic_algorithms(False)
        other = [key for key, value in first.items() if not torch.equal(value, second[key])]
        refused = sorted({str(warning.message).partition(' does not have')[0][:80] for warning in said
                          if 'eterministic' in str(warning.message)})
        case = f'patch {patch_size}, {name}, {kind}'
        rows.append(dict(what=case, differ=listed(other) or 'nothing', refused=listed(refused) or 'nothing'))
        if other or refused:
            wrong.append(f'{case}: ' + ' and '.join(
                [f'{listed(other)} differ'] * bool(other) + [f'{listed(refused)} refused'] * bool(refused)))
    check.judge(wrong, f'the same bits twice in all {len(rows)} cases, and no operation refused', rows)


def _everything(model, images, dtype):
    return step(model, images, dtype) | {f'statistics {name}': value.cpu() for name, value in model.named_buffers()}


def test_waits(check):
    """Run steps that fail where the host would wait for the device; on a CPU, where it would read a value.

    A CPU stands in for the device with torch's ``meta`` tensors, which have no values. Autocast does not know them, so
    that the model itself is of the half type. They do not show which operations of CUDA wait by themselves.
    """
    rows = []
    for patch_size, (name, dtype), mode in product(PATCH_SIZES, (('float32', torch.float32), *HALF_TYPES.items()),
                                                   ('training', 'training, with_cp', 'fused inference')):
        model = build(check, patch_size, drop_path_rate=0.1, with_cp='with_cp' in mode)
        if mode == 'fused inference':  # fused before: from then on the model is what an inference runs
            model.fuse()
        rows.append(_waits_of(model, odd_images(check, patch_size), dtype, check.is_cuda,
                              f'patch {patch_size}, {name}, {mode}'))
    wrong = [f'{row["what"]}: {row["waits"]}' for row in rows if row['waits'] != 'nowhere']
    done = f'none of {len(rows)} kinds of steps waits for the device' if check.is_cuda else (
        f'none of {len(rows)} kinds of steps reads a value; a CPU does not show whether operations of CUDA wait')
    check.judge(wrong, done, rows)


def _waits_of(model, images, dtype, is_cuda, case):
    """Return a row: where a step waits and why, or 'nowhere'."""
    if is_cuda:
        model, images = model.cuda(), images.cuda()
        autocast = torch.autocast('cuda', dtype, enabled=dtype != torch.float32)
    else:
        model, images, autocast = model.to('meta', dtype), images.to('meta', dtype), nullcontext()
    try:
        if is_cuda:
            _step_without_values(model, images, autocast)  # the first time, libraries set themselves up
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode('error')
        _step_without_values(model, images, autocast)
    except torch.AcceleratorError:  # the GPU cannot be used any more
        raise
    except (RuntimeError, NotImplementedError) as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__)
               if ROOT / 'xcit_dense' in Path(frame.filename).parents]
        return dict(what=case, waits=f'{Path(own[-1].filename).name}:{own[-1].lineno}: {first_line(error)}')
    finally:
        if is_cuda:
            torch.cuda.set_sync_debug_mode('default')
    return dict(what=case, waits='nowhere')


def _step_without_values(model, images, autocast):
    """Run a step without looking at what it gives."""
    with torch.set_grad_enabled(model.training):
        with autocast:
            levels = model(images)
        if model.training:
            torch.autograd.backward(levels, [torch.ones_like(level) for level in levels])
    model.zero_grad(set_to_none=True)


@pytest.mark.minutes(1.5)
def test_memory(check):
    """Train at sizes of the multi-scale recipe and compare the memory in use after 20 and 200 steps."""
    early, late = check.choose((20, 200), (10, 40))  # all sizes have been seen before the first
    model = build(check, 16, drop_path_rate=0.1).to(check.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    sizes, held, rows = recipe_sizes(check, _SIZES), {}, []
    for number in range(1, late + 1):
        images = torch.randn(2, 3, *sizes[number % _SIZES], device=check.device)
        with torch.autocast(check.device, torch.bfloat16, enabled=check.is_cuda):
            levels = model(images)
        loss_of([level.float() for level in levels]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del images, levels
        if number in (early, late):
            held[number] = _held(check)
            rows.append(dict(steps=number, MiB=round(held[number] / 2**20, 1)))
    first, last = held.values()
    text = f'{(last - first) / 2**20:+.1f} MiB from step {early} to step {late}, at most {_GROWTH / 2**20:g} allowed'
    check.judge([text] if last - first > _GROWTH else [], text, rows)


def _held(check):
    gc.collect()
    if check.is_cuda:
        return torch.cuda.memory_allocated()
    # that of a process has what its allocator keeps too: the tensors that Python can reach, without those of a compiler
    # (subclasses), which have no memory
    storages = [tensor.untyped_storage() for tensor in gc.get_objects()
                if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == 'cpu'
                and tensor.layout == torch.strided]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
