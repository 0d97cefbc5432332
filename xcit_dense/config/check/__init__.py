"""What is wrong with a config, all at once and before its run begins."""
import re
from contextlib import contextmanager, suppress
from importlib import import_module

from mmengine import registry
from mmengine.registry import MODELS, DefaultScope

from ...errors import ConfigError, XCiTDenseError
from .build import build_on_trial
from .findings import Hint, tell
from .keys import class_of, is_known
from .numbers import find_numbers
from .options import find_new_keys
from .paramwise import check_paramwise
from .parts import check_init, check_parts, check_settings
from .schedule import check_schedule
from .shapes import check_shapes
from .top_level import check_top_level
from .trial import in_child

__all__ = ['Hint', 'check_config', 'check_paramwise', 'check_schedule', 'explained', 'find_new_keys', 'find_numbers',
           'tell']


def check_config(cfg, earlier=(), action='stop'):
    """Check a config before its runner is built.

    The model, the transforms and the schedulers are built on trial, in a process of their own and without memory for
    parameters, so that their constructors say what they do not take; a forward says which maps backbone and neck give.
    Of what cannot be built without effects, such as data sets and hooks, the keys are compared with signatures.

    Args:
        cfg: The config, its custom imports done (`load_config` does them).
        earlier: Findings to tell first, such as `find_new_keys` has.
        action: 'stop' or 'warn', see `tell`.

    Raises:
        ConfigError: It lists all findings but hints, each with path, value and mend.
    """
    tell([*earlier, *_find_all(cfg, earlier)], action)


@contextmanager
def explained(cfg):
    """Around a run that was begun in spite of findings: where it stops on one, the error is that line.

    Raises:
        ConfigError: The run ended with an error that names the key of a finding.
    """
    try:
        yield
    except XCiTDenseError:
        raise
    except Exception as error:
        found = _find_all(cfg) if cfg.get('config_findings') == 'warn' else ()
        spoken = [line for line in found if not isinstance(line, Hint)
                  and _speaks_of(error, _place(line).rpartition('.')[2])]
        if not spoken:
            raise
        raise ConfigError(f'the run stopped on what was warned of: {spoken[0]}') from error


def _speaks_of(error, key):
    """Whether an error names a key: in quotes, as Python does. Types and places in lists are words of any error."""
    return key != 'type' and not key.isdecimal() and bool(re.search(rf'([\'"`]){re.escape(key)}\1', str(error)))


def _find_all(cfg, earlier=()):
    missing = [name for name in ('model', 'train_dataloader', 'train_cfg', 'optim_wrapper') if not cfg.get(name)]
    if missing:
        missing = [f'{", ".join(missing)}: not there; a config of your own takes them over from the one that it names '
                   'as its _base_']
    lines = [*missing, *check_top_level(cfg), *find_numbers(cfg)]
    scope = cfg.get('default_scope') or 'mmengine'
    with DefaultScope.overwrite_default_scope(scope):
        _load_framework(scope)
        lines += _others(in_child(_check_by_building, cfg), [*earlier, *lines])
    return lines


def _load_framework(scope):
    """Import what fills the registries of a framework: here, as the run needs it too, and not in every copy."""
    with suppress(ImportError):
        import_module(f'{scope}.registry')
        for root in vars(registry).values():
            if isinstance(root, registry.Registry) and scope in root.children:
                root.children[scope].import_from_location()


def _check_by_building(cfg):
    findings = _check_model(cfg)
    return findings + _others(check_parts(cfg), findings)


def _check_model(cfg):
    model = cfg.get('model')
    if not isinstance(model, dict):
        return []
    model = dict(model)
    if cfg.get('data_preprocessor'):
        model.setdefault('data_preprocessor', cfg.data_preprocessor)
    built, findings = build_on_trial(model, MODELS, 'model')
    findings += check_init(model, 'model')
    kind = class_of(model.get('type'), MODELS)
    if kind is not None and is_known(kind):  # others may have names of their own
        settings = [line for name in ('train_cfg', 'test_cfg')
                    for line in check_settings(model.get(name), f'model.{name}')]
        findings += map(Hint, settings) if built is not None and _has_own_parts(built) else settings
    return findings + (check_shapes(model, built) if built is not None else [])


def _has_own_parts(model):
    """Whether a part of a model is neither of a known package nor of torch; it may read settings of its own."""
    return not all(is_known(type(module)) or type(module).__module__.startswith('torch') for module in model.modules())


def _others(lines, told):
    """Return the lines on places that are not told of yet, nor a part of them."""
    places = [_place(line) for line in told]
    return [line for line in lines if not any(place.startswith(_place(line)) for place in places)]


def _place(line):
    return re.match(r'[\w.]*', line)[0]
