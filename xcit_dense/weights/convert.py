"""Write the weights of a file in another project's layout, describe a file, and keep to plain values in checkpoints.

Plain values are tensors, numbers, text, and lists, tuples and dicts of them. `torch.load` reads these with
``weights_only=True``, its default, and so do all functions that use it, such as `init_detector` of mmdet and
`init_model` of mmseg. Log buffers and arrays are written as dicts of plain values.
"""
import json
import logging
import re
from collections import OrderedDict
from contextlib import suppress
from enum import Enum
from pathlib import Path

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log

from .._utils.files import OwnFiles, atomic_write
from .._utils.text import counted, listed
from ..compat.internals import HISTORIES
from ..errors import CheckpointError
from .contents import Models, get_dataset_meta, get_meta
from .layouts import LAYOUTS, Contents, Layout, part_of, renamed
from .read import META_KEY, read_checkpoint
from .zoo import fetch

#: The layouts that can be written.
TARGETS = ('dense', 'official', 'timm', 'mmpretrain')
_WHOLE_QKV = re.compile(r'(cls_attn_blocks\.\d+\.attn)\.qkv\.(weight|bias)$')
_STATISTICS = ('running_mean', 'running_var', 'num_batches_tracked')
#: The key that marks a dict as the plain form of another value; its value names the kind.
KIND = 'xcit_dense.kind'
_AS_THEY_ARE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def convert(source, out, target: str, which: str = None, overwrite: bool = False) -> list:
    """Translate a file into another layout, tensor by tensor and bit for bit.

    The lines that it returns describe what was read, what the layout cannot hold, and what was written.

    Args:
        source: As for `read_checkpoint`, of any layout.
        out: File to write: ``.safetensors`` for safetensors; ``.pth``, ``.pt`` or ``.bin`` for a file of torch.
        target: One of `TARGETS`. Class names and palette are kept with the head that they are for. A teacher that is
            no XCiT is copied as it is, for ``official``.
        which: The model, as for `find_state_dict`: ``student``, ``teacher``, ``ema`` or a container.
        overwrite: Whether ``out`` may be a file that this function did not write.

    Raises:
        CheckpointError: The file cannot be read, holds no XCiT, or cannot be written.
        OutputError: ``out`` exists, this function did not write it, and ``overwrite`` is False.
    """
    out = Path(out)
    if out.suffix not in ('.safetensors', '.pth', '.pt', '.bin'):
        raise CheckpointError(f'cannot write {out}: its name must end in .pth, .pt, .bin or .safetensors')
    if target not in TARGETS:
        raise CheckpointError(f'cannot write the layout {target!r}, only {", ".join(TARGETS)}')
    path = fetch(str(source))
    if out.resolve() == path.resolve():
        raise CheckpointError(f'{out} is the input file itself. Choose another name.')
    with OwnFiles(out.parent, 'convert_checkpoint', overwrite) as own:
        own.claim(out.name)
        checkpoint = read_checkpoint(path)
        models = Models(checkpoint)
        state, title = models.find(path, which)
        contents = Contents.of(state, title)
        is_foreign = contents.layout is None and (which or '').lower() == 'teacher' and target == 'official'
        if contents.layout is None and not is_foreign or contents.is_fused:
            raise CheckpointError(f'{title} holds {contents}' + (
                f'. Models of the file: {", ".join(models.titles)}' if len(models.states) > 1 else ''))
        layout = LAYOUTS[target]
        state, left_out = (state, []) if is_foreign else from_official(contents, layout)
        meta = get_dataset_meta(checkpoint)
        fits = is_foreign or target == 'dense' or contents.num_classes == len(meta.get('classes') or ())
        keeps = fits and bool(layout.container or out.suffix == '.safetensors')
        _write(out, state, layout, meta if keeps else None)
        lines = [f'read {title}: {contents}' + ', which are copied as they are' * is_foreign]
        if meta.get('classes') and not keeps:
            lines.append('left out: the class names' + ', for which only .safetensors has a place here' * fits)
        if left_out:
            modules = dict.fromkeys(part if (part := part_of(name)) == 'projection head' else name.split('.')[0]
                                    for name in left_out)
            lines.append(f'left out, because the layout {target} cannot hold it: {", ".join(modules)} '
                         f'({counted(len(left_out), "tensors")})')
        written = 'the tensors of the teacher, under the key model' if is_foreign else layout.title
        return [*lines, f'wrote {out}: {written}, {counted(len(state), "tensors")}']


