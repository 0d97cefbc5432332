"""Check that the numbers that users set are in their ranges."""
import inspect
import re

from mmengine.config import Config
from mmengine.registry import LOOPS, MODELS, OPTIMIZERS, TRANSFORMS

from ...data.datasets import LOADERS
from .findings import finding
from .keys import class_of, is_known
from .schedule import schedulers

#: Minimum values by path; an int if the value must be a whole number.
_LEAST = {
    **{f'{loader}.batch_size': 1 for loader in LOADERS}, **{f'{loader}.num_workers': 0 for loader in LOADERS},
    'train_cfg.max_epochs': 1, 'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1, 'train_cfg.val_begin': 0,
    'default_hooks.checkpoint.interval': -1, 'auto_scale_lr.base_batch_size': 1,
    'optim_wrapper.optimizer.lr': 0., 'optim_wrapper.optimizer.weight_decay': 0.,
    'optim_wrapper.clip_grad.max_norm': 0., 'randomness.seed': 0}
#: The largest that numpy accepts.
_LARGEST_SEED = 2 ** 32 - 1
#: Names of numbers that may be infinite: a norm that is logged but not clipped, a schedule that does not end.
_ENDLESS = ('max_norm', 'end')
_PROBABILITY = re.compile(r'prob|\w*drop\w*_(rate|ratio|prob)')


def find_numbers(cfg) -> list:
    """Return a finding for each value that users set, such as a batch size, that is no number or out of range."""
    parts = list(schedulers(cfg.get('param_scheduler'), 'param_scheduler'))
    places = [(path, _at(cfg, path.rpartition('.')[0]), least) for path, least in _LEAST.items()]
    places += [(f'{path}.{name}', node, 0.) for path, node in parts for name in ('begin', 'end', 'T_max')
               if node.get(name) is not None]
    findings = []
    for path, node, least in places:
        name, whole = path.rpartition('.')[2], isinstance(least, int)
        value = node.get(name, least) if isinstance(node, dict) else least
        if value is None and _none_is_default(cfg, path, node, name) or _is_of_own_loop(cfg, path, node):
            continue
        most = _LARGEST_SEED if name == 'seed' else float('inf')
        fits = _is_number(value) and least <= value <= most and (value < float('inf') or name in _ENDLESS)
        if not fits or whole and value != int(value):
            limits = f'from {least} to {most}' if name == 'seed' else f'of at least {least:g}'
            findings.append(finding(path, value, f'it must be a {"whole " * whole}number {limits}'))
    for path, node in parts:
        steps = node.get('milestones', [])
        if not isinstance(steps, (list, tuple)) or not all(map(_is_number, steps)):
            findings.append(finding(f'{path}.milestones', steps, 'it must be a list of numbers, such as "[8,11]"'))
    for part, registry in (('model', MODELS), *((loader, TRANSFORMS) for loader in LOADERS)):
        if isinstance(cfg.get(part), dict):
            findings += _find_probabilities(cfg[part], part, registry, cfg.get('default_scope'))
    return findings


def _find_probabilities(node, path, registry, scope):
    """Return a finding for each probability above 1 in known parts of models and loaders; below 0 may be intended."""
    lines = []
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, (dict, list, tuple)):
            lines += _find_probabilities(value, f'{path}.{key}', registry, scope)
        elif _PROBABILITY.fullmatch(str(key)) and _is_number(value) and value > 1:
            kind = class_of(node.get('type'), registry, scope)
            if kind is None or is_known(kind):
                lines.append(finding(f'{path}.{key}', value, 'it must be a probability, from 0 to 1'))
    return lines


def _none_is_default(cfg, path, node, name):
    """Whether None is the default of an argument, such as the learning rate of transformers' Adafactor."""
    if not path.startswith('optim_wrapper.optimizer.'):
        return name == 'seed'
    kind = class_of(node.get('type'), OPTIMIZERS, cfg.get('default_scope'))
    parameter = inspect.signature(kind).parameters.get(name) if kind else None
    return parameter is not None and parameter.default is None


def _is_of_own_loop(cfg, path, node):
    kind = class_of(node.get('type'), LOOPS, cfg.get('default_scope')) \
        if path.startswith('train_cfg.') and isinstance(node, dict) else None
    return kind is not None and not is_known(kind)


def _at(node, path):
    for part in path.split('.'):
        node = node.get(part) if isinstance(node, (dict, Config)) else None
    return node


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)
