"""Read weight files of every kind without running any code in them.

A pickle calls what it names. Here the names lead only to what torch allows and to the stand-ins below, which accept
nothing but numbers. NumPy's own functions are never called: they turn raw bytes into objects.
"""
import argparse
import json
import pickle
import pickletools
import re
from collections import OrderedDict

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from .._utils.text import first_line
from ..compat.internals import HISTORIES
from ..errors import CheckpointError
from .files import damage, kind_of_file
from .zoo import fetch

#: Key of class names and palette, as JSON, in the metadata of a safetensors file, which is only text.
META_KEY = 'dataset_meta'

#: Maximum tuples of a pickle. Trainings have five for each array; the hash of some 100,000 nested ones crashes Python.
_MOST_TUPLES = 50_000
#: How torch and the stand-ins report that a file asks for something that is not allowed; torch adds advice to allow it.
_REFUSAL = re.compile(r'(?:GLOBAL |refused: |unrecognized function |but got )((?<=GLOBAL )\S+|.*)')


def read_checkpoint(source, map_location='cpu'):
    """Read a checkpoint file without running any code in it.

    The content of the file decides its kind, not its name: files of torch, safetensors, or pickles of NumPy arrays,
    which PaddlePaddle writes (``.pdparams``). Their arrays become tensors.

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
    except (ImportError, OSError) as error:
        raise CheckpointError(f'cannot read {path}: {error}') from error
    except Exception as error:  # the readers raise a dozen types for damaged files
        text = str(error).rpartition('WeightsUnpickler error:')[2]  # before that, torch suggests reading unsafely
        if refusal := _REFUSAL.search(text):
            raise CheckpointError(f'cannot read {path}: it is not allowed to hold {refusal[1]}. A checkpoint may hold '
                                  'tensors, numbers and text; other objects could run code. If a whole model was '
                                  'saved, save model.state_dict() instead.') from error
        reason = first_line(text or error).partition('. ')[0]  # the next sentence may suggest it too
        raise CheckpointError(f'cannot read {path}: the file is damaged or incomplete ({reason}). {fix}') from error
    if kind == 'an ONNX file':
        fix = 'predict, test and xcit_dense.load accept it; here, use the checkpoint that it was exported from.'
    raise CheckpointError(f'cannot read {path}: it is {kind}, not a checkpoint. {fix}')


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
    from safetensors import torch as safetensors  # only these files need it
    state = safetensors.load_file(path, device=str(map_location))
    with safetensors.safe_open(path, framework='pt') as file:
        said = (file.metadata() or {}).get(META_KEY)
    return {'state_dict': state, 'meta': {'dataset_meta': json.loads(said)}} if said else state


def _read_pickle(path, map_location):
    with open(path, 'rb') as file:
        tuples = 0
        for count, (opcode, number, _) in enumerate(pickletools.genops(file)):
            tuples += opcode.name.startswith(('TUPLE', 'FROZENSET', 'OBJ', 'INST'))
            if tuples > _MOST_TUPLES or 'PUT' in opcode.name and number > count:  # memory is taken up to this number
                raise ValueError('refused: so many tuples or memo entries that Python would crash')
        file.seek(0)
        content = _ArrayReader(file).load()
    parts = (content, *content.values()) if isinstance(content, dict) else ()
    for part in {id(part): part for part in parts if isinstance(part, dict)}.values():  # each once
        part.pop('StructuredToParameterName@@', None)  # only PaddlePaddle's own names
        for name, value in part.items():
            if isinstance(value, tuple) and len(value) == 2:  # its own name of a tensor, and the tensor
                value = value[1]
            if isinstance(value, np.ndarray):
                part[name] = torch.from_numpy(value).to(map_location)
    return content


_READERS = {'torch': _read_torch, 'safetensors': _read_safetensors, 'pickle': _read_pickle}


class _Sealed(type):
    """Type of the stand-ins: a pickle could set attributes of what it names, which all later files would see."""

    @property
    def __setstate__(cls):
        raise ValueError(f'refused: attributes of {cls.__name__.strip("_")}')


def _stand_in(function):
    """Return a sealed class whose call is that of a function, or of a class of Python."""
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
        if isinstance(dtype, np.dtype):  # outside `read_checkpoint`, it is NumPy's own
            order, dtype = dtype.str[0], _Dtype(dtype.str[1:])
            dtype.__setstate__((3, order))
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray):
            raise ValueError('refused: an array of anything other than numbers')
        return np.frombuffer(data, dtype.value)


class _Array(np.ndarray, metaclass=_Sealed):
    """Replaces ``numpy.ndarray`` and the function that makes an empty one, whose numbers are in the state that follows.

    It is written as an array of NumPy.
    """

    def __new__(cls, *args):
        if args[:1] not in ((cls, ), (np.ndarray, )) or args[1:2] != ((0, ), ):  # such as an address in memory
            raise ValueError('refused: an array built by hand')
        return super().__new__(cls, 0)

    def __setstate__(self, state):
        _, shape, dtype, fortran, data = state
        array = _Dtype.read(dtype, data).reshape(shape, order='F' if fortran else 'C')
        super().__setstate__(array.__reduce__()[2])

    def __reduce__(self):
        return np.array(self).__reduce__()


@_stand_in
def _scalar(dtype, data):
    """Replaces NumPy's ``scalar``."""
    return _Dtype.read(dtype, data)[0]


