"""Find a config by its name, read it, and apply the options of a tool to it."""
import os
import re
import traceback
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path

from mmengine.config import Config, DictAction

from .._utils.files import folder_of, note_inputs
from .._utils.text import did_you_mean, nearest
from ..annotations import DataOptions, follow_work_dir, place_data
from ..compat.internals import CONFIG_READERS, find_base_configs, note_configs, stock_configs
from ..compat.versions import check_versions
from ..data.classes import take_classes
from ..data.datasets import LOADERS, datasets
from ..data.label_maps import read_own_maps
from ..errors import ConfigError, XCiTDenseError
from .check import Hint, check_config, find_new_keys, find_numbers, tell
from .options import drop_pretrained, set_data_root
from .runner import use_our_runner
from .settings import apply_settings, drop_settings_of_workers
from .tasks import packages_of

#: Suffixes of model files, which users pass as the config by mistake.
_OF_MODELS = '.pth', '.pt', '.onnx', '.safetensors'
#: What stands before the name of a config of this package, where a path could be meant.
_OURS = 'xcit_dense::'


def load_config(path, *, cfg_options=None, data_root=None, data=None, settings=None, tested=False, work_dir=None,
                data_dir=None, replaces=False, pretrained=True, init_from=None, check=False, findings=None) -> Config:
    """Read a config file and apply the options that all tools share.

    Args:
        path: The config file, or its name in `xcit_dense.list_models`.
        cfg_options: Values by dotted key, as mmengine's ``DictAction`` returns them.
        data_root: Folder of the data set, for all loaders and evaluators. Its layout is recognised, see
            `xcit_dense.annotations`.
        data: `DataOptions`: the other options about the data.
        settings: `xcit_dense.config.settings.Settings`: image size, length of the run and so on.
        tested: The settings are only for a test, by our runner: the training part of the config does not change.
        work_dir: Output folder of the run; by default that of the config, or ``work_dirs/NAME`` for a config ``NAME``.
            Converted annotations are written to its subfolder ``data``.
        data_dir: Another folder for converted annotations: that of the training that is tested or resumed.
        replaces: Whether the run continues or replaces the training in its work dir, and so its converted annotations,
            which no other run changes.
        pretrained: False removes every ``init_cfg`` of type ``Pretrained`` from the model, and ``init_from`` from the
            config.
        init_from: Weights to start a training from, see `xcit_dense.train.init_from`. It replaces ``init_from`` and
            ``load_from`` of the config. A run that starts from ``init_from`` does not load the weights of parts: every
            ``init_cfg`` of type ``Pretrained`` is removed. If the config itself has both ``load_from`` and
            ``init_from``, ``load_from`` takes precedence.
        check: For a training: use our runner, and check the whole config with `check_config`, not only the options and
            numbers.
        findings: What to do about mistakes in the config: 'stop' raises an error, 'warn' logs them and continues
            without the options that cannot have an effect. The default is ``config_findings`` of the config, which
            this argument sets.

    Raises:
        ConfigError: There is no such file, or something in it or in the options is wrong.
        DataError: The layout of the data root is not recognised.
        SetupError: The framework of the config is missing or has a wrong version.
    """
    cfg = read_config(path)
    follow_work_dir(cfg, Path(cfg.filename).parent / 'data')
    wrong = find_new_keys(cfg, cfg_options)
    cfg.merge_from_dict({key: value for key, value in (cfg_options or {}).items()
                         if isinstance(wrong.get(key), (Hint, type(None)))})
    # before the imports of the config, which need the framework
    check_versions(*packages_of(cfg.get('default_scope')))
    read_own_maps(cfg, anew=data_root is not None)
    _import_modules(cfg)
    if findings:
        cfg.config_findings = findings
    findings = cfg.get('config_findings', 'stop')
    if work_dir:
        cfg.work_dir = str(work_dir)
    data = data or DataOptions()
    if data_root is not None:
        set_data_root(cfg, data_root)
        own = Path(cfg.get('work_dir') or default_work_dir(path), 'data')
        folder = Path(data_dir or own)
        place_data(cfg, data_root, data, folder, keep=not replaces or folder.resolve() != own.resolve())
    elif data.given:
        raise ConfigError(f'{", ".join(data.given)} {"needs" if len(data.given) == 1 else "need"} --data-root DIR, the '
                          'folder of the data set')
    drop_settings_of_workers(cfg)
    if settings:
        apply_settings(cfg, settings, tuple(cfg_options or ()), LOADERS[-1:] if tested else LOADERS)
    if init_from:
        cfg.init_from, cfg.load_from = str(init_from), None
    elif not pretrained and 'init_from' in cfg:
        cfg.init_from = None
    starts = cfg.get('init_from') and not cfg.get('load_from')
    if (starts or not pretrained) and 'model' in cfg:
        drop_pretrained(cfg.model)
    note_inputs(*(cfg[key] for key in ('init_from', 'load_from') if cfg.get(key)),
                *(dataset.ann_file for dataset in datasets(cfg, LOADERS) if dataset.get('ann_file')))
    if check or tested:
        use_our_runner(cfg, trains=check)
    if check:
        check_config(cfg, wrong.values(), findings)
    else:
        tell([*wrong.values(), *find_numbers(cfg)], findings)
    return cfg