def inspect(source) -> list:
    """Return lines that describe a file: its models, and what it records about its training.

    If it cannot be read or holds no weights, `CheckpointError` is raised.
    """
    path = fetch(str(source))
    checkpoint = read_checkpoint(path)
    models = Models(checkpoint)
    models.find(path)
    lines = [str(path)]
    for title, state in zip(models.titles, models.states.values(), strict=True):
        contents = Contents.of(state, path)
        parameters = sum(value.numel() for name, value in {**contents.tensors, **contents.rest}.items()
                         if not name.endswith(_STATISTICS))
        classes = f', {counted(contents.num_classes, "classes")}' if contents.num_classes else ''
        lines += [f'{title or "weights"}: {contents}',
                  f'    {counted(len(state), "tensors")}, {counted(parameters, "parameters")}{classes}']
    said = {**checkpoint, **get_meta(checkpoint)} if isinstance(checkpoint, dict) else {}
    lines += [f'{key}: {value}' for key, value in said.items()
              if isinstance(value, int | float | str) and str(value).isprintable()]
    classes = get_dataset_meta(checkpoint).get('classes')
    return lines + ([f'classes of the data: {len(classes)} ({listed(classes)})'] if classes else [])


def from_official(contents: Contents, layout: Layout):
    """Return the tensors of a file by the names of a layout, and the list of the names that it cannot hold."""
    kept = {n: v for n, v in contents.tensors.items() if part_of(n) in ('backbone', *layout.holds)}
    heads = contents.heads if 'rest' in layout.holds else {}
    left_out = [*(n for n in contents.tensors if n not in kept), *(n for n in contents.rest if n not in heads)]
    if layout.splits_qkv:
        kept = _split(kept)
    prefix = 'backbone.' if layout.in_whole_model else ''
    return {**{('' if n.startswith('head.') else prefix) + renamed(n, layout): v for n, v in kept.items()},
            **heads}, left_out


def _write(out, state, layout, dataset_meta):
    meta = to_plain({'meta': {'dataset_meta': dataset_meta}}) if dataset_meta else {}
    try:
        with atomic_write(out) as part:
            if out.suffix == '.safetensors':
                from safetensors.torch import save_file
                # safetensors rejects tensors that share memory
                own = {n: v.clone(memory_format=torch.contiguous_format) for n, v in state.items()}
                # its metadata is text only
                said = {META_KEY: json.dumps(meta['meta']['dataset_meta'])} if meta else {}
                save_file(own, part, metadata={'format': 'pt', **said})
            else:
                torch.save({**({layout.container: state} if layout.container else state), **meta}, part)
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:  # from torch for a full disk, too
        raise CheckpointError(f'cannot write {out}: {error}') from error


def _split(state):
    """The inverse of `_joined`."""
    apart = {}
    for name, value in state.items():
        if match := _WHOLE_QKV.match(name):
            apart.update({f'{match[1]}.{third}.{match[2]}': part.clone()
                          for third, part in zip('qkv', value.chunk(3), strict=True)})
        else:
            apart[name] = value
    return apart


class _Unknown(Exception):
    """A value has no plain form."""


def to_plain(checkpoint: dict, prefix: str = '') -> dict:
    """Return a checkpoint in plain values. A value without a plain form is left out, with a warning.

    Log buffers and arrays become dicts that `from_plain` turns back, bit for bit; in ``meta``, which the frameworks
    read, arrays and sets become lists. NumPy numbers become Python numbers, members of an enumeration their values,
    and subclasses of dict, list, tuple, tensor, text and numbers their base class. ``prefix`` is that of a part of it.
    """
    plain = {}
    for key, item in checkpoint.items():
        name = f'{prefix}{key}'
        try:
            plain[_plain(key, name)] = _plain(item, name)
        except _Unknown as unknown:
            kind = unknown.args[0]
            print_log(f'the checkpoint leaves out {name}, which is (or holds) a {kind.__module__}.{kind.__qualname__}: '
                      'checkpoints hold only plain values. A resumed run starts without it.', logger='current',
                      level=logging.WARNING)
    return OrderedDict(plain) if isinstance(checkpoint, OrderedDict) else plain


def from_plain(value):
    """Undo `to_plain`. Plain values and checkpoints of other writers are returned as they are."""
    if isinstance(value, dict):
        if value.get(KIND) == 'history':
            return HistoryBuffer(*(value[key].numpy() for key in HISTORIES), value['max_length'])
        if value.get(KIND) == 'array':
            return value['data'].numpy()
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
    if isinstance(value, (np.ndarray, set, frozenset)) and name.startswith('meta.'):
        return _plain(value.tolist() if isinstance(value, np.ndarray) else sorted(value, key=str), name)
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):  # its mask would be lost
        with suppress(TypeError):  # of text or objects
            return {KIND: 'array', 'data': torch.from_numpy(value.astype(value.dtype.newbyteorder('=')))}
    if isinstance(value, dict):
        return to_plain(value, f'{name}.')
    for base in (list, tuple):
        if isinstance(value, base):
            return base(_plain(item, f'{name}.{i}') for i, item in enumerate(value))
    if isinstance(value, Enum):  # its text is its name
        return _plain(value.value, name)
    for base in (str, bytes, int, float):
        if isinstance(value, base):
            return base.__new__(base, value)
    raise _Unknown(type(value))
