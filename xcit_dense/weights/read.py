"""Read weight files of every kind without running any code in them.

A pickle calls what it names. Here the names lead only to what torch allows and to the stand-ins below, which accept
nothing but numbers. NumPy's own functions are never called: they turn raw bytes into objects.
"""
import argparse
import json
import pickle
import re
from collections import OrderedDict

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from .._utils.text import first_line
from ..compat.mmengine_private import HISTORIES
from ..errors import CheckpointError
from .files import damage, kind_of_file
from .zoo import fetch

#: Key of class names and palette, as JSON, in the metadata of a safetensors file, which is only text.
META_KEY = 'dataset_meta'

#: How torch and the stand-ins report that a file asks for something that is not allowed; torch adds advice to allow it.
_REFUSAL = re.compile(r'(?:GLOBAL |refused: |unrecognized function |but got )((?<=GLOBAL )\S+|.*)')


def read_checkpoint(source, map_location='cpu'):
    """Read a checkpoint file without running any code in it.

    The content of the file decides its kind, not its name: files of torch, safetensors, and the
    pickles of NumPy arrays that PaddlePaddle writes (``.pdparams``).

    Args:
        source: A path, a work dir (its best checkpoint), an ``https://`` address (kept in torch's
            cache), or ``xcit://NAME`` of `xcit_dense.weights.zoo`.
        map_location: As for `torch.load`.

    Returns:
        What the file holds, usually a dict. Safetensors with class names are returned with the keys of
        a dense file of torch: ``state_dict`` and ``meta``.

    Raises:
        CheckpointError: The file is missing, cannot be fetched, is damaged, or holds objects other
            than tensors, numbers, text and the log buffers of mmengine.
    """
    path = fetch(str(source))
    fix = 'If it was downloaded, delete it and download it again.'
    try:
        kind = kind_of_file(path)
        if kind in _READERS:
            return _READERS[kind](path, map_location)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f'cannot read {path}: {error}') from error
    except Exception as error:  # the readers raise a dozen types for damaged files
        text = str(error).rpartition('WeightsUnpickler error:')[2]  # before that, torch suggests reading unsafely
        if refusal := _REFUSAL.search(text):
            raise CheckpointError(f'cannot read {path}: it is not allowed to hold {refusal[1]}. A checkpoint may hold '
                                  'tensors, numbers and text; other objects could run code. If a whole model was '
                                  'saved, save model.state_dict() instead.') from error
        raise CheckpointError(f'cannot read {path}: the file is damaged or incomplete ({first_line(text or error)}). '
                              f'{fix}') from error
    if kind == 'an ONNX file':
        fix = 'predict, test and xcit_dense.load accept it; here, use the checkpoint that it was exported from.'
    raise CheckpointError(f'cannot read {path}: it is {kind}, not a checkpoint. {fix}')


def import_safetensors():
    """Import safetensors, which only .safetensors files need.

    Raises:
        CheckpointError: It is not installed.
    """
    try:
        from safetensors import torch as safetensors
    except ImportError as error:
        raise CheckpointError('.safetensors files need the package safetensors: pip install safetensors') from error
    return safetensors


def _read_torch(path, map_location):
    if wrong := damage(path):  # torch itself does not compare checksums
        raise ValueError(wrong)
    allowed = torch.serialization.get_safe_globals()  # by the program: maybe NumPy's own functions
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals([argparse.Namespace, *((stand_in, name) for name, stand_in in _RUNS.items())])
    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(allowed)


def _read_safetensors(path, map_location):
    safetensors = import_safetensors()
    state = safetensors.load_file(path, device=str(map_location))
    with safetensors.safe_open(path, framework='pt') as file:
        said = (file.metadata() or {}).get(META_KEY)
    return {'state_dict': state, 'meta': {'dataset_meta': json.loads(said)}} if said else state


def _read_paddle(path, map_location):
    with open(path, 'rb') as file:
        return _to_tensors(_ArrayReader(file).load(), map_location)


def _to_tensors(value, device, levels=2):
    """Turn the arrays of a PaddlePaddle file into tensors: those of the dict that it holds, and of the dicts in it.

    There, an array may be a pair of PaddlePaddle's own name and the array. One more key holds such names.
    """
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], np.ndarray):
        value = value[1]
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value).to(device)
    if isinstance(value, dict) and levels:
        return {k: _to_tensors(v, device, levels - 1) for k, v in value.items() if k != 'StructuredToParameterName@@'}
    return value


_READERS = {'torch': _read_torch, 'safetensors': _read_safetensors, 'pickle': _read_paddle}


