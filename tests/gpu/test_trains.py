"""Trains: mixed precision, interrupted runs, groups of processes, the full configs."""
import json
import math
import shutil
import statistics
import time
from functools import partial
from pathlib import Path

import pytest

from gpu.tools import DETERMINISTIC, ToolError, Tools, amp_options
from helpers.runs import assert_same_run
from xcit_dense._utils.text import first_line
from xcit_dense.errors import DataError
from xcit_dense.report.curves import read_curves
from xcit_dense.weights import newest_checkpoint, read_checkpoint

pytestmark = pytest.mark.gpu
#: By task: the config, its metric with the bar of ``make demo``, and the lengths of the full and of the tiny form.
DEMOS = dict(
    detector=('maskrcnn_xcit_n12_p16_small', 'coco/bbox_mAP_50', 0.5, ('train_cfg.max_epochs', 6, 1)),
    segmentor=('semfpn_xcit_n12_p16_small', 'mIoU', 60., ('train_cfg.max_iters', 700, 6)))
_LOG_ALL = ('--cfg-options', 'default_hooks.logger.interval=1', 'log_processor.window_size=1')
#: The largest relative difference of a loss in a group.
_LIMIT = 1e-5
#: By family of configs: the data set.
_FAMILIES = dict(maskrcnn='coco', upernet='ade20k', semfpn='ade20k')


def demo_data(tools, name='demo', size=192, counts=(480, 80)):
    """Return a folder of generated training and validation images, made on first use; all checks share it."""
    folder = Path(tools.check.out, 'data', name)
    if not folder.exists():
        part = folder.with_name(f'{name}.part')  # of a run that was killed
        shutil.rmtree(part, ignore_errors=True)
        train, val = tools.check.choose(counts, (12, 2))
        tools.run(f'data_{name}', 'make_demo_data', part, '--train', train, '--val', val, '--size',
                  tools.check.choose(size, 64))
        part.rename(folder)
    return folder


def _training(check, task, data, work_dir, *, length=None):
    """Return the arguments of ``train`` for a demo without validation, by default as long as ``make demo``."""
    config, _, _, (key, full, tiny) = DEMOS[task]
    small = ('--image-size', 64, '--batch-size', 2, '--workers', 0)
    # deterministic algorithms have no histogram for mIoU on a GPU, and the demos are tested by the tool
    return [config, '--data-root', data, '--work-dir', work_dir, *check.choose((), small), '--cfg-options',
            f'{key}={check.choose(length or full, tiny)}', 'train_cfg.val_begin=1000000', 'randomness.seed=0']


@pytest.mark.minutes(5)
def test_demos(check):
    """Train both demos in every kind of mixed precision, all at the same time, and test them."""
    tools, rows = Tools(check, 'demos'), []
    data = demo_data(tools)
    found, wrong = tools.together({(task, kind): partial(_train_and_test, tools, task, kind, options, data)
                                   for task in DEMOS for kind, options in amp_options(check).items()})
    for (task, kind), (value, seconds) in found.items():
        _, metric, bar, _ = DEMOS[task]
        rows.append({'demo': task, 'precision': kind, 'metric': metric, 'bar': bar, 'seconds of training': seconds,
                     'result': 'nothing found' if value is None else round(value, 3)})
        if not (value or 0) >= check.choose(bar, 0):
            wrong.append(f'{task} in {kind}: {metric} {value or 0:.3f}, {bar:g} wanted')
    words = check.choose('all reach their bars', 'all train and can be tested; so short a run has no bar')
    check.judge(wrong, words, rows)


def _train_and_test(tools, task, kind, options, data):
    """Return the metric, None if nothing was found, and the seconds that the training took."""
    config, metric, _, _ = DEMOS[task]
    work_dir, start = tools.folder / f'{task}_{kind}', time.monotonic()
    tools.run(f'train_{task}_{kind}', 'train', *_training(tools.check, task, data, work_dir), *options)
    seconds = round(time.monotonic() - start)
    tools.run(f'test_{task}_{kind}', 'test', config, work_dir, '--data-root', data, '--work-dir', work_dir / 'test')
    return json.loads(max((work_dir / 'test').glob('*/*.json')).read_text()).get(metric), seconds


@pytest.mark.minutes(4)
def test_resume(check):
    """Stop trainings by a signal, resume them, and compare them with those that were not stopped, bit for bit."""
    tools = Tools(check, 'resume')
    data, stop, jobs = demo_data(tools), check.choose(20, 2), {}
    for task in DEMOS:
        for kind, options in amp_options(check).items():
            jobs[task, kind, 'whole'] = partial(train, tools, task, data, f'{task}_{kind}_whole', *options)
            jobs[task, kind, 'resumed'] = partial(stop_and_resume, tools, task, data, f'{task}_{kind}_resumed', stop,
                                                  *options)
    (found, wrong), rows = tools.together(jobs), []
    for task, kind in dict.fromkeys(key[:2] for key in jobs):
        if not {(task, kind, 'whole'), (task, kind, 'resumed')} <= found.keys():
            continue
        whole, resumed = found[task, kind, 'whole'], found[task, kind, 'resumed']
        wanted, got = (read_checkpoint(newest_checkpoint(folder)) for folder in (whole, resumed[0]))
        scale = wanted['optimizer'].get('loss_scaler') or {}
        rows.append({'run': task, 'precision': kind, 'stopped after': resumed[1], 'iterations': wanted['meta']['iter'],
                     'loss scale': scale.get('scale', '')})
        try:
            assert_same_run(got, wanted)
        except AssertionError as error:  # its text names the place
            wrong.append(f'{task} in {kind} differs: {first_line(error)}')
    check.judge(wrong, 'each resumed run ends with the bits of the one that was not stopped', rows)


