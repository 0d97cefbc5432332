"""Find the weights in a checkpoint and load them strictly."""
import re

import torch
from mmengine.logging import print_log

from ..errors import CheckpointError
from ..text import listed
from .channels import fit_channels
from .describe import Contents, arch_title
from .layouts import holds_xcit, part_of
from .read import read_checkpoint

#: Where to look for weights first: the evaluated ones. mmengine's `EMAHook` saves averaged weights under
#: ``state_dict`` and the others under ``ema_state_dict``; this package's `AverageHook` saves them the other way round.
#: Of DINO's two models, the published one is the teacher.
_CONTAINERS = ('state_dict', 'model', 'teacher', 'student')

#: What mmengine's and torch's averagers keep in addition to the model, which is their ``module``; not weights.
_AVERAGERS_COUNTERS = ('steps', 'n_averaged')


def find_models(checkpoint) -> dict:
    """Return every model in a checkpoint: by container, its tensors by name.

    The container is the key of the dict, or ``''`` if the file is that dict. If names begin with a teacher and a
    student, these are the containers. ``module.`` prefixes are removed.
    """
    if _is_state(checkpoint):
        return _halves('', checkpoint)
    models = {}
    if isinstance(checkpoint, dict):
        for name in sorted(checkpoint, key=lambda n: _CONTAINERS.index(n) if n in _CONTAINERS else len(_CONTAINERS)):
            if isinstance(name, str) and _is_state(checkpoint[name]):
                models.update(_halves(name, checkpoint[name]))
    return models


def find_state_dict(checkpoint, source, which: str = None) -> dict:
    """Return the tensors of a model by name, without ``module.`` prefixes.

    Args:
        checkpoint: What `xcit_dense.weights.read_checkpoint` returned.
        source: Its file, for the error.
        which: Container of the model. Default: the first that holds an XCiT, in the order ``state_dict``, ``model``,
            ``teacher``, ``student``, any other. ``state_dict`` holds the weights that were evaluated.

    Raises:
        CheckpointError: There are no tensors, or none in this container, or one is sparse, quantised or without data.
    """
    models = find_models(checkpoint)
    if not models:
        raise CheckpointError(f'{source} holds no weights: expected a dict of tensors by name, or one under a key such '
                              f'as "state_dict" or "model", got {_describe(checkpoint)}')
    if which is not None and which not in models:
        raise CheckpointError(f'{source} holds no model named {which!r}; it holds '
                              f'{", ".join(filter(None, models)) or "a single model without a name"}')
    if which is None:
        which = next((name for name in models if holds_xcit(models[name])), next(iter(models)))
    _check_dense(models[which], source)
    return models[which]


def load_model(model, checkpoint, source):
    """Load a whole model strictly, from a checkpoint that `xcit_dense.weights.read_checkpoint` returned.

    A model with an `XCiTClassifier` accepts classifiers of every layout of `xcit_dense.weights.layouts`.

    Raises:
        CheckpointError: A tensor is missing, left over, of another shape, or cannot be a weight (integers, NaN, ...).
            The model is unchanged then.
    """
    load_strictly(model, *state_for(model, checkpoint, source), f'a whole {type(model).__name__}')


def state_for(model, checkpoint, source):
    """Return the tensors of a checkpoint by the names of a whole model, their file, and its `Contents`."""
    state = find_state_dict(checkpoint, source)
    contents = Contents.of(state, source)
    place = _place_of_classifier(model)
    if place is not None and 'classifier' in contents.parts:
        state = {**{f'{place}{name}': value for name, value in contents.tensors.items()}, **contents.rest}
    return state, source, contents


def load_backbone(model, source, prefix: str = None):
    """Load weights of any layout of `xcit_dense.weights.layouts` into an `XCiT`, strictly.

    Every parameter and statistic must be in the file with the same shape, except a stem with another number of
    channels, see `fit_channels`. Allowed differences: the file is a classifier without a pyramid; the model has no
    classifier, or fewer levels or blocks than the file.

    Args:
        model: The `XCiT` to fill.
        source: As for `xcit_dense.weights.read_checkpoint`. In a whole detector or segmentor, the backbone is
            found automatically.
        prefix: What the names of the weights begin with, if the file holds several models.

    Raises:
        CheckpointError: The file cannot be read, or belongs to another model.
    """
    contents, wanted = _read_for(model, source, prefix)
    state = fit_channels(model, contents.tensors, source)
    has_pyramid = 'pyramid' in contents.parts

    def may_lack(name):
        return not has_pyramid and part_of(name) == 'pyramid'

    def may_leave(name):
        block = re.match(r'blocks\.(\d+)\.', name)
        if block:
            return len(model.blocks) <= int(block[1]) < model.arch.depth
        return part_of(name) in ('classifier', 'pyramid')

    load_strictly(model, state, source, contents, wanted, may_lack, may_leave)


def load_classifier(model, source, prefix: str = None):
    """Load weights of any layout of `xcit_dense.weights.layouts` into an `XCiTClassifier`, strictly.

    Every parameter and statistic must be in the file with the same shape, except the stem, as in `load_backbone`, and
    the head. The head starts fresh if the file has another number of classes or no head. A model without a head
    ignores that of the file.

    Args:
        model: The `XCiTClassifier` to fill.
        source: As for `load_backbone`.
        prefix: As for `load_backbone`.

    Raises:
        CheckpointError: The file cannot be read, or belongs to another model.
    """
    contents, wanted = _read_for(model, source, prefix)
    state = fit_channels(model, contents.tensors, source)
    fits = contents.num_classes == model.num_classes
    if not fits:
        state = {name: value for name, value in state.items() if not name.startswith('head.')}
    load_strictly(model, state, source, contents, f'{wanted} with classifier',
                  may_lack=lambda name: not fits and name.startswith('head.'))


