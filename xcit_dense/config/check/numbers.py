"""The numbers that users set: is each one in its range?"""
import inspect

from mmengine.config import Config
from mmengine.registry import OPTIMIZERS

from ...data.datasets import LOADERS
from .findings import finding
from .keys import class_of
from .schedule import schedulers

#: Least values by path; those of whole numbers are whole.
_LEAST = {
    **{f'{loader}.batch_size': 1 for loader in LOADERS}, **{f'{loader}.num_workers': 0 for loader in LOADERS},
    'train_cfg.max_epochs': 1, 'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1, 'train_cfg.val_begin': 0,
    'default_hooks.checkpoint.interval': -1, 'auto_scale_lr.base_batch_size': 1,
    'optim_wrapper.optimizer.lr': 0., 'optim_wrapper.optimizer.weight_decay': 0.,
    'optim_wrapper.clip_grad.max_norm': 0.}


def find_numbers(cfg) -> list:
    """Return a finding for each of the numbers that users set, such as batch sizes, that is none or out of range."""
    parts = list(schedulers(cfg.get('param_scheduler'), 'param_scheduler'))
    places = [(path, _at(cfg, path.rpartition('.')[0]), least) for path, least in _LEAST.items()]
    places += [(f'{path}.{name}', node, 0.) for path, node in parts for name in ('begin', 'end', 'T_max')
               if node.get(name) is not None]
    findings = []
    for path, node, least in places:
        name, whole = path.rpartition('.')[2], isinstance(least, int)
        value = node.get(name, least) if isinstance(node, dict) else least
        if value is None and path.startswith('optim_wrapper.optimizer.') and _none_is_default(cfg, node, name):
            continue
        if not _is_number(value) or not least <= value < float('inf') or whole and value != int(value):
            findings.append(finding(path, value, f'it must be a {"whole " * whole}number, {least:g} or more'))
    for path, node in parts:
        steps = node.get('milestones', [])
        if not isinstance(steps, (list, tuple)) or not all(map(_is_number, steps)):
            findings.append(finding(f'{path}.milestones', steps, 'it must be a list of numbers, such as "[8,11]"'))
    return findings


def _none_is_default(cfg, optimizer, name):
    """Whether None is the optimizer's own default of an argument, as Adafactor's of transformers is for its rate."""
    kind = class_of(optimizer.get('type'), OPTIMIZERS, cfg.get('default_scope'))
    parameter = inspect.signature(kind).parameters.get(name) if kind else None
    return parameter is not None and parameter.default is None


def _at(node, path):
    for part in path.split('.'):
        node = node.get(part) if isinstance(node, (dict, Config)) else None
    return node


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)
