"""Lines that say what is wrong with a config: path, value and mend."""
import logging

from mmengine.logging import print_log

from ...errors import ConfigError
from ...text import nearest


def near(name, names, cutoff=0.8):
    """Return the name most like one, if there is one that is nearly the same."""
    return next(iter(nearest(name, names, cutoff=cutoff)), None)


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
        findings: Lines.
        action: 'stop' raises an error, 'warn' logs a warning.

    Raises:
        ConfigError: It lists all findings.
    """
    if not findings:
        return
    title = 'one thing in the config' if len(findings) == 1 else f'{len(findings)} things in the config'
    text = f'{title} cannot be right:\n' + '\n'.join(f'  {line}' for line in findings)
    if action == 'stop':
        raise ConfigError(text)
    print_log(text, logger='current', level=logging.WARNING)
