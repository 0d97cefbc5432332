"""Write changes of a config as the text of a config file, each with its reason."""
import textwrap
from typing import Any, NamedTuple

from ..._utils.text import shown
from ...errors import ConfigError

_WIDTH = 120


class Change(NamedTuple):
    """A new value for a key of a config.

    Attributes:
        key: The dotted key, as in ``--cfg-options``.
        value: The value, of numbers, texts, lists and dicts, or `Code`.
        why: A comment; '' if that of the previous change covers it.
    """
    key: str
    value: Any
    why: str = ''


class Code(str):
    """Text that is written to a config unchanged."""


def write_config(base, changes, title: str) -> str:
    """Return the text of a config.

    Args:
        base: The file of the config that is changed.
        changes: A list of `Change`; top-level names keep this order.
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
    """Return the lines of one name with its value, which is a `Change` or a dict of entries."""
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
    """Return Python code for a value; a list of dicts gets one line per dict."""
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
    raise ConfigError(f'--suggest can write only numbers, texts, lists and dicts; this config has {shown(value)}')
