"""From a config file and the options of a tool to a config that runs."""
import os
import shutil
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.utils import import_modules_from_strings

from ..catalog import find_config
from ..compat import check_versions
from ..errors import ConfigError
from .check_config import check_new_keys
from .data import set_data_root, walk

#: Where each launcher says which process this is.
_RANKS = dict(pytorch='RANK', slurm='SLURM_PROCID', mpi='OMPI_COMM_WORLD_RANK')


def load_config(path, *, cfg_options=None, data_root=None, pretrained=True) -> Config:
    """Read a config file and apply what the options of every tool ask for.

    Args:
        path: The config file, or its name in `xcit_dense.list_models`.
        cfg_options: Values by dotted key, as mmengine's ``DictAction`` gives them.
        data_root: Folder of the data set, for all loaders and evaluators at once.
        pretrained: False takes every ``init_cfg`` of type ``Pretrained`` out of the model.

    Raises:
        ConfigError: There is no such file.
        SetupError: The framework of the config is missing or of a wrong version.
    """
    cfg = Config.fromfile(find_config(path), import_custom_modules=False)
    if cfg_options:
        check_new_keys(cfg, cfg_options)
        cfg.merge_from_dict(cfg_options)
    # before the imports of the config, which need the framework
    check_versions(*{'mmdet': ('mmdet', ), 'mmseg': ('mmseg', )}.get(cfg.get('default_scope'), ()))
    import_modules_from_strings(**cfg.get('custom_imports', dict(imports=[])))
    if data_root is not None:
        set_data_root(cfg, data_root)
    if not pretrained:
        _drop_pretrained(cfg.model)
    return cfg


def is_first_process(cfg: Config) -> bool:
    """Whether this process does what one does for all, before the run's processes know each other."""
    return int(os.environ.get(_RANKS.get(cfg.get('launcher'), ''), 0)) == 0


def set_amp(cfg: Config):
    """Train in mixed precision, as ``--amp`` asks.

    Raises:
        ConfigError: There is no GPU: mmengine's loss scaling needs one.
    """
    if not torch.cuda.is_available():
        raise ConfigError('--amp needs a GPU, and torch sees none. Train without it; the CPU computes in float32.')
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')


def check_compiler():
    """Raise `ConfigError` where `torch.compile` would find no C++ compiler that it needs on a CPU."""
    compiler = os.environ.get('CXX', 'g++')
    if not torch.cuda.is_available() and not shutil.which(compiler):
        raise ConfigError(f'--compile needs a C++ compiler on a CPU, and there is no {compiler}: install it, or name '
                          'another in the variable CXX')


def add_hook(cfg: Config, kind):
    """Add a hook of `xcit_dense.engine.hooks` by its name."""
    cfg.custom_hooks = [*cfg.get('custom_hooks', []), dict(type=kind)]


def set_auto_scale_lr(cfg: Config):
    """Scale the learning rate linearly with the batch size, as ``--auto-scale-lr`` asks.

    Raises:
        ConfigError: The config does not say for which batch size its learning rate is.
    """
    if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
        raise ConfigError('--auto-scale-lr needs auto_scale_lr.base_batch_size in the config: the batch size that '
                          'its learning rate is for')
    cfg.auto_scale_lr.enable = True


def set_show_dir(cfg: Config, folder):
    """Draw every tested image, ground truth beside predictions, into ``folder``.

    Raises:
        ConfigError: The config has no hook that draws.
    """
    hook = cfg.get('default_hooks', {}).get('visualization')
    if hook is None:
        raise ConfigError('--show-dir needs default_hooks.visualization in the config, such as '
                          "dict(type='DetVisualizationHook') of mmdet or dict(type='SegDrawingHook') of this package")
    hook.draw = True
    # the hooks join this to a folder of their own unless it is absolute
    hook.test_out_dir = str(Path(folder).absolute())


def _drop_pretrained(model):

    def visit(node):
        parts = node.get('init_cfg') or []
        if any(part.get('type') == 'Pretrained' for part in (parts if isinstance(parts, list) else [parts])):
            node['init_cfg'] = None

    walk(model, visit)
