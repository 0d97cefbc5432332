"""From a config file and the options of a tool to a config that runs."""
import importlib
import os
import traceback
from pathlib import Path

from mmengine.config import Config
from mmengine.utils import import_modules_from_strings

from ..compat import check_versions
from ..compat.frameworks import CLASSIFICATION
from ..compat.mmengine_private import CONFIG_READERS
from ..data.classes import take_classes
from ..data.layouts import DataOptions, place_data
from ..errors import ConfigError, XCiTDenseError
from .catalog import find_config
from .check import Hint, check_config, find_new_keys, find_numbers, tell
from .options import drop_pretrained, set_data_root
from .settings import apply_settings

#: What the configs of a framework import, by their default scope.
_NEEDED = dict(mmdet=('mmdet', ), mmseg=('mmseg', ), mmpretrain=tuple(CLASSIFICATION))


def load_config(path, *, cfg_options=None, data_root=None, data=None, settings=None, work_dir=None, data_dir=None,
                pretrained=True, check=False, findings=None) -> Config:
    """Read a config file and apply what the options of every tool ask for.

    Args:
        path: The config file, or its name in `xcit_dense.list_models`.
        cfg_options: Values by dotted key, as mmengine's ``DictAction`` gives them.
        data_root: Folder of the data set, for all loaders and evaluators at once. What lies there is recognised, see
            `xcit_dense.data.layouts`.
        data: `DataOptions`: what a user says about the data beside its root.
        settings: `xcit_dense.config.settings.Settings`: image size, length of the run and so on.
        work_dir: Where the run writes to; by default that of the config, or ``work_dirs/`` and its name. Converted
            annotations go into its folder ``data``.
        data_dir: Another folder for them: that of the training that is tested or gone on with.
        pretrained: False takes every ``init_cfg`` of type ``Pretrained`` out of the model.
        check: Check the whole config with `check_config`, instead of the options and numbers alone.
        findings: What to do about what cannot be right: 'stop', or 'warn' in the log and go on; options that cannot
            have an effect are then left out. It becomes ``config_findings`` of the config, which is the default.

    Raises:
        ConfigError: There is no such file, or something in it or in the options cannot be.
        DataError: The data root holds no layout that is known.
        SetupError: The framework of the config is missing or of a wrong version.
    """
    cfg = read_config(path)
    wrong = find_new_keys(cfg, cfg_options)
    cfg.merge_from_dict({key: value for key, value in (cfg_options or {}).items()
                         if isinstance(wrong.get(key), (Hint, type(None)))})
    # before the imports of the config, which need the framework
    check_versions(*_NEEDED.get(cfg.get('default_scope'), ()))
    _import_modules(cfg)
    if findings:
        cfg.config_findings = findings
    findings = cfg.get('config_findings', 'stop')
    if work_dir:
        cfg.work_dir = str(work_dir)
    data = data or DataOptions()
    if data_root is not None:
        set_data_root(cfg, data_root)
        place_data(cfg, data_root, data,
                   Path(data_dir or Path(cfg.get('work_dir') or default_work_dir(path), 'data')))
    elif data.given:
        raise ConfigError(f'{", ".join(data.given)} need --data-root DIR, the folder of the data set')
    if settings:
        apply_settings(cfg, settings)
    if not pretrained and 'model' in cfg:
        drop_pretrained(cfg.model)
    if check:
        check_config(cfg, wrong.values(), findings)
    else:
        tell([*wrong.values(), *find_numbers(cfg)], findings)
    return cfg


def default_work_dir(path) -> str:
    """Return where a run of a config writes to where nobody says: in the folder where the command runs."""
    return str(Path('work_dirs', Path(path).stem))


def read_config(path) -> Config:
    """Read a config file alone: without options, checks and custom imports, and so without its framework.

    Raises:
        ConfigError: There is no such file, or it cannot be read.
    """
    path = find_config(path)
    try:
        return Config.fromfile(path, import_custom_modules=False)
    except XCiTDenseError:
        raise
    except Exception as error:  # a config is a program: anything may happen in it
        raise ConfigError(_explain(error, path)) from error


def get_config(name, **options):
    """Return a config of this package.

    To build its model: ``init_default_scope(cfg.default_scope)``, then ``MODELS.build(cfg.model)``, both of
    ``mmengine.registry``.

    Args:
        name: As for `find_config`.
        **options: Those of `load_config`, such as ``pretrained=False``. Configs that take
            their classes from the data do so where ``data_root`` is given.

    Raises:
        ConfigError: There is no such config.
        DataError: The data does not say which classes it has.
        SetupError: Its framework is missing or of a wrong version.
    """
    cfg = load_config(name, **options)
    if options.get('data_root'):
        take_classes(cfg)
    return cfg


def _explain(error, path):
    """Say in which file and line a config, or one of those that it is based on, cannot be read, and why."""
    steps = list(traceback.walk_tb(error.__traceback__))
    # what mmengine was reading: each of these files names the next one as its base
    files = [path, *(frame.f_locals['filename'] for frame, _ in steps
                     if frame.f_code.co_name in CONFIG_READERS)]
    *parents, file = dict.fromkeys(map(os.path.abspath, files))
    if os.path.isfile(file):
        lines = [number for frame, number in steps if os.path.abspath(frame.f_code.co_filename) == file]
        line = lines[-1] if lines else getattr(error, 'lineno', None)
        problem = f'{type(error).__name__}: {getattr(error, "msg", error)}'
    else:
        problem, name, file = f'there is no {file}, which it names as its _base_', Path(file).name, parents[-1]
        line = next((i for i, text in enumerate(Path(file).read_text().splitlines(), 1) if name in text), None)
    return f'{file}{f", line {line}" if line else ""}: {problem}'


def _import_modules(cfg):
    custom = cfg.get('custom_imports') or {}
    names = custom.get('imports') or []
    for name in [names] if isinstance(names, str) else names:
        try:
            import_modules_from_strings(name, custom.get('allow_failed_imports', False))
        except XCiTDenseError:
            raise
        except Exception as error:
            # mmengine's own error says less
            cause = error.__context__ if isinstance(error, ImportError) and error.__context__ else error
            ours = (__file__, import_modules_from_strings.__code__.co_filename, importlib.__file__)
            places = [f'{frame.f_code.co_filename}, line {number}: '
                      for frame, number in traceback.walk_tb(cause.__traceback__)
                      if frame.f_code.co_filename not in ours and '<frozen' not in frame.f_code.co_filename]
            inside = places[-1] if places else ''
            hint = '. The folder of a module of your own belongs into the variable PYTHONPATH' \
                if isinstance(cause, ModuleNotFoundError) and not places else ''
            raise ConfigError(f'{_last_place(cfg, name)}: custom_imports cannot import {name}: {inside}'
                              f'{type(cause).__name__}: {cause}{hint}') from error


def _last_place(cfg, word):
    """Return file and line of the last line with a word; before the text of each file mmengine puts its path."""
    file, number, place = cfg.filename, 0, cfg.filename
    for line in cfg.text.splitlines():
        if line.endswith('.py') and Path(line).is_file():
            file, number = line, 0
            continue
        number += 1
        if str(word) in line:
            place = f'{file}, line {number}'
    return place
