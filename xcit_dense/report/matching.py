"""Which prediction of an image belongs to which object, and which have none."""
from typing import NamedTuple

import numpy as np
from pycocotools import mask as mask_api

#: The least IoU of boxes of an object and its prediction, and the lowest score that counts: that of drawing.
IOU, SCORE = 0.5, 0.3
RULE = (f'Predictions with a score of at least {SCORE}, highest first: each takes the free object of its class with '
        f'the highest IoU of boxes, at least {IOU}. Predictions left over then take free objects of other classes in '
        'the same way. What remains counts as background, also a second prediction of an object. Crowd regions are '
        f'left out, and so are predictions of their class with at least {IOU:.0%} of their area inside.')
#: In the place of an object: the prediction has none, or it counts as neither right nor wrong.
NONE, IGNORED = -1, -2


class Match(NamedTuple):
    """The objects of the predictions in an image.

    Args:
        of_class: For each prediction the place of its object of the same class, or `NONE` or `IGNORED`.
        of_any: The same, with objects of other classes too, and `NONE` for all with a score below `SCORE`.
        again: For each prediction whether another one took the object of the same class that it overlaps.
    """
    of_class: np.ndarray
    of_any: np.ndarray
    again: np.ndarray


def match(boxes, labels, is_crowd, predictions, guesses, scores) -> Match:
    """Return the `Match` of an image; within a class it is that of pycocotools.

    Args:
        boxes: (n, 4) objects: x, y, width, height.
        labels: (n, ) their classes.
        is_crowd: (n, ) bool.
        predictions: (m, 4) predicted boxes.
        guesses: (m, ) their classes.
        scores: (m, ) their scores.
    """
    of_class, again = np.full(len(predictions), NONE), np.zeros(len(predictions), bool)
    if not len(predictions) or not len(boxes):
        return Match(of_class, of_class.copy(), again)
    ious = np.asarray(mask_api.iou(np.ascontiguousarray(predictions, float), np.ascontiguousarray(boxes, float),
                                   np.asarray(is_crowd, np.uint8).tolist()))
    near, is_crowd = ious >= IOU, np.asarray(is_crowd, bool)
    same, order, free = near & (guesses[:, None] == labels), np.argsort(-scores, kind='stable'), ~is_crowd
    _take(order, same, ious, free, of_class)
    of_class[(of_class == NONE) & (same & is_crowd).any(1)] = IGNORED
    again[(of_class == NONE) & (same & ~is_crowd).any(1)] = True
    # the same for a prediction whatever others with a lower score do
    of_any, sure = of_class.copy(), scores >= SCORE
    of_any[~sure] = NONE
    free = ~is_crowd
    free[of_any[of_any >= 0]] = False
    _take(order[(sure & (of_any == NONE))[order]], near, ious, free, of_any)
    return Match(of_class, of_any, again & (of_any == NONE))


def _take(order, allowed, ious, free, taken):
    """Let predictions take the best free objects that they may have; of equal ones the last, as pycocotools does."""
    for place in order[(allowed & free).any(1)[order]]:
        worth = np.where(allowed[place] & free, ious[place], -1)
        best = len(worth) - 1 - int(worth[::-1].argmax())
        if worth[best] >= 0:
            taken[place], free[best] = best, False


class Best(NamedTuple):
    """The score threshold of the highest F1 of a class, with precision, recall and F1 there; None where undefined."""
    threshold: float | None = None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None


def best_of(scores, right, objects) -> Best:
    """Return the `Best` of a class; of equal F1 the one with the highest threshold.

    Args:
        scores: Score of each prediction.
        right: Whether it found an object.
        objects: How many objects there are.
    """
    if not objects or not np.any(right):
        return Best(recall=0., f1=0.) if objects else Best()
    order = np.argsort(-scores, kind='stable')
    scores, hits = scores[order], np.cumsum(right[order])
    ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))  # equal scores pass together
    hits, predictions = hits[ends], ends + 1
    f1 = 2 * hits / (predictions + objects)
    best = int(f1.argmax())
    return Best(float(scores[ends[best]]), float(hits[best] / predictions[best]), float(hits[best] / objects),
                float(f1[best]))
