"""What a checkpoint holds: its models and which of them is meant, and what the run that wrote it recorded."""
import ast

import torch

from .._utils.text import listed, type_name
from ..errors import CheckpointError
from .layouts import holds_xcit

#: Where to look for weights first: the evaluated ones. mmengine's `EMAHook` saves averaged weights under
#: ``state_dict`` and the others under ``ema_state_dict``; this package's `AverageHook` saves them the other way round.
#: Of DINO's two models, the published one is the teacher.
_CONTAINERS = ('state_dict', 'model', 'teacher', 'student')

#: Containers of averaged weights: of mmengine and this package, of timm, of DeiT.
_AVERAGES = ('ema_state_dict', 'state_dict_ema', 'model_ema', 'ema')

#: What mmengine's and torch's averagers keep in addition to the model, which is their ``module``; not weights.
_AVERAGERS_COUNTERS = ('steps', 'n_averaged')

#: The names by which a model can be chosen in every file that holds several, and what messages call it.
SHORT_NAMES = dict(student='the student', teacher='the teacher', ema='the average of the weights')

#: Maximum characters of a config that is read: enough for all classes of ImageNet, and parsed within seconds.
_LONGEST = 2**22


def find_models(checkpoint) -> dict:
    """Return every model in a checkpoint: by container, its tensors by name.

    The container is the key of the dict, or ``''`` if the file is that dict. If names begin with a teacher and a
    student, these are the containers; in a second such dict, they follow its key (``ema_state_dict.teacher``).
    ``module.`` prefixes are removed. The centre of DINO's own files, which is in its loss, is with the teacher, as in
    files of this package.
    """
    if _is_state(checkpoint):
        return _halves('', checkpoint)
    models = {}
    if isinstance(checkpoint, dict):
        for name in sorted(checkpoint, key=lambda n: _CONTAINERS.index(n) if n in _CONTAINERS else len(_CONTAINERS)):
            if isinstance(name, str) and _is_state(checkpoint[name]):
                for half, state in _halves(name, checkpoint[name]).items():
                    models[f'{name}.{half}' if half in models else half] = state
    if 'teacher' in models and 'center' in (loss := models.pop('dino_loss', {})):
        models['teacher'] = {**models['teacher'], 'centre': loss['center'].flatten()}
    return models


def find_short_names(checkpoint) -> dict:
    """Return the containers of the models of a checkpoint by those of `SHORT_NAMES` that it has.

    A student whose container is not named so is the main model of a file with a teacher. The average is not among them
    if mmengine wrote the file and the config in it does not tell which container holds the average.
    """
    models = find_models(checkpoint)
    names = {name.lower(): name for name in models if name.lower() in ('teacher', 'student')}
    main = next((name for name in ('state_dict', 'model') if name in models), None)
    if 'teacher' in names and main:
        names.setdefault('student', main)
    average = next((name for first in _AVERAGES for name in models if name.partition('.')[0] == first), None)
    container, _, half = (average or '').partition('.')
    if container == 'ema_state_dict' and 'state_dict' in checkpoint:
        container = _average_of_run(checkpoint)
        average = average if container == 'ema_state_dict' else container and (half or container)
    return {**names, 'ema': average} if average else names


def titles_of_models(checkpoint) -> list:
    """Return what each model of `find_models` is called: ``teacher``, ``ema (model_ema)``, ``model``."""
    names = find_short_names(checkpoint)
    return [_title(container, [short for short in names if names[short] == container])
            for container in find_models(checkpoint)]


def find_model(checkpoint, source, which: str = None):
    """Return the tensors of a model by name, without ``module.`` prefixes, and what messages call the model.

    Args:
        checkpoint: What `xcit_dense.weights.read_checkpoint` returned.
        source: Its file, for messages.
        which: One of `find_short_names`, or the container of the model; upper or lower case. Default: the first
            container that holds an XCiT, in the order ``state_dict``, ``model``, ``teacher``, ``student``, any other.
            ``state_dict`` holds the weights that were evaluated.

    Raises:
        CheckpointError: There are no tensors, or none in this container, or one is sparse, quantised or without data.
    """
    models = find_models(checkpoint)
    if not models:
        raise CheckpointError(f'{source} holds no weights: expected a dict of tensors by name, or one under a key such '
                              f'as "state_dict" or "model", got {_describe(checkpoint)}')
    names = find_short_names(checkpoint) if len(models) > 1 else {}
    if which is None:
        container = next((name for name in models if holds_xcit(models[name])), next(iter(models)))
    elif which in models:
        container = which
    else:
        known = {**{name.lower(): name for name in models if name}, **names}
        if which.lower() not in known:
            held = ', '.join(filter(None, titles_of_models(checkpoint))) or 'a single model without a name'
            raise CheckpointError(f'{source} holds no model named {which!r}; it holds {held}')
        container = known[which.lower()]
    short = next((name for name in names if names[name] == container), None)
    title = f'{SHORT_NAMES[short]} of {source}' if short else str(source)
    _check_dense(models[container], title)
    return models[container], title


