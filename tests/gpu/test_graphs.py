"""Graphs: the backbone as CUDA graphs beside the plain pass, and whole trainings with them and without."""
import copy
from functools import partial

import pytest
import torch

from benchmarks.detector import MASK_RCNN, measure_detectors
from benchmarks.segmentor import SEMANTIC_FPN, UPERNET
from gpu.checking import within, worst
from gpu.measuring import DTYPE, figures, free_memory
from gpu.models import HALF_TYPES, build, odd_images
from gpu.test_trains import demo_data, stop_and_resume, train
from gpu.tools import Tools, amp_options
from helpers.models import loss_of
from helpers.runs import assert_same_run
from xcit_dense._utils.text import first_line
from xcit_dense.models import graphs
from xcit_dense.weights import newest_checkpoint, read_checkpoint

pytestmark = pytest.mark.gpu
#: How far sums in another order may be from each other: atomic additions of cuDNN are in any order.
_LIMITS = {None: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
_GROUPS = (('graphs small_12_p16', 'ours small_12_p16', 'authors small_12_p16', 'swin_t', 'resnet50'),
           ('graphs small_12_p8', 'ours small_12_p8', 'authors small_12_p8'))
_TASKS = dict(mask_rcnn=(MASK_RCNN, (800, 1280)), upernet=(UPERNET, (512, 512)),
              semantic_fpn=(SEMANTIC_FPN, (512, 512)))


@pytest.mark.minutes(1)
@pytest.mark.parametrize('patch_size', (16, 8))
def test_graph_values(check, patch_size):
    """Steps of two sizes in turn, with sums of gradients, stochastic depth and dropout, beside those without graphs."""
    errors, bits, wrong = {}, 0, []
    for name, dtype in dict(float32=None, **HALF_TYPES).items():
        plain = build(check, patch_size, drop_path_rate=0.3, attn_drop_rate=0.1).to(check.device)
        model, said = copy.deepcopy(plain), []
        model.graphs = graphs.Graphs(model, said.append)
        sizes = [odd_images(check, patch_size, batch=batch).to(check.device) for batch in (2, 1)]
        for number in range(4 * graphs.AFTER):
            found, wanted = (_step(each, sizes[number % 2] + number, number, dtype) for each in (model, plain))
            key, limit = f'patch {patch_size}, {name}', _LIMITS[dtype]
            bits += all(torch.equal(a, b) for part in wanted for a, b in zip(found[part], wanted[part], strict=True))
            errors[key] = worst([errors.get(key, 0.), *(_error(found[part], wanted[part]) / limit for part in wanted)])
            if not torch.equal(found['random'][0], wanted['random'][0]):
                wrong.append(f'{key}: other random numbers in step {number}')
        if check.is_cuda and len(model.graphs.pairs) < 2:
            wrong.append(f'{key}: {"; ".join(said) or "no graph"}')
    beyond, text, rows = within(errors, 1.)
    check.judge(wrong + beyond, f'{text}, of which 1 is the limit; {bits} of {12 * graphs.AFTER} steps have the same '
                'bits', rows)


def _error(found, wanted):
    """Return the worst error of a group, relative to each tensor's length and a hundredth of the longest one's."""
    lengths = torch.stack([value.double().norm() for value in wanted])
    off = torch.stack([(a.double() - b.double()).norm() for a, b in zip(found, wanted, strict=True)])
    return float((off / (lengths + 0.01 * lengths.max())).max())


def _step(model, images, number, dtype):
    """Return maps, gradients, which are summed over three steps, statistics, and the next random numbers."""
    torch.manual_seed(number)
    if number % 3 == 0:
        model.zero_grad(set_to_none=True)
    with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
        maps = model(images)
    (loss_of([level.float() for level in maps]) * (2.**12 if dtype == torch.float16 else 1.)).backward()
    return dict(maps=[level.detach() for level in maps], gradients=[p.grad.clone() for p in model.parameters()],
                statistics=[value.clone() for value in model.buffers()],
                random=[torch.rand(4, device=images.device)])


@pytest.mark.minutes(1.5)
def test_graph_resume(check):
    """Stop a training by a signal and resume it; bits beside a run that was not stopped, and one without graphs."""
    tools = Tools(check, 'graph_resume')
    data, options = demo_data(tools), list(amp_options(check).values())[-1]
    found, wrong = tools.together(dict(
        whole=partial(train, tools, 'segmentor', data, 'whole', *options),
        resumed=lambda: stop_and_resume(tools, 'segmentor', data, 'resumed', check.choose(20, 2), *options)[0],
        plain=partial(train, tools, 'segmentor', data, 'plain', '--no-graphs', *options)))
    runs, rows = {name: read_checkpoint(newest_checkpoint(folder)) for name, folder in found.items()}, []
    for name, must in dict(resumed=True, plain=False).items():
        if not {name, 'whole'} <= runs.keys():
            continue
        try:
            assert_same_run(runs[name], runs['whole'])
            rows.append({'run': name, 'beside the whole run with graphs': 'the same bits'})
        except AssertionError as error:
            rows.append({'run': name, 'beside the whole run with graphs': first_line(error)})
            wrong += [f'{name} differs: {first_line(error)}'] * must
    check.judge(wrong, 'the resumed run has the bits of the one that was not stopped', rows)


@pytest.mark.minutes(2)
@pytest.mark.parametrize('name', _TASKS)
def test_graph_steps(check, name):
    """Whole steps of a training with graphs, without, in the authors' form, and with other backbones."""
    (task, image), rows = _TASKS[name], []
    for names in check.choose(_GROUPS, (('graphs small_12_p16', 'ours small_12_p16'), )):
        for batch in check.choose((2, 4, 8), (2, )):
            rows += measure_detectors(names, image=check.choose(image, (64, 96)), batch=batch, dtype=DTYPE, task=task,
                                      runs=check.choose(8, 1), search=False)
            check.record(f'{len(rows)} steps', map(figures, rows))
            free_memory()
