"""Apply the options of the tools to a config."""
import logging
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log

from ..data.datasets import LOADERS, datasets, files_of
from ..data.evaluators import evaluators
from ..errors import ConfigError, SetupError
from ..machine import can_use_bfloat16
from ..text import type_name

#: Our drawing hook, and those of the frameworks.
_DRAWING_HOOKS = ('DrawingHook', 'DetVisualizationHook', 'SegVisualizationHook')
#: What ``--log`` accepts, and the name of the package that each needs.
LOGGERS = ('tensorboard', 'wandb', 'mlflow')


def set_data_root(cfg: Config, data_root):
    """Point every data set, and every path of an evaluator below the old data root, to ``data_root``.

    It may be an address, such as ``s3://...``. Data sets of a loader that become the same give a warning in the log.
    """
    data_root = str(data_root)
    if '://' not in data_root:
        data_root = str(Path(data_root).expanduser())
    before = _files_of_members(cfg)
    old_roots = set()
    for dataset in datasets(cfg, LOADERS):
        if dataset.get('data_root'):
            old_roots.add(dataset.data_root)
        dataset.data_root = data_root
    for _, evaluator in evaluators(cfg):
        for key, value in evaluator.items():
            # one root may be inside another
            old = next((old for old in sorted(old_roots, key=len, reverse=True)
                        if isinstance(value, str) and Path(value).is_relative_to(old)), None)
            if old:
                below = Path(value).relative_to(old)
                evaluator[key] = f'{data_root.rstrip("/")}/{below}' if '://' in data_root else str(
                    Path(data_root, below))
    if 'data_root' in cfg:
        cfg.data_root = data_root  # what the dumped config says
    for name, files in _files_of_members(cfg).items():
        if len(set(files)) < len(set(before[name])):
            print_log(f'--data-root {data_root} makes several data sets of {name} the same: their images are used '
                      'twice, and those of the other folders not at all. Omit --data-root, and set each folder with '
                      f'--cfg-options {name}.dataset.datasets.0.data_root=DIR and so on', logger='current',
                      level=logging.WARNING)


def _files_of_members(cfg):
    return {name: [files_of(dataset) for dataset in datasets(cfg, [name])] for name in LOADERS}


def drop_pretrained(model):
    """Remove every ``init_cfg`` of type ``Pretrained`` from a model's config."""

    def visit(node):
        parts = node.get('init_cfg') or []
        if any(part.get('type') == 'Pretrained' for part in (parts if isinstance(parts, list) else [parts])):
            node['init_cfg'] = None

    _walk(model, visit)


def set_amp(cfg: Config):
    """Train in mixed precision, as ``--amp`` asks.

    On a GPU in float16 with loss scaling, unless the config has other settings. On a CPU in bfloat16, which needs no
    scaling; if the processor does not multiply in it, in float32, and a log line says so.
    """
    if torch.cuda.is_available():
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    else:
        cfg.optim_wrapper.type = 'Bfloat16OptimWrapper' if can_use_bfloat16(get_device()) else 'OptimWrapper'
        for key in ('loss_scale', 'dtype'):  # of AmpOptimWrapper
            cfg.optim_wrapper.pop(key, None)


def check_compiler():
    """Raise `ConfigError` if `torch.compile` would not find the C++ compiler that it needs on a CPU."""
    compiler = os.environ.get('CXX', 'g++')
    if not torch.cuda.is_available() and not shutil.which(compiler):
        raise ConfigError(f'--compile needs a C++ compiler on a CPU, and {compiler} was not found. Install it, or set '
                          'the environment variable CXX to another one')


def add_hook(cfg: Config, kind, **options):
    """Add a hook of this package by its name, with its arguments; one of before is replaced."""
    others = [hook for hook in cfg.get('custom_hooks') or [] if type_name(hook.get('type')) != kind]
    cfg.custom_hooks = [*others, dict(type=kind, **options)]


def check_loggers(names):
    """Check that the packages of some of `LOGGERS` are installed.

    Raises:
        SetupError: A package is missing.
    """
    specs = {name: find_spec(name) for name in names}
    # a folder of this name without code, such as ./wandb, is no package
    missing = [name for name, spec in specs.items() if spec is None or spec.origin is None]
    if missing:
        raise SetupError(f'packages for --log are not installed: pip install {" ".join(missing)}')


def set_auto_scale_lr(cfg: Config):
    """Scale the learning rate linearly with the batch size, as ``--auto-scale-lr`` asks.

    Raises:
        ConfigError: The config does not say which batch size its learning rate is for.
    """
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise ConfigError('--auto-scale-lr needs auto_scale_lr.base_batch_size in the config: the batch size that '
                          'its learning rate is for')
    cfg.auto_scale_lr.enable = True


def set_report(cfg: Config, folder, overwrite: bool = False):
    """Write a report on the test into a folder, as ``--report`` asks; see `xcit_dense.report.hook.ReportHook`."""
    add_hook(cfg, 'ReportHook', out_dir=str(Path(folder).absolute()), overwrite=overwrite)


def set_show_dir(cfg: Config, folder, overwrite: bool = False):
    """Draw every tested image into ``folder``, predictions next to the ground truth.

    `xcit_dense.predict.drawing.DrawingHook` draws. It replaces the hooks of the frameworks and accepts their
    arguments: they overwrite existing files, and mmseg's has no option for a folder. A user-defined hook stays.

    Args:
        cfg: The config.
        folder: The folder.
        overwrite: As for the hook.
    """
    hooks = cfg.get('default_hooks') or {}
    # user-defined hooks join a relative path to their own folder
    hook = dict(hooks.get('visualization') or {}, draw=True, test_out_dir=str(Path(folder).absolute()))
    kind = hook.get('type', 'DrawingHook')
    if type_name(kind) in _DRAWING_HOOKS:
        hook.update(type='DrawingHook', overwrite=overwrite)
    cfg.default_hooks = dict(hooks, visualization=hook)


def _walk(node, visit):
    """Call ``visit`` on every dict inside ``node``."""
    if isinstance(node, dict):
        visit(node)
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for value in node:
            _walk(value, visit)
