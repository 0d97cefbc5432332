"""A model from only a weight file, without a config: what `classify` and `attention` use."""
import logging
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import cv2
import mmcv
import numpy as np
import torch
from mmengine.logging import print_log
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from .._utils.text import counted, did_you_mean, first_line
from ..archs import arch_names, get_arch
from ..config.loading import load_config, read_config
from ..errors import CheckpointError, ConfigError, DataError
from ..models import Trunk, XCiT, XCiTClassifier
from ..weights import fetch, find_state_dict, load_backbone, load_classifier, read_checkpoint
from ..weights.contents import config_of_checkpoint, get_dataset_meta, get_meta
from ..weights.layouts import Contents
from ..weights.zoo import PREFIX, WEIGHTS
from .classes import test_dataset

#: Mean and standard deviation of ImageNet, RGB, from 0 to 255: published weights were trained with these.
MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)
#: The arguments of a backbone that change what it computes from given weights, and that the weights do not determine.
_OPTIONS = ('arch', 'out_indices', 'out_strides', 'norm_cfg')


class Opened(NamedTuple):
    """A model in evaluation mode, on the CPU, and what it was trained with."""
    model: Trunk  # for images of three channels
    classes: tuple  # names, if the file has any
    mean: tuple  # of its input, RGB
    std: tuple  # the standard deviation of its input
    test_data: dict | None  # config of the data set that it was tested with, if known


def open_model(source, config=None) -> Opened:
    """Build the model that a file holds: an `XCiTClassifier`, or the `XCiT` of a detector or segmentor.

    Args:
        source: As for `xcit_dense.weights.read_checkpoint`, or the name of a published file without ``xcit://``.
        config: The config of its training, name or path. It overrides the config that a run wrote into its checkpoint.
            Without either, the model has a published size, and images are normalised with ImageNet's mean and std.

    Raises:
        CheckpointError: There is no such file, it holds no XCiT for images of three channels, or it does not define
            how to build one.
        ConfigError: The config has no XCiT, or one that cannot be built, or expects images in BGR.
    """
    path = fetch(_published(str(source)))
    checkpoint = read_checkpoint(path)
    contents = Contents.of(find_state_dict(checkpoint, path), path)
    if contents.layout is None:
        raise CheckpointError(f'{path} holds {contents}')
    is_classifier = 'classifier' in contents.parts
    cfg = config_of_checkpoint(checkpoint)
    if config:
        cfg, kind, options = _read_backbone(config)
    else:
        kind, options = _backbone_of_run(cfg, path, contents.layout)
        if not (_backbone_in(cfg) or _inputs_in(cfg)) and 'mmengine_version' in get_meta(checkpoint):
            print_log(f'{path} is from a training, but has no config (meta.cfg). Model and images are assumed to be '
                      'like those of the published files; if they are not, set the config of the training with '
                      '--config', logger='current', level=logging.WARNING)
    inputs = _inputs_in(cfg)
    if (config or inputs) and not (inputs.get('bgr_to_rgb') or inputs.get('to_rgb')):
        raise ConfigError(f'the model of {config or f"the training of {path}"} expects images in BGR (its data_'
                          'preprocessor sets neither bgr_to_rgb nor to_rgb), but this tool reads images only in RGB')
    mean, std = tuple(inputs.get('mean') or MEAN), tuple(inputs.get('std') or STD)
    if kind and issubclass(kind, XCiTClassifier) != is_classifier:
        raise CheckpointError(f'{path} holds {contents}, which does not fit the {kind.__name__} of '
                              f'{config or "the config in it"}. Set the config of its training with --config')
    options['type'] = kind or (XCiTClassifier if is_classifier else XCiT)
    if not config:
        options.setdefault('norm_cfg', dict(type='BN'))
        if not kind:
            options.update(arch=contents.arch)
            # classifiers of different sizes may have the same tensors and still compute different outputs
            if is_classifier and contents.arch not in map(get_arch, arch_names()):
                raise CheckpointError(f'{path} holds a classifier whose size ({contents.size}) is not a published '
                                      'one, and the file does not record its tokens_norm. Set the config of its '
                                      'training with --config')
        if 'patch_embed.proj.0.0.weight' in contents.tensors:
            options.update(in_channels=contents.tensors['patch_embed.proj.0.0.weight'].shape[1])
        if not is_classifier and 'pyramid' not in contents.parts:
            options.update(out_strides=None)
    if is_classifier:
        options.update(num_classes=contents.num_classes or 0)
    try:
        model = MODELS.build(options)
    except (TypeError, ValueError) as error:
        if config:
            raise ConfigError(f'the backbone of {config} cannot be built: {first_line(error)}') from error
        raise CheckpointError(f'{path} holds {contents}, which does not define how to build it ({first_line(error)}). '
                              'Set the config of its training with --config') from error
    (load_classifier if is_classifier else load_backbone)(model, path)
    if model.in_channels != 3:
        raise CheckpointError(f'{path} is for images of {counted(model.in_channels, "channels")}, but image files are '
                              'read with three')
    test_data = None
    with suppress(AttributeError, DataError, KeyError, TypeError):  # there is none, or it is invalid
        test_data = test_dataset(cfg)
    return Opened(model.eval(), tuple(get_dataset_meta(checkpoint).get('classes') or ()), mean, std, test_data)


