"""Whether trainings that must be equal are: interrupted and not, in a group of one process and without."""
import math
from functools import partial
from pathlib import Path

import torch

from ..errors import DataError
from ..report.curves import read_curves
from ..text import counted, listed
from ..weights import newest_checkpoint, read_checkpoint
from .checks import Check, Outcome
from .tools import DETERMINISTIC, ToolError, Tools, amp_options
from .trains_demos import DEMOS, demo_data, training

_MINUTES_RESUME, _MINUTES_GROUP = 2, 1.5
#: What a resumed run must have in common with one that was not interrupted.
_PARTS = ('state_dict', 'optimizer', 'param_schedulers', 'training')
#: One epoch of the detector, and as many iterations of the segmentor.
_LENGTH = dict(detector=1, segmentor=60)
_LOG_ALL = ('--cfg-options', 'default_hooks.logger.interval=1', 'log_processor.window_size=1')
#: Ways to train in a group: options of the training, what its log says then, and the largest relative difference of a
#: loss in float32 and in mixed precision. A shard computes the same in another order.
GROUPS = {
    'DDP': ((), 'Distributed training: True', (1e-5, 1e-5)),
    'FSDP': (('--cfg-options', 'model_wrapper_cfg.type=MMFullyShardedDataParallel',
              'model_wrapper_cfg.auto_wrap_policy=xcit_blocks'), 'this process holds', (1e-4, 1e-2))}


def check_resume(setting) -> Outcome:
    """Stop trainings by a signal, resume them, and compare them with those that were not stopped, bit for bit."""
    tools = Tools(setting, 'resume', _MINUTES_RESUME)
    data, stop, jobs = demo_data(tools), setting.choose(20, 2), {}
    for task in DEMOS:
        for kind, options in amp_options(setting).items():
            jobs[task, kind, 'whole'] = partial(_train, tools, task, data, f'{task}_{kind}_whole', *options)
            jobs[task, kind, 'resumed'] = partial(_stop_and_resume, tools, task, data, f'{task}_{kind}_resumed', stop,
                                                  *options)
    found, rows, wrong = tools.together(jobs), [], []
    for task, kind in dict.fromkeys(key[:2] for key in jobs):
        whole, resumed = found[task, kind, 'whole'], found[task, kind, 'resumed']
        errors = [str(error) for error in (whole, resumed) if isinstance(error, ToolError)]
        wrong += errors
        if errors:
            continue
        row, different = _compare(whole, resumed[0])
        rows.append(dict(run=task, precision=kind, **{'stopped after': resumed[1]}, **row))
        if different:
            wrong.append(f'{task} in {kind}: {counted(len(different), "values")} differ: {listed(different, 3)}')
    return Outcome(not wrong, '; '.join(wrong) or 'each resumed run ends with the bits of the one that was not stopped',
                   rows)


def _train(tools, task, data, name, *options, until=None):
    work_dir = tools.folder / name
    tools.run(f'{name}{"_stopped" if until else ""}', 'train',
              *training(tools.setting, task, data, work_dir, length=_LENGTH[task]), *DETERMINISTIC, *_LOG_ALL, *options,
              until=until)
    return work_dir


def _stop_and_resume(tools, task, data, name, stop, *options):
    """Return the work dir and the iteration at which the run was stopped."""
    work_dir = _train(tools, task, data, name, *options, until=lambda: _iteration(tools.folder / name) >= stop)
    stopped = read_checkpoint(newest_checkpoint(work_dir))['meta']['iter']
    _train(tools, task, data, name, '--resume', *options)
    return work_dir, stopped


def _iteration(work_dir):
    try:
        return read_curves(work_dir)['loss'][-1][0]
    except DataError:
        return 0  # nothing is logged yet


def _compare(whole, resumed):
    """Return a row, and the names of the values that two runs do not share."""
    wanted, got = (read_checkpoint(newest_checkpoint(folder)) for folder in (whole, resumed))
    values = [dict(_values({part: checkpoint.get(part) for part in _PARTS})) for checkpoint in (wanted, got)]
    different = [name for name in {**values[0], **values[1]}
                 if name not in values[0] or name not in values[1] or not _equal(values[0][name], values[1][name])]
    if wanted['meta']['iter'] != got['meta']['iter']:
        different.append('meta.iter')
    scale = wanted['optimizer'].get('loss_scaler') or {}
    tensors = sum(isinstance(value, torch.Tensor) for value in values[0].values())
    return {'iterations': wanted['meta']['iter'], 'loss scale': scale.get('scale', ''), 'tensors': tensors,
            'different': len(different)}, different


def _values(content, name=''):
    """Yield the name and value of everything in dicts and lists."""
    if isinstance(content, (dict, list, tuple)) and content:
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from _values(value, f'{name}.{key}' if name else str(key))
    else:
        yield name, content


def _equal(a, b):
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


def check_group(setting) -> Outcome:
    """Train in a group of one process and without a group, and compare the losses."""
    tools = Tools(setting, 'group', _MINUTES_GROUP)
    data, jobs = demo_data(tools), {}
    kinds = dict(list({'float32': [], **amp_options(setting)}.items())[:2])  # float32 and the first mixed one
    for kind, options in kinds.items():
        jobs[kind, None] = partial(_losses, tools, data, f'alone_{kind}', options)
        for group in GROUPS:
            jobs[kind, group] = partial(_losses, tools, data, f'{group}_{kind}', options, group)
    found = tools.together(jobs)
    wrong, rows = [str(error) for error in found.values() if isinstance(error, ToolError)], []
    for (kind, group), losses in found.items():
        alone = found[kind, None]
        if group is None or ToolError in (type(losses), type(alone)):
            continue
        limit = GROUPS[group][2][kind != 'float32']
        worst = max((abs(a - b) / abs(b) for a, b in zip(losses, alone, strict=False)), default=math.nan)
        rows.append(dict(group=group, backend='nccl' if setting.is_cuda else 'gloo', precision=kind,
                         iterations=len(losses), **{'first loss': f'{losses[0]:.4f}', 'last': f'{losses[-1]:.4f}',
                                                    'largest difference': f'{worst:.1e}', 'limit': f'{limit:.0e}'}))
        if len(losses) != len(alone):
            wrong.append(f'{group} in {kind}: {len(losses)} iterations, {len(alone)} without a group')
        elif not worst <= limit:
            wrong.append(f'{group} in {kind}: a loss differs by {worst:.1e} of its value, at most {limit:.0e} wanted')
    return Outcome(not wrong, '; '.join(wrong) or 'the losses are those of a run without a group', rows)


def _losses(tools, data, name, options, group=None):
    work_dir = Path(tools.folder, name)
    more, said, _ = GROUPS[group] if group else ((), '', None)
    tools.run(name, 'train', *training(tools.setting, 'segmentor', data, work_dir, length=10), *DETERMINISTIC,
              *_LOG_ALL, *options, *more, grouped=group is not None)
    if said not in ''.join(log.read_text() for log in work_dir.glob('*/*.log')):
        raise ToolError(f'{name}: the log does not say {said!r}, so it trained without {group}')
    return [loss for _, loss in read_curves(work_dir)['loss']]


#: The checks of this file.
CHECKS = (
    Check('resume', 'Interrupted and resumed, a training in mixed precision ends with the same bits', check_resume,
          _MINUTES_RESUME),
    Check('group', 'A group of one process (DDP, FSDP) trains as without a group', check_group,
          _MINUTES_GROUP))
