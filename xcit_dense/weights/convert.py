"""Write the weights of a file in another project's layout, and describe a file."""
import json
import re
from pathlib import Path

import torch

from .._utils.files import OwnFiles, atomic_write
from .._utils.text import counted, listed
from ..errors import CheckpointError
from .contents import Models, get_dataset_meta, get_meta
from .fetching import fetch
from .layouts import LAYOUTS, Contents, Layout, part_of, renamed
from .plain import to_plain
from .read import META_KEY, import_safetensors, read_checkpoint

#: The layouts that can be written.
TARGETS = ('dense', 'official', 'timm', 'mmpretrain')
_WHOLE_QKV = re.compile(r'(cls_attn_blocks\.\d+\.attn)\.qkv\.(weight|bias)$')
_STATISTICS = ('running_mean', 'running_var', 'num_batches_tracked')


def convert(source, out, target: str, which: str = None, overwrite: bool = False) -> list:
    """Translate a file into another layout, tensor by tensor and bit for bit.

    Args:
        source: As for `read_checkpoint`, of any layout.
        out: File to write: ``.safetensors`` for safetensors; ``.pth``, ``.pt`` or ``.bin`` for a file of torch.
        target: One of `TARGETS`. Dense files keep class names and palette.
        which: The model, as for `find_state_dict`: ``student``, ``teacher``, ``ema`` or a container.
        overwrite: Whether ``out`` may be a file that this function did not write.

    Returns:
        Lines that describe what was read, what the layout cannot hold, and what was written.

    Raises:
        CheckpointError: The file cannot be read, holds no XCiT, or cannot be written.
        OutputError: ``out`` exists, this function did not write it, and ``overwrite`` is False.
    """
    out = Path(out)
    if out.suffix not in ('.safetensors', '.pth', '.pt', '.bin'):
        raise CheckpointError(f'cannot write {out}: its name must end in .pth, .pt, .bin or .safetensors')
    path = fetch(str(source))
    if out.resolve() == path.resolve():
        raise CheckpointError(f'{out} is the input file itself. Choose another name.')
    with OwnFiles(out.parent, 'convert_checkpoint', overwrite) as own:
        own.claim(out.name)
        checkpoint = read_checkpoint(path)
        models = Models(checkpoint)
        state, title = models.find(path, which)
        contents = Contents.of(state, title)
        if contents.layout is None or contents.is_fused:
            raise CheckpointError(f'{title} holds {contents}' + (
                f'. Models of the file: {", ".join(models.titles)}' if len(models.states) > 1 else ''))
        layout = LAYOUTS[target]
        state, left_out = from_official(contents.tensors, contents.rest, layout)
        _write(out, state, layout, get_dataset_meta(checkpoint) if target == 'dense' else None)
        lines = [f'read {title}: {contents}']
        if left_out:
            lines.append(f'left out, because the layout {target} cannot hold it: {_modules(left_out)} '
                         f'({counted(len(left_out), "tensors")})')
        return [*lines, f'wrote {out}: {layout.title}, {counted(len(state), "tensors")}']


def inspect(source) -> list:
    """Return lines that describe a file: its models, and what it records about its training.

    Raises:
        CheckpointError: The file cannot be read or holds no weights.
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


def from_official(tensors: dict, rest: dict, layout: Layout):
    """Translate tensors from the authors' names.

    Args:
        tensors: XCiT's tensors by the authors' names.
        rest: The rest of a whole model.
        layout: The target.

    Returns:
        The tensors by the names of the layout, and the list of the names that it cannot hold.
    """
    kept = {n: v for n, v in tensors.items() if part_of(n) in ('backbone', *layout.holds)}
    left_out = [n for n in tensors if n not in kept]
    if layout.splits_qkv:
        kept = _split(kept)
    prefix = 'backbone.' if layout.in_whole_model else ''
    state = {('' if n.startswith('head.') else prefix) + renamed(n, layout): v for n, v in kept.items()}
    heads = {n: v for n, v in rest.items() if 'rest' in layout.holds and part_of(n) != 'projection head'}
    return {**state, **heads}, [*left_out, *(n for n in rest if n not in heads)]


def _write(out, state, layout, dataset_meta):
    try:
        with atomic_write(out) as part:
            if out.suffix == '.safetensors':
                # safetensors rejects tensors that share memory
                own = {n: v.clone(memory_format=torch.contiguous_format) for n, v in state.items()}
                # its metadata is text only
                said = {META_KEY: json.dumps(dataset_meta, default=_plain)} if dataset_meta else {}
                import_safetensors().save_file(own, part, metadata={'format': 'pt', **said})
            else:
                content = {layout.container: state} if layout.container else state
                said = to_plain({'meta': {'dataset_meta': dataset_meta}}) if dataset_meta else {}
                torch.save({**content, **said}, part)
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # RuntimeError: a full disk, from torch
        raise CheckpointError(f'cannot write {out}: {error}') from error


def _plain(value):
    """Return arrays, tensors and sets as lists, for JSON."""
    return value.tolist() if hasattr(value, 'tolist') else list(value)


def _modules(names):
    parts = (part if (part := part_of(name)) == 'projection head' else name.split('.')[0] for name in names)
    return ', '.join(dict.fromkeys(parts))


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
