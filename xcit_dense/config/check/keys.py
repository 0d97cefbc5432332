"""Which keys of a config a class accepts, by the signatures of its constructors."""
import inspect

from mmengine.hooks import CheckpointHook
from mmengine.utils import ManagerMixin

from ...text import type_name
from .findings import Hint, finding, meant_by

#: Passes its ``**kwargs`` to the runner's `save_checkpoint`, which rejects them: the run would fail when it saves.
_CLOSED = (CheckpointHook, )
#: Packages whose classes handle their arguments in the ways known here; others may do anything.
_PACKAGES = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'xcit_dense')


def learns_without_labels(cfg) -> bool:
    """Whether the model of a config is this package's `DINO`; mmdet's detector of that name has no ``head``."""
    model = cfg.get('model') or {}
    return type_name(model.get('type')) == 'DINO' and 'head' in model


def class_of(kind, registry, scope=None):
    """Return the class or function of a type; None if there is none.

    Args:
        kind: The type, as a config has it.
        registry: mmengine's registry for it.
        scope: The scope to look in; by default the current one.
    """
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    with registry.switch_scope_and_registry(scope) as inner:
        try:
            found = inner.get(kind)
        except RuntimeError:  # mmengine raises it for a dotted name that does not exist
            return None
    return found if callable(found) else None


def arguments_of(kind):
    """Return the arguments of a class or function, and what happens to other arguments.

    Args:
        kind: The class or function.

    Returns:
        A set of names; and what happens to others: they are 'rejected', or 'passed on' as ``**kwargs`` to a base that
        accepts no more (so they are rejected unless they are ignored), or it is 'unknown'.
    """
    if not inspect.isclass(kind):
        owners = [(None, kind)]
    else:
        owners = [(owner, vars(owner)['__init__']) for owner in kind.__mro__ if '__init__' in vars(owner)]
    names, rest = set(), 'rejected'
    if inspect.isclass(kind) and (type(kind).__call__ is not type.__call__ or kind.__new__ is not object.__new__):
        rest = 'unknown'
    elif inspect.isclass(kind) and issubclass(kind, ManagerMixin):
        names = {'name'}
    for owner, function in owners:
        if owner is object:
            return names, rest if rest == 'rejected' else 'unknown'
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return names, 'unknown'
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - {'self'}
        if owner and hasattr(function, '__wrapped__'):
            rest = 'unknown'  # a decorator may rename arguments
        elif owner and not is_known(owner) and any(p.kind is p.VAR_KEYWORD for p in parameters):
            rest = 'unknown'  # it may read its own keys from them
        if owner in _CLOSED or not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names, rest
        rest = 'unknown' if rest == 'unknown' else 'passed on'
    return names, 'unknown'


def is_known(kind) -> bool:
    """Whether a class or function is from one of the packages that are known here."""
    return kind.__module__.partition('.')[0] in _PACKAGES


def check_keys(node, path, kind, extra=()) -> list:
    """Return a finding for each key of a dict that a class or function does not accept."""
    names, rest = arguments_of(kind)
    if rest == 'unknown':
        return []
    return check_names(node, path, names | set(extra), kind.__name__, rest)


def check_names(node, path, names, reader, others='rejected') -> list:
    """Return a finding for each key of a dict that is not among some names.

    Args:
        node: The dict; anything else has no finding.
        path: Its place in the config.
        names: The keys that are read.
        reader: What does not accept other keys.
        others: What happens to other keys: 'rejected' ones are findings, 'ignored' ones hints, and those 'passed on'
            to code that is not known here neither. A key that is nearly one of the names is always a finding.
    """
    lines = []
    for key, value in node.items() if isinstance(node, dict) else ():
        if key in names or key in ('type', '_scope_'):
            continue
        if others == 'rejected' or meant_by(key, names):
            lines.append(finding(f'{path}.{key}', value, f'{reader} does not accept it', key, names))
        elif others == 'ignored':
            lines.append(Hint(finding(f'{path}.{key}', value, f'{reader} does not read it', key, names)))
    return lines
