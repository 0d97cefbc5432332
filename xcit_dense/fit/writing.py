"""Changes of a config as the text of a config file, with the reason beside each."""
import textwrap
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..text import shown

_WIDTH = 120


class Change(NamedTuple):
    """One value of a config that is to be another.

    Attributes:
        key: Its place, as ``--cfg-options`` writes it.
        value: Of numbers, texts, lists and dicts, or `Code`.
        why: A comment; '' where that of the change before says it.
    """
    key: str
    value: Any
    why: str = ''


class Code(str):
    """Text that stands in a config as it is."""


def write_config(base, changes, title: str) -> str:
    """Return the text of a config.

    Args:
        base: The file of the config that is changed.
        changes: `Change` s; those of top-level names come in their order.
        title: The first comment.

    Raises:
        ConfigError: A value cannot be written, such as the class of a pure-Python config.
    """
    tree = {}
    for change in changes:
        *folders, name = change.key.split('.')
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = change
    lines = [*_comment(title, ''), f'_base_ = {str(base)!r}']
    for name, node in tree.items():
        lines += ['', *_entry(name, node, '')]
    return '\n'.join(lines) + '\n'


def _entry(name, node, indent):
    """Return lines of one name with its value, which is a `Change` or a dict of more."""
    equals = '=' if indent else ' = '
    if isinstance(node, Change):
        return [*_comment(node.why, indent), *f'{indent}{name}{equals}{_code(node.value, indent)}'.splitlines()]
    lines = [f'{indent}{name}{equals}dict(']
    for key, part in node.items():
        entry = _entry(key, part, f'{indent}    ')
        lines += [*entry[:-1], f'{entry[-1]},']
    return [*lines, f'{indent})']


def _comment(text, indent):
    return textwrap.wrap(text, _WIDTH, initial_indent=f'{indent}# ', subsequent_indent=f'{indent}# ')


def _code(value, indent):
    """Return Python for a value; of a list of dicts a line for each."""
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, dict):
        return 'dict(' + ', '.join(f'{key}={_code(part, indent)}' for key, part in value.items()) + ')'
    if isinstance(value, (list, tuple)):
        inner = f'{indent}    '
        marks = '[]' if isinstance(value, list) else '()'
        parts = [_code(part, inner) for part in value]
        if any(isinstance(part, (dict, list)) for part in value):
            return '\n'.join([marks[0], *(f'{inner}{part},' for part in parts), f'{indent}{marks[1]}'])
        comma = ',' if len(parts) == 1 and marks == '()' else ''
        return f'{marks[0]}{", ".join(parts)}{comma}{marks[1]}'
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise ConfigError(f'--suggest writes configs of numbers, texts, lists and dicts, and this one holds {shown(value)}')