def read_picture(path) -> np.ndarray:
    """Read an image file as the frameworks do: RGB (H, W, 3) uint8, rotated as its EXIF data says.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        data = Path(path).read_bytes()
        picture = mmcv.imfrombytes(data, flag='color') if data else None
    except (OSError, cv2.error) as error:
        raise DataError(f'{path} cannot be read: {getattr(error, "strerror", None) or first_line(error)}') from error
    if picture is None:
        reason = 'it is not an image, is damaged, or is too large' if data else 'the file is empty'
        raise DataError(f'{path} cannot be read: {reason}')
    return np.ascontiguousarray(picture[..., ::-1])


def normalised(picture, mean=MEAN, std=STD) -> Tensor:
    """Return an RGB image (H, W, 3) uint8 as a normalised batch of one: (1, 3, H, W), float32."""
    x = torch.from_numpy(np.ascontiguousarray(picture)).permute(2, 0, 1)[None].float()
    return x.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1))


def _published(source):
    """Return a source for `xcit_dense.weights.fetch`, with the prefix added to published names."""
    if '://' in source or Path(source).expanduser().exists():
        return source
    if source in WEIGHTS:
        return f'{PREFIX}{source}'
    raise CheckpointError(f'there is no file {Path(source).absolute()}, and no published weights are called '
                          f'{source!r}{did_you_mean(source, WEIGHTS, 3)}')


def _read_backbone(config):
    """Read a config; return it, and class and arguments of its backbone. Its framework and custom imports are loaded
    only for a user's own backbone."""
    cfg = read_config(config)
    kind = _own_kind(_backbone_in(cfg).get('type'))
    if kind is None:
        cfg = load_config(config, pretrained=False)
        kind = _backbone_in(cfg).get('type')
        kind = MODELS.get(kind) if isinstance(kind, str) else kind
    node = _backbone_in(cfg)
    if not (isinstance(kind, type) and issubclass(kind, Trunk)):
        raise ConfigError(f'model.backbone of the config {config} must be an XCiT or an XCiTClassifier, got '
                          f'{node.get("type")!r}')
    return cfg, kind, {key: value for key, value in node.items() if key not in ('type', 'init_cfg')}


def _backbone_of_run(cfg, path, layout):
    """Return class and arguments of the backbone by the config in a checkpoint, without importing what that names.

    The class is None for models of other projects, also mmpretrain's XCiT, which only their tensors identify. The norm
    must be known too, as looking a name up may import what it names.
    """
    node = _backbone_in(cfg)
    if layout not in ('official', 'dense') or not isinstance(node.get('type'), str):
        return None, {}
    kind, norm_type = _own_kind(node['type']), _dict_in(node, 'norm_cfg').get('type', 'BN')
    norm = MODELS.module_dict.get(norm_type) if isinstance(norm_type, str) else None
    if kind and isinstance(norm, type) and issubclass(norm, (_NormBase, nn.GroupNorm)):
        return kind, {key: node[key] for key in _OPTIONS if key in node}
    what = f'norm {norm_type!r}' if kind else f'backbone {node["type"]!r}'
    raise CheckpointError(f'the model in {path} uses the {what}, which this package does not have. Set the config of '
                          'its training with --config')


def _own_kind(name):
    """Return the class of this package that a type in a config names, or None."""
    scope, _, name = str(name).rpartition('.')
    is_own = scope.partition('.')[0] in ('', 'mmengine', 'mmdet', 'mmseg', 'mmpretrain', 'xcit_dense')
    return dict(XCiT=XCiT, XCiTClassifier=XCiTClassifier).get(name) if is_own else None


def _backbone_in(cfg):
    return _dict_in(_dict_in(cfg, 'model'), 'backbone')


def _inputs_in(cfg):
    return {**_dict_in(cfg, 'data_preprocessor'), **_dict_in(_dict_in(cfg, 'model'), 'data_preprocessor')}


def _dict_in(node, key):
    """Return a dict in a part of a config, or an empty one if there is another value or none."""
    value = node.get(key)
    return value if isinstance(value, dict) else {}
