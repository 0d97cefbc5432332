"""Find everything that is wrong with a config, before its run starts."""
import re
from contextlib import contextmanager, suppress
from importlib import import_module

from mmengine import registry
from mmengine.registry import DefaultScope

from ..._utils.text import type_name
from ...errors import ConfigError, XCiTDenseError
from ...tasks import learns_without_labels
from .keys import Hint, tell
from .parts import check_paramwise, check_parts
from .schedule import check_schedule, find_numbers
from .top_level import check_top_level, find_new_keys
from .trial import check_model

__all__ = ['Hint', 'check_config', 'check_hooks', 'check_paramwise', 'check_schedule', 'explained',
           'find_new_keys', 'find_numbers', 'tell']


#: The hook that a model needs, what it does, and a config that has it.
_HOOKS = dict(DINO=('DINOHook', 'move the teacher', '_base_/schedules/adamw_dino_300e.py'),
              DistilledClassifier=('TeacherHook', 'load the teacher', 'xcit_s12_p16_imagenet_dist.py'))


def check_config(cfg, earlier=(), action='stop'):
    """Check a config before its runner is built.

    The keys of every part are compared with the signature of its class. The model is built once, in a separate process
    and without memory for parameters, and its forward pass shows whether the channels and strides of its parts fit.
    Other values that a constructor rejects are its own error, when the run builds that part.

    Args:
        cfg: The config, after its custom imports (`load_config` does them).
        earlier: Findings to report first, such as those of `find_new_keys`.
        action: 'stop' or 'warn', see `tell`.

    Raises:
        ConfigError: It lists all findings except hints, each with path, value and fix.
    """
    tell([*earlier, *_find_all(cfg)], action)


@contextmanager
def explained(cfg):
    """Wrap a run that was started despite findings: if it fails because of one, the error is that finding.

    Raises:
        ConfigError: The run failed with an error that names the key of a finding.
    """
    try:
        yield
    except XCiTDenseError:
        raise
    except Exception as error:
        found = _find_all(cfg) if cfg.get('config_findings') == 'warn' else ()
        named = [line for line in found if not isinstance(line, Hint)
                 and _names(error, _place(line).rpartition('.')[2])]
        if not named:
            raise
        raise ConfigError(f'the run failed because of a mistake that it warned about: {named[0]}') from error


def _names(error, key):
    """Whether an error names a key in quotes, as Python does; ``type`` and list indices may be in any error."""
    return key != 'type' and not key.isdecimal() and bool(re.search(rf'([\'"`]){re.escape(key)}\1', str(error)))


def _find_all(cfg):
    missing = [name for name in ('model', 'train_dataloader', 'train_cfg', 'optim_wrapper') if not cfg.get(name)]
    if missing:
        missing = [f'{", ".join(missing)}: missing; your own config inherits them if it names a config as its _base_']
    lines = [*missing, *check_top_level(cfg), *find_numbers(cfg), *check_hooks(cfg)]
    scope = cfg.get('default_scope') or 'mmengine'
    with DefaultScope.overwrite_default_scope(scope):
        _load_framework(scope)
        if isinstance(cfg.get('model'), dict):
            preprocessor = dict(data_preprocessor=cfg.data_preprocessor) if cfg.get('data_preprocessor') else {}
            lines += check_model({**preprocessor, **cfg.model}, lines)
        return lines + check_parts(cfg)


def check_hooks(cfg):
    """Return a finding if the model needs a hook that the config does not have."""
    hooks = [type_name((node or {}).get('type')) for node in cfg.get('custom_hooks') or ()]
    kind = type_name((cfg.get('model') or {}).get('type'))
    wanted = None if kind == 'DINO' and not learns_without_labels(cfg) else _HOOKS.get(kind)
    return [f'custom_hooks: nothing would {wanted[1]} without dict(type={wanted[0]!r}); add it as {wanted[2]} has it. '
            'A list in a config replaces that of its base'] if wanted and wanted[0] not in hooks else []


def _load_framework(scope):
    """Fill the registries of a framework: here and not in each copy of the process, as the run needs them too."""
    with suppress(ImportError):
        import_module(f'{scope}.registry')
        for root in vars(registry).values():
            if isinstance(root, registry.Registry) and scope in root.children:
                root.children[scope].import_from_location()


def _place(line):
    return re.match(r'[\w.]*', line)[0]
