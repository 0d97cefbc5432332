"""The label maps of a segmentation data set: pixels and width of each class, and whether a segmentor fits them."""
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image

from ..._utils.text import counted, named_classes, type_name
from ...data.check.agreement import wanted_classes
from ...data.datasets import LOADERS, only_dataset
from ...data.files import FORMATS, Unreadable, read_files
from ...data.label_maps import LabelMaps
from ...data.pipelines import ignored_labels
from ...errors import DataError
from ..check.keys import value_at
from .geometry import FINER, bounded, decides, evenly, larger, mean_zoom, patch_of, resize_of

#: Label maps whose pixels are examined: more would not show more.
_SAMPLE = 200
#: The width in tokens below which a band of a class is hard to see, and that which the thinnest gets.
_THIN = 0.25
#: The name under which an added loss for the IoU is recorded.
IOU_LOSS = 'loss_lovasz'


@dataclass(frozen=True)
class Maps:
    """The label maps that a segmentor is trained on.

    Attributes:
        images: Numbers (n, 3): width and height in pixels, and how many maps have that size.
        classes: By name, the share of the pixels of a class, and the number of images that have it.
        widths: By name, how wide the parts of a class are, in pixels of the files; only for classes in the maps that
            were examined.
    """
    images: np.ndarray
    classes: dict
    widths: dict

    @property
    def enough(self) -> dict:
        """Widths by name, of the classes in enough images to decide."""
        return {name: width for name, width in self.widths.items() if decides(self.classes[name][1], self.count)}

    @property
    def count(self) -> int:
        """The number of images."""
        return int(self.images[:, 2].sum())

    @property
    def in_words(self) -> str:
        """How much there is."""
        return counted(self.count, 'images')

    @property
    def examples(self) -> dict:
        """By name, of how many images a class is learnt."""
        return {name: images for name, (_, images) in self.classes.items()}


def measure_maps(cfg):
    """Measure the label maps of the training as `Maps`; the results for a file are cached until it changes. None if
    there are none, or if they are several data sets, not on a local disk, in colour or of another kind of data set."""
    dataset = only_dataset(cfg, LOADERS[0], ('BaseSegDataset', 'ImageFolderDataset'))
    if dataset is None or not dataset.prefixes.get('seg_map_path'):
        return None
    maps = LabelMaps(dataset, ignored_labels(cfg, LOADERS[0]))
    try:
        paths = maps.paths()
    except DataError:  # no list
        return None
    states = [state for state in maps.read(paths) if 'labels' in (state.content or {})] if maps.is_read else []
    if not states:
        return None
    names = wanted_classes(dataset, bool(cfg.get('classes_from_data')))
    totals = np.zeros((256, 2), np.int64)
    for state in states:
        for label, pixels in state.content['labels']:
            totals[label] += pixels, 1
    used = [label for label in np.flatnonzero(totals[:, 1]).tolist() if label not in maps.ignored]
    names = names or [str(label) for label in range(maps.first, max(used, default=-1) + 1)]
    total = max(totals[used, 0].sum(), 1)
    labels = {name: label for label, name in enumerate(names, maps.first) if label not in maps.ignored and label < 256}
    sizes, counts = np.unique([state.content['size'] for state in states], axis=0, return_counts=True)
    widths = _widths(paths, maps.folder)
    return Maps(np.concatenate([sizes, counts[:, None]], 1),
                {name: (totals[label, 0] / total, int(totals[label, 1])) for name, label in labels.items()},
                {name: widths[label] for name, label in labels.items() if label in widths})


def _widths(paths, folder):
    """Return the width in pixels by label, from an evenly spaced sample of label maps.

    A band of width w loses two of its w pixels when its outline is removed.
    """
    some = evenly(len(paths), min(len(paths), _SAMPLE))
    totals = np.zeros((256, 2), np.int64)
    for state in read_files([paths[place] for place in some], _outlines, 'outlines', folder, name='label maps'):
        for label, pixels, outline in state.content or ():
            totals[label] += pixels, outline
    seen = np.flatnonzero(totals[:, 0]).tolist()
    return {label: 2 * totals[label, 0] / max(totals[label, 1], 1) for label in seen}


