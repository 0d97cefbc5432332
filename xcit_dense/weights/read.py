"""Read weight files of every kind without running any code in them."""
import json
import re
from contextlib import contextmanager

import numpy as np
import torch

from ..errors import CheckpointError
from ..text import first_line
from .fetching import fetch
from .files import damage, kind_of_file
from .safe import mmengine_globals, read_arrays, to_arrays

#: Key of class names and palette, as JSON, in the metadata of a safetensors file, which is only text.
META_KEY = 'dataset_meta'

#: How torch and `safe` report that a file asks for something that is not allowed; torch adds advice to allow it.
_REFUSAL = re.compile(r'(?:GLOBAL |refused: |unrecognized function |but got )((?<=GLOBAL )\S+|.*)')


def read_checkpoint(source, map_location='cpu'):
    """Read a checkpoint file without running any code in it.

    The content of the file decides its kind, not its name: files of torch, safetensors, and the
    pickles of NumPy arrays that PaddlePaddle writes (``.pdparams``).

    Args:
        source: A path, a work dir (its newest checkpoint), an ``https://`` address (kept in torch's
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
    with _allowed(mmengine_globals()):
        return to_arrays(torch.load(path, map_location=map_location, weights_only=True))


@contextmanager
def _allowed(stand_ins):
    """Allow ``stand_ins`` within the context, in place of globals that others allowed under the same names.

    What was allowed before is restored at the end; torch's own `safe_globals` would drop it.
    """
    allowed = torch.serialization.get_safe_globals()
    names = {_name_of(entry) for entry in stand_ins}
    torch.serialization.clear_safe_globals()
    try:
        torch.serialization.add_safe_globals([e for e in allowed if _name_of(e) not in names] + stand_ins)
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(allowed)


def _name_of(entry):
    return entry[1] if isinstance(entry, tuple) else f'{entry.__module__}.{entry.__qualname__}'


def _read_safetensors(path, map_location):
    safetensors = import_safetensors()
    state = safetensors.load_file(path, device=str(map_location))
    with safetensors.safe_open(path, framework='pt') as file:
        said = (file.metadata() or {}).get(META_KEY)
    return {'state_dict': state, 'meta': {'dataset_meta': json.loads(said)}} if said else state


def _read_pickle(path, map_location):
    with open(path, 'rb') as file:
        return _to_tensors(read_arrays(file), map_location, {})


def _to_tensors(value, device, done):
    """Turn the arrays of a PaddlePaddle file into tensors; in nested dicts, a tensor is a pair of name and array."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], np.ndarray):
        value = value[1]
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value).to(device)
    if isinstance(value, dict):
        if id(value) not in done:  # the key that is left out holds PaddlePaddle's own names
            done[id(value)] = {k: _to_tensors(v, device, done) for k, v in value.items()
                               if k != 'StructuredToParameterName@@'}
        return done[id(value)]
    return value


_READERS = {'torch': _read_torch, 'safetensors': _read_safetensors, 'pickle': _read_pickle}
