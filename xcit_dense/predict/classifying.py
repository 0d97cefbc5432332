"""A classifier from a weight file, with the names of its classes, and its predictions for images."""
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from mmengine.device import get_device
from PIL import Image
from tqdm import tqdm

from .._utils.files import OwnFiles, atomic_write, note_inputs
from .._utils.text import counted, first_line, printable
from ..config.testing import find_resolution
from ..data.class_folders import imagenet_classes, short_names
from ..errors import CheckpointError, ConfigError, DataError
from ..models import XCiTClassifier
from ..weights.load import WITHOUT_CLASSES
from .files import without_drawn
from .weight_file import normalised, open_model, read_picture

#: The line of an image has the best class, and others whose probability is at least this.
_TOLD_FROM = 0.1
_WIDEST = 48
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
        source: As for `xcit_dense.predict.weight_file.open_model`.
        size: Side of the square crop in pixels. Default: that of the test pipeline of ``config``, or of the config
            that a run wrote into its checkpoint; 384 for files that were published for 384; otherwise 224.
        crop_ratio: The part of the shorter side that the crop covers, at most 1. Default: that of the same pipeline,
            otherwise 1.
        config: As for `xcit_dense.predict.weight_file.open_model`.

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
        if not isinstance(opened.model, XCiTClassifier):
            raise CheckpointError(f'{source} holds a backbone for dense prediction, which cannot classify images. For '
                                  'detectors and segmentors use `python -m xcit_dense predict CONFIG CHECKPOINT '
                                  'IMAGES`')
        if not opened.model.num_classes:
            raise CheckpointError(f'{source} {WITHOUT_CLASSES}')
        self.model = opened.model.to(get_device()).fuse()
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
        places = probabilities.topk(min(top, len(self.names))).indices.tolist()
        return [Guess(place, self.names[place], float(probabilities[place])) for place in places]

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

    The shorter side is resized to size / crop_ratio pixels; the result has sides of ``size``.
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
    """Return the image size of a published file by its name, without those of its folders: that of the authors, timm or
    mmpretrain."""
    name = '' if Path(source).expanduser().is_dir() else source.rpartition('/')[2]
    return 384 if re.search(r'xcit.*[_-]384(_dist|px|\.)|_384_dist$', name) else 224


def _find_names(classes, count):
    """Return the names of the outputs, and a description of where they come from."""
    if len(classes) == count:
        return short_names(tuple(map(str, classes))), 'the checkpoint'
    if not classes and count == 1000:
        return tuple(imagenet_classes().values()), 'ImageNet, as the checkpoint has no names for 1,000 outputs'
    reason = f'has {counted(len(classes), "names")}' if classes else 'has no names'
    return tuple(map(str, range(count))), f'their numbers, as the checkpoint {reason} for {count:,} outputs'


def classify_files(classifier, source, root, paths, out_file, top: int, overwrite: bool = False):
    """Print the classes of image files and write them as JSON; after an interruption it has those that were done.

    Args:
        source: The weights of the classifier as the user named them, for the JSON file.
        root, paths, overwrite: As for `xcit_dense.predict.files.predict_files`, which also describes the errors.
        top: How many classes each image gets.
    """
    root, out_file = Path(root), Path(out_file).expanduser()
    paths = without_drawn(root, paths)
    names = [printable(path.relative_to(root)) for path in paths]
    width, alone, guessed, unreadable = min(max(map(len, names)), _WIDEST), len(paths) == 1, [], []
    content = dict(checkpoint=str(source), size=classifier.size, crop_ratio=classifier.crop_ratio,
                   names_from=classifier.names_from, images=guessed, unreadable=unreadable)
    with OwnFiles(out_file.parent, 'classify', overwrite) as own:
        note_inputs(source, *paths)
        own.claim(out_file.name)
        try:
            # without a terminal, which would show a bar, the lines show the progress
            for path, name in tqdm(list(zip(paths, names, strict=True)), unit='image', disable=alone or None,
                                   leave=False):
                try:
                    guesses = classifier(path, top)
                except DataError as error:
                    unreadable.append(dict(path=str(path), reason=first_line(error)))
                    continue
                guessed.append(dict(path=str(path), top=[guess._asdict() for guess in guesses]))
                tqdm.write(_block(name, guesses) if alone else _line(name, guesses, width))
        finally:
            if guessed or unreadable:
                with atomic_write(out_file) as part:
                    part.write_text(json.dumps(content, indent=1))
                print(f'{counted(len(guessed), "images")} in {out_file}')
    if unreadable:
        title = f'{len(unreadable):,} of {counted(len(paths), "images")} could not be classified:'
        raise DataError('\n  '.join([title, *(printable(found['reason']) for found in unreadable)]))


def _block(name, guesses):
    return '\n'.join([name, *(f'  {guess.probability:6.1%}  {printable(guess.name)}' for guess in guesses)])


def _line(name, guesses, width):
    """Return the best class of an image in columns, and the next ones if they are likely."""
    name = name if len(name) <= width else f'...{name[3 - width:]}'
    best, *others = guesses
    more = ', '.join(f'{guess.probability:.0%} {printable(guess.name)}' for guess in others
                     if guess.probability >= _TOLD_FROM)
    return f'{name:<{width}}  {best.probability:6.1%}  {printable(best.name)}' + (f'  ({more})' if more else '')
