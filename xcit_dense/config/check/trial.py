"""Build a part of a config on trial, in a separate process, and report what its constructors reject."""
import copy
import gc
import logging
import multiprocessing
import os
import re
import socket
import traceback
import warnings
from contextlib import nullcontext
from importlib import import_module

import torch
from mmengine import registry as R
from mmengine.logging import print_log
from torch.overrides import TorchFunctionMode

from ..._utils.text import nearest
from .keys import arguments_of, class_of, dicts_by_key, finding

#: Seconds until a check is given up; models are built in less than one.
_PATIENCE = 120
#: What constructors raise for wrong arguments. Other errors, such as missing packages and files, come up in the run.
_REJECTIONS = (AssertionError, KeyError, TypeError, ValueError)
#: Words of errors about missing packages, and about processes that have not been joined yet.
_NOT_OF_THE_CONFIG = 'install|process group|is_initialized|world_size|get_rank'
_MOST = 50


class NoNetwork(BaseException):
    """A constructor used the network. Not an `Exception`, which the constructor could catch to try again."""


def in_child(function, *args) -> list:
    """Return what a function returns in a copy of this process: a list that can be pickled.

    Side effects, on random numbers, caches, registries or the log, end with the copy, which has no network.

    Returns:
        The list. If the function fails, or the copy dies or needs more than two minutes: an empty list, and a warning
        is logged.
    """
    context = multiprocessing.get_context('fork')
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, function, args))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)  # about threads, which the copy does not use
        process.start()
    sender.close()
    try:
        found = receiver.recv() if receiver.poll(_PATIENCE) else f'it took more than {_PATIENCE} s'
    except EOFError:
        found = 'its process died'
    finally:
        process.kill()
        process.join()
    if isinstance(found, str):
        warn_of(found)
        return []
    return found


def warn_of(problem):
    """Warn that a check failed for a reason of its own, which is no mistake in the config."""
    print_log(f'the config was checked only in part, as building it on trial failed: {problem}', logger='current',
              level=logging.WARNING)


def _run(sender, function, args):
    gc.disable()  # it would write to all memory that the copy shares with the process
    isolate()
    try:
        sender.send(function(*args))
    except BaseException as error:  # NoNetwork too
        place = traceback.extract_tb(error.__traceback__)[-1]
        sender.send(f'{type(error).__name__}: {error} ({place.filename}, line {place.lineno})')


def isolate():
    """Give up threads, output, log and network, in a process that is only there for the check."""
    torch.set_num_threads(1)  # other threads do not exist in a copy
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter('ignore')
    socket.getaddrinfo = _no_network


def _no_network(*args, **kwargs):
    raise NoNetwork


def build_on_trial(node, registry, path):
    """Build a part of a config without memory for its parameters; call it in `in_child`, as it has other side effects.

    After a rejected key is removed or a misspelt type corrected, the part is built again, so that all are reported.

    Args:
        node: The part.
        registry: mmengine's registry for it; the default scope must be that of the run.
        path: The place of the part in the config.

    Returns:
        What was built, or None if it cannot be built; and the findings.
    """
    node, findings = copy.deepcopy(node), []
    while len(findings) < _MOST:
        built, error = _try(node, registry, _ParametersOnMeta())
        if error and not isinstance(error, (*_REJECTIONS, NoNetwork)):  # it may read its parameters
            built, error = _try(node, registry)
        if not isinstance(error, _REJECTIONS):
            return built, findings
        line = _remove_key(error, node, path, registry) or _correct_type(error, node, path)
        if line is None:
            return None, findings + _explain(error, node, path, registry)
        findings.append(line)
    return None, findings


class _ParametersOnMeta(TorchFunctionMode):
    """Puts parameters, which torch's layers create with `torch.empty`, on the meta device; constants are unchanged."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **dict(kwargs or {}, device='meta') if func is torch.empty else kwargs or {})


def _try(node, registry, context=None):
    try:
        with context or nullcontext():
            return registry.build(copy.deepcopy(node)), None
    except (Exception, NoNetwork) as error:
        return None, error


def _remove_key(error, node, path, registry):
    """Remove a key that a constructor does not accept; return the finding, or None for other errors."""
    match = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if not match:
        return None
    owner, key = match.groups()
    places = [(_class_of(part.get('type'), registry), place, part) for place, part in dicts_by_key(node, path)
              if key in part]
    if not places:
        return None
    # that of the class or of one derived from it; otherwise of one that passes the key on
    kind, place, part = next((found for found in places if owner in [
        base.__name__ for base in getattr(found[0], '__mro__', ())]), places[0])
    names = arguments_of(kind)[0] if kind else set()
    reader, names = (owner, ()) if key in names or not kind else (kind.__name__, names)
    return finding(f'{place}.{key}', part.pop(key), f'{reader} does not accept it', key, names)


def _class_of(kind, registry):
    """Return the class of a type; layers and ops are built without mmengine, from other registries."""
    return class_of(kind, registry) or class_of(kind, R.MODELS) or class_of(kind, R.TASK_UTILS) or getattr(
        import_module('mmcv.ops'), str(kind), None)


def _correct_type(error, node, path):
    """Correct a type that is not registered; return the finding, or None if no name is like it, or for other errors."""
    match = re.match(r"'(\S+) is not in the \S+::(.+) registry\.", str(error))
    places = [(place, part) for place, part in dicts_by_key(node, path) if match and part.get('type') == match[1]]
    registry = next((found for found in vars(R).values() if isinstance(found, R.Registry) and places
                     and found.name == match[2]), None)
    if registry is None:
        return None
    (place, part), *_ = places
    part['type'] = next(iter(nearest(match[1].rpartition('.')[2], _names_in(registry))), None)
    return unknown_type(f'{place}.type', match[1], registry) if part['type'] else None


def unknown_type(path, name, registry):
    """Return the finding of a type that is not in a registry."""
    return finding(path, name, f'there is no such {registry.name}; your own type must be registered by a module in '
                   'custom_imports', str(name).rpartition('.')[2], _names_in(registry))


def _names_in(registry):
    """Return the names in the registry of the default scope and in those above it."""
    names = set()
    with registry.switch_scope_and_registry(None) as inner:
        while inner is not None:
            names |= set(inner.module_dict)
            inner = inner.parent
    return names


def _explain(error, node, path, registry):
    """Return the finding for the error of a constructor, with the key that it names; none if the trial is the reason.

    Its place is the innermost part that fails alone in the same way.
    """
    text = _message(error)
    for place, part in reversed([*dicts_by_key(node, path)]):
        if 'type' in part and not re.search(_NOT_OF_THE_CONFIG, text):
            again = _try(part, registry)[1]
            if again and _message(again) == text:
                key = next((word for word in re.findall(r'\w+', text) if word in part and word != 'type'), None)
                return [finding(f'{place}.{key}', part[key], text) if key else f'{place}: {text}']
    return []


def _message(error):
    """Return the message of an error or, without one, the line that raised it."""
    text = ' '.join(str(error.args[0] if error.args else '').split())
    last = traceback.extract_tb(error.__traceback__)[-1]
    return text or f'its constructor fails at {last.line or last.name!r}'