@_stand_in
def _from_buffer(data, dtype, shape, order):
    """Replaces NumPy's ``_frombuffer``, with which pickles of protocol 5 write arrays."""
    return _Dtype.read(dtype, data).reshape(shape, order=order).copy(order).view(_Array)


@_stand_in
def _bytes(text, encoding):
    """Replaces ``_codecs.encode``, with which pickles of protocol 2 write bytes as text."""
    if not isinstance(text, str) or encoding != 'latin1':
        raise ValueError(f'refused: encoding {encoding!r}')
    return text.encode('latin1')


class _SavedHistory(HistoryBuffer):
    """Replaces mmengine's log buffer while a file is read: a file would also set the methods of all log buffers."""

    def __setstate__(self, state):
        self.__class__ = HistoryBuffer
        self.__init__(*(state[name] for name in HISTORIES), state['max_length'])


def _statistics_method(owner, name):
    """Replaces the ``getattr`` with which a pickle names the methods of a log buffer."""
    if owner not in (_SavedHistory, HistoryBuffer) or name not in ('min', 'max', 'current', 'mean'):
        raise ValueError(f'refused: attribute {name!r}')
    return getattr(HistoryBuffer, name)


#: NumPy's names in a file, before and since NumPy 2, and their stand-ins.
_NUMPY = {'numpy.ndarray': _Array, 'numpy.dtype': _Dtype, **{
    f'numpy.{core}.{name}': stand_in for core in ('core', '_core') for name, stand_in in (
        ('multiarray._reconstruct', _Array), ('multiarray.scalar', _scalar), ('numeric._frombuffer', _from_buffer))}}
#: What files of mmengine's runner hold in addition to tensors: numbers of NumPy, and log buffers, which refer to their
#: methods. (The authors' training and DINO's write their options, an `argparse.Namespace`.)
_RUNS = {**_NUMPY, 'builtins.getattr': _statistics_method,
         'mmengine.logging.history_buffer.HistoryBuffer': _SavedHistory}


class _ArrayReader(pickle.Unpickler):
    """Reads pickles of any protocol (torch's reader: only of 2) that hold only containers and arrays of numbers."""

    KNOWN = {**_NUMPY, 'builtins.tuple': _stand_in(tuple), '__builtin__.tuple': _stand_in(tuple),
             'collections.OrderedDict': _stand_in(OrderedDict), '_codecs.encode': _bytes}

    def find_class(self, module, name):
        if f'{module}.{name}' not in self.KNOWN:
            raise ValueError(f'refused: {module}.{name}')
        return self.KNOWN[f'{module}.{name}']


def _allow_runs():
    """Let inferencers of the frameworks, and programs, read such files with torch alone.

    Torch's list has no order: what a program allows itself may replace any of these, and what it has allowed before
    stays. By name, as the end of `torch.serialization.safe_globals` removes classes.
    """
    own = {each[1] if isinstance(each, tuple) else f'{each.__module__}.{each.__qualname__}'
           for each in torch.serialization.get_safe_globals()}
    kinds = {f'numpy.dtypes.{kind.__name__}': kind for kind in map(type, map(np.dtype, '?bhilqBHILQefd'))}
    torch.serialization.add_safe_globals([(stand_in, name) for name, stand_in in {
        **_RUNS, 'numpy.dtype': np.dtype, **kinds}.items() if name not in own])


_allow_runs()
