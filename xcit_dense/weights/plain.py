"""Checkpoints of plain values alone: tensors, numbers, text, and lists, tuples and dicts of them.

`torch.load` reads these with ``weights_only=True``, its default, and so does whatever reads files through it: the
`init_detector` of mmdet, the `init_model` of mmseg. Other values of a run are written as dicts of plain ones.
"""
import logging
from collections import OrderedDict
from enum import Enum
from os import PathLike, fspath

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log

from ..compat.mmengine_private import HISTORIES, restore_history

#: The key of a dict that stands for another value, with the name of its kind.
KIND = 'xcit_dense.kind'
#: How the names of what is in ``meta`` begin.
_META = 'meta.'
_AS_THEY_ARE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class _Unknown(Exception):
    """There is nothing plain for a value."""


def to_plain(checkpoint: dict) -> dict:
    """Return a checkpoint in plain values; what cannot be told in them is left out, with a warning.

    Log buffers, arrays and sets become dicts that `from_plain` turns back, bit for bit; in ``meta``, which the
    frameworks read, arrays and sets become lists. NumPy's numbers become Python's, paths text, and subclasses of dict,
    list, tuple and tensors these.
    """
    return _plain_dict(checkpoint, '')


def from_plain(value):
    """Return what `to_plain` was given; what was plain already, and a checkpoint of another writer, as it is."""
    if isinstance(value, dict):
        kind = value.get(KIND)
        try:
            if isinstance(kind, str) and kind in _BACK:
                return _BACK[kind](value)
        except (AttributeError, KeyError, TypeError):  # of another writer
            return value
        for key, item in value.items():  # in place: files of before hold what is more than a dict
            value[key] = from_plain(item)
    elif type(value) in (list, tuple):
        return type(value)(map(from_plain, value))
    return value


def _plain(value, name):
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, torch.Tensor):
        return _plain_tensor(value)
    for kinds, plain in _PLAIN:
        if isinstance(value, kinds):
            return plain(value, name)
    raise _Unknown(type(value))


def _plain_tensor(value):
    if isinstance(value, torch.nn.Parameter) or hasattr(value, '__tensor_flatten__'):  # made of others: as torch does
        return value
    return value.as_subclass(torch.Tensor)


def _plain_number(value, name):
    if isinstance(value.item(), np.generic):  # of a kind that Python has not
        raise _Unknown(type(value))
    return _plain(value.item(), name)


def _plain_history(value, name):
    return {KIND: 'history', **{key: torch.from_numpy(np.array(vars(value)[key])) for key in HISTORIES},
            'max_length': value.max_length}


def _plain_array(value, name):
    if name.startswith(_META):
        return _plain(value.tolist(), name)
    if isinstance(value, np.ma.MaskedArray):  # the mask would be lost
        raise _Unknown(type(value))
    try:
        return {KIND: 'array', 'data': torch.from_numpy(value.astype(value.dtype.newbyteorder('=')))}
    except TypeError:  # of text or objects
        raise _Unknown(type(value)) from None


def _plain_set(value, name):
    if name.startswith(_META):
        return _plain(sorted(value, key=str), name)
    kind = 'frozenset' if isinstance(value, frozenset) else 'set'
    return {KIND: kind, 'items': [_plain(item, name) for item in value]}


def _plain_sequence(value, name):
    kind = list if isinstance(value, list) else tuple
    return kind(_plain(item, f'{name}.{i}') for i, item in enumerate(value))


def _plain_dict(value, prefix):
    plain = {}
    for key, item in value.items():
        name = f'{prefix}{key}'
        try:
            plain[_plain(key, name)] = _plain(item, name)
        except _Unknown as unknown:
            kind = unknown.args[0]
            print_log(f'a checkpoint holds plain values alone, and so not {name}, which is (or holds) a '
                      f'{kind.__module__}.{kind.__qualname__}: a resumed run is without it', logger='current',
                      level=logging.WARNING)
    return OrderedDict(plain) if isinstance(value, OrderedDict) else plain


def _history(value):
    buffer = HistoryBuffer()
    restore_history(buffer, dict({key: value[key].numpy() for key in HISTORIES}, max_length=value['max_length']))
    return buffer


#: By class, the first that fits.
_PLAIN = (
    (np.generic, _plain_number), (Enum, lambda value, name: _plain(value.value, name)),
    (HistoryBuffer, _plain_history), (np.ndarray, _plain_array),
    (dict, lambda value, name: _plain_dict(value, f'{name}.')), ((list, tuple), _plain_sequence),
    ((set, frozenset), _plain_set), (PathLike, lambda value, name: _plain(fspath(value), name)),
    # subclasses of these
    *((base, lambda value, name, base=base: base.__new__(base, value)) for base in (str, bytes, int, float)))
_BACK = dict(history=_history, array=lambda value: value['data'].numpy(), set=lambda value: set(value['items']),
             frozenset=lambda value: frozenset(value['items']))
