"""Build a part of a config on trial, and report what its constructors reject."""
import copy
import re
import traceback
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec

import torch
from mmengine.registry import MODELS, TASK_UTILS, build_from_cfg
from torch.overrides import TorchFunctionMode

from .findings import finding, near
from .keys import arguments_of, class_of
from .trial import NoNetwork

#: What constructors raise for wrong arguments. Other errors, such as missing packages and files, come up in the run.
_REJECTIONS = (AssertionError, KeyError, TypeError, ValueError)
#: Words of errors about missing packages, and about processes that have not been joined yet.
_NOT_OF_THE_CONFIG = 'install|process group|is_initialized|world_size|get_rank'
_MOST = 50


def build_on_trial(node, registry, path, names_only=False, **default_args):
    """Build a part of a config without memory for its parameters; call it in `in_child`, as it has other side effects.

    After a rejected key is removed or a misspelt type corrected, the part is built again, so that all are reported.

    Args:
        node: The part.
        registry: mmengine's registry for it; the default scope must be that of the run.
        path: The place of the part in the config.
        names_only: Ignore what constructors say about values, as they get other values than in the run.
        **default_args: Arguments that the run passes in addition to the config.

    Returns:
        What was built, or None if it cannot be built; and the findings.
    """
    node, findings = copy.deepcopy(node), []
    while len(findings) < _MOST:
        built, error = _try(node, registry, default_args, _ParametersOnMeta())
        if error and not isinstance(error, (*_REJECTIONS, NoNetwork)):  # it may read its parameters
            built, error = _try(node, registry, default_args, nullcontext())
        if not isinstance(error, _REJECTIONS):
            return built, findings
        line, fixed = (_fix_key(error, node, path, registry) or _fix_type(error, node, path, registry)
                       or (None, False))
        # other errors may be due to the trial itself
        if line is None and not names_only and not re.search(_NOT_OF_THE_CONFIG, _message(error)) and str(error) == str(
                _try(node, registry, default_args, nullcontext())[1]):
            line = _explain(error, node, path)
        findings += [line] if line else []
        if not fixed:
            break
    return None, findings


class _ParametersOnMeta(TorchFunctionMode):
    """Puts parameters, which torch's layers create with `torch.empty`, on the meta device; constants are unchanged."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **dict(kwargs or {}, device='meta') if func is torch.empty else kwargs or {})


def _try(node, registry, default_args, context):
    try:
        with context:
            return registry.build(copy.deepcopy(node), default_args=default_args or None), None
    except (Exception, NoNetwork) as error:
        return None, error


def _fix_key(error, node, path, registry):
    """Remove a key that a constructor does not accept; return the finding and True, or None for other errors."""
    match = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    key = match and match[2]
    places = [(place, part) for place, part in _dicts(node, path) if key in part]
    if not match or not places:
        return None
    builds = [build for build in _builds(error) if key in build['cfg']]
    # a constructor may pass the key on to what it builds itself
    types = [build['cfg']['type'] for build in builds]
    place, part = min(places, key=lambda pair: types.index(pair[1].get('type')) if pair[1].get('type') in types
                      else len(types))
    kinds = [kind for kind in (_class_of(kind, registry) for kind in [part.get('type'), *types]) if kind]
    names = {name for kind in kinds for name in arguments_of(kind)[0]} - {key}
    reader = getattr(kinds[0], '__name__', match[1]) if kinds else match[1]
    if kinds and key in arguments_of(kinds[0])[0]:  # as mmseg's models pass `pretrained` on to their backbone
        return finding(f'{place}.{key}', part.pop(key),
                       f'{reader} passes it on to {match[1]}, which does not accept it'), True
    return finding(f'{place}.{key}', part.pop(key), f'{reader} does not accept it', key, names), True


def _fix_type(error, node, path, registry):
    """Correct a type that is not registered; return the finding and whether that worked, or None for other errors."""
    match = re.match(r"'(\S+) is not in the .+ registry\.", str(error))
    places = [(place, part) for place, part in _dicts(node, path) if match and part.get('type') == match[1]]
    if not places:
        return None
    scope, _, name = match[1].rpartition('.')
    if scope and not find_spec(scope.partition('.')[0]):
        return None, False  # a type from a package that is not installed
    place, part = places[0]
    registry = next((build['registry'] for build in _builds(error)), registry)
    part['type'] = near(name, registered_names(registry), 0.6)
    return unknown_type(f'{place}.type', match[1], registry), part['type'] is not None


def unknown_type(path, name, registry):
    """Return the finding of a type that is not in a registry."""
    return finding(path, name, f'there is no such {registry.name} in {registry.scope}; your own type must be '
                   'registered by a module in custom_imports', str(name).rpartition('.')[2], registered_names(registry))


def registered_names(registry) -> set:
    """Return the names in a registry and those above it."""
    return set(registry.module_dict) | (registered_names(registry.parent) if registry.parent else set())


def _explain(error, node, path):
    """Return the finding for the error of a constructor, with the key that it names."""
    text = _message(error)
    place, part = next(filter(None, (_place_of(build['cfg'], node, path) for build in _builds(error))), (path, node))
    named = [key for key in re.findall(r'\w+', text) if isinstance(part, dict) and key in part and key != 'type']
    if named:
        return finding(f'{place}.{named[0]}', part[named[0]], text)
    return f'{place}: {text}'


def _message(error):
    """Return the message of an error or, without one, the line that raised it."""
    text = ' '.join(str(error.args[0] if error.args else '').split())
    last = traceback.extract_tb(error.__traceback__)[-1]
    return text or f'its constructor fails at {last.line or last.name!r}'


def _place_of(cfg, node, path):
    """Return path and dict of the part that a constructor got, which may have been changed on the way."""
    same = [(sum(key in cfg and cfg[key] is value for key, value in part.items()), place, part)
            for place, part in _dicts(node, path) if part.get('type') == cfg.get('type')]
    return max(same, key=lambda found: found[0])[1:] if same else None


def _builds(error):
    """Return the local variables of mmengine's function that builds, from the innermost call on."""
    return [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)
            if frame.f_code is build_from_cfg.__code__][::-1]


def _dicts(node, path):
    """Yield path and dict of every dict in a part."""
    if isinstance(node, dict):
        yield path, node
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, (dict, list, tuple)):
            yield from _dicts(value, f'{path}.{key}')


def _class_of(kind, registry):
    """Return the class of a type; layers and ops are built without mmengine, from other registries."""
    return class_of(kind, registry) or class_of(kind, MODELS) or class_of(kind, TASK_UTILS) or getattr(
        import_module('mmcv.ops'), str(kind), None)
