"""Lines that report what is wrong with a config: path, value and fix; and how serious it is.

A finding is an error if the run would fail on it or do something else than intended, such as a misspelt key.
What a framework ignores or accepts unchecked, and what may be intended, is a `Hint`.
"""
import logging
import re

from mmengine.logging import print_log

from ...errors import ConfigError
from ...text import nearest


class Hint(str):
    """A finding that is logged and stops nothing."""


def near(name, names, cutoff=0.8):
    """Return the most similar name, if one is nearly the same."""
    return next(iter(nearest(name, names, cutoff=cutoff)), None)


def meant_by(name, names):
    """Return the name of which another is a misspelling; names that differ only in their numbers are two names."""
    letters = re.sub(r'\d', '', str(name))
    return near(name, [other for other in names if other == name or re.sub(r'\d', '', str(other)) != letters])


def finding(path, value, problem, name=None, names=()) -> str:
    """Return a line: the value, what is wrong, and the most similar name or, if there are few, all names."""
    meant = near(name, names, 0.6) if name is not None and names else None
    if meant:
        problem += f'; did you mean {meant}?'
    elif names and len(names) <= 25:
        problem += f'; allowed: {", ".join(sorted(map(str, names)))}'
    text = repr(dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value)
    return f'{path} = {text if len(text) <= 60 else f"{text[:57]}..."}: {problem}'


def tell(findings, action='stop'):
    """Report all findings at once; nothing happens without any.

    Args:
        findings: Lines; each `Hint` among them is logged.
        action: 'stop' raises an error for the others, 'warn' logs them too.

    Raises:
        ConfigError: It lists all findings except hints.
    """
    hints = [line for line in findings if isinstance(line, Hint)]
    errors = [line for line in findings if not isinstance(line, Hint)]
    if hints:
        print_log(_list(hints, 'possible mistake'), logger='current', level=logging.WARNING)
    if errors and action == 'stop':
        raise ConfigError(_list(errors, 'mistake'))
    if errors:
        print_log(_list(errors, 'mistake'), logger='current', level=logging.WARNING)


def _list(lines, noun):
    return f'{len(lines)} {noun}{"s" * (len(lines) > 1)} in the config:\n' + '\n'.join(f'  {line}' for line in lines)
