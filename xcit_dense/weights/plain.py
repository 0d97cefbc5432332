"""Checkpoints of only plain values: tensors, numbers, text, and lists, tuples and dicts of them.

`torch.load` reads these with ``weights_only=True``, its default, and so do all functions that use it, such as
`init_detector` of mmdet and `init_model` of mmseg. Other values of a run are written as dicts of plain ones.
"""
import logging
from collections import OrderedDict
from enum import Enum
from os import PathLike, fspath

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log

from ..compat.mmengine_private import HISTORIES, restore_history

#: The key that marks a dict as the plain form of another value; its value names the kind.
KIND = 'xcit_dense.kind'
#: How the names of values in ``meta`` begin.
_META = 'meta.'
_AS_THEY_ARE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class _Unknown(Exception):
    """A value has no plain form."""


def to_plain(checkpoint: dict) -> dict:
    """Return a checkpoint in plain values. A value without a plain form is left out, with a warning.

    Log buffers, arrays and sets become dicts that `from_plain` turns back, bit for bit; in ``meta``, which the
    frameworks read, arrays and sets become lists. NumPy numbers become Python numbers, paths become text, and
    subclasses of dict, list, tuple and tensor become their base class.
    """
    return _plain_dict(checkpoint, '')


def from_plain(value):
    """Undo `to_plain`. Plain values and checkpoints of other writers are returned as they are."""
    if isinstance(value, dict):
        kind = value.get(KIND)
        try:
            if isinstance(kind, str) and kind in _BACK:
                return _BACK[kind](value)
        except (AttributeError, KeyError, TypeError):  # a dict of another writer that has this key
            return value
        for key, item in value.items():  # in place, to stay an OrderedDict
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
    if isinstance(value, torch.nn.Parameter) or hasattr(value, '__tensor_flatten__'):  # made of other tensors
        return value
    return value.as_subclass(torch.Tensor)


def _plain_number(value, name):
    if isinstance(value.item(), np.generic):  # of a type that Python does not have
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
            print_log(f'the checkpoint leaves out {name}, which is (or holds) a {kind.__module__}.{kind.__qualname__}: '
                      'checkpoints hold only plain values. A resumed run starts without it.', logger='current',
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
