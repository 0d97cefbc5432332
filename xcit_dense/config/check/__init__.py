"""Find what is wrong with a config, before its run starts: the whole, its numbers, and its schedule."""
import logging
import re

from mmengine.logging import print_log
from mmengine.registry import MODELS, TRANSFORMS, DefaultScope

from ..._utils.text import type_name
from ...data.datasets import LOADERS
from ..tasks import class_of, learns_without_labels
from .keys import Hint, dicts_by_key, finding, is_known, tell, value_at
from .parts import check_paramwise, check_parts
from .top_level import check_top_level, find_new_keys
from .trial import check_model

__all__ = ['WARM_UP', 'Hint', 'check_config', 'check_hooks', 'check_paramwise', 'check_schedule',
           'find_new_keys', 'find_numbers', 'schedulers', 'shortened', 'tell', 'warm_up_of', 'warms_up']

#: The hook that a model needs, what it does, and a config that has it.
_HOOKS = dict(DINO=('DINOHook', 'move the teacher', '_base_/schedules/adamw_dino_300e.py'),
              DistilledClassifier=('TeacherHook', 'load the teacher', '_base_/xcit_imagenet_dist.py'))
#: Minimum values by path; an int if the value must be a whole number.
_LEAST = {
    **{f'{loader}.batch_size': 1 for loader in LOADERS}, **{f'{loader}.num_workers': 0 for loader in LOADERS},
    'train_cfg.max_epochs': 1, 'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1, 'train_cfg.val_begin': 0,
    'default_hooks.checkpoint.interval': -1, 'auto_scale_lr.base_batch_size': 1, 'optim_wrapper.optimizer.lr': 0.,
    'optim_wrapper.optimizer.weight_decay': 0., 'optim_wrapper.clip_grad.max_norm': 0., 'randomness.seed': 0}
#: Names of numbers that may be infinite: a norm that is logged but not clipped, a schedule that does not end.
_ENDLESS = ('max_norm', 'end')
_PROBABILITY = re.compile(r'prob|\w*drop\w*_(rate|ratio|prob)')
#: The largest share of a run for a warm-up that is shortened.
WARM_UP = 0.1
#: Schedulers that raise the rate, by their names.
_RISING = re.compile('Linear|Constant|Warmup')


def check_config(cfg, earlier=(), action='stop'):
    """Check a config, after its custom imports (`load_config` does them), before its runner is built.

    The keys of every part are compared with the signature of its class. The model is built once, without memory for
    parameters, and its forward pass shows whether the channels and strides of its parts fit. Other values that a
    constructor rejects are its own error, when the run builds that part. `tell` reports the findings, each with path,
    value and fix, and before them ``earlier`` ones, such as those of `find_new_keys`.
    """
    missing = [name for name in ('model', 'train_dataloader', 'train_cfg', 'optim_wrapper') if not cfg.get(name)]
    if missing:
        missing = [f'{", ".join(missing)}: missing; your own config inherits them if it names a config as its _base_']
    lines = [*earlier, *missing, *check_top_level(cfg), *find_numbers(cfg), *check_hooks(cfg)]
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope') or 'mmengine'):
        if isinstance(cfg.get('model'), dict):
            preprocessor = dict(data_preprocessor=cfg.data_preprocessor) if cfg.get('data_preprocessor') else {}
            lines += check_model({**preprocessor, **cfg.model})
        lines += check_parts(cfg)
    tell(lines, action)


def check_hooks(cfg):
    """Return a finding if the model needs a hook that the config does not have."""
    hooks = [type_name((node or {}).get('type')) for node in cfg.get('custom_hooks') or ()]
    kind = type_name((cfg.get('model') or {}).get('type'))
    wanted = None if kind == 'DINO' and not learns_without_labels(cfg) else _HOOKS.get(kind)
    return [f'custom_hooks: nothing would {wanted[1]} without dict(type={wanted[0]!r}); add it as {wanted[2]} has it. '
            'A list in a config replaces that of its base'] if wanted and wanted[0] not in hooks else []


