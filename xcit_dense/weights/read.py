"""Read weight files of every kind without running any code in them.

A pickle calls what it names. Here the names lead only to what torch allows and to the stand-ins below, which accept
nothing but numbers. NumPy's own functions are never called: they turn raw bytes into objects.
"""
import argparse
import json
import re

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

#: How torch and the stand-ins report that a file asks for something that is not allowed; torch adds advice to allow it.
_REFUSAL = re.compile(r'(?:GLOBAL |refused: |unrecognized function |but got )((?<=GLOBAL )\S+|.*)')


def read_checkpoint(source, map_location='cpu'):
    """Read a checkpoint file without running any code in it.

    The content of the file decides its kind, not its name: files of torch, or safetensors.

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
    elif kind.startswith('a pickle'):
        fix = 'If it is from PaddlePaddle (.pdparams): PASSL has the models of the authors, which are at xcit://NAME.'
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


_READERS = {'torch': _read_torch, 'safetensors': _read_safetensors}


class _Dtype:
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


class _Array(np.ndarray):
    """Replaces ``numpy.ndarray`` and the function that makes an empty one, whose numbers are in the state that follows.

    It is written as an array of NumPy.
    """

    def __new__(cls, *args):
        if args[:2] != (cls, (0, )):  # such as an address in memory
            raise ValueError('refused: an array built by hand')
        return super().__new__(cls, 0)

    def __setstate__(self, state):
        _, shape, dtype, fortran, data = state
        array = _Dtype.read(dtype, data).reshape(shape, order='F' if fortran else 'C')
        super().__setstate__(array.__reduce__()[2])

    def __reduce__(self):
        return np.array(self).__reduce__()


def _scalar(dtype, data):
    """Replaces NumPy's ``scalar``."""
    return _Dtype.read(dtype, data)[0]


class _SavedHistory(HistoryBuffer):
    """Replaces mmengine's log buffer while a file is read: a file would also set the methods of all log buffers."""

    def __setstate__(self, state):
        self.__class__ = HistoryBuffer
        self.__init__(*(state[name] for name in HISTORIES), state['max_length'])


def _statistics_method(owner, name):
    """Replaces the ``getattr`` with which a pickle names the methods of a log buffer; they are never used."""
    if owner is not _SavedHistory or name not in ('min', 'max', 'current', 'mean'):
        raise ValueError(f'refused: attribute {name!r}')


#: The names of NumPy's module for arrays, before and since NumPy 2.
_MULTIARRAY = ('numpy.core.multiarray', 'numpy._core.multiarray')
#: What files of mmengine's runner hold in addition to tensors: numbers of NumPy, and log buffers, which refer to their
#: methods. (The authors' training and DINO's write their options, an `argparse.Namespace`.)
_RUNS = {'numpy.ndarray': _Array, 'numpy.dtype': _Dtype, **{f'{m}._reconstruct': _Array for m in _MULTIARRAY},
         **{f'{m}.scalar': _scalar for m in _MULTIARRAY}, 'builtins.getattr': _statistics_method,
         'mmengine.logging.history_buffer.HistoryBuffer': _SavedHistory}
