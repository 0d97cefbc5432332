"""The objects of a test of a detector: which prediction belongs to which, counts, and pictures of the worst images."""
import heapq
from functools import partial
from typing import NamedTuple

import numpy as np
from pycocotools import mask as mask_api

from ..draw.pictures import draw_objects

#: The least IoU of boxes of an object and its prediction, and the lowest score that counts: that of drawing.
IOU, SCORE = 0.5, 0.3
RULE = (f'Predictions with a score of at least {SCORE}, highest first: each takes the free object of its class with '
        f'the highest IoU of boxes, at least {IOU}. Predictions left over then take free objects of other classes in '
        'the same way. What remains counts as background, also a second prediction of an object. Crowd regions are '
        f'left out, and so are predictions of their class with at least {IOU:.0%} of their area inside.')
#: In the place of an object: the prediction has none, or it counts as neither right nor wrong.
NONE, IGNORED = -1, -2


class Match(NamedTuple):
    """The objects of the predictions in an image."""
    of_class: np.ndarray  # for each prediction the place of its object of the same class, or `NONE` or `IGNORED`
    of_any: np.ndarray  # the same, with objects of other classes too, and `NONE` for all with a score below `SCORE`


def match(boxes, labels, is_crowd, predictions, guesses, scores) -> Match:
    """Return the `Match` of an image; within a class it is that of pycocotools.

    Of the objects there are boxes (n, 4): x, y, width, height, with labels and ``is_crowd`` (n, ); of the predictions
    boxes (m, 4), with labels and scores (m, ).
    """
    of_class = np.full(len(predictions), NONE)
    if not len(predictions) or not len(boxes):
        return Match(of_class, of_class.copy())
    ious = np.asarray(mask_api.iou(np.ascontiguousarray(predictions, float), np.ascontiguousarray(boxes, float),
                                   np.asarray(is_crowd, np.uint8).tolist()))
    near, is_crowd = ious >= IOU, np.asarray(is_crowd, bool)
    same, order, free = near & (guesses[:, None] == labels), np.argsort(-scores, kind='stable'), ~is_crowd
    _take(order, same, ious, free, of_class)
    of_class[(of_class == NONE) & (same & is_crowd).any(1)] = IGNORED
    # the same for a prediction whatever others with a lower score do
    of_any, sure = of_class.copy(), scores >= SCORE
    of_any[~sure] = NONE
    free = ~is_crowd
    free[of_any[of_any >= 0]] = False
    _take(order[(sure & (of_any == NONE))[order]], near, ious, free, of_any)
    return Match(of_class, of_any)


def _take(order, allowed, ious, free, taken):
    """Let predictions take the best free objects that they may have; of equal ones the last, as pycocotools does."""
    for place in order[(allowed & free).any(1)[order]]:
        worth = np.where(allowed[place] & free, ious[place], -1)
        best = len(worth) - 1 - int(worth[::-1].argmax())
        if worth[best] >= 0:
            taken[place], free[best] = best, False


def best_of(scores, right, objects) -> tuple:
    """Return the score threshold of the highest F1 of a class, with precision, recall and F1 there, None if undefined,
    by scores and hits of its predictions; of equal F1 the one of the highest score."""
    if not objects or not np.any(right):
        return (None, None, 0., 0.) if objects else (None, ) * 4
    order = np.argsort(-scores, kind='stable')
    scores, hits = scores[order], np.cumsum(right[order])
    ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))  # equal scores pass together
    hits, predictions = hits[ends], ends + 1
    f1 = 2 * hits / (predictions + objects)
    best = int(f1.argmax())
    return tuple(map(float, (scores[ends[best]], hits[best] / predictions[best], hits[best] / objects, f1[best])))


class Image(NamedTuple):
    """An image, judged by `RULE`."""
    id: object  # in the annotation file
    objects: list  # annotations of COCO, crowd regions too
    labels: np.ndarray  # (n, ) their classes
    is_crowd: np.ndarray  # (n, ) bool
    prediction: dict  # what the metric of mmdet keeps: ``bboxes``, ``labels``, ``scores``, and ``masks`` as RLE
    match: Match
    figures: dict  # what the table of images has: numbers of objects without crowd regions, and of mistakes


