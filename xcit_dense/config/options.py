"""Apply the options of the tools to a config."""
import copy
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.device import get_device

from .._utils.machine import can_use_bfloat16, has_bfloat16
from .._utils.text import type_name
from ..data.datasets import LOADERS, datasets, dicts_in, is_elsewhere
from ..data.evaluators import evaluators, key_metric
from ..data.pipelines import loads_like_training
from ..errors import ConfigError, SetupError
from .tasks import task_of

#: Our drawing hook, and those of the frameworks.
_DRAWING_HOOKS = ('DrawingHook', 'DetVisualizationHook', 'SegVisualizationHook')

_MIXED, _MIXED_KEYS = ('AmpOptimWrapper', 'Bfloat16OptimWrapper'), ('type', 'loss_scale', 'dtype')


def set_data_root(cfg: Config, data_root):
    """Point every data set, and every path of an evaluator below the old data root, to ``data_root``.

    It may be an address, such as ``s3://...``; a path is made absolute, so that its work dir works in any folder.
    """
    data_root = str(data_root)
    if '://' not in data_root:
        data_root = str(Path(data_root).expanduser())
        if not any(map(is_elsewhere, datasets(cfg, LOADERS))):  # there it is a key of the store
            data_root = os.path.abspath(data_root)
    old_roots = {dataset['data_root'] for dataset in datasets(cfg, LOADERS) if dataset.get('data_root')}
    for dataset in datasets(cfg, LOADERS):
        dataset['data_root'] = data_root
    for _, evaluator in evaluators(cfg):
        for key, value in evaluator.items():
            # one root may be inside another
            old = next((old for old in sorted(old_roots, key=len, reverse=True)
                        if isinstance(value, str) and Path(value).is_relative_to(old)), None)
            if old:
                evaluator[key] = f'{data_root.rstrip("/")}/{Path(value).relative_to(old)}'.removesuffix('/.')
    if 'data_root' in cfg:
        cfg.data_root = data_root  # what the dumped config says


def drop_pretrained(model):
    """Remove every ``init_cfg`` of type ``Pretrained`` from a model's config."""
    for node in [*dicts_in(model)]:
        parts = node.get('init_cfg') or []
        if any(part.get('type') == 'Pretrained' for part in (parts if isinstance(parts, list) else [parts])):
            node['init_cfg'] = None


def set_amp(cfg: Config, dtype: str = 'auto', resumed: Config = None):
    """Train in mixed precision, as ``--amp`` asks; `ConfigError` for float16 without a GPU.

    The type is ``'bfloat16'``; ``'float16'``, with loss scaling; or ``'auto'``: what the config of the resumed run or
    this one has, otherwise bfloat16, and float16 on a GPU that does not multiply in it. A CPU that does not trains in
    float32, and a log line says so.
    """
    wrapper, on_gpu = cfg.optim_wrapper, torch.cuda.is_available()
    before = (resumed or {}).get('optim_wrapper') or {}
    if dtype == 'float16' and not on_gpu:
        raise ConfigError('--amp float16 needs a GPU. On a CPU, --amp trains in bfloat16 if it multiplies in it')
    own = next((each for each in (before, wrapper)
                if type_name(each.get('type')) in _MIXED or 'loss_scale' in each), {})
    kind = own.get('type') if type_name(own.get('type')) in _MIXED else 'AmpOptimWrapper'
    if dtype == 'auto' and own and (on_gpu or type_name(kind) == 'Bfloat16OptimWrapper'):
        new = {key: own[key] for key in _MIXED_KEYS if key in own} | dict(type=kind)
    elif dtype == 'float16' or dtype == 'auto' and on_gpu and not has_bfloat16(get_device()):
        new = dict(type='AmpOptimWrapper', loss_scale=wrapper.get('loss_scale', 'dynamic'))
    else:
        new = dict(type='Bfloat16OptimWrapper' if can_use_bfloat16(get_device()) else 'OptimWrapper')
    for key in _MIXED_KEYS:
        wrapper.pop(key, None)
    wrapper.update(new)


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


def set_graphs(cfg: Config, enabled: bool):
    """On a GPU, replay the backbone as CUDA graphs, or not with ``--no-graphs``, also if the config has the hook."""
    if torch.cuda.is_available():
        add_hook(cfg, 'CUDAGraphHook')
        if not enabled:
            cfg.custom_hooks.pop()


