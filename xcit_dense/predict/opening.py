"""A model from only a weight file, without a config: what `classify` and `attention` use."""
from pathlib import Path
from typing import NamedTuple

import cv2
import mmcv
import numpy as np
import torch
from mmengine.registry import MODELS
from torch import Tensor

from ..archs import arch_names, get_arch
from ..errors import CheckpointError, ConfigError, DataError
from ..models import Trunk, XCiT, XCiTClassifier
from ..text import counted, first_line, nearest
from ..weights import fetch, find_state_dict, load_backbone, load_classifier, read_checkpoint
from ..weights.contents import get_dataset_meta
from ..weights.layouts import Contents
from ..weights.zoo import PREFIX, WEIGHTS
from .told import MEAN, STD, told_by_checkpoint, told_by_config


class Opened(NamedTuple):
    """A model in evaluation mode, on the CPU, and what it was trained with.

    Args:
        model: The model, for images of three channels.
        classes: Class names, if the file has any.
        mean: Mean of its input, RGB.
        std: Standard deviation of its input, RGB.
        test_data: Config of the data set that it was tested with, if known.
    """
    model: Trunk
    classes: tuple
    mean: tuple
    std: tuple
    test_data: dict | None


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
    told = told_by_config(config) if config else told_by_checkpoint(checkpoint, path, contents.layout)
    if told.kind and issubclass(told.kind, XCiTClassifier) != is_classifier:
        raise CheckpointError(f'{path} holds {contents}, which does not fit the {told.kind.__name__} of '
                              f'{config or "the config in it"}. Set the config of its training with --config')
    options = dict(told.options, type=told.kind or (XCiTClassifier if is_classifier else XCiT))
    if not config:
        options.setdefault('norm_cfg', dict(type='BN'))
        if not told.kind:
            options.update(arch=_arch_of(contents, path, is_classifier))
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
    return Opened(model.eval(), tuple(get_dataset_meta(checkpoint).get('classes') or ()), told.mean, told.std,
                  told.test_data)


def read_picture(path) -> np.ndarray:
    """Read an image file as the frameworks do: RGB (H, W, 3) uint8, rotated as its EXIF data says.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        data = Path(path).read_bytes()
        picture = mmcv.imfrombytes(data, flag='color') if data else None
    except OSError as error:
        raise DataError(f'{path} cannot be read: {error.strerror}') from error
    except cv2.error as error:
        raise DataError(f'{path} cannot be read: {first_line(error)}') from error
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
    near = nearest(source, WEIGHTS, 3)
    raise CheckpointError(f'there is no file {Path(source).absolute()}, and no published weights are called '
                          f'{source!r}' + (f'. Did you mean {" or ".join(near)}?' if near else ''))


def _arch_of(contents, path, is_classifier):
    arch = contents.arch
    if is_classifier and arch not in map(get_arch, arch_names()):
        # classifiers of different sizes may have the same tensors and still compute different outputs
        raise CheckpointError(f'{path} holds a classifier whose size ({contents.size}) is not a published one, and '
                              'the file does not record its tokens_norm. Set the config of its training with --config')
    return arch
