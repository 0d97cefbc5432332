"""What a checkpoint holds: its models and which of them is meant, and what the run that wrote it recorded."""
import ast
from contextlib import suppress

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


class Models:
    """The models in a checkpoint.

    The container of a model is the key of its dict of tensors, or ``''`` if the file is that dict. If names begin with
    a teacher and a student, these are the containers, the one that the run was for first: DINO's ``teacher``, or the
    ``Student`` of PASSL's distillation. In a second such dict, they follow its key (``ema_state_dict.teacher``).
    ``module.`` prefixes are removed. The centre of DINO's own files, which is in its loss, is with the teacher, as in
    files of this package.

    Attributes:
        states: By container, the tensors by name.
        names: By those of `SHORT_NAMES` that there are, the containers. A student whose container is not named so is
            the main model of a file with a teacher. The average is not among them if mmengine wrote the file and the
            config in it does not tell which container holds the average.
    """

    def __init__(self, checkpoint):
        self._checkpoint, self.states = checkpoint, {}
        if _is_state(checkpoint):
            self.states = _halves('', checkpoint)
        elif isinstance(checkpoint, dict):
            for name in dict.fromkeys([*(name for name in _CONTAINERS if name in checkpoint), *checkpoint]):
                if isinstance(name, str) and _is_state(checkpoint[name]):
                    for half, state in _halves(name, checkpoint[name]).items():
                        self.states[f'{name}.{half}' if half in self.states else half] = state
        if 'teacher' in self.states and 'center' in (loss := self.states.pop('dino_loss', {})):
            self.states['teacher'] = {**self.states['teacher'], 'centre': loss['center'].flatten()}
        self.names = {name.lower(): name for name in self.states if name.lower() in ('teacher', 'student')}
        main = next((name for name in ('state_dict', 'model') if name in self.states), None)
        if 'teacher' in self.names and main:
            self.names.setdefault('student', main)
        if average := self._average():
            self.names['ema'] = average

    def _average(self):
        average = next((name for first in _AVERAGES for name in self.states if name.partition('.')[0] == first), '')
        container, _, half = average.partition('.')
        if container != 'ema_state_dict' or 'state_dict' not in self._checkpoint:
            return average
        hooks = config_of_checkpoint(self._checkpoint).get('custom_hooks') or ()
        types = {type_name(hook.get('type')) for hook in hooks if isinstance(hook, dict)}
        if 'AverageHook' not in types and 'EMAHook' in types:
            return half or 'state_dict'
        is_known = 'AverageHook' in types or 'mmengine_version' not in get_meta(self._checkpoint)
        return average if is_known else None

    @property
    def titles(self) -> list:
        """What each model is called: ``teacher``, ``ema (model_ema)``, ``model``."""
        shorts = {container: ', '.join(short for short in self.names if self.names[short] == container)
                  for container in self.states}
        return [f'{short} ({container})' if short and container.lower() not in self.names else container
                for container, short in shorts.items()]

    def find(self, source, which: str = None):
        """Return the tensors of a model by name, and what messages call the model.

        Args:
            source: The file, for messages.
            which: One of ``names``, or the container of the model; upper or lower case. Default: the first container
                that holds an XCiT, in the order ``state_dict``, ``model``, ``teacher``, ``student``, any other; of
                PASSL's ``Student`` and ``Teacher``, the student. ``state_dict`` holds the weights that were evaluated.

        Raises:
            CheckpointError: There are no tensors, none in this container, or one is sparse, quantised or without data.
        """
        if not self.states:
            held = (f'a dict with the keys {sorted(map(str, self._checkpoint))[:8]}'
                    if isinstance(self._checkpoint, dict) else f'a {type(self._checkpoint).__name__}')
            raise CheckpointError(f'{source} holds no weights: expected a dict of tensors by name, or one under a key '
                                  f'such as "state_dict" or "model", got {held}')
        names = self.names if len(self.states) > 1 else {}
        if which is None:
            container = next((name for name in self.states if holds_xcit(self.states[name])), next(iter(self.states)))
        else:
            known = {**{name.lower(): name for name in self.states if name}, **names}
            if which.lower() not in known:
                held = ', '.join(filter(None, self.titles)) or 'a single model without a name'
                raise CheckpointError(f'{source} holds no model named {which!r}; it holds {held}')
            container = known[which.lower()]
        short = next((name for name in names if names[name] == container), None)
        title = f'{SHORT_NAMES[short]} of {source}' if short else str(source)
        odd = [name for name, value in self.states[container].items()
               if value.layout != torch.strided or value.is_quantized or value.is_nested or value.is_meta]
        if odd:  # loading and converting rely on it
            raise CheckpointError(f'{title} holds tensors that are not dense tensors of numbers: {listed(odd)}')
        return self.states[container], title


def find_state_dict(checkpoint, source, which: str = None) -> dict:
    """Return only the tensors of `Models.find`."""
    return Models(checkpoint).find(source, which)[0]


def get_meta(checkpoint) -> dict:
    """Return what a training run of mmengine or mmcv wrote into its checkpoint; an empty dict if nothing."""
    meta = checkpoint.get('meta') if isinstance(checkpoint, dict) else None
    return meta if isinstance(meta, dict) else {}


def run_of(checkpoint) -> str | None:
    """Return the name of the run that wrote a checkpoint, if it has one."""
    hub = checkpoint.get('message_hub') if isinstance(checkpoint, dict) else None
    infos = hub.get('runtime_info') if isinstance(hub, dict) else None
    return infos.get('run_id') if isinstance(infos, dict) else None


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
    if not (classes := get_dataset_meta(checkpoint).get('classes')):
        raise CheckpointError(f'{source} holds no class names (meta.dataset_meta.classes or meta.CLASSES), and its '
                              'config takes them from the data. Use the checkpoint of a training run with '
                              'labels; one without labels (DINO) can be measured with test --knn or --linear.')
    return (classes, ) if isinstance(classes, str) else tuple(classes)  # mmdet 2 allowed a string for one class


def config_of_checkpoint(checkpoint) -> dict:
    """Return the training config that mmengine's runner wrote into a checkpoint, without running its text.

    It has the variables that are made completely of literals, lists, tuples, dicts and calls of ``dict``; none if there
    is no such text, or it cannot be read.
    """
    text = get_meta(checkpoint).get('cfg')
    if not isinstance(text, str) or len(text) > _LONGEST:
        return {}
    found = {}
    try:
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0].id
                found.pop(name, None)  # its earlier value no longer holds
                with suppress(TypeError, ValueError):
                    found[name] = ast.literal_eval(_Dicts().visit(statement.value))
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


def _is_state(value):
    return isinstance(value, dict) and bool(value) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in value.items())


def _halves(container, state):
    """Remove ``module.`` and separate teacher and student (`DINO`; with capitals, of PASSL)."""
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
    return dict(sorted(halves.items(), key=lambda item: item[0] not in ('teacher', 'Student')))
