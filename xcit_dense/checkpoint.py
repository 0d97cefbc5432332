"""Read weight files safely, find the weights in them, and load them strictly."""
import http.client
import os
import re
import shutil
import urllib.request
from pathlib import Path

import numpy as np
import torch
from mmengine.dist import barrier, is_main_process
from mmengine.logging import HistoryBuffer, print_log
from tqdm import tqdm

from . import zoo
from .errors import CheckpointError

#: What only the official classifiers hold; a dense model has no use for it.
_CLASSIFIER_KEYS = re.compile(r'(cls_token|cls_attn_blocks\..*|norm\..*|head\..*)$')
_PYRAMID_KEYS = re.compile(r'fpn[1-4]\.')
_DOWNLOAD_TIMEOUT = 30  # seconds without a byte


def read_checkpoint(source, map_location='cpu'):
    """Read a checkpoint file without running anything that it holds.

    Args:
        source: A path, a work dir (its newest checkpoint), an ``https://`` address (kept in torch's
            cache), or ``xcit://NAME`` of `xcit_dense.zoo`.
        map_location: As for `torch.load`.

    Returns:
        What the file holds, usually a dict.

    Raises:
        CheckpointError: The file is missing, cannot be fetched, is damaged, or holds objects other
            than tensors, numbers, text and the log buffers of mmengine.
    """
    path = fetch(str(source))
    try:
        with torch.serialization.safe_globals(_mmengine_globals()):
            return _arrays(torch.load(path, map_location=map_location, weights_only=True))
    except Exception as error:  # the reader raises a dozen types for damaged files
        raise CheckpointError(f'cannot read {path}: {_first_line(error)}. The file is damaged, or no checkpoint, or '
                              'holds objects that could run code; such files are refused. If it was downloaded, '
                              'delete it and fetch it again.') from error


def fetch(source: str) -> Path:
    """Return the local path of a file, downloading addresses into torch's cache first.

    Raises:
        CheckpointError: There is no such file, or it cannot be fetched; the message names the place
            where the file can be put by hand.
    """
    if source.startswith(zoo.PREFIX):
        source = zoo.address(source)
    if not source.startswith(('http://', 'https://')):
        path = Path(source).expanduser()
        if path.is_dir():
            return newest_checkpoint(path)
        if not path.is_file():
            raise CheckpointError(f'there is no file {path.absolute()}')
        return path
    path = Path(torch.hub.get_dir(), 'checkpoints', source.rsplit('/', 1)[1])
    error = None
    if not path.exists() and is_main_process():
        error = _download(source, path)
    barrier()  # the other processes of the run wait for the file
    if not path.exists():
        raise CheckpointError(
            f'cannot fetch the weights {source}: {_first_line(error) if error else "see the first process"}. '
            f'Where there is no network, put the file at {path}, or start from random weights '
            '(--no-pretrained, or init_cfg=None).')
    return path


