"""Dotted keys of a config, which of them a class accepts by its signature, and the lines that report wrong ones.

A finding is an error if the run would fail on it or do something else than intended, such as a misspelt key.
What a framework ignores or accepts unchecked, and what may be intended, is a `Hint`.
"""
import copy
import inspect
import logging
import re

from mmengine.logging import print_log

from ..._utils.text import counted, did_you_mean, nearest, shown
from ...errors import ConfigError
from ...weights.contents import config_of_checkpoint

#: Packages whose classes handle their arguments in the ways known here; others may do anything.
_PACKAGES = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'xcit_dense')


def value_at(node, key: str):
    """Return the value of a config at a dotted key, in which numbers are places in lists; None without one."""
    for name in key.split('.'):
        if isinstance(node, (list, tuple)):
            node = node[int(name)] if name.isdecimal() and int(name) < len(node) else None
        else:
            node = node.get(name) if hasattr(node, 'get') else None
    return node


def set_value(node, key: str, value):
    """Set the value of a config at a dotted key as `value_at` finds it; None removes a name."""
    parent, _, name = key.rpartition('.')
    owner = value_at(node, parent)
    if isinstance(owner, list):
        owner[int(name)] = value
    elif value is None:
        owner.pop(name, None)
    elif owner is not None:
        owner[name] = value


def concerns(key: str, others) -> bool:
    """Whether a dotted key is one of some others, contains one of them, or is in one of them."""
    return any(f'{key}.'.startswith(f'{other}.') or f'{other}.'.startswith(f'{key}.') for other in others)


def copies_of(cfg, names) -> dict:
    """Return copies of the parts of a config that have some names."""
    return {name: copy.deepcopy(cfg[name]) for name in names if name in cfg}


def restore_given(cfg, before: dict, given) -> list:
    """Restore the dotted keys that a user gave in parts of a config, of which ``before`` has earlier `copies_of`;
    return the other `changes`."""
    found = [change for name in before for change in changes(before[name], cfg[name], name, by_type=True)]
    for key, old, _ in found:
        if concerns(key, given):
            set_value(cfg, key, old)
    return [change for change in found if not concerns(change[0], given)]


def dicts_by_key(node, key: str):
    """Yield every dict in a part of a config, in order and with its dotted key."""
    if isinstance(node, dict):
        yield key, node
    parts = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, (list, tuple)) else ()
    for name, value in list(parts):
        yield from dicts_by_key(value, f'{key}.{name}')


def changes(before, after, key: str, by_type: bool = False) -> list:
    """Return dotted key, old and new value of everything that differs between two values of a config with one key.

    A missing value is None. Lists of different lengths, and lists of numbers, texts or tuples, differ as a whole; with
    ``by_type`` also dicts of different types.
    """
    if isinstance(before, dict) and isinstance(after, dict) and not (
            by_type and before.get('type') != after.get('type')):
        pairs = [(name, before.get(name), after.get(name)) for name in {**before, **after}]
    elif (isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)) and len(before) == len(after)
          and any(isinstance(part, (dict, list)) for part in before)):
        pairs = list(zip(range(len(before)), before, after, strict=True))
    else:
        return [] if before == after else [(key, before, after)]
    return [change for name, old, new in pairs for change in changes(old, new, f'{key}.{name}', by_type)]


def differences(before: str, after: str) -> dict:
    """Return what differs between the texts of two configs: old and new value, as text, by dotted key, see `changes`.

    The texts are as mmengine's ``Config.pretty_text`` writes them; nothing differs if one is no config. A missing value
    is ``not set``. Custom hooks have their type as key, as one more hook moves the others. A text may come from a
    checkpoint: it is parsed, and never run; variables that are no literals are left out.
    """
    before, after = (config_of_checkpoint(dict(meta=dict(cfg=text))) for text in (before, after))
    for part in (before, after):
        hooks = part.get('custom_hooks') or []
        by_type = {hook['type']: hook for hook in hooks if 'type' in hook}
        if part and len(by_type) == len(hooks):
            part['custom_hooks'] = by_type
    return {key: tuple('not set' if value is None else shown(value) for value in values)
            for name in ({**before, **after} if before and after else ())
            for key, *values in changes(before.get(name), after.get(name), name)}


def arguments_of(kind):
    """Return the names of the arguments of a class or function, and whether it certainly rejects all others.

    It does not if ``**kwargs`` are passed on, a decorator may rename arguments, or the class is made in another way.
    """
    is_class = inspect.isclass(kind)
    functions = [vars(owner)['__init__'] for owner in kind.__mro__ if '__init__' in vars(owner)] if is_class else [kind]
    names, closed = set(), not is_class or type(kind).__call__ is type.__call__ and kind.__new__ is object.__new__
    for function in functions:
        if function is object.__init__:
            break
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return names, False
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - {'self'}
        closed = closed and not (is_class and hasattr(function, '__wrapped__'))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
        closed = False
    return names, closed


def is_known(kind) -> bool:
    """Whether a class or function is from one of the packages that are known here."""
    return kind.__module__.partition('.')[0] in _PACKAGES


def check_keys(node, path, kind, extra=(), strict=False) -> list:
    """Return a finding for each key of a dict that a class or function does not accept.

    Where others may be accepted, only those that are nearly its arguments are; a class of the user's may read any.
    ``strict``: what classes of this kind pass on, their bases reject.
    """
    names, closed = arguments_of(kind)
    if not closed and not is_known(kind):
        return []
    return check_names(node, path, names | set(extra), kind.__name__, 'rejected' if closed or strict else 'passed on')


def check_names(node, path, names, reader, others='rejected') -> list:
    """Return a finding for each key of a dict at a path that is not among some names; anything but a dict has none.

    ``others`` says what the reader does with other keys: 'rejected' ones are findings, 'ignored' ones hints, and those
    'passed on' to code that is not known here neither. A key that is nearly one of the names is always a finding.
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


class Hint(str):
    """A finding that is logged and stops nothing."""


def meant_by(name, names):
    """Return the name of which another is a misspelling; names that differ only in their numbers are two names."""
    letters = re.sub(r'\d', '', str(name))
    others = [other for other in names if other == name or re.sub(r'\d', '', str(other)) != letters]
    return next((other for text in (name, str(name).lower()) for other in nearest(text, others, cutoff=0.8)), None)


def finding(path, value, problem, name=None, names=()) -> str:
    """Return a line: the value, what is wrong, and the most similar name or, if there are few, all names."""
    allowed = f'; allowed: {", ".join(sorted(map(str, names)))}' if 0 < len(names) <= 25 else ''
    problem += did_you_mean(name, names, otherwise=allowed)
    text = repr(dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value)
    return f'{path} = {text if len(text) <= 60 else f"{text[:57]}..."}: {problem}'


def tell(findings, action='stop'):
    """Report all findings at once: log each `Hint`; others are a `ConfigError` with 'stop', and logged with 'warn'."""
    for is_hint, noun in ((True, 'hints on'), (False, 'mistakes in')):
        lines = [line for line in findings if isinstance(line, Hint) == is_hint]
        text = '\n  '.join([f'{counted(len(lines), noun)} the config:', *lines])
        if lines and action == 'stop' and not is_hint:
            raise ConfigError(text)
        if lines:
            print_log(text, logger='current', level=logging.WARNING)