class _Sealed(type):
    """Type of the stand-ins, which stops a pickle from setting attributes of what it names."""

    def __setattr__(cls, name, value):
        raise ValueError(f'refused: attribute {name!r}')


def _stand_in(function):
    """Return a class whose call is that of ``function``; a pickle could change the function itself."""
    return _Sealed(function.__name__, (), {'__new__': lambda cls, *args: function(*args)})


class _Dtype(metaclass=_Sealed):
    """Replaces ``numpy.dtype``: only plain numbers, no objects (pointers in raw bytes) and no fields."""

    def __init__(self, code, *flags):
        if not isinstance(code, str) or not re.fullmatch('[biuf][1248]', code):
            raise ValueError(f'refused: dtype {code!r}')
        self.value = np.dtype(code)

    def __setstate__(self, state):
        if state[1] not in ('<', '|', '='):
            raise ValueError(f'refused: byte order {state[1]!r}')

    @staticmethod
    def read(dtype, data):
        """Return the numbers in raw bytes."""
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise ValueError('refused: an array of anything other than numbers')
        return np.frombuffer(data, dtype.value)


class _Array(np.ndarray, metaclass=_Sealed):
    """Replaces ``numpy.ndarray``: empty at first, then filled with numbers. It is written as an array of NumPy."""

    def __new__(cls, *args):
        if args:  # such as an address in memory
            raise ValueError('refused: an array built by hand')
        return super().__new__(cls, 0)

    def __setstate__(self, state):
        _, shape, dtype, fortran, data = state
        array = _Dtype.read(dtype, data).reshape(shape, order='F' if fortran else 'C')
        super().__setstate__(array.__reduce__()[2])

    def __reduce__(self):
        return np.array(self).__reduce__()


@_stand_in
def _empty_array(kind, shape, code):
    """Replaces NumPy's ``_reconstruct``: an empty array, filled by the state that follows."""
    if kind is not _Array or shape != (0, ):
        raise ValueError('refused: an array that does not start empty')
    return _Array()


@_stand_in
def _scalar(dtype, data):
    """Replaces NumPy's ``scalar``."""
    return _Dtype.read(dtype, data)[0]


@_stand_in
def _bytes(text, encoding):
    """Replaces ``_codecs.encode``, with which pickles of protocol 2 write bytes as text."""
    if not isinstance(text, str) or encoding != 'latin1':
        raise ValueError(f'refused: encoding {encoding!r}')
    return text.encode('latin1')


class _SavedHistory(HistoryBuffer):
    """Replaces mmengine's log buffer while a file is read, and restores only numbers."""

    def __init__(self, *args):
        raise ValueError('refused: a log buffer built by hand')

    def __setstate__(self, state):
        histories, length = [state[name] for name in HISTORIES], state['max_length']
        if type(length) is not int or not all(isinstance(history, _Array) for history in histories):
            raise ValueError('refused: a log buffer of anything other than numbers')
        self.__class__ = HistoryBuffer
        self.__init__(*histories, length)


@_stand_in
def _statistics_method(owner, name):
    """Replaces the ``getattr`` with which a pickle names the methods of a log buffer; they are never used."""
    if owner is not _SavedHistory or name not in ('min', 'max', 'current', 'mean'):
        raise ValueError(f'refused: attribute {name!r}')


#: NumPy's names in a file, before and since NumPy 2, and their stand-ins.
_NUMPY = {'numpy.ndarray': _Array, 'numpy.dtype': _Dtype, **{
    f'numpy.{core}.multiarray.{name}': stand_in for core in ('core', '_core')
    for name, stand_in in (('_reconstruct', _empty_array), ('scalar', _scalar))}}
#: What files of mmengine's runner hold in addition to tensors: numbers of NumPy, and log buffers, which refer to their
#: methods. (The authors' training and DINO's write their options, an `argparse.Namespace`.)
_RUNS = {**_NUMPY, 'mmengine.logging.history_buffer.HistoryBuffer': _SavedHistory,
         'builtins.getattr': _statistics_method}


class _ArrayReader(pickle.Unpickler):
    """Reads pickles of any protocol (torch's reader: only of 2) that hold only arrays of numbers, and containers."""

    KNOWN = {**_NUMPY, 'builtins.tuple': tuple, '__builtin__.tuple': tuple, 'collections.OrderedDict': OrderedDict,
             '_codecs.encode': _bytes}

    def find_class(self, module, name):
        if f'{module}.{name}' not in self.KNOWN:
            raise pickle.UnpicklingError(f'refused: {module}.{name}')
        return self.KNOWN[f'{module}.{name}']