def _outlines(path):
    """Return the labels in a map, each with the number of its pixels and of those next to another label."""
    with Image.open(path, formats=FORMATS) as image:
        pixels = np.asarray(image)
    if pixels.ndim != 2 or pixels.dtype != np.uint8:
        raise Unreadable('no map of numbers')
    square = np.ones((3, 3), np.uint8)
    touches = cv2.erode(pixels, square) != cv2.dilate(pixels, square)
    every, outline = (np.bincount(part.ravel(), minlength=256) for part in (pixels, pixels[touches]))
    return [[label, int(every[label]), int(outline[label])] for label in np.flatnonzero(every).tolist()]


def look_at_maps(cfg, maps, facts, warnings):
    """Add facts and warnings about the classes to those of `look`."""
    step, patch = resize_of(cfg), patch_of(cfg)
    rarest = min(maps.classes, key=lambda name: maps.classes[name][0], default=None)
    words = [f'the rarest class {rarest!r} has {maps.classes[rarest][0]:.2%} of the pixels'] if rarest else []
    if step is not None and maps.enough:
        zoom = mean_zoom(step, maps)
        widths = {name: width * zoom for name, width in maps.enough.items()}
        name = min(widths, key=widths.get)
        tokens = f', {widths[name] / patch:.2g} tokens' if patch else ''
        words.insert(0, f'the thinnest class {name!r} is {widths[name]:.2g} pixels wide after resizing{tokens}')
        thin = {name: width for name, width in widths.items() if patch and width < _THIN * patch}
        if thin:
            warnings.append(f'{named_classes(thin)} {"is" if len(thin) == 1 else "are"} less than a quarter of a token '
                            f'wide after resizing, {min(thin.values()):.2g} pixels: '
                            f'{larger(step, maps, _THIN * patch / min(thin.values()), FINER * (patch > 8))}')
    if words:
        facts['labels'] = '; '.join(words)


def factor_for_maps(cfg, step, maps, least: int):
    """Return the factor by which images should be enlarged for their thinnest class, and the reason."""
    if not maps.enough:
        return 1., ''
    name, width, wanted = _thinnest(cfg, step, maps)
    factor = bounded(cfg, step, maps, least, wanted / width)
    return factor, f'the thinnest class, {name!r}, grows from {width:.2g} to about {width * factor:.2g} pixels in width'


def _thinnest(cfg, step, maps):
    """Return the name of the thinnest class, its width in pixels of the resized images, and that which is enough."""
    name = min(maps.enough, key=maps.enough.get)
    return name, maps.enough[name] * mean_zoom(step, maps), _THIN * (patch_of(cfg) or 16)


def loss_for_thin(cfg, maps):
    """Return what is added to a config for classes that stay thin: `IOU_LOSS`, its weight, and the reason; or None.

    Their pixels fill only a part of an output cell. Cross-entropy alone then gives the class next to them the higher
    score everywhere, and they are never predicted.
    """
    step, loss = resize_of(cfg), value_at(cfg, 'model.decode_head.loss_decode')
    if step is None or not maps.enough or not isinstance(loss, dict):
        return None
    name, width, wanted = _thinnest(cfg, step, maps)
    if width >= wanted or type_name(loss.get('type')) != 'CrossEntropyLoss' or loss.get('use_sigmoid'):
        return None
    return IOU_LOSS, 1., f'a loss for the IoU too, as {name!r} is only {width:.2g} pixels wide'


def add_iou_loss(cfg, weight: float):
    """Add a loss for the IoU to that of a segmentor."""
    head = cfg.model.decode_head
    if isinstance(head.loss_decode, dict):
        head.loss_decode = [head.loss_decode, dict(type='LabelledLovaszLoss', reduction='none', loss_weight=weight)]