def train(tools, task, data, name, *options, until=None):
    work_dir, length = tools.folder / name, dict(detector=1, segmentor=60)[task]  # epochs and iterations
    tools.run(f'{name}{"_stopped" if until else ""}', 'train',
              *_training(tools.check, task, data, work_dir, length=length), *DETERMINISTIC, *_LOG_ALL, *options,
              until=until)
    return work_dir


def stop_and_resume(tools, task, data, name, stop, *options):
    """Return the work dir and the iteration at which the run was stopped."""
    work_dir = train(tools, task, data, name, *options, until=lambda: _iteration(tools.folder / name) >= stop)
    stopped = read_checkpoint(newest_checkpoint(work_dir))['meta']['iter']
    train(tools, task, data, name, '--resume', *options)
    return work_dir, stopped


def _iteration(work_dir):
    try:
        return read_curves(work_dir)['loss'][-1][0]
    except DataError:
        return 0  # nothing is logged yet


@pytest.mark.minutes(1.5)
def test_group(check):
    """Train in a group of one process and without a group, and compare the losses."""
    tools = Tools(check, 'group')
    data, jobs = demo_data(tools), {}
    kinds = dict(list({'float32': [], **amp_options(check)}.items())[:2])  # float32 and the first mixed one
    for kind, options in kinds.items():
        for grouped in (False, True):
            jobs[kind, grouped] = partial(_losses, tools, data, f'{"group" if grouped else "alone"}_{kind}', options,
                                          grouped)
    (found, wrong), rows = tools.together(jobs), []
    for kind in kinds:
        if not {(kind, False), (kind, True)} <= found.keys():
            continue
        alone, losses = found[kind, False], found[kind, True]
        worst = max((abs(a - b) / abs(b) for a, b in zip(losses, alone, strict=False)), default=math.nan)
        rows.append(dict(backend='nccl' if check.is_cuda else 'gloo', precision=kind,
                         iterations=len(losses), **{'first loss': f'{losses[0]:.4f}', 'last': f'{losses[-1]:.4f}',
                                                    'largest difference': f'{worst:.1e}', 'limit': f'{_LIMIT:.0e}'}))
        if len(losses) != len(alone):
            wrong.append(f'{kind}: {len(losses)} iterations, {len(alone)} without a group')
        elif not worst <= _LIMIT:
            wrong.append(f'{kind}: a loss differs by {worst:.1e} of its value, at most {_LIMIT:.0e} wanted')
    check.judge(wrong, 'the losses are those of a run without a group', rows)


def _losses(tools, data, name, options, grouped):
    work_dir = Path(tools.folder, name)
    tools.run(name, 'train', *_training(tools.check, 'segmentor', data, work_dir, length=10), *DETERMINISTIC,
              *_LOG_ALL, *options, grouped=grouped)
    if grouped and 'Distributed training: True' not in ''.join(log.read_text() for log in work_dir.glob('*/*.log')):
        raise ToolError(f'{name}: the log does not say "Distributed training: True", so it trained without a group')
    return [loss for _, loss in read_curves(work_dir)['loss']]


@pytest.mark.minutes(2.5)
@pytest.mark.parametrize('family', _FAMILIES)
@pytest.mark.parametrize('patch_size', (16, 8))
def test_full_config(check, family, patch_size):
    """Train a full config for 40 iterations with ``--amp`` and measure it."""
    data_set = _FAMILIES[family]
    config = check.choose(f'{family}_xcit_s12_p{patch_size}_{data_set}',
                          DEMOS['detector' if data_set == 'coco' else 'segmentor'][0])
    tools = Tools(check, f'full_{config}')
    data = Path(check.data, data_set) if check.data else _generated(tools, data_set)
    precision, options = next(iter(amp_options(check).items()))
    iterations, out = check.choose(40, 2), tools.folder / 'measured.json'
    tools.run('measure', 'measure', config, '--data-root', data, '--iterations', iterations, '--images',
              check.choose(4, 1), '--out', out, *options)
    found = json.loads(out.read_text())['training']
    warm_up = min(10, iterations - 1)  # memory is allocated, and algorithms are chosen
    seconds, waiting, losses = (found[name][warm_up:] for name in ('iteration_seconds', 'waiting_seconds', 'losses'))
    median, batch, peak = statistics.median(seconds), found['batch_size'], found['peak_memory_gib']
    share = f'{sum(waiting) / sum(seconds):.0%}'
    row = {'data': 'samples' if check.data else 'generated', 'precision': precision,
           'images/s': f'{batch / median:.3g}', 'loss': f'{found["losses"][0]:.3f} to {losses[-1]:.3f}'}
    whole = found['iterations'] == iterations and all(map(math.isfinite, losses))
    check.judge([] if whole else [f'{found["iterations"]} of {iterations} iterations, last loss {losses[-1]:g}'],
                f'{median:.3g} s an iteration of {batch} images (median after {warm_up}), {peak:.2f} GiB, {share} of '
                'the time waiting for data', [row])


def _generated(tools, data_set):
    """Return generated data with the classes of a data set, of which it shows the first five."""
    data = demo_data(tools, 'full', size=640, counts=(60, 8))
    if data_set == 'coco':
        from mmdet.datasets import CocoDataset
        names = CocoDataset.METAINFO['classes']
        for file in (data / 'annotations').glob('instances_*.json'):
            content = json.loads(file.read_text())
            content['categories'] = [dict(id=number, name=name) for number, name in enumerate(names, 1)]
            file.write_text(json.dumps(content))
    else:
        from mmseg.datasets import ADE20KDataset
        (data / 'classes.txt').write_text('\n'.join(ADE20KDataset.METAINFO['classes']))
    return data
