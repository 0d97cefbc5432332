"""Which keys a class takes from a config, by the signatures of its constructors."""
import inspect

from mmengine.hooks import CheckpointHook
from mmengine.utils import ManagerMixin

from .findings import Hint, finding, slip

#: Its ``**kwargs`` end the run at the first checkpoint: the runner gives all that its `save_checkpoint` takes.
_CLOSED = (CheckpointHook, )
#: Packages whose classes do with their arguments what is known here; those of others may do as they like.
_PACKAGES = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'xcit_dense')


def class_of(kind, registry, scope=None):
    """Return the class or function of a type, None where there is none.

    Args:
        kind: The type, as a config has it.
        registry: mmengine's registry for it.
        scope: The scope to look in; by default the present one.
    """
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    with registry.switch_scope_and_registry(scope) as inner:
        try:
            found = inner.get(kind)
        except RuntimeError:  # mmengine's way to say that a dotted name is not there
            return None
    return found if callable(found) else None


def arguments_of(kind):
    """Return the arguments of a class or function, and what becomes of others.

    Args:
        kind: The class or function.

    Returns:
        A set of names; and 'refused', 'passed on' where ``**kwargs`` of a constructor go to a base that takes no more
        unless they are ignored, or 'taken' where it cannot be known.
    """
    if not inspect.isclass(kind):
        owners = [(None, kind)]
    else:
        owners = [(owner, vars(owner)['__init__']) for owner in kind.__mro__ if '__init__' in vars(owner)]
    names, rest = set(), 'refused'
    if inspect.isclass(kind) and (type(kind).__call__ is not type.__call__ or kind.__new__ is not object.__new__):
        rest = 'taken'
    elif inspect.isclass(kind) and issubclass(kind, ManagerMixin):
        names = {'name'}
    for owner, function in owners:
        if owner is object:
            return names, rest if rest == 'refused' else 'taken'
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return names, 'taken'
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - {'self'}
        if owner and hasattr(function, '__wrapped__'):
            rest = 'taken'  # a decorator may rename arguments
        elif owner and not is_known(owner) and any(p.kind is p.VAR_KEYWORD for p in parameters):
            rest = 'taken'  # it may take keys of its own out of them
        if owner in _CLOSED or not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names, rest
        rest = 'taken' if rest == 'taken' else 'passed on'
    return names, 'taken'


def is_known(kind) -> bool:
    """Whether a class or function is of one of the packages that are known here."""
    return kind.__module__.partition('.')[0] in _PACKAGES


def check_keys(node, path, kind, extra=()) -> list:
    """Return a finding for each key of a dict that a class or function does not take, or surely does not."""
    names, rest = arguments_of(kind)
    if rest == 'taken':
        return []
    return check_names(node, path, names | set(extra), kind.__name__, rest)


def check_names(node, path, names, reader, others='refused') -> list:
    """Return a finding for each key of a dict that is not among some names.

    Args:
        node: The dict; anything else has no finding.
        path: Its place in the config.
        names: What is read of it.
        reader: Who does not take other names.
        others: What becomes of other keys: they are 'refused', or 'left out' and no error but a hint, or 'passed on'
            to what is not known here and no finding at all; but for those that are nearly one of the names.
    """
    lines = []
    for key, value in node.items() if isinstance(node, dict) else ():
        if key in names or key in ('type', '_scope_'):
            continue
        if others == 'refused' or slip(key, names):
            lines.append(finding(f'{path}.{key}', value, f'{reader} does not take it', key, names))
        elif others == 'left out':
            lines.append(Hint(finding(f'{path}.{key}', value, f'{reader} does not read it', key, names)))
    return lines