def find_numbers(cfg) -> list:
    """Return a finding for each value that users set, such as a batch size, that is no number or out of range.

    None is no finding: it is the default of many arguments.
    """
    parts, findings = list(schedulers(cfg.get('param_scheduler'), 'param_scheduler')), []
    for path, least in {**_LEAST, **{f'{path}.{name}': 0. for path, _ in parts for name in ('begin', 'end', 'T_max')}
                        }.items():
        name, whole, value = path.rpartition('.')[2], isinstance(least, int), value_at(cfg, path)
        if value is None:
            continue
        fits = _is_number(value) and least <= value and (value < float('inf') or name in _ENDLESS)
        if not fits or whole and value != int(value):
            findings.append(finding(path, value, f'it must be a {"whole " * whole}number of at least {least:g}'))
    for path, node in parts:
        steps = node.get('milestones', [])
        if not isinstance(steps, (list, tuple)) or not all(map(_is_number, steps)):
            findings.append(finding(f'{path}.milestones', steps, 'it must be a list of numbers, such as "[8,11]"'))
    for part, registry in (('model', MODELS), *((loader, TRANSFORMS) for loader in LOADERS)):
        for path, node in dicts_by_key(cfg.get(part), part):
            above = [key for key, value in node.items() if _PROBABILITY.fullmatch(str(key)) and _is_number(value)
                     and value > 1]  # below 0 may be intended
            kind = class_of(node.get('type'), registry, cfg.get('default_scope')) if above else None
            findings += [finding(f'{path}.{key}', node[key], 'it must be a probability, from 0 to 1') for key in above
                         if kind is None or is_known(kind)]
    return findings


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_schedule(cfg, epoch_length: int = None):
    """Log a warning about schedulers that do not fit the length of the run: they do not change with it.

    The shape of steps and exponentials does not depend on their end, so it may be beyond the run. The config has no
    findings of `check_config`; ``epoch_length`` is for schedulers that count iterations in a run of epochs.
    """
    unit = 'epochs' if 'max_epochs' in cfg.train_cfg else 'iterations'
    length, iterations = map(cfg.train_cfg.get, ('max_epochs', 'max_iters'))
    if length and iterations and epoch_length:  # it ends within an epoch
        length = iterations / epoch_length
    lengths = {unit: length or iterations}
    if not lengths[unit]:
        return  # a user-defined loop
    if unit == 'epochs' and epoch_length:
        lengths['iterations'] = iterations or length * epoch_length
    lines, ends = [], []
    for path, node in schedulers(cfg.get('param_scheduler'), 'param_scheduler'):
        kind, counts = str(node['type']), 'epochs' if node.get('by_epoch', True) else 'iterations'
        run, name = lengths.get(counts), f'{path} ({kind})'
        if run is None:
            if counts == 'epochs' and not node.get('convert_to_iter_based') and 'Plateau' not in kind:
                lines.append(f'{name} counts epochs, but this run counts iterations: set {path}.by_epoch=False')
            if not _RISING.search(kind):
                ends.append((1, None))  # it may continue to the end
            continue
        end = node.get('end') or node.get('T_max') or run
        share = shortened(node, int(WARM_UP * run)) if warms_up(node) else run
        of_run = f'the run of {run} {counts}; {_stretch(path, node, share)}'
        if late := [m for m in node.get('milestones', []) if m >= run]:
            lines.append(f'{name} has the milestones {late} beyond {of_run}')
        elif end > run and not re.search('Step|Exponential|Plateau', kind):
            lines.append(f'{name} ends at {end}, beyond {of_run}')
        ends.append((node.get('end', run) / run, None if late or _RISING.search(kind) else
                     f'{name} ends at {end}, before the end of {of_run}'))
    last, early = max(ends, default=(1, None), key=lambda pair: pair[0])
    if last < 0.9 and early:
        lines.append(early)
    if lines:
        print_log('the schedule does not fit the run:\n' + '\n'.join(f'  {line}' for line in lines), logger='current',
                  level=logging.WARNING)


def schedulers(node, path):
    """Yield key and dict of each scheduler; there may be one, several, or several for each optimizer."""
    return ((key, part) for key, part in dicts_by_key(node, path) if 'type' in part)


def warms_up(node) -> bool:
    """Whether a scheduler raises the rate from the beginning of a run until the scheduler's own end."""
    return bool(_RISING.search(str(node['type']))) and not node.get('begin') and node.get('end') not in (
        None, 0, float('inf'))


def shortened(node, longest: int) -> int:
    """Return the end of a warm-up that may last at most ``longest``, in the unit that it counts.

    In mmengine a warm-up of a single step stays at its first value for ever, so none gets shorter than two steps.
    """
    return min(node['end'], max(longest, 1 if node.get('convert_to_iter_based') else 2))


def _stretch(path, node, length):
    """Return the options that stretch a scheduler to the length of a run."""
    steps = node.get('milestones') or []
    factor = length / (node.get('end') or node.get('T_max') or max(steps, default=length) / 0.9 or length)
    values = {key: round(node[key] * factor) for key in ('T_max', 'end') if node.get(key)}
    if steps:
        values['milestones'] = '"[' + ','.join(str(round(step * factor)) for step in steps) + ']"'
    return 'fit it to the run with --cfg-options ' + ' '.join(f'{path}.{key}={value}' for key, value in values.items())


def warm_up_of(cfg, epoch_length: int = None):
    """Return how the learning rate of a run warms up: the scheduler's place in the config, the scheduler, the iteration
    at which it ends, the iterations of the run, and the ``end`` with which it takes a tenth of them at most; None if
    nothing warms up, or a number is unknown."""
    length = cfg.train_cfg.get('max_iters') or (cfg.train_cfg.get('max_epochs') or 0) * (epoch_length or 0)
    for path, node in schedulers(cfg.get('param_scheduler'), 'param_scheduler'):
        unit = (epoch_length or 0) if node.get('by_epoch', True) else 1
        if warms_up(node):
            return (path, node, node['end'] * unit, length, shortened(node, int(WARM_UP * length) // unit)) \
                if unit and length else None
    return None
