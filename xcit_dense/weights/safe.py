"""What may come out of a pickle beyond tensors: stand-ins that take numbers and nothing else.

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
    """What checkpoints of training runs need beyond tensors, each with the name in the file.

    mmengine's runner writes log buffers: numbers in NumPy arrays and references to methods of the
    buffer. The authors' own training and DINO's write their options, a plain record.
    """
    return [*((stand_in, name) for name, stand_in in _NUMPY.items()), _Array, argparse.Namespace,
            (_SavedHistory, 'mmengine.logging.history_buffer.HistoryBuffer'),
            (_statistics_method, 'builtins.getattr')]


def read_arrays(file):
    """Read a plain pickle of containers, text and NumPy arrays of numbers, as PaddlePaddle writes it.

    Raises:
        Exception: Of many types; the file is damaged or asks for anything else.
    """
    return to_arrays(_ArrayReader(file).load())


def to_arrays(value, done=None):
    """Put the arrays of a file in the places of what they were read into.

    Args:
        value: What was read.
        done: The containers that were seen, by their ids, each with what takes its place; a file may hold one in
            many places.
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
    elif type(value) is tuple:  # kept, as ids are used again
        done[id(value)] = value, tuple([to_arrays(item, done) for item in value])
        return done[id(value)][1]
    return value


class _Sealed(type):
    """Type of the stand-ins: a pickle may set the attributes of what it names."""

    def __setattr__(cls, name, value):
        raise ValueError(f'refused: attribute {name!r}')


def _stand_in(function):
    """Return an object that calls ``function`` and that a pickle cannot change, as it could a function's defaults."""

    class StandIn:
        __slots__ = ()
        __call__ = staticmethod(function)

        def __setstate__(self, state):
            raise ValueError('refused: a state for a function')

    return StandIn()


class _SavedHistory(HistoryBuffer):
    """Takes the place of mmengine's log buffer while a file is read: restores numbers and nothing else."""

    def __init__(self, *args):
        raise ValueError('refused: a log buffer built by hand')

    def __setstate__(self, state):
        histories = {name: state[name] for name in HISTORIES}
        if type(state['max_length']) is not int or not all(isinstance(v, _Array) for v in histories.values()):
            raise ValueError('refused: a log buffer of other things than numbers')
        self.__class__ = HistoryBuffer
        arrays = {name: array.value for name, array in histories.items()}
        restore_history(self, dict(arrays, max_length=state['max_length']))


@_stand_in
def _statistics_method(owner, name):
    """Stands for the ``getattr`` by which a pickle names the methods of a log buffer; they are never used."""
    if owner is not _SavedHistory or name not in ('min', 'max', 'current', 'mean'):
        raise ValueError(f'refused: attribute {name!r}')


class _ArrayType(metaclass=_Sealed):
    """Stands for ``numpy.ndarray``, whose constructor takes raw memory; it cannot be called."""

    def __new__(cls, *args):
        raise ValueError('refused: an array built by hand')


class _Dtype(metaclass=_Sealed):
    """Stands for ``numpy.dtype``: plain numbers only, no objects (pointers in raw bytes) and no fields."""

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
    """What the state of an array is read into: checked, and then an array."""

    def __setstate__(self, state):
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise ValueError('refused: an array of other things than numbers')
        self.value = dtype.read(data).reshape(shape, order='F' if fortran else 'C').copy()


@_stand_in
def _empty_array(kind, shape, code):
    """Stands for NumPy's ``_reconstruct``: an empty array that the state which follows fills."""
    if kind is not _ArrayType or shape != (0, ):
        raise ValueError('refused: an array that does not start empty')
    return _Array()


@_stand_in
def _scalar(dtype, data):
    """Stands for NumPy's ``scalar``: numbers only."""
    if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
        raise ValueError('refused: a scalar that is no number')
    return dtype.read(data)[0]


@_stand_in
def _bytes(text, encoding):
    """Stands for ``_codecs.encode``, by which old pickles write bytes as text."""
    if not isinstance(text, str) or encoding != 'latin1':
        raise ValueError(f'refused: encoding {encoding!r}')
    return text.encode('latin1')


#: NumPy's names in a file, and what stands for them.
_NUMPY = {'numpy.ndarray': _ArrayType, 'numpy.dtype': _Dtype}
for _module in ('numpy.core.multiarray', 'numpy._core.multiarray'):  # the names before and since NumPy 2
    _NUMPY |= {f'{_module}._reconstruct': _empty_array, f'{_module}.scalar': _scalar}


class _ArrayReader(pickle.Unpickler):
    """Unpickler that knows arrays of plain numbers and containers, and nothing else."""

    _KNOWN = {**_NUMPY, 'builtins.tuple': tuple, '__builtin__.tuple': tuple, 'collections.OrderedDict': OrderedDict,
              '_codecs.encode': _bytes}

    def find_class(self, module, name):
        if f'{module}.{name}' not in self._KNOWN:
            raise pickle.UnpicklingError(f'refused: {module}.{name}')
        return self._KNOWN[f'{module}.{name}']