def find_state_dict(checkpoint, source, which: str = None) -> dict:
    """Return only the tensors of `find_model`."""
    return find_model(checkpoint, source, which)[0]


def get_meta(checkpoint) -> dict:
    """Return what a training run of mmengine or mmcv wrote into its checkpoint; an empty dict if nothing."""
    meta = checkpoint.get('meta') if isinstance(checkpoint, dict) else None
    return meta if isinstance(meta, dict) else {}


def get_dataset_meta(checkpoint) -> dict:
    """Return class names and palette under mmengine's keys, also from files of mmdet 2 and mmseg 0."""
    meta = get_meta(checkpoint)
    if isinstance(meta.get('dataset_meta'), dict):
        return meta['dataset_meta']
    return {key.lower(): meta[key] for key in ('CLASSES', 'PALETTE') if meta.get(key) is not None}


def classes_of_checkpoint(checkpoint, source) -> tuple:
    """Return the class names that a training run wrote into its checkpoint.

    Raises:
        CheckpointError: There are none.
    """
    classes = get_dataset_meta(checkpoint).get('classes')
    if not classes:
        raise CheckpointError(f'{source} holds no class names (meta.dataset_meta.classes or meta.CLASSES), and its '
                              'config takes them from the data. Use the checkpoint of a training run with '
                              'labels; one without labels (DINO) can be measured with test --knn or --linear.')
    return (classes, ) if isinstance(classes, str) else tuple(classes)  # mmdet 2 allowed a string for one class


def config_of_checkpoint(checkpoint) -> dict:
    """Return the training config that mmengine's runner wrote into a checkpoint, without running its text.

    Returns:
        Its variables by name, but only those made completely of literals, lists, tuples, dicts and calls of ``dict``.
        Empty if there is no such text, or it cannot be read.
    """
    text = get_meta(checkpoint).get('cfg')
    if not isinstance(text, str) or len(text) > _LONGEST:
        return {}
    found = {}
    try:
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.Assign) and all(isinstance(name, ast.Name) for name in statement.targets):
                names = [name.id for name in statement.targets]
                try:
                    found.update(dict.fromkeys(names, ast.literal_eval(_Dicts().visit(statement.value))))
                except (TypeError, ValueError):
                    for name in names:  # its earlier value no longer holds
                        found.pop(name, None)
    except (MemoryError, RecursionError, SyntaxError, ValueError):  # from ast: not a config, or made to break it
        return {}
    return found


class _Dicts(ast.NodeTransformer):
    """Writes the calls of ``dict`` in an expression as dicts with braces, and ``inf`` and ``nan`` as numbers."""

    def visit_Name(self, node):
        return ast.Constant(float(node.id)) if node.id in ('inf', 'nan') else node

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == 'dict':
            if not node.args and all(keyword.arg for keyword in node.keywords):
                return ast.Dict([ast.Constant(keyword.arg) for keyword in node.keywords],
                                [keyword.value for keyword in node.keywords])
            if not node.keywords and len(node.args) == 1 and isinstance(node.args[0], ast.Dict):
                return node.args[0]  # how mmengine writes keys that are not identifiers
        return node


def _average_of_run(checkpoint):
    """Return the container of the average in a file of mmengine, or None if it is not known."""
    hooks = config_of_checkpoint(checkpoint).get('custom_hooks')
    types = {type_name(hook.get('type')) for hook in hooks if isinstance(hook, dict)} if isinstance(
        hooks, (list, tuple)) else set()
    if 'AverageHook' in types:
        return 'ema_state_dict'
    if 'EMAHook' in types:
        return 'state_dict'
    return None if 'mmengine_version' in get_meta(checkpoint) else 'ema_state_dict'


def _title(container, shorts):
    return container if not shorts or container.lower() in shorts else f'{", ".join(shorts)} ({container})'


def _check_dense(state, source):
    """Raise `CheckpointError` unless every tensor is dense, which loading and converting rely on."""
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


def _is_state(value):
    return isinstance(value, dict) and bool(value) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in value.items())


def _halves(container, state):
    """Remove ``module.`` and separate teacher and student (distillation as in PaddlePaddle, `DINO`)."""
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


def _describe(value):
    if isinstance(value, dict):
        return f'a dict with the keys {sorted(map(str, value))[:8]}'
    return f'a {type(value).__name__}'