class Objects:
    """Counts objects and predictions of all images, and keeps the worst images, at most ``kept``.

    The ``labels`` are the class numbers by category id.

    Attributes:
        confusion: Objects by true (row) and predicted (column) class; the last of both is the background.
        objects: (classes, ) objects, without crowd regions.
        images_of: (classes, ) images that have such objects.
        crowds: How many crowd regions there are.
        rows: Id and `Image.figures` of all images, the worst first.
        worst: `Image` of the worst, the worst first.
    """

    def __init__(self, labels, kept: int):
        self._labels, self._kept, size = labels, kept, len(labels)
        self.confusion = np.zeros((size + 1, size + 1), np.int64)
        self.objects, self.images_of = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self.crowds, self.rows, self.worst = 0, [], []
        self._guesses, self._sizes = [], []

    def count(self, images):
        """Count images: pairs of annotations and prediction, by the id of the image."""
        judged = heapq.nlargest(self._kept, map(self._count, images), key=lambda image: badness(image.figures))
        self.worst = [image for image in judged if image.figures['mistakes']]
        self.rows.sort(key=lambda row: badness(row[1]), reverse=True)

    def best(self) -> list:
        """Return the result of `best_of` for each class."""
        guesses, scores, right = (np.concatenate(part) for part in zip(*self._guesses, strict=True))
        return [best_of(scores[guesses == label], right[guesses == label], int(objects))
                for label, objects in enumerate(self.objects)]

    def by_size(self) -> list:
        """Return the figures of four groups of objects, smallest first: pairs of least and largest side, figures."""
        sides, fates = (np.concatenate(part) for part in zip(*self._sizes, strict=True))
        found = []
        for group in np.array_split(np.argsort(sides, kind='stable'), 4):
            if len(group):
                missed, mistaken, right = np.bincount(fates[group], minlength=3).tolist()
                found.append(((sides[group[0]], sides[group[-1]]), dict(
                    objects=len(group), found=right, wrong_class=mistaken, missed=missed,
                    share=100 * missed / len(group))))
        return found

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
        self._guesses.append((guesses[counts], scores[counts], found.of_class[counts] >= 0))
        np.add.at(self.objects, labels[~is_crowd], 1)
        self.images_of[np.unique(labels[~is_crowd])] += 1
        self.crowds += int(is_crowd.sum())
        is_sure, taken_as = scores >= SCORE, np.full(len(objects), NONE)
        taken = is_sure & (found.of_any >= 0)
        taken_as[found.of_any[taken]] = guesses[taken]
        invented, real = guesses[is_sure & (found.of_any == NONE)], ~is_crowd
        np.add.at(self.confusion, (labels[real], taken_as[real]), 1)  # with those that none took in the last column
        np.add.at(self.confusion[-1], invented, 1)
        fates = (taken_as >= 0) + (taken_as == labels).astype(int)
        self._sizes.append((boxes[real, 2:].prod(1)**0.5, fates[real]))
        missed, mistaken, right = np.bincount(fates[real], minlength=3).tolist()
        figures = dict(mistakes=missed + mistaken + len(invented), objects=missed + mistaken + right, found=right,
                       missed=missed, wrong_class=mistaken, false_positives=len(invented))
        self.rows.append((number, figures))
        return Image(number, objects, labels, is_crowd, prediction, found, figures)


def badness(figures) -> tuple:
    """Return the key by which images are sorted, largest first: all mistakes, then missed objects."""
    return figures['mistakes'], figures['missed']


def draw_sides(image, picture, truth, names, colours) -> tuple:
    """Draw ground truth and prediction of an `Image`: two arrays (H, W, 3) uint8, with its mistakes marked."""
    taken = image.match.of_any
    marks = ['' if is_crowd or place in taken else 'missed' for place, is_crowd in enumerate(image.is_crowd)]
    guesses, scores = np.asarray(image.prediction['labels'], int), np.asarray(image.prediction['scores'], float)
    shown, wrong = np.flatnonzero(scores >= SCORE), []
    for place in shown:
        partner = taken[place]
        if partner >= 0 and image.labels[partner] != guesses[place]:
            marks[partner] = f'taken for {names[guesses[place]]}'
            wrong.append('wrong class')
        else:
            wrong.append('' if partner != NONE else 'false positive')
    boxes = np.array([found['bbox'] for found in image.objects], float).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    named = names if len(names) > 1 else ['']
    codes = [truth.annToRLE(found) if found.get('segmentation') else None for found in image.objects]
    left = draw_objects(picture, boxes, image.labels + len(names) * image.is_crowd,
                        [*named, *(f'{name} (crowd)'.strip() for name in named)], [*colours, *colours],
                        partial(_mask, codes, picture.shape[:2]) if any(codes) else None, marks=marks)
    codes = image.prediction.get('masks')
    masks = None if codes is None else partial(_mask, [codes[place] for place in shown], picture.shape[:2])
    boxes = np.asarray(image.prediction['bboxes'], float).reshape(-1, 4)[shown]
    return left, draw_objects(picture, boxes, guesses[shown], named, colours, masks, scores[shown], wrong)


def _mask(codes, shape, place):
    """Return one mask, as those of all objects of a large picture would fill the memory; empty if of another size."""
    code = codes[place]
    return mask_api.decode(code) if code is not None and tuple(code['size']) == shape else np.zeros(shape, bool)