def default_work_dir(path) -> str:
    """Return the default output folder of a run, relative to the current folder."""
    return str(Path('work_dirs', Path(path).stem))


def read_config(path) -> Config:
    """Read a config file without options, checks and custom imports; its framework need not be installed. `ConfigError`
    if there is no such file, or it cannot be read."""
    path = find_config(path)
    try:
        return Config.fromfile(path, import_custom_modules=False)
    except Exception as error:  # a config is a program: anything may happen in it
        raise ConfigError(_explain(error, path)) from error


def get_config(name, **options):
    """Return a config of this package.

    To build its model: ``init_default_scope(cfg.default_scope)``, then ``MODELS.build(cfg.model)``, both of
    ``mmengine.registry``.

    Args:
        name: A name of `xcit_dense.list_models`, or the path of a config file.
        **options: ``pretrained=False`` removes the pretrained weights from the model; ``cfg_options`` is a dict of
            changes by dotted key; ``data_root`` is the folder of the data set, which configs that read their classes
            from the data need. The others are those of `xcit_dense.config.loading.load_config`.

    Raises:
        ConfigError: There is no such config.
        DataError: The data does not show which classes it has.
        SetupError: Its framework is missing or has a wrong version.
    """
    cfg = load_config(name, **options)
    if options.get('data_root'):
        take_classes(cfg)
    return cfg


def _explain(error, path):
    """Return the file and line where a config, or one of its bases, cannot be read, and the reason."""
    steps = list(traceback.walk_tb(error.__traceback__))
    # what mmengine was reading: each of these files names the next one as its base, and the last may not exist
    files = [path, *(frame.f_locals['filename'] for frame, _ in steps if frame.f_code.co_name in CONFIG_READERS)]
    file = os.path.abspath([file for file in files if os.path.isfile(file)][-1])
    lines = [number for frame, number in steps if os.path.abspath(frame.f_code.co_filename) == file]
    line = lines[-1] if lines else getattr(error, 'lineno', None)
    kind = '' if isinstance(error, ConfigError) else f'{type(error).__name__}: '
    return f'{file}{f", line {line}" if line else ""}: {kind}{getattr(error, "msg", error)}'


def _import_modules(cfg):
    custom = cfg.get('custom_imports') or {}
    names = custom.get('imports') or []
    for name in [names] if isinstance(names, str) else names:
        try:
            note_inputs(*filter(None, [getattr(import_module(name), '__file__', None)]))
        except XCiTDenseError:
            raise
        except Exception as error:  # a module may do anything
            if isinstance(error, ImportError) and custom.get('allow_failed_imports'):
                continue
            places = [frame for frame in traceback.extract_tb(error.__traceback__)[1:]
                      if 'importlib' not in frame.filename]
            inside = f'{places[-1].filename}, line {places[-1].lineno}: ' if places else ''
            hint = '. If the module is your own, add its folder to the environment variable PYTHONPATH' \
                if isinstance(error, ModuleNotFoundError) and not places else ''
            raise ConfigError(f'{cfg.filename}: custom_imports cannot import {name}: {inside}'
                              f'{type(error).__name__}: {error}{hint}') from error


def list_models() -> list:
    """Return the names of all configs, such as ``'maskrcnn_xcit_s12_p8_coco'``."""
    return sorted(path.stem for path in folder_of('configs').glob('*.py'))


