"""A classifier out of a weight file, with the names of its classes, and what it says of images."""
import re
from typing import NamedTuple

import numpy as np
import torch
from mmengine.device import get_device
from PIL import Image

from ..config.loading import load_config
from ..config.resolution import size_steps
from ..data.imagenet import imagenet_classes
from ..errors import CheckpointError, ConfigError
from ..models import XCiTClassifier
from ..text import counted
from .classes import test_dataset
from .opening import normalised, open_model, read_picture

#: Of the longer side to the shorter. Of a longer image the middle alone is resized: the rest is cropped anyway, and
#: may be more than the memory holds.
_LONGEST = 64


class Guess(NamedTuple):
    """A class that an image may show: its place among the outputs, its name, its probability from 0 to 1."""
    index: int
    name: str
    probability: float


class Classifier:
    """A classifier with its weights and the names of its classes, which tells what images show.

    Images are prepared as for the published figures: the shorter side is resized to size / crop ratio (bicubic), and
    the middle of it cropped.

    Args:
        source: As for `xcit_dense.predict.opening.open_model`.
        size: Pixels of the crop, a square. Default: those of the test pipeline of ``config``; 384 for the files that
            were published for it; else 224.
        crop_ratio: What part of the shorter side is seen, up to 1. Default: that of ``config``, else 1.
        config: The config of the training, where the file does not tell all: name or path.

    Raises:
        CheckpointError: There is no such file, or it holds no classifier with a head.
        ConfigError: An option cannot be, or the config does not tell the size.
    """

    def __init__(self, source, size: int = None, crop_ratio: float = None, config=None):
        self.size, self.crop_ratio = find_size(str(source), size, crop_ratio, config)
        opened = open_model(source, config)
        self.model = _check_model(opened.model, source).to(get_device()).fuse()
        self.names, self.names_from = _find_names(opened.classes, self.model.num_classes)
        self._mean, self._std = opened.mean, opened.std

    def __call__(self, image, top: int = 5) -> list:
        """Return the classes that an image most likely shows as `Guess`, the likeliest first.

        Args:
            image: An image file, or a picture (H, W, 3), RGB, uint8.
            top: How many; all where there are fewer.

        Raises:
            DataError: The file cannot be read.
        """
        picture = image if isinstance(image, np.ndarray) else read_picture(image)
        probabilities = self.logits(picture).softmax(0)
        values, places = probabilities.topk(min(top, len(self.names)))
        return [Guess(place, self.names[place], value)
                for place, value in zip(places.tolist(), values.tolist(), strict=True)]

    def logits(self, picture) -> torch.Tensor:
        """Return the logits (classes) of a picture (H, W, 3), RGB, uint8, on the CPU."""
        x = normalised(middle_of(picture, self.size, self.crop_ratio), self._mean, self._std)
        with torch.no_grad():
            return self.model(x.to(self.model.cls_token.device))[0].float().cpu()


def classify(source, *images, top: int = 5, **options) -> list:
    """Return what images show: for each a list of `Guess`, the likeliest first.

    Args:
        source: A classifier: the name of a published file such as ``small_12_p16_224``, a file, or a work dir.
        *images: Image files, or pictures (H, W, 3), RGB, uint8.
        top: How many classes an image gets.
        **options: The others of `Classifier`, which is to be kept where images come one after the other.
    """
    classifier = Classifier(source, **options)
    return [classifier(image, top) for image in images]


def middle_of(picture, size, crop_ratio=1.) -> np.ndarray:
    """Return the middle of a picture (H, W, 3) uint8 as mmpretrain's ResizeEdge (pillow, bicubic) and CenterCrop do.

    Args:
        picture: Of any size and shape.
        size: Pixels of a side of the result.
        crop_ratio: The shorter side is resized to size / crop_ratio.
    """
    keep = _LONGEST * min(picture.shape[:2])
    top, left = (max(0, length - keep) // 2 for length in picture.shape[:2])
    picture = picture[top:top + keep, left:left + keep]
    height, width = picture.shape[:2]
    edge = round(size / crop_ratio)
    height, width = (int(edge * height / width), edge) if width < height else (edge, int(edge * width / height))
    resized = Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC)
    top, left = round((height - size) / 2), round((width - size) / 2)
    return np.array(resized)[top:top + size, left:left + size]


def find_size(source: str, size: int = None, crop_ratio: float = None, config=None) -> tuple:
    """Return pixels of the crop and crop ratio: those that are given, else of the config, else as published.

    The arguments are those of `Classifier`.

    Raises:
        ConfigError: One cannot be, or the config does not tell the size and none is given.
    """
    if size is not None and size < 1:
        raise ConfigError(f'the size must be at least 1 pixel, got {size}')
    if crop_ratio is not None and not 0 < crop_ratio <= 1:
        raise ConfigError(f'the crop ratio must be above 0 and at most 1, got {crop_ratio}')
    if config and (size is None or crop_ratio is None):
        usual = _size_of_config(config)
    else:
        # the authors' names, timm's and mmpretrain's
        usual = (384 if re.search(r'xcit[^/]*[_-]384(_dist|px|\.)|_384_dist$', source) else 224), 1.
    if size is None and usual[0] is None:
        raise ConfigError(f'the test pipeline of {config} has no ResizeEdge with a CenterCrop of a square, which would '
                          'tell the size of images: give it with --size')
    return size or usual[0], crop_ratio or usual[1]


def _check_model(model, source):
    """Return the classifier of a file.

    Raises:
        CheckpointError: It is another model, and the error says what is made for that.
    """
    if not isinstance(model, XCiTClassifier):
        raise CheckpointError(f'{source} holds a backbone for dense prediction, which names no classes of an image: '
                              'detectors and segmentors are predicted with `python -m xcit_dense predict CONFIG '
                              'CHECKPOINT IMAGES`')
    if not model.num_classes:
        raise CheckpointError(f'{source} holds features without a head (as the files of DINO), which name no classes: '
                              'look at what it attends to with `python -m xcit_dense attention`, or fine-tune from it '
                              f"with init_cfg=dict(type='Pretrained', checkpoint={str(source)!r})")
    channels = model.state_dict()['patch_embed.proj.0.0.weight'].shape[1]
    if channels != 3:
        raise CheckpointError(f'{source} is made for images of {counted(channels, "channels")}, and images are read '
                              'here with three')
    return model


def _find_names(classes, count):
    """Return the names of the outputs, and in words where they are from."""
    if len(classes) == count:
        return tuple(map(str, classes)), 'the checkpoint'
    if not classes and count == 1000:
        return tuple(imagenet_classes().values()), 'ImageNet, for the checkpoint has none and there are 1,000'
    reason = f'names {len(classes):,}' if classes else 'has no names'
    return tuple(map(str, range(count))), f'their numbers, for the checkpoint {reason} and there are {count:,} outputs'


def _size_of_config(config):
    """Return pixels of the crop and crop ratio of the test pipeline of a config; None and 1 where it has none."""
    dataset = test_dataset(load_config(config, pretrained=False))
    try:
        resize, crop = size_steps(dataset)
    except ConfigError:
        return None, 1.
    return crop.crop_size, min(1., crop.crop_size / resize.scale)
