"""What a pickle may contain in addition to tensors, as stand-ins that accept only numbers.

NumPy's own constructors turn raw bytes into objects; none of them is called here.
"""
import argparse
import pickle
import re
from collections import OrderedDict

import numpy as np
from mmengine.logging import HistoryBuffer

from ..compat.mmengine_private import HISTORIES, restore_history


def mmengine_globals():
    """Return what checkpoints of training runs need in addition to tensors, each with its name in the file.

    mmengine's runner writes log buffers: numbers in NumPy arrays and references to methods of the
    buffer. The authors' training and DINO's write their options, an `argparse.Namespace`.
    """
    return [*((stand_in, name) for name, stand_in in _NUMPY.items()), _Array, argparse.Namespace,
            (_SavedHistory, 'mmengine.logging.history_buffer.HistoryBuffer'),
            (_statistics_method, 'builtins.getattr')]


def read_arrays(file):
    """Read a plain pickle of containers, text and NumPy arrays of numbers, as PaddlePaddle writes it.

    Raises:
        Exception: Of many types; the file is damaged or contains something else.
    """
    return to_arrays(_ArrayReader(file).load())


def to_arrays(value, done=None):
    """Replace the stand-ins of a file's arrays by the arrays.

    Args:
        value: What was read.
        done: The containers seen so far, by id, each with its replacement; a file may hold one in several places.
    """
    done = {} if done is None else done
    if isinstance(value, _Array):
        return value.value
    if id(value) in done:
        return done[id(value)][1]
    if isinstance(value, dict):
        done[id(value)] = value, value
        for key in value:
            value[key] = to_arrays(value[key], done)
    elif isinstance(value, list):
        done[id(value)] = value, value
        value[:] = [to_arrays(item, done) for item in value]
    elif type(value) is tuple:  # kept alive, because ids of freed objects are reused
        done[id(value)] = value, tuple([to_arrays(item, done) for item in value])
        return done[id(value)][1]
    return value


class _Sealed(type):
    """Type of the stand-ins, which blocks a pickle from setting attributes of what it names."""

    def __setattr__(cls, name, value):
        raise ValueError(f'refused: attribute {name!r}')


def _stand_in(function):
    """Return an object that calls ``function``; a pickle could change the defaults of the function itself."""

    class StandIn:
        __slots__ = ()
        __call__ = staticmethod(function)

        def __setstate__(self, state):
            raise ValueError('refused: a state for a function')

    return StandIn()


class _SavedHistory(HistoryBuffer):
    """Replaces mmengine's log buffer while a file is read, and restores only numbers."""

    def __init__(self, *args):
        raise ValueError('refused: a log buffer built by hand')

    def __setstate__(self, state):
        histories = {name: state[name] for name in HISTORIES}
        if type(state['max_length']) is not int or not all(isinstance(v, _Array) for v in histories.values()):
            raise ValueError('refused: a log buffer of anything other than numbers')
        self.__class__ = HistoryBuffer
        arrays = {name: array.value for name, array in histories.items()}
        restore_history(self, dict(arrays, max_length=state['max_length']))


@_stand_in
def _statistics_method(owner, name):
    """Replaces the ``getattr`` with which a pickle names the methods of a log buffer; they are never used."""
    if owner is not _SavedHistory or name not in ('min', 'max', 'current', 'mean'):
        raise ValueError(f'refused: attribute {name!r}')


class _ArrayType(metaclass=_Sealed):
    """Replaces ``numpy.ndarray``, whose constructor accepts raw memory; it cannot be called."""

    def __new__(cls, *args):
        raise ValueError('refused: an array built by hand')


class _Dtype(metaclass=_Sealed):
    """Replaces ``numpy.dtype``: only plain numbers, no objects (pointers in raw bytes) and no fields."""

    def __init__(self, code, *flags):
        if not isinstance(code, str) or not re.fullmatch('[biuf][1248]', code):
            raise ValueError(f'refused: dtype {code!r}')
        self.value = np.dtype(code)

    def __setstate__(self, state):
        if state[1] not in ('<', '|', '='):
            raise ValueError(f'refused: byte order {state[1]!r}')

    def read(self, data):
        return np.frombuffer(data, self.value)


class _Array(metaclass=_Sealed):
    """Replaces an array while a file is read: its state is checked and then becomes an array."""

    def __setstate__(self, state):
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise ValueError('refused: an array of anything other than numbers')
        self.value = dtype.read(data).reshape(shape, order='F' if fortran else 'C').copy()


@_stand_in
def _empty_array(kind, shape, code):
    """Replaces NumPy's ``_reconstruct``: an empty array, filled by the state that follows."""
    if kind is not _ArrayType or shape != (0, ):
        raise ValueError('refused: an array that does not start empty')
    return _Array()


@_stand_in
def _scalar(dtype, data):
    """Replaces NumPy's ``scalar``: only numbers."""
    if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
        raise ValueError('refused: a scalar that is not a number')
    return dtype.read(data)[0]


@_stand_in
def _bytes(text, encoding):
    """Replaces ``_codecs.encode``, with which old pickles write bytes as text."""
    if not isinstance(text, str) or encoding != 'latin1':
        raise ValueError(f'refused: encoding {encoding!r}')
    return text.encode('latin1')


#: NumPy's names in a file, and their stand-ins.
_NUMPY = {'numpy.ndarray': _ArrayType, 'numpy.dtype': _Dtype}
for _module in ('numpy.core.multiarray', 'numpy._core.multiarray'):  # the names before and since NumPy 2
    _NUMPY |= {f'{_module}._reconstruct': _empty_array, f'{_module}.scalar': _scalar}


class _ArrayReader(pickle.Unpickler):
    """Unpickler that accepts only arrays of plain numbers, and containers."""

    _KNOWN = {**_NUMPY, 'builtins.tuple': tuple, '__builtin__.tuple': tuple, 'collections.OrderedDict': OrderedDict,
              '_codecs.encode': _bytes}

    def find_class(self, module, name):
        if f'{module}.{name}' not in self._KNOWN:
            raise pickle.UnpicklingError(f'refused: {module}.{name}')
        return self._KNOWN[f'{module}.{name}']