def find_config(name) -> Path:
    """Return the file of a config, by its path or a name of `list_models` with or without ``.py`` and ``xcit_dense::``;
    `ConfigError` if there is no such config (the message suggests similar names), or the file holds a model."""
    path = Path(name)
    if str(name).startswith(_OURS):
        path = Path(folder_of('configs'), str(name).removeprefix(_OURS))
        path = path if path.suffix else path.with_suffix('.py')
    elif '::' in str(name):
        raise ConfigError(f'{name} has no XCiT: `python -m xcit_dense adapt {name} --out FILE` writes one that has')
    if path.is_file():
        if path.suffix in _OF_MODELS:
            raise ConfigError(f'{name} is a model file, not a config. CONFIG comes first, then CHECKPOINT')
        return path
    names, stem = list_models(), path.name.removesuffix('.py')
    if stem in names and path.parent in (Path('.'), Path('configs')):  # the path that the README writes
        return folder_of('configs') / f'{stem}.py'
    if path.is_dir():
        raise ConfigError(f'{name} is a folder, but CONFIG is a file or a name. To continue the training of a work '
                          f'dir: train {next(path.glob("*.py"), "CONFIG")} --work-dir {name} --resume')
    for package in ('mmdet', 'mmseg') if path.parent == Path('.') else ():
        if stock := [f'{package}::{known}' for known in stock_configs(package)[1] if Path(known).stem == stem]:
            raise ConfigError(f'{name} is a config of {package}, without XCiT: `python -m xcit_dense adapt {stock[0]} '
                              '--out FILE` writes one that has it')
    inside = '' if path.parent == Path('.') or '::' in str(name) else f'{path.parent}/'
    known = [p.name.removesuffix('.py') for p in path.parent.glob('*') if p.suffix == '.py' or inside and p.is_dir()]
    near = list(dict.fromkeys([inside + each for each in nearest(stem, known, 3)] + nearest(stem, names, 3)))[:3]
    raise ConfigError(f'there is no config {"or work dir " * bool(inside)}{name}' + (
        f'; did you mean {" or ".join(near)}?' if near else
        '; xcit_dense.list_models() lists the configs of this package'))


def find_stock_config(name) -> Path:
    """Return the file of a config of an installed framework, such as ``mmdet::atss/atss_r50_fpn_1x_coco.py``;
    `ConfigError`, which suggests a similar name, if there is none."""
    package, _, rest = name.partition('::')
    folder, known = stock_configs(package)
    if (folder / rest).is_file():
        return folder / rest
    names = {path if '/' in rest else Path(path).name: path for path in known}
    raise ConfigError(f'there is no config {rest} in {package}' + did_you_mean(
        name, [f'{package}::{names[near]}' for near in nearest(rest, names)],
        otherwise='' if known else ', which has no configs here'))


def base_name(name, out=None) -> str:
    """Return the text by which a config in the file ``out`` inherits one, by its name or path or as one of a framework,
    such as ``mmdet::fcos/NAME.py``, so that both may move together; without ``out``, a path is absolute."""
    if '::' in str(name) and not str(name).startswith(_OURS):
        # mmengine finds names only in folders that are words, which gn+ws is not
        return name if re.match(r'\w+::\w+/', name) else name.replace('::', '::_base_/../', 1)
    file = find_config(name).resolve()
    if file.parent == folder_of('configs').resolve():
        return f'{_OURS}{file.name}'
    return os.path.relpath(file, Path(out).expanduser().resolve().parent) if out else str(file)


def _find_base(name):
    if name.startswith(_OURS):
        return find_config(name)
    if '::' in name and name.endswith('.py'):
        find_stock_config(name)  # its errors suggest what was meant; mmengine finds it again, with its scope
    return None


find_base_configs(_find_base)
note_configs(note_inputs)


def read_config_options(items, config):
    """Turn items ``KEY=VALUE`` of ``--cfg-options`` into a dict, with values as mmengine reads them; the config is for
    errors. `ConfigError` if an item has another form, contains a dict, or its brackets do not match."""
    options = {}
    for item in items or []:
        key, equals, value = item.partition('=')
        if not key or not equals:
            raise ConfigError(f'--cfg-options accepts KEY=VALUE, such as train_cfg.val_interval=2; got {item!r}')
        if re.search(r'''(^|[\[(,])\s*(dict\(|\{\s*['"\w]+\s*:)''', value):
            raise ConfigError(f'--cfg-options does not accept dicts, got {item!r}. Write the dict into your own config '
                              f"file, with _base_ = '{find_config(config).absolute()}', and pass that as CONFIG")
        reader = ArgumentParser()
        reader.add_argument('--read', nargs='+', action=DictAction)
        try:
            options.update(reader.parse_args(['--read', item]).read)
        except AssertionError:
            raise ConfigError(f'--cfg-options {item!r}: the brackets do not match. Write a list as "{key}=[1,2]"'
                              ) from None
    return options
