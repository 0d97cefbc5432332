"""What a config defines about a model and its images: a config file, or the config inside a checkpoint."""
import logging
from numbers import Real
from typing import NamedTuple

from mmengine.logging import print_log
from mmengine.registry import MODELS
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ..config.loading import load_config, read_config
from ..errors import CheckpointError, ConfigError, DataError
from ..models import Trunk, XCiT, XCiTClassifier
from ..text import shown
from ..weights.contents import config_of_checkpoint, get_meta
from .classes import test_dataset

#: Mean and standard deviation of ImageNet, RGB, from 0 to 255: published weights were trained with these.
MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)
#: The arguments of a backbone that change what it computes from given weights, and that the weights do not determine.
_OPTIONS = ('arch', 'out_indices', 'out_strides', 'norm_cfg')


class Told(NamedTuple):
    """What is known about a model without its weights.

    Args:
        kind: Class of the backbone; None if unknown.
        options: Its arguments.
        mean: Mean of the input, RGB.
        std: Standard deviation of the input, RGB.
        test_data: Config of the data set that it is tested with; None if there is none.
    """
    kind: type | None
    options: dict
    mean: tuple
    std: tuple
    test_data: dict | None


def told_by_config(config) -> Told:
    """Read a config. Its framework and custom imports are loaded only for a user's own backbone.

    Args:
        config: Name or path.

    Raises:
        ConfigError: There is no such config, it has no XCiT, or it expects images in BGR.
    """
    cfg = read_config(config)
    kind = _kind_of(cfg)
    if kind is None:
        cfg = load_config(config, pretrained=False)
        name = _part(_part(cfg, 'model'), 'backbone').get('type')
        kind = MODELS.get(name) if isinstance(name, str) else name
    node = _part(_part(cfg, 'model'), 'backbone')
    if not (isinstance(kind, type) and issubclass(kind, Trunk)):
        raise ConfigError(f'model.backbone of the config {config} must be an XCiT or an XCiTClassifier, got '
                          f'{node.get("type")!r}')
    options = {key: value for key, value in node.items() if key not in ('type', 'init_cfg')}
    return Told(kind, options, *_statistics(cfg, config), _test_data(cfg))


def told_by_checkpoint(checkpoint, path, layout) -> Told:
    """Read the config that a run wrote into its checkpoint, without importing anything that it names.

    Args:
        checkpoint: The content of the file.
        path: The file, for errors.
        layout: The layout of its tensors. Models of other projects, also mmpretrain's XCiT, are identified by their
            tensors only.

    Raises:
        CheckpointError: The model is not from this package.
        ConfigError: The model expects images in BGR.
    """
    cfg = config_of_checkpoint(checkpoint)
    node = _part(_part(cfg, 'model'), 'backbone')
    kind, options = None, {}
    if layout in ('official', 'dense') and isinstance(node.get('type'), str):
        kind, options = _kind_of_run(node, path), {key: node[key] for key in _OPTIONS if key in node}
    if not (node or _inputs(cfg)) and 'mmengine_version' in get_meta(checkpoint):
        print_log(f'{path} is from a training, but has no config (meta.cfg). Model and images are assumed to be like '
                  'those of the published files; if they are not, set the config of the training with --config',
                  logger='current', level=logging.WARNING)
    statistics = _statistics(cfg, f'the training of {path}') if _inputs(cfg) else (MEAN, STD)
    return Told(kind, options, *statistics, _test_data(cfg))


def _kind_of_run(node, path):
    """Return the class of a backbone; its norm must be known too, as looking a name up may import what it names."""
    kind, norm_type = _own_kind(node['type']), _part(node, 'norm_cfg').get('type', 'BN')
    norm = MODELS.module_dict.get(norm_type) if isinstance(norm_type, str) else None
    if kind and isinstance(norm, type) and issubclass(norm, (_NormBase, nn.GroupNorm)):
        return kind
    what = f'norm {norm_type!r}' if kind else f'backbone {node["type"]!r}'
    raise CheckpointError(f'the model in {path} uses the {what}, which this package does not have. Set the config of '
                          'its training with --config')


def _kind_of(cfg):
    """Return the class of the backbone of a config, or None if nothing is registered under that name yet."""
    kind = _part(_part(cfg, 'model'), 'backbone').get('type')
    return (_own_kind(kind) or MODELS.module_dict.get(kind)) if isinstance(kind, str) else kind


def _own_kind(name):
    """Return the class of this package that a type in a config names, or None."""
    scope, _, name = name.rpartition('.')
    is_own = scope.partition('.')[0] in ('', 'mmengine', 'mmdet', 'mmseg', 'mmpretrain', 'xcit_dense')
    return dict(XCiT=XCiT, XCiTClassifier=XCiTClassifier).get(name) if is_own else None


def _test_data(cfg):
    try:
        return test_dataset(cfg)
    except (AttributeError, DataError, KeyError, TypeError):  # there is none, or it is invalid
        return None


def _inputs(cfg):
    return {**_part(cfg, 'data_preprocessor'), **_part(_part(cfg, 'model'), 'data_preprocessor')}


def _statistics(cfg, name):
    """Return mean and std of the input, RGB."""
    inputs = _inputs(cfg)
    if not (inputs.get('bgr_to_rgb') or inputs.get('to_rgb')):
        raise ConfigError(f'the model of {name} expects images in BGR (its data_preprocessor sets neither bgr_to_rgb '
                          'nor to_rgb), but this tool reads images only in RGB')
    found = [inputs.get('mean') or MEAN, inputs.get('std') or STD]
    for values in found:
        if not (isinstance(values, (list, tuple)) and len(values) in (1, 3)
                and all(isinstance(value, Real) for value in values)):
            raise ConfigError(f'mean and std of the data_preprocessor of {name} must have three numbers each, got '
                              f'{shown(values)}')
    return map(tuple, found)


def _part(node, key):
    """Return a dict in a part of a config, or an empty one if there is another value or none."""
    value = node.get(key)
    return value if isinstance(value, dict) else {}
