"""A classifier from a weight file, with the names of its classes, and its predictions for images."""
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from mmengine.device import get_device
from PIL import Image

from ..config.testing import find_resolution
from ..data.imagenet import imagenet_classes, short_names
from ..errors import CheckpointError, ConfigError
from ..models import XCiTClassifier
from ..text import counted
from ..weights.describe import Contents
from .opening import normalised, open_model, read_picture

#: Largest ratio of the longer to the shorter side. Only the middle of a longer image is resized: the rest is cropped
#: anyway, and may not fit into memory.
_LONGEST = 64


class Guess(NamedTuple):
    """A class that an image may show: its index among the outputs, its name, its probability from 0 to 1."""
    index: int
    name: str
    probability: float


class Classifier:
    """A classifier with its weights and the names of its classes. Call it with an image.

    Images are prepared as for the published figures: the shorter side is resized to size / crop ratio (bicubic), then
    the middle is cropped.

    Args:
        source: As for `xcit_dense.predict.opening.open_model`.
        size: Side of the square crop in pixels. Default: that of the test pipeline of ``config``, or of the config
            that a run wrote into its checkpoint; 384 for files that were published for 384; otherwise 224.
        crop_ratio: The part of the shorter side that the crop covers, at most 1. Default: that of the same pipeline,
            otherwise 1.
        config: As for `xcit_dense.predict.opening.open_model`.

    Raises:
        CheckpointError: There is no such file, or it holds no classifier with a head.
        ConfigError: An option has an invalid value, or the config does not define the size.
    """

    def __init__(self, source, size: int = None, crop_ratio: float = None, config=None):
        find_resolution(None, size, crop_ratio)  # before a file is fetched
        opened = open_model(source, config)
        self.size, self.crop_ratio = find_resolution(opened.test_data, size, crop_ratio)
        if self.size is None and config:
            raise ConfigError(f'the test pipeline of {config} does not define the image size, with a ResizeEdge of '
                              'the shorter side and a square CenterCrop. Set it with --size')
        self.size = self.size or _published_size(str(source))
        self.model = _check_model(opened.model, source).to(get_device()).fuse()
        self.names, self.names_from = _find_names(opened.classes, self.model.num_classes)
        self._mean, self._std = opened.mean, opened.std

    def __call__(self, image, top: int = 5) -> list:
        """Return the classes that an image most likely shows as `Guess`, most likely first.

        Args:
            image: Path of an image file, or an array (H, W, 3), RGB, uint8.
            top: How many classes; all if there are fewer.

        Raises:
            DataError: The file cannot be read.
        """
        picture = image if isinstance(image, np.ndarray) else read_picture(image)
        probabilities = self.logits(picture).softmax(0)
        values, places = probabilities.topk(min(top, len(self.names)))
        return [Guess(place, self.names[place], value)
                for place, value in zip(places.tolist(), values.tolist(), strict=True)]

    def logits(self, picture) -> torch.Tensor:
        """Return the logits (classes) of an image (H, W, 3), RGB, uint8, on the CPU."""
        x = normalised(middle_of(picture, self.size, self.crop_ratio), self._mean, self._std)
        with torch.no_grad():
            return self.model(x.to(self.model.cls_token.device))[0].float().cpu()


def classify(source, *images, top: int = 5, **options) -> list:
    """Classify images: return a list of `Guess` for each, most likely first.

    Each call loads the model. If images come one after the other, keep a `Classifier` and call that.

    Args:
        source: A classifier: the name of a published file such as ``small_12_p16_224``, a file, or a work dir.
        *images: Paths of image files, or arrays (H, W, 3), RGB, uint8.
        top: How many classes each image gets.
        **options: Other arguments of `Classifier`.
    """
    classifier = Classifier(source, **options)
    return [classifier(image, top) for image in images]


def middle_of(picture, size, crop_ratio=1.) -> np.ndarray:
    """Return the middle of an image (H, W, 3) uint8 as mmpretrain's ResizeEdge (pillow, bicubic) and CenterCrop do.

    Args:
        picture: An image of any size and aspect ratio.
        size: Side of the result in pixels.
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


def _published_size(source):
    """Return the image size of a published file by its name: that of the authors, timm or mmpretrain.

    In a path only the file's name counts, not those of its folders.
    """
    name = '' if Path(source).expanduser().is_dir() else source.rpartition('/')[2]
    return 384 if re.search(r'xcit.*[_-]384(_dist|px|\.)|_384_dist$', name) else 224


def _check_model(model, source):
    """Return the classifier of a file.

    Raises:
        CheckpointError: It is another model; the error names the tool for that.
    """
    if not isinstance(model, XCiTClassifier):
        raise CheckpointError(f'{source} holds a backbone for dense prediction, which cannot classify images. For '
                              'detectors and segmentors use `python -m xcit_dense predict CONFIG CHECKPOINT IMAGES`')
    if not model.num_classes:
        raise CheckpointError(f'{source} {Contents.WITHOUT_CLASSES}')
    return model


def _find_names(classes, count):
    """Return the names of the outputs, and a description of where they come from."""
    if len(classes) == count:
        return short_names(tuple(map(str, classes))), 'the checkpoint'
    if not classes and count == 1000:
        return tuple(imagenet_classes().values()), 'ImageNet, as the checkpoint has no names for 1,000 outputs'
    reason = f'has {counted(len(classes), "names")}' if classes else 'has no names'
    return tuple(map(str, range(count))), f'their numbers, as the checkpoint {reason} for {count:,} outputs'
