"""Checkpoints of only plain values: tensors, numbers, text, and lists, tuples and dicts of them.

`torch.load` reads these with ``weights_only=True``, its default, and so do all functions that use it, such as
`init_detector` of mmdet and `init_model` of mmseg. Log buffers and arrays are written as dicts of plain values.
"""
import logging
from collections import OrderedDict

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log

from ..compat.mmengine_private import HISTORIES

#: The key that marks a dict as the plain form of another value; its value names the kind.
KIND = 'xcit_dense.kind'
_AS_THEY_ARE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class _Unknown(Exception):
    """A value has no plain form."""


def to_plain(checkpoint: dict) -> dict:
    """Return a checkpoint in plain values. A value without a plain form is left out, with a warning.

    Log buffers and arrays become dicts that `from_plain` turns back, bit for bit; in ``meta``, which the frameworks
    read, arrays and sets become lists. NumPy numbers become Python numbers, and subclasses of dict, list, tuple,
    tensor, text and numbers become their base class.
    """
    return _plain_dict(checkpoint, '')


def from_plain(value):
    """Undo `to_plain`. Plain values and checkpoints of other writers are returned as they are."""
    if isinstance(value, dict):
        try:
            if value.get(KIND) == 'history':
                return HistoryBuffer(*(value[key].numpy() for key in HISTORIES), value['max_length'])
            if value.get(KIND) == 'array':
                return value['data'].numpy()
        except (AttributeError, KeyError, TypeError):  # a dict of another writer that has this key
            return value
        for key, item in value.items():  # in place, to stay an OrderedDict
            value[key] = from_plain(item)
    elif type(value) in (list, tuple):
        return type(value)(map(from_plain, value))
    return value


def _plain(value, name):
    if type(value) in _AS_THEY_ARE or isinstance(value, torch.nn.Parameter):
        return value
    if isinstance(value, torch.Tensor):
        # some are made of other tensors
        return value if hasattr(value, '__tensor_flatten__') else value.as_subclass(torch.Tensor)
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):  # of a type that Python has
        return _plain(value.item(), name)
    if isinstance(value, HistoryBuffer):
        numbers = {key: torch.from_numpy(np.array(vars(value)[key])) for key in HISTORIES}
        return {KIND: 'history', **numbers, 'max_length': value.max_length}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist(), name) if name.startswith('meta.') else _plain_array(value)
    if isinstance(value, (set, frozenset)) and name.startswith('meta.'):
        return _plain(sorted(value, key=str), name)
    if isinstance(value, dict):
        return _plain_dict(value, f'{name}.')
    for base in (list, tuple):
        if isinstance(value, base):
            return base(_plain(item, f'{name}.{i}') for i, item in enumerate(value))
    for base in (str, bytes, int, float):
        if isinstance(value, base):
            return base.__new__(base, value)
    raise _Unknown(type(value))


def _plain_array(value):
    if isinstance(value, np.ma.MaskedArray):  # the mask would be lost
        raise _Unknown(type(value))
    try:
        return {KIND: 'array', 'data': torch.from_numpy(value.astype(value.dtype.newbyteorder('=')))}
    except TypeError:  # of text or objects
        raise _Unknown(type(value)) from None


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
