"""A model out of a weight file alone: what `classify` and `attention` look through, without a config."""
from pathlib import Path
from typing import NamedTuple

import cv2
import mmcv
import numpy as np
import torch
from mmengine.registry import MODELS
from torch import Tensor

from ..archs import arch_names, get_arch
from ..config.loading import load_config
from ..errors import CheckpointError, ConfigError, DataError
from ..models import Trunk, XCiT, XCiTClassifier
from ..text import first_line, nearest
from ..weights import fetch, find_state_dict, load_backbone, load_classifier, read_checkpoint
from ..weights.describe import Contents
from ..weights.meta import get_dataset_meta
from ..weights.zoo import PREFIX, WEIGHTS

#: Of ImageNet, in RGB, from 0 to 255: what published weights were trained with.
MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)


class Opened(NamedTuple):
    """A model in evaluation mode, on the CPU; class names, if the file has some; mean and std of its input, RGB."""
    model: Trunk
    classes: tuple
    mean: tuple
    std: tuple


def open_model(source, config=None) -> Opened:
    """Build the model that a file holds: an `XCiTClassifier`, or the `XCiT` of a detector or segmentor.

    Args:
        source: As for `xcit_dense.weights.read_checkpoint`, or the name of a published file without ``xcit://``.
        config: The config of its training, where the file does not tell everything: name or path. Without one the
            images are normalised with ImageNet's mean and std.

    Raises:
        CheckpointError: There is no such file, it holds no XCiT, or does not tell how to build it.
        ConfigError: The config has no XCiT.
    """
    path = fetch(_published(str(source)))
    checkpoint = read_checkpoint(path)
    contents = Contents.of(find_state_dict(checkpoint, path), path)
    if contents.layout is None:
        raise CheckpointError(f'{path} holds {contents}')
    is_classifier = 'classifier' in contents.parts
    mean, std = MEAN, STD
    if config:
        kind, options, mean, std = _from_config(config)
        if issubclass(kind, XCiTClassifier) != is_classifier:
            raise CheckpointError(f'{path} holds {contents}, which is no weights of the {kind.__name__} of {config}')
    else:
        kind, options = (XCiTClassifier if is_classifier else XCiT), dict(arch=_arch_of(contents, path, is_classifier))
        options.update(norm_cfg=dict(type='BN'), in_channels=contents.tensors['patch_embed.proj.0.0.weight'].shape[1])
        if not is_classifier and 'pyramid' not in contents.parts:
            options.update(out_strides=None)
    if is_classifier:
        options.update(num_classes=contents.num_classes or 0)
    try:
        model = MODELS.build(dict(options, type=kind))
    except ValueError as error:
        raise CheckpointError(f'{path} holds {contents}, which does not tell how it is built ({first_line(error)}): '
                              'give the config that it was trained with (--config)') from error
    (load_classifier if is_classifier else load_backbone)(model, path)
    return Opened(model.eval(), tuple(get_dataset_meta(checkpoint).get('classes') or ()), mean, std)


def read_picture(path) -> np.ndarray:
    """Read an image file as the frameworks do: RGB (H, W, 3) uint8, turned as its EXIF data says.

    Raises:
        DataError: It cannot be read.
    """
    try:
        picture = mmcv.imfrombytes(Path(path).read_bytes(), flag='color')
    except OSError as error:
        raise DataError(f'{path} cannot be read: {error.strerror}') from error
    except cv2.error as error:
        raise DataError(f'{path} cannot be read: {first_line(error)}') from error
    if picture is None:
        raise DataError(f'{path} cannot be read: it is no image, damaged or too large')
    return np.ascontiguousarray(picture[..., ::-1])


def normalised(picture, mean=MEAN, std=STD) -> Tensor:
    """Return an RGB picture (H, W, 3) uint8 as a batch of one for a model: (1, 3, H, W), float32."""
    x = torch.from_numpy(np.ascontiguousarray(picture)).permute(2, 0, 1)[None].float()
    return x.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1))


def _published(source):
    """Return what stands for a source in `xcit_dense.weights.fetch`: published names may come without their prefix."""
    if '://' in source or Path(source).expanduser().exists():
        return source
    if source in WEIGHTS:
        return f'{PREFIX}{source}'
    near = nearest(source, WEIGHTS, 3)
    raise CheckpointError(f'there is no file {Path(source).absolute()}, and no published weights have that name'
                          + (f'; did you mean {" or ".join(near)}?' if near else ''))


def _arch_of(contents, path, is_classifier):
    arch = contents.arch
    if is_classifier and arch not in map(get_arch, arch_names()):
        # the classifiers of two sizes may have the same tensors and compute different things
        raise CheckpointError(f'{path} holds a classifier of no published size, {contents.size}, whose tokens_norm the '
                              'file does not tell: give the config that it was trained with (--config)')
    return arch


def _from_config(config):
    """Return type and options of the backbone of a config, and mean and std of its input."""
    cfg = load_config(config, pretrained=False)
    node = (cfg.get('model') or {}).get('backbone') or {}
    kind = MODELS.get(node['type']) if isinstance(node.get('type'), str) else node.get('type')
    if not (isinstance(kind, type) and issubclass(kind, Trunk)):
        raise ConfigError(f'the config {config} has no XCiT and no XCiTClassifier as model.backbone; its type is '
                          f'{node.get("type")!r}')
    inputs = {**(cfg.get('data_preprocessor') or {}), **(cfg.model.get('data_preprocessor') or {})}
    if not (inputs.get('bgr_to_rgb') or inputs.get('to_rgb')):
        raise ConfigError(f'the model of {config} takes images in BGR (its data_preprocessor has no bgr_to_rgb and no '
                          'to_rgb), and these are read in RGB')
    options = {key: value for key, value in node.items() if key not in ('type', 'init_cfg')}
    return kind, options, tuple(inputs.get('mean') or MEAN), tuple(inputs.get('std') or STD)