def _download(url, path):
    """Fetch ``url`` into ``path``, whole or not at all; return the error if there was one.

    (`torch.hub` takes an answer that breaks off for the whole file.)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    print_log(f'fetching {url} into {path}', logger='current')
    part = path.with_name(f'{path.name}.{os.getpid()}.part')
    try:
        with urllib.request.urlopen(url, timeout=_DOWNLOAD_TIMEOUT) as answer, open(part, 'wb') as file:
            size = answer.headers.get('Content-Length')
            with tqdm.wrapattr(answer, 'read', total=int(size) if size else None, desc=path.name) as body:
                shutil.copyfileobj(body, file, 1 << 20)
        if size and part.stat().st_size != int(size):
            return OSError(f'the transfer broke off after {part.stat().st_size} of {size} bytes')
        os.replace(part, path)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return error
    finally:
        part.unlink(missing_ok=True)


def find_state_dict(checkpoint, source) -> dict:
    """Return the tensors by name from any of the usual containers, without ``module.`` prefixes.

    Args:
        checkpoint: What `read_checkpoint` gave.
        source: Its file, for the error.

    Raises:
        CheckpointError: There are none.
    """
    for container in ('state_dict', 'model'):
        if isinstance(checkpoint, dict) and isinstance(checkpoint.get(container), dict):
            checkpoint = checkpoint[container]
    valid = isinstance(checkpoint, dict) and checkpoint and all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in checkpoint.items())
    if not valid:
        raise CheckpointError(f'{source} holds no weights: expected tensors by name, bare or under "state_dict" or '
                              f'"model", got {_describe(checkpoint)}')
    return {name.removeprefix('module.'): value for name, value in checkpoint.items()}


def load_model(model, checkpoint, source):
    """Load a whole model from a checkpoint that `read_checkpoint` gave, strictly.

    Raises:
        CheckpointError: A tensor is missing, left over or of another shape.
    """
    _load_strictly(model, find_state_dict(checkpoint, source), source, type(model).__name__)


def load_backbone(model, source):
    """Load an official ImageNet or dense file into an `XCiT`, strictly.

    Every parameter and statistic must be in the file with the same shape. Allowed gaps: a classifier
    has no pyramid; the model has no classifier, and may have fewer levels or blocks than the file.

    Args:
        model: The `XCiT` to fill.
        source: As for `read_checkpoint`. A whole detector or segmentor is taken by its ``backbone.``.

    Raises:
        CheckpointError: The file cannot be read, or is made for another model.
    """
    state = find_state_dict(read_checkpoint(source), source)
    if any(name.startswith('backbone.') for name in state):
        state = {n.removeprefix('backbone.'): v for n, v in state.items() if n.startswith('backbone.')}
    is_classifier = not any(_PYRAMID_KEYS.match(name) for name in state)

    def may_lack(name):
        return is_classifier and _PYRAMID_KEYS.match(name)

    def may_leave(name):
        block = re.match(r'blocks\.(\d+)\.', name)
        if block:
            return len(model.blocks) <= int(block.group(1)) < model.arch.depth
        return _CLASSIFIER_KEYS.match(name) or _PYRAMID_KEYS.match(name)

    _load_strictly(model, state, source, f'XCiT with {model.arch}', may_lack, may_leave)


def _load_strictly(model, state, source, title, may_lack=lambda name: False, may_leave=lambda name: False):
    """Load ``state`` if it fits but for the names that may lack or be left; else raise and change nothing."""
    wanted = model.state_dict()
    # PASSL and old torch files have no counters of batches; nothing reads them
    lacking = [n for n in wanted if n not in state and not n.endswith('num_batches_tracked')]
    problems = [
        _listed('missing in the file', [n for n in lacking if not may_lack(n)]),
        _listed('unknown to the model', [n for n in state if n not in wanted and not may_leave(n)]),
        _listed('of another shape', [f'{n} {tuple(state[n].shape)} in the file, {tuple(wanted[n].shape)} in the model'
                                     for n in wanted if n in state and state[n].shape != wanted[n].shape]),
    ]
    if any(problems):
        raise CheckpointError(f'{source} does not fit the model ({title}): ' + '; '.join(filter(None, problems)))
    matched = {name: value for name, value in state.items() if name in wanted}
    model.load_state_dict(matched, strict=False)
    fresh = f'; {len(lacking)} start fresh: {", ".join(sorted({n.split(".")[0] for n in lacking}))}' if lacking else ''
    print_log(f'loaded {len(matched)} of {len(wanted)} tensors from {source}{fresh}', logger='current')


def _listed(title, names, most=5):
    if not names:
        return ''
    more = f' and {len(names) - most} more' if len(names) > most else ''
    return f'{len(names)} {title} ({", ".join(names[:most])}{more})'


def _describe(value):
    if isinstance(value, dict):
        return f'a dict with the keys {sorted(map(str, value))[:8]}'
    return f'a {type(value).__name__}'


def _first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class _SavedHistory(HistoryBuffer):
    """Takes the place of mmengine's log buffer while a file is read: restores numbers and nothing else."""

    def __setstate__(self, state):
        fields = {name: getattr(state[name], 'value', state[name])
                  for name in ('max_length', '_log_history', '_count_history')}
        self.__class__ = HistoryBuffer
        self._set_default_statistics()
        self.__dict__.update(fields)


