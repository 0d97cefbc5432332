"""Suggest a config that fits the data: `--suggest`."""
import copy
import math
import re
import textwrap
from typing import Any, NamedTuple

from ..._utils.text import counted, shown
from ...data.datasets import LOADERS, datasets
from ...errors import ConfigError, DataError
from ...tasks import task_of
from ..check import WARM_UP, schedulers, shortened, warm_up_of
from ..check.keys import changes as differences
from ..check.keys import value_at as at
from ..image_size import box_of, set_image_size
from ..length import UNITS, set_length
from ..loading import read_config
from .geometry import resize_of, rounded

#: The fewest iterations of a run that counts epochs; how often a run that counts iterations sees the data.
_ITERATIONS, _LEAST_PASSES, _MOST_PASSES = 1000, 10, 400
#: The most epochs, however small the data is; and the number of validations of a run that is made longer.
_MOST_EPOCHS, _VALIDATIONS = 300, 10
_ASKED, _WIDTH = 'as requested', 120
#: The keys of a data set that are not about which data it is.
_OF_IMAGES = ('pipeline', 'filter_cfg')


def suggest(cfg, base, source: str, settings=None) -> str:
    """Return the text of a config that fits the training data of another.

    Args:
        cfg: The other config, with its data and its classes.
        base: The file of that config.
        source: A description of what the suggestion is for.
        settings: `xcit_dense.config.settings.Settings` that were applied to the config: these values stay, and are
            written.

    Raises:
        ConfigError: The config is not for a detector or segmentor, or does not consist of plain values.
        DataError: The data cannot be measured.
    """
    check_kind(cfg)
    fit = task_of(cfg).part('fit')
    measured = fit.measure(cfg)
    if measured is None:
        raise DataError('--suggest needs training data on a local disk: a COCO file with objects, or label maps whose '
                        'pixels are numbers of classes')
    asked = {name for name, value in vars(settings).items() if value is not None} if settings else set()
    fitted, whys = copy.deepcopy(cfg), {}
    factor, why = (1., '') if 'image_size' in asked else _enlarge(fitted, fit, measured)
    if factor != 1.:
        whys['train_dataloader.dataset.pipeline'] = why
    if 'batch_size' not in asked:
        whys |= _fit_batch(fitted, factor, measured.count)
    size = fitted.train_dataloader.get('batch_size') or 1
    if fit.change:
        whys |= fit.change(fitted, measured, keeps_rate=bool(asked & {'lr', 'batch_size'}))
    if not asked & {'epochs', 'iterations'}:
        whys |= fit_schedule(fitted, -(-measured.count // size))
    changes = [(key, value, whys.get(key) or (_ASKED if asked and at(cfg, key) == value else ''))
               for key, value in _changed(read_config(base), fitted).items()]
    return write_config(base, changes, f'Suggested by train --suggest for {source}: {measured.in_words}.')


def check_kind(cfg):
    """Raise `ConfigError` if a config is not for a detector or segmentor: there is nothing to suggest."""
    if task_of(cfg).fit is None:
        raise ConfigError(f'--suggest is for detectors and segmentors, not for {task_of(cfg).name}')


def _enlarge(cfg, fit, measured):
    """Enlarge the images of a config to the size that objects or bands need; return the factor and the reason."""
    step, box = resize_of(cfg), box_of(cfg)
    if step is None or box is None:
        return 1., ''
    factor, why = fit.factor(cfg, step, measured)
    if factor == 1.:
        return 1., ''
    set_image_size(cfg, tuple(rounded(side * factor, math.gcd(side, 32)) for side in box))
    return factor, why


def _changed(own, cfg) -> dict:
    """Return what a config has that its file has not, by dotted key, except the data and the weights to start from.

    Lists are whole; a dict of another type is whole too, and replaces that of the file.

    Raises:
        ConfigError: A loader has several data sets.
    """
    cfg, found = copy.deepcopy(cfg), {}
    for loader in LOADERS:
        members = datasets(cfg, [loader])
        if len(members) > 1:
            raise ConfigError(f'--suggest cannot change the images of {loader}: it supports only loaders with one data '
                              'set')
        for dataset, other in zip(members, datasets(own, [loader]), strict=False):
            kept = {key: dataset[key] for key in _OF_IMAGES if key in dataset}
            dataset.clear()
            dataset.update({**other, **kept})
    for part in (*LOADERS, 'model', 'auto_scale_lr', 'optim_wrapper', 'train_cfg', 'default_hooks', 'custom_hooks',
                 'param_scheduler'):
        for key, old, value in differences(own.get(part), cfg.get(part), part, by_type=True):
            whole = re.split(r'\.\d', key)[0]
            if key.endswith('.num_classes') or '.init_cfg' in key:
                continue
            replaced = whole == key and isinstance(old, dict) and isinstance(value, dict)
            found[whole] = dict(_delete_=True, **value) if replaced else at(cfg, whole)
    return found


def _fit_batch(cfg, factor, images):
    """Change the batch size, and the one that the rate is for; return the reasons by key."""
    now = cfg.train_dataloader.get('batch_size')
    if not isinstance(now, int):
        return {}
    of_pixels, least = max(round(now / factor ** 2), 1), min(now, 2)
    size = max(min(of_pixels, images // 8 if 'max_epochs' in cfg.train_cfg else now), least)
    if size == now:
        return {}
    cfg.train_dataloader.batch_size = size
    if 'base_batch_size' in (cfg.get('auto_scale_lr') or {}):
        cfg.auto_scale_lr.base_batch_size = max(round(cfg.auto_scale_lr.base_batch_size * size / now), 1)
    return {'train_dataloader.batch_size': (
        'larger images, so that a step has the same number of pixels' if max(of_pixels, least) == size else
        f'so that an epoch of {counted(images, "images")} has more steps') + '; the learning rate stays',
            'auto_scale_lr.base_batch_size': 'the batch size that the learning rate is for'}


def fit_schedule(cfg, epoch_length: int) -> dict:
    """Set the length of a run for its data, and fit its schedulers to that length.

    Args:
        cfg: The config, which is changed.
        epoch_length: The iterations of an epoch.

    Returns:
        The reasons, by the keys that were changed.
    """
    key = next((key for key in UNITS if cfg.train_cfg.get(key)), None)
    if key is None:
        return {}
    now, whys = cfg.train_cfg[key], {}
    if key == 'max_epochs':
        length = min(max(now, -(-_ITERATIONS // epoch_length)), max(_MOST_EPOCHS, now))
        why = f'{length * epoch_length} iterations, before {now * epoch_length}'
    else:
        length = min(max(now, _LEAST_PASSES * epoch_length), max(_MOST_PASSES * epoch_length, _ITERATIONS))
        why = f'{length / epoch_length:.3g} passes over the data, before {now / epoch_length:.3g}'
    before = warm_up_of(cfg, epoch_length)
    if length != now:
        set_length(cfg, length, UNITS[key], epoch_length)
        whys.update({f'train_cfg.{key}': why, 'param_scheduler': 'stretched with the run'})
        if key == 'max_epochs':
            _space(cfg, length)
    after = warm_up_of(cfg, epoch_length)
    if after:
        node = dict(schedulers(cfg.param_scheduler, 'param_scheduler'))[after[0]]
        node['end'] = shortened(node, int(WARM_UP * after[2]) // after[3])
    if before and warm_up_of(cfg, epoch_length)[1] != before[1]:
        why = f'the warm-up takes a tenth of the run, before {counted(before[1], "iterations")}'
        whys['param_scheduler'] = '; '.join(filter(None, (whys.get('param_scheduler'), why)))
    return whys


def _space(cfg, length):
    """Make a run of many epochs validate and save less often."""
    now, interval = cfg.train_cfg.get('val_interval'), length // _VALIDATIONS
    if not now or now >= interval:
        return
    cfg.train_cfg.val_interval = interval
    saving = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    if saving.get('interval') == now and saving.get('by_epoch', True):
        saving['interval'] = interval


def write_config(base, changes, title: str) -> str:
    """Return the text of a config.

    Args:
        base: The file of the config that is changed.
        changes: Dotted key, value and reason of each; '' if the reason of the previous one covers it. Values consist
            of numbers, texts, lists and dicts.
        title: The first comment.

    Raises:
        ConfigError: A value cannot be written, such as the class of a pure-Python config.
    """
    tree = {}
    for key, value, why in changes:
        *folders, name = key.split('.')
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = _Leaf(value, why)
    lines = [*_comment(title, ''), f'_base_ = {str(base)!r}']
    for name, node in tree.items():
        lines += ['', *_entry(name, node, '')]
    return '\n'.join(lines) + '\n'


class _Leaf(NamedTuple):
    value: Any
    why: str = ''


def _entry(name, node, indent):
    """Return the lines of one name with its value, which is a `_Leaf` or a dict of entries."""
    equals, comment = '=' if indent else ' = ', []
    if isinstance(node, _Leaf):
        comment, text = _comment(node.why, indent), f'{indent}{name}{equals}{_code(node.value, indent)}'
        if not isinstance(node.value, dict) or len(text) <= _WIDTH:
            return [*comment, *text.splitlines()]
        node = {key: _Leaf(part) for key, part in node.value.items()}
    lines = [*comment, f'{indent}{name}{equals}dict(']
    for key, part in node.items():
        entry = _entry(key, part, f'{indent}    ')
        lines += [*entry[:-1], f'{entry[-1]},']
    return [*lines, f'{indent})']


def _comment(text, indent):
    return textwrap.wrap(text, _WIDTH, initial_indent=f'{indent}# ', subsequent_indent=f'{indent}# ')


def _code(value, indent):
    """Return Python code for a value; a list of dicts gets one line per dict."""
    if isinstance(value, dict):
        return 'dict(' + ', '.join(f'{key}={_code(part, indent)}' for key, part in value.items()) + ')'
    if isinstance(value, (list, tuple)):
        inner = f'{indent}    '
        marks = '[]' if isinstance(value, list) else '()'
        parts = [_code(part, inner) for part in value]
        if any(isinstance(part, (dict, list)) for part in value):
            return '\n'.join([marks[0], *(f'{inner}{part},' for part in parts), f'{indent}{marks[1]}'])
        comma = ',' if len(parts) == 1 and marks == '()' else ''
        return f'{marks[0]}{", ".join(parts)}{comma}{marks[1]}'
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise ConfigError(f'--suggest can write only numbers, texts, lists and dicts; this config has {shown(value)}')