def set_save_teacher(cfg: Config):
    """Write the teacher of a distillation into the checkpoints too (``--save-teacher``); `ConfigError` without one."""
    hooks = [hook for hook in cfg.get('custom_hooks') or () if type_name(hook.get('type')) == 'TeacherHook']
    if not hooks:
        raise ConfigError('--save-teacher is for a config with a teacher, such as xcit_s12_p16_imagenet_dist; this one '
                          'has no TeacherHook in custom_hooks')
    hooks[0]['save'] = True


def check_loggers(names):
    """Raise `SetupError` if the package of a logger, which has the same name, is not installed."""
    # a folder of this name without code, such as ./wandb, is no package: it has no origin
    if missing := [name for name in dict.fromkeys(names) if getattr(find_spec(name), 'origin', None) is None]:
        raise SetupError(f'packages for --log are not installed: pip install {" ".join(missing)}')


def set_best(cfg: Config, patience: int = None):
    """Keep the best checkpoint of a training whose classes come from the data, unless the config says which to keep.

    With ``patience``, the training stops after so many validations without a better one; `ConfigError` if it validates
    nothing or nothing says by which metric.
    """
    key, saving = key_metric(cfg), (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    if key and saving and cfg.get('classes_from_data'):
        saving.setdefault('save_best', key)
    if patience and key is None:
        raise ConfigError('--patience needs a metric, and ' + (
            'this config has no validation' if cfg.get('val_cfg') is None else 'that of this config is unknown: name '
            'it by --cfg-options default_hooks.checkpoint.save_best=NAME'))
    rule = saving.get('rule')
    rule = rule[0] if isinstance(rule, (list, tuple)) else rule  # of several metrics, key is the first
    if patience:  # as good is no better; and it counts a validation before the checkpoint is saved
        add_hook(cfg, 'EarlyStoppingHook', monitor=key, rule=rule, patience=patience, min_delta=1e-6, priority='LOW')


def set_auto_scale_lr(cfg: Config):
    """Scale the learning rate linearly with the batch size, as ``--auto-scale-lr`` asks; `ConfigError` if the config
    does not say which batch size its rate is for."""
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise ConfigError('--auto-scale-lr needs auto_scale_lr.base_batch_size in the config: the batch size that '
                          'its learning rate is for')
    cfg.auto_scale_lr.enable = True


def set_show_dir(cfg: Config, folder, overwrite: bool = False):
    """Draw every tested image into ``folder``, predictions next to the ground truth.

    `xcit_dense.predict.drawing.DrawingHook` draws. It replaces the hooks of the frameworks and accepts their
    arguments: they overwrite existing files, and mmseg's has no option for a folder. A user-defined hook stays.
    """
    hooks = cfg.get('default_hooks') or {}
    # user-defined hooks join a relative path to their own folder
    hook = dict(hooks.get('visualization') or {}, draw=True, test_out_dir=str(Path(folder).absolute()))
    kind = hook.get('type', 'DrawingHook')
    if type_name(kind) in _DRAWING_HOOKS:
        hook.update(type='DrawingHook', overwrite=overwrite)
    cfg.default_hooks = dict(hooks, visualization=hook)


def set_val_loss(cfg: Config):
    """Measure the losses on the validation data too, as ``--val-loss`` asks; `ConfigError` if there is none."""
    loss_dataloader(cfg)
    if not any(type_name(hook.get('type')) == 'ValLossHook' for hook in cfg.get('custom_hooks') or ()):
        add_hook(cfg, 'ValLossHook')


def loss_dataloader(cfg: Config) -> dict:
    """Return the config of a loader of the validation data for losses: the sampler and the batches are missing.

    Its pipelines load the annotations before they resize the image: a loss compares objects and label maps with outputs
    for the resized image, metrics compare them at the original size. A batch is one image, so that losses depend
    neither on the batch size nor on the number of processes. Only a classifier keeps its batches, as its loss is a mean
    over images anyway. `ConfigError` if the config has no validation.
    """
    loader = cfg.get(LOADERS[1])
    if not loader or cfg.get('val_cfg') is None:
        raise ConfigError('--val-loss needs validation, and this config has none: set val_dataloader, val_evaluator '
                          'and val_cfg, or omit --val-loss')
    loader = copy.deepcopy(dict(loader))
    trained = datasets(cfg, LOADERS[:1])[0]
    for dataset in datasets({LOADERS[1]: loader}, LOADERS[1:2]):
        if dataset.get('pipeline'):
            dataset['pipeline'] = loads_like_training(dataset, trained)
    if task_of(cfg).sums_over_objects:
        loader['batch_size'] = 1
    for key in ('sampler', 'batch_sampler', 'persistent_workers', 'drop_last'):
        loader.pop(key, None)
    return loader
