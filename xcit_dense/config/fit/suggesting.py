"""Suggest a config that fits the data: `--suggest`."""
import copy
import re
import textwrap
from typing import Any, NamedTuple

from ..._utils.text import shown
from ...data.datasets import LOADERS, datasets
from ...errors import ConfigError, DataError
from ...tasks import task_of
from ..check.keys import changes as differences
from ..check.keys import value_at as at
from ..loading import read_config
from .detection import REPEATS
from .fitting import PARTS, SIZE, fit
from .maps import IOU_LOSS

_ASKED, _WIDTH = 'as requested', 120
#: The keys of a data set that are not about which data it is.
_OF_IMAGES = ('pipeline', 'filter_cfg')


def suggest(cfg, base, source: str, settings=None, given=()) -> str:
    """Return the text of a config that fits the training data of another.

    Args:
        cfg: The other config, with its data and its classes.
        base: The file of that config.
        source: A description of what the suggestion is for.
        settings: `xcit_dense.config.settings.Settings` that were applied to the config: these values stay, and are
            written.
        given: As for `xcit_dense.config.fit.fitting.fit`.

    Raises:
        ConfigError: The config is not for a detector or segmentor, or does not consist of plain values.
        DataError: The data cannot be measured.
    """
    check_kind(cfg)
    fitted = copy.deepcopy(cfg)
    measured = fit(fitted, settings, given)
    if measured is None:
        raise DataError('--suggest needs one training data set on a local disk: a COCO file with objects, or label '
                        'maps whose pixels are numbers of classes')
    whys = {{SIZE: 'train_dataloader.dataset.pipeline', REPEATS: 'train_dataloader.dataset',
             IOU_LOSS: 'model.decode_head.loss_decode'}.get(
        change['key'], re.split(r'\.\d', change['key'])[0]): change['why'] for change in reversed(fitted.fitted)}
    changes, last = [], ''
    for key, value in _changed(read_config(base), fitted).items():
        why = whys.get(key) or (_ASKED if settings and at(cfg, key) == value else '')
        changes.append((key, value, why if why != last else ''))
        last = why
    return write_config(base, changes, f'Suggested by train --suggest for {source}: {measured.in_words}.')


def check_kind(cfg):
    """Raise `ConfigError` if a config is not for a detector or segmentor: there is nothing to suggest."""
    if task_of(cfg).fit is None:
        raise ConfigError(f'--suggest is for detectors and segmentors, not for {task_of(cfg).name}')


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
    for part in PARTS:
        for key, old, value in differences(own.get(part), cfg.get(part), part, by_type=True):
            whole = re.split(r'\.\d', key)[0]
            if key.endswith('.num_classes') or '.init_cfg' in key:
                continue
            replaced = whole == key and isinstance(old, dict) and isinstance(value, dict)
            found[whole] = dict(_delete_=True, **value) if replaced else at(cfg, whole)
    return found


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
