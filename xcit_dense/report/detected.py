"""The objects of a test of a detector, counted image by image, and what is drawn of the worst images."""
import heapq
from typing import NamedTuple

import numpy as np
from pycocotools import mask as mask_api

from ..draw.pictures import draw_objects
from .matching import IGNORED, NONE, SCORE, Match, best_of, match


class Image(NamedTuple):
    """An image, judged by the rule of `matching`.

    Args:
        id: Its id in the annotation file.
        objects: Annotations of COCO, crowd regions too.
        labels: (n, ) their classes.
        is_crowd: (n, ) bool.
        prediction: What the metric of mmdet keeps: ``bboxes``, ``labels``, ``scores``, and ``masks`` as RLE.
        match: The `Match`.
        missed: Objects that no prediction took.
        mistaken: Objects that a prediction of another class took.
        false: Predictions without an object.
    """
    id: object
    objects: list
    labels: np.ndarray
    is_crowd: np.ndarray
    prediction: dict
    match: Match
    missed: int
    mistaken: int
    false: int

    @property
    def count(self) -> int:
        """How many objects there are, without crowd regions."""
        return int((~self.is_crowd).sum())

    @property
    def mistakes(self) -> int:
        """All mistakes together."""
        return self.missed + self.mistaken + self.false


class ImageRow(NamedTuple):
    """What the table of images has of an `Image`."""
    id: object
    objects: int
    missed: int
    mistaken: int
    false: int


class Objects:
    """Counts objects and predictions of all images.

    Args:
        labels: By category id, the class number.
        kept: How many of the worst images to keep.

    Attributes:
        confusion: Objects by true (row) and predicted (column) class; the last of both is the background.
        objects: (classes, ) objects, without crowd regions.
        images_of: (classes, ) images that have such objects.
        crowds: How many crowd regions there are.
        rows: `ImageRow` of all images, in the order in which they were counted.
        worst: `Image` of the worst, the worst first.
    """

    def __init__(self, labels, kept: int):
        self._labels, self._kept, size = labels, kept, len(labels)
        self.confusion = np.zeros((size + 1, size + 1), np.int64)
        self.objects, self.images_of = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self.crowds, self.rows, self.worst = 0, [], []
        self._guesses, self._scores, self._right = [], [], []

    def count(self, images):
        """Count images: pairs of annotations and prediction, by the id of the image."""
        judged = map(self._count, images)
        self.worst = [image for image in heapq.nlargest(self._kept, judged, key=badness) if image.mistakes]

    def best(self) -> list:
        """Return the `Best` score threshold of each class."""
        guesses, scores, right = (np.concatenate(parts or [np.zeros(0)])
                                  for parts in (self._guesses, self._scores, self._right))
        order = np.argsort(guesses, kind='stable')
        starts = np.searchsorted(guesses[order], np.arange(len(self.objects) + 1))
        parts = [order[start:end] for start, end in zip(starts, starts[1:], strict=False)]
        return [best_of(scores[part], right[part] > 0, int(objects))
                for part, objects in zip(parts, self.objects, strict=True)]

    def _count(self, image):
        number, objects, prediction = image
        objects = [found for found in objects if found['category_id'] in self._labels]
        labels = np.array([self._labels[found['category_id']] for found in objects], int)
        is_crowd = np.array([bool(found.get('iscrowd')) for found in objects], bool)
        guesses, scores = np.asarray(prediction['labels'], int), np.asarray(prediction['scores'], float)
        corners = np.asarray(prediction['bboxes'], float).reshape(-1, 4)
        boxes = np.array([found['bbox'] for found in objects], float).reshape(-1, 4)
        found = match(boxes, labels, is_crowd, np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]]), guesses,
                      scores)
        counts = found.of_class != IGNORED
        for kept, values in ((self._guesses, guesses), (self._scores, scores), (self._right, found.of_class >= 0)):
            kept.append(values[counts])
        np.add.at(self.objects, labels[~is_crowd], 1)
        self.images_of[np.unique(labels[~is_crowd])] += 1
        self.crowds += int(is_crowd.sum())
        judged = self._confuse(number, objects, labels, is_crowd, prediction, found, guesses, scores >= SCORE)
        self.rows.append(ImageRow(number, judged.count, judged.missed, judged.mistaken, judged.false))
        return judged

    def _confuse(self, number, objects, labels, is_crowd, prediction, found, guesses, is_sure):
        taken = is_sure & (found.of_any >= 0)
        without = is_sure & (found.of_any == NONE)
        missed = ~is_crowd
        missed[found.of_any[taken]] = False
        np.add.at(self.confusion, (labels[found.of_any[taken]], guesses[taken]), 1)
        np.add.at(self.confusion[-1], guesses[without], 1)
        np.add.at(self.confusion[:, -1], labels[missed], 1)
        return Image(number, objects, labels, is_crowd, prediction, found, int(missed.sum()),
                     int((labels[found.of_any[taken]] != guesses[taken]).sum()), int(without.sum()))


def badness(image) -> tuple:
    """Return the key by which images are sorted, largest first: all mistakes, then missed objects."""
    return image.missed + image.mistaken + image.false, image.missed


def draw_sides(image, picture, truth, names, colours) -> tuple:
    """Draw ground truth and prediction of an `Image`: two arrays (H, W, 3) uint8, with its mistakes marked.

    Args:
        image: The image.
        picture: Its pixels, RGB (H, W, 3) uint8.
        truth: COCO of pycocotools with its annotations.
        names: The classes.
        colours: Their colours.
    """
    taken, marks = image.match.of_any, [''] * len(image.objects)
    for place, is_crowd in enumerate(image.is_crowd):
        marks[place] = '' if is_crowd or place in taken else 'missed'
    guesses, scores = np.asarray(image.prediction['labels'], int), np.asarray(image.prediction['scores'], float)
    shown, wrong = np.flatnonzero(scores >= SCORE), []
    for place in shown:
        partner = taken[place]
        if partner >= 0 and image.labels[partner] != guesses[place]:
            marks[partner] = f'taken for {names[guesses[place]]}'
            wrong.append('wrong class')
        else:
            wrong.append('' if partner != NONE else 'duplicate' if image.match.again[place] else 'false positive')
    boxes = np.array([found['bbox'] for found in image.objects], float).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    codes = [truth.annToRLE(found) if found.get('segmentation') else None for found in image.objects]
    left = draw_objects(picture, boxes, image.labels + len(names) * image.is_crowd,
                        [*names, *(f'{name} (crowd)' for name in names)], [*colours, *colours],
                        _Masks(codes, picture) if any(codes) else None, marks=marks)
    codes = image.prediction.get('masks')
    masks = None if codes is None else _Masks([codes[place] for place in shown], picture)
    right = draw_objects(picture, np.asarray(image.prediction['bboxes'], float).reshape(-1, 4)[shown], guesses[shown],
                         names, colours, masks, scores[shown], wrong)
    return left, right


class _Masks:
    """Masks one by one, because those of all objects of a large picture would fill the memory.

    Args:
        codes: RLE of each object, or None.
        picture: The picture; masks of another size count as empty.
    """

    def __init__(self, codes, picture):
        self._codes, self._shape = codes, picture.shape[:2]

    def __getitem__(self, place):
        code = self._codes[place]
        fits = code is not None and tuple(code['size']) == self._shape
        return mask_api.decode(code) if fits else np.zeros(self._shape, bool)