def _statistics_method(owner, name):
    """Stands for the ``getattr`` by which a pickle names the methods of a log buffer; they are never used."""
    if owner is not _SavedHistory or name not in ('min', 'max', 'current', 'mean'):
        raise ValueError(f'refused: attribute {name!r}')
    return name


class _ArrayType:
    """Stands for ``numpy.ndarray``, whose constructor takes raw memory; it cannot be called."""

    def __new__(cls, *args):
        raise ValueError('refused: an array built by hand')


class _NumericDtype:
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


def _empty_array(kind, shape, code):
    """Stands for NumPy's ``_reconstruct``: an empty array that the state which follows fills."""
    if kind is not _ArrayType or shape != (0, ):
        raise ValueError('refused: an array that does not start empty')
    return _NumericArray()


class _NumericArray:
    """What the state of an array is read into: checked, and then an array."""

    def __setstate__(self, state):
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _NumericDtype) or not isinstance(data, bytes):
            raise ValueError('refused: an array of other things than numbers')
        self.value = dtype.read(data).reshape(shape, order='F' if fortran else 'C').copy()


def _arrays(value):
    """Put the arrays of a file in the places of what they were read into."""
    if isinstance(value, _NumericArray):
        return value.value
    if isinstance(value, dict):
        for key in value:
            value[key] = _arrays(value[key])
    elif isinstance(value, list):
        value[:] = map(_arrays, value)
    return value


def _numeric_scalar(dtype, data):
    """Stands for NumPy's ``scalar``: numbers only."""
    if not isinstance(dtype, _NumericDtype) or not isinstance(data, bytes):
        raise ValueError('refused: a scalar that is no number')
    return dtype.read(data)[0]


def _mmengine_globals():
    """What a checkpoint written by mmengine's runner needs beyond tensors, each with the name in the file.

    A log buffer is numbers in NumPy arrays and references to its own methods. Nothing of NumPy's is
    called: its constructors turn raw bytes into objects.
    """
    allowed = [(_SavedHistory, 'mmengine.logging.history_buffer.HistoryBuffer'),
               (_statistics_method, 'builtins.getattr'), (_ArrayType, 'numpy.ndarray'), _NumericArray]
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):  # the names before and since NumPy 2
        allowed += [(_empty_array, f'{module}._reconstruct'), (_numeric_scalar, f'{module}.scalar')]
    return [*allowed, (_NumericDtype, 'numpy.dtype')]


def classes_of_checkpoint(checkpoint, source) -> tuple:
    """Return the class names that a training run wrote into its checkpoint.

    Raises:
        CheckpointError: There are none.
    """
    meta = checkpoint.get('meta') if isinstance(checkpoint, dict) else None
    classes = (meta or {}).get('dataset_meta', {}).get('classes')
    if not classes:
        raise CheckpointError(f'{source} holds no class names (meta.dataset_meta.classes), and its config takes '
                              'them from the data; give the checkpoint of a training run')
    return tuple(classes)


def newest_checkpoint(work_dir) -> Path:
    """Return the newest checkpoint of a work dir.

    Raises:
        CheckpointError: There is none.
    """
    work_dir = Path(work_dir)
    pointer = work_dir / 'last_checkpoint'
    if pointer.is_file():
        path = work_dir / os.path.basename(pointer.read_text().strip())  # the folder may have been moved
        if path.is_file():
            return path
    files = sorted(work_dir.glob('*.pth'), key=lambda p: p.stat().st_mtime)
    if not files:
        raise CheckpointError(f'no checkpoint in {work_dir.absolute()}: give a checkpoint file, or the work dir of a '
                              'training run')
    return files[-1]