def _read_for(model, source, prefix):
    """Return the contents of a file that must hold an XCiT, and the name of the XCiT that the model expects."""
    state = find_state_dict(read_checkpoint(source), source)
    if prefix:
        start = f'{prefix.rstrip(".")}.'
        state = {n.removeprefix(start): v for n, v in state.items() if n.startswith(start)}
    contents = Contents.of(state, source)
    wanted = f'XCiT {arch_title(model.arch)}'
    if contents.layout is None:
        raise CheckpointError(f'{source} holds {contents}' + (f' under the prefix {prefix}' if prefix else '')
                              + f'; expected {wanted}')
    return contents, wanted


def _place_of_classifier(model):
    """Return what the names of the `XCiTClassifier` in a model begin with (found by its parts); None without one."""
    return next((f'{name}.' if name else '' for name, module in model.named_modules()
                 if hasattr(module, 'cls_attn_blocks') and hasattr(module, 'pos_embeder')), None)


def load_strictly(model, state, source, contents, title, may_lack=lambda name: False, may_leave=lambda name: False):
    """Load ``state`` if it fits, except for names that may be missing or unused; otherwise raise and change nothing."""
    wanted = model.state_dict()
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    # files of PASSL and old torch have no batch counters; nothing reads them
    lacking = [n for n in wanted if n not in state and not n.endswith('num_batches_tracked')]
    problems = [
        _listed('missing in the file', [n for n in lacking if not may_lack(n)]),
        _listed('unknown to the model', [n for n in state if n not in wanted and not may_leave(n)]),
        _listed('of another shape', [f'{n} {tuple(state[n].shape)} in the file, {tuple(wanted[n].shape)} in the model'
                                     for n in wanted if n in state and state[n].shape != wanted[n].shape]),
        _listed('with values that cannot be weights', [
            f'{n}: {problem}' for n in wanted
            if n in state and (problem := _value_problem(state[n], wanted[n], n in parameters))]),
    ]
    if any(problems):
        raise CheckpointError(f'{source} does not fit the model: it holds {contents}; expected {title}. Tensors: '
                              + '; '.join(filter(None, problems)))
    matched = {name: value for name, value in state.items() if name in wanted}
    model.load_state_dict(matched, strict=False)
    fresh = f'; {len(lacking)} start fresh: {", ".join(sorted({n.split(".")[0] for n in lacking}))}' if lacking else ''
    left = f'; {len(state) - len(matched)} of the file are not used' if len(state) > len(matched) else ''
    # reported again at the start of a training
    model.weights_from = f'{len(matched)} of {len(wanted)} tensors from {source} ({contents}){fresh}{left}'
    print_log(f'loaded {model.weights_from}', logger='current')


def _check_dense(state, source):
    """Raise `CheckpointError` unless every tensor is dense, which the rest of this file relies on."""
    problems = []
    for name, value in state.items():
        for is_other, kind in ((value.is_quantized, 'quantised'), (value.is_nested, 'nested'),
                               (value.is_meta, 'without data'), (value.layout != torch.strided, 'sparse')):
            if is_other:
                problems.append(f'{name}: {kind}')
                break
    if problems:
        raise CheckpointError(f'{source} cannot be loaded: it holds tensors that are not dense ({listed(problems)}). '
                              'Save them as dense tensors of a floating type.')


def _value_problem(value, wanted, is_parameter):
    """Return why a tensor of a file cannot be the model's tensor ``wanted``, or None."""
    if value.is_complex():
        return 'complex'
    if not wanted.is_floating_point():  # counters, which some tools save as floating types
        return None if value.float().isfinite().all() else 'not finite'
    if not value.is_floating_point():
        hint = ', which is how PaddlePaddle stores bfloat16; save it in float32' if value.dtype == torch.uint16 else ''
        return str(value.dtype).removeprefix('torch.') + hint
    value = value.float()
    # one NaN is enough to spoil a model; an infinity may be intended in a buffer, such as a mask
    if value.isnan().any():
        return 'NaN'
    return 'infinite' if is_parameter and value.isinf().any() else None


def _is_state(value):
    return isinstance(value, dict) and bool(value) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in value.items())


def _halves(container, state):
    """Remove ``module.`` and separate teacher and student (distillation, as in PaddlePaddle)."""
    if any(name.startswith('module.') for name in state):
        state = {n: v for n, v in state.items() if n not in _AVERAGERS_COUNTERS}
        # if a name exists with and without the prefix, the prefix stays, so that no tensor is lost
        state = {n if (inner := n.removeprefix('module.')) in state else inner: v for n, v in state.items()}
    halves = {}
    for name, value in state.items():
        half, _, inner = name.partition('.')
        if half.lower() not in ('teacher', 'student'):
            return {container: state}
        halves.setdefault(half, {})[inner] = value
    return dict(sorted(halves.items(), key=lambda item: item[0].lower() != 'teacher'))


def _listed(title, names):
    return f'{len(names)} {title} ({listed(names)})' if names else ''


def _describe(value):
    if isinstance(value, dict):
        return f'a dict with the keys {sorted(map(str, value))[:8]}'
    return f'a {type(value).__name__}'
