"""Places for names: next to what they name, over as little else as possible."""
import numpy as np

#: A chip may lie in its box if it takes at most this share of it.
_SHARE = 0.06
#: A chip hides an object if the object is smaller than this many chips.
_SMALL = 6
#: A chip is left out if this share of it is on other chips, or it hides this share of small objects.
_ON_CHIPS, _ON_OBJECTS = 0.05, 0.6
#: All chips together take at most this share of the picture.
_ALL = 0.15
#: Boxes with a larger IoU are taken for the same object: the name of the less important is not in the other box.
_SAME = 0.5


def place(boxes, sizes, shape) -> list:
    """Find places for the chips of boxes.

    Args:
        boxes: (n, 4): x1 y1 x2 y2 in pixels, the most important first.
        sizes: Width and height of each chip.
        shape: Height and width of the picture.

    Returns:
        For each box the corner (x, y) of its chip, or None where there is no room.
    """
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    areas = np.maximum((boxes[:, 2:] - boxes[:, :2]).prod(1), 1)
    taken, left, places = np.zeros((0, 4)), _ALL * shape[0] * shape[1], []
    for index, (box, (width, height)) in enumerate(zip(boxes, sizes, strict=True)):
        chips = _candidates(box, width, height, shape, areas[index])
        area = width * height
        on_chips = _overlaps(chips, taken).sum(1) / area
        hidden = _overlaps(chips, boxes) / areas * (areas < _SMALL * area)
        cost = 4 * on_chips + hidden.sum(1) + hidden[:, index] + 0.02 * np.arange(len(chips))
        best = int(cost.argmin())
        fits = (on_chips[best] <= _ON_CHIPS and hidden[best].max() <= _ON_OBJECTS and area <= left
                and not _overlaps(chips[best:best + 1], boxes[:index][repeats(box, boxes[:index])]).any())
        if fits or index == 0:
            places.append(tuple(int(round(value)) for value in chips[best, :2]))
            taken, left = np.vstack([taken, chips[best]]), left - area
        else:
            places.append(None)
    return places


def _candidates(box, width, height, shape, area):
    """Return places (k, 4) around a box, the best first, all of them in the picture."""
    x1, y1, x2, y2 = box
    corners = [(x1, y1 - height), (x1, y2), (x2 - width, y1 - height), (x2 - width, y2), (x2, y1), (x1 - width, y1)]
    if width * height <= _SHARE * area:
        corners.insert(1, (x1, y1))
    corners = np.array(corners)
    corners[:, 0] = corners[:, 0].clip(0, max(shape[1] - width, 0))
    corners[:, 1] = corners[:, 1].clip(0, max(shape[0] - height, 0))
    return np.hstack([corners, corners + (width, height)])


def repeats(box, boxes) -> np.ndarray:
    """Return which of some boxes (n, 4) are so much like a box (4, ) that both are the same object."""
    both, areas = _overlaps(box[None], boxes)[0], (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return both > _SAME * (areas + (box[2:] - box[:2]).prod() - both)


def _overlaps(chips, boxes):
    """Return the common area (k, n) of each chip with each box."""
    low = np.maximum(chips[:, None, :2], boxes[None, :, :2])
    high = np.minimum(chips[:, None, 2:], boxes[None, :, 2:])
    return np.maximum(high - low, 0).prod(2)
