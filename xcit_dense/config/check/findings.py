"""Lines that say what is wrong with a config: path, value and mend; and how much that matters.

A finding is an error where the run would stop on it or do something else than what is meant, such as a key with a slip.
What a framework leaves out or takes as it is, and may be meant, is a `Hint`.
"""
import logging
import re

from mmengine.logging import print_log

from ...errors import ConfigError
from ...text import nearest


class Hint(str):
    """A finding that is logged and stops nothing."""


def near(name, names, cutoff=0.8):
    """Return the name most like one, if there is one that is nearly the same."""
    return next(iter(nearest(name, names, cutoff=cutoff)), None)


def slip(name, names):
    """Return the name that one was meant to be; names that differ in their numbers alone are two."""
    letters = re.sub(r'\d', '', str(name))
    return near(name, [other for other in names if other == name or re.sub(r'\d', '', str(other)) != letters])


def finding(path, value, problem, name=None, names=()) -> str:
    """Return a line: what is there, what is wrong, and the nearest name or, where there are few, all."""
    meant = near(name, names, 0.6) if name is not None and names else None
    if meant:
        problem += f'; did you mean {meant}?'
    elif names and len(names) <= 25:
        problem += f'; it takes {", ".join(sorted(map(str, names)))}'
    text = repr(dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value)
    return f'{path} = {text if len(text) <= 60 else f"{text[:57]}..."}: {problem}'


def tell(findings, action='stop'):
    """Tell all findings at once, unless there is none.

    Args:
        findings: Lines; each `Hint` among them is logged.
        action: 'stop' raises an error for the others, 'warn' logs them too.

    Raises:
        ConfigError: It lists all findings but hints.
    """
    hints = [line for line in findings if isinstance(line, Hint)]
    errors = [line for line in findings if not isinstance(line, Hint)]
    if hints:
        print_log(_list(hints, 'may not do what is meant'), logger='current', level=logging.WARNING)
    if errors and action == 'stop':
        raise ConfigError(_list(errors, 'cannot be right'))
    if errors:
        print_log(_list(errors, 'cannot be right'), logger='current', level=logging.WARNING)


def _list(lines, problem):
    title = 'one thing in the config' if len(lines) == 1 else f'{len(lines)} things in the config'
    return f'{title} {problem}:\n' + '\n'.join(f'  {line}' for line in lines)
