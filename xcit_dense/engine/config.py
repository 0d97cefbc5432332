"""From a config file and the options of a tool to a config that runs."""
import colorsys
import difflib
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.fileio import load
from mmengine.utils import is_seq_of

from ..compat import check_versions
from ..errors import ConfigError, DataError

_LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
_EVALUATORS = ('val_evaluator', 'test_evaluator')


def load_config(path, *, cfg_options=None, data_root=None, pretrained=True) -> Config:
    """Read a config file and apply what the options of every tool ask for.

    Args:
        path: The config file.
        cfg_options: Values by dotted key, as mmengine's ``DictAction`` gives them.
        data_root: Folder of the data set, for all loaders and evaluators at once.
        pretrained: False takes every ``init_cfg`` of type ``Pretrained`` out of the model.

    Raises:
        ConfigError: There is no such file.
        SetupError: The framework of the config is missing or of a wrong version.
    """
    path = Path(path)
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob('*.py')], n=3)
        hint = f'; did you mean {" or ".join(str(path.parent / name) for name in near)}?' if near else ''
        raise ConfigError(f'there is no config {path}{hint}')
    cfg = Config.fromfile(path)
    if cfg_options:
        cfg.merge_from_dict(cfg_options)
    check_versions(*{'mmdet': ('mmdet', ), 'mmseg': ('mmseg', )}.get(cfg.get('default_scope'), ()))
    if data_root is not None:
        set_data_root(cfg, data_root)
    if not pretrained:
        _drop_pretrained(cfg.model)
    return cfg


def set_data_root(cfg: Config, data_root):
    """Point every data set and every path of an evaluator under the old data root to ``data_root``."""
    data_root = str(Path(data_root).expanduser())
    old_roots = set()
    for name in _LOADERS:
        for dataset in _datasets(cfg.get(name)):
            old_roots.add(dataset.get('data_root') or '')
            dataset.data_root = data_root
    for name in _EVALUATORS:
        evaluators = cfg.get(name) or []
        for evaluator in evaluators if is_seq_of(evaluators, dict) else [evaluators]:
            for key, value in evaluator.items():
                for old in old_roots:
                    if isinstance(value, str) and old and value.startswith(old):
                        evaluator[key] = str(Path(data_root, value[len(old):].lstrip('/')))


def set_amp(cfg: Config):
    """Train in mixed precision, as ``--amp`` asks.

    Raises:
        ConfigError: There is no GPU: mmengine's loss scaling needs one.
    """
    if not torch.cuda.is_available():
        raise ConfigError('--amp needs a GPU, and torch sees none. Train without it; the CPU computes in float32.')
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')


def set_auto_scale_lr(cfg: Config):
    """Scale the learning rate linearly with the batch size, as ``--auto-scale-lr`` asks.

    Raises:
        ConfigError: The config does not say for which batch size its learning rate is.
    """
    if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
        raise ConfigError('--auto-scale-lr needs auto_scale_lr.base_batch_size in the config: the batch size that '
                          'its learning rate is for')
    cfg.auto_scale_lr.enable = True


def set_classes(cfg: Config, classes):
    """Make data sets and heads know ``classes`` (names, in the order of the model's outputs)."""
    for name in _LOADERS:
        for dataset in _datasets(cfg.get(name)):
            dataset.metainfo = dict(classes=tuple(classes), palette=_palette(len(classes)))

    def visit(node):
        if 'num_classes' in node:
            node['num_classes'] = len(classes)

    _walk(cfg.model, visit)


def set_show_dir(cfg: Config, folder):
    """Draw every tested image, ground truth beside predictions, into ``folder``."""
    hook = cfg.default_hooks.visualization
    hook.draw = True
    # the hooks join this to a folder of their own unless it is absolute
    hook.test_out_dir = str(Path(folder).absolute())


def classes_of_data(cfg: Config) -> tuple:
    """Return the category names of the training annotations in the order of the file, which is mmdet's.

    Raises:
        DataError: The annotation file is no COCO file.
    """
    dataset = _datasets(cfg.train_dataloader)[0]
    path = Path(dataset.data_root, dataset.ann_file)
    try:
        return tuple(category['name'] for category in load(path)['categories'])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f'{path.absolute()} is no COCO annotation file: {error}') from error


def check_data(cfg: Config, loaders=_LOADERS):
    """Raise one error if a file or folder that the data sets of ``loaders`` name is not there.

    Raises:
        DataError: It gives the expected layout and the absolute paths that were looked at.
    """
    needed = {}
    for name in loaders:
        for dataset in _datasets(cfg.get(name)):
            root = Path(dataset.get('data_root') or '')
            prefixes = dataset.get('data_prefix', {}).values()
            for part in filter(None, (dataset.get('ann_file'), *prefixes)):
                needed[root / part] = root
    if all(path.exists() for path in needed):
        return
    lines = [f'  {"found  " if path.exists() else "missing"}  {path.absolute()}' for path in needed]
    roots = ' and '.join(dict.fromkeys(str(root.absolute()) for root in needed.values()))
    raise DataError(f'the data set is not complete under {roots}. The config needs:\n' + '\n'.join(lines)
                    + '\nGive the folder that holds these with --data-root DIR.')


def _palette(count):
    """Return ``count`` RGB colours; neighbours are far apart in hue."""
    hues = [(i * 0.618034) % 1 for i in range(count)]
    return [tuple(round(c * 255) for c in colorsys.hsv_to_rgb(hue, 0.85, 0.95)) for hue in hues]


def _drop_pretrained(model):

    def visit(node):
        if isinstance(node.get('init_cfg'), dict) and node['init_cfg'].get('type') == 'Pretrained':
            node['init_cfg'] = None

    _walk(model, visit)


def _datasets(loader):
    """Return the innermost data sets of a loader: wrappers such as RepeatDataset hold others."""
    if not loader:
        return []
    found, queue = [], [loader['dataset']]
    while queue:
        dataset = queue.pop(0)
        inner = dataset.get('datasets') or ([dataset['dataset']] if 'dataset' in dataset else [])
        queue.extend(inner)
        if not inner:
            found.append(dataset)
    return found


def _walk(node, visit):
    """Call ``visit`` on every dict inside ``node``."""
    if isinstance(node, dict):
        visit(node)
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for value in node:
            _walk(value, visit)
