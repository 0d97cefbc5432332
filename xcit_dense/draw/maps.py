"""Label maps over a picture, with the names of the classes."""
import cv2
import numpy as np

from .colours import ALARM, BLACK, WHITE
from .names import chip, text_size
from .objects import paste
from .places import place

_ALPHA = 0.6
#: How much remains of the picture where the label is ignored.
_DARK = 0.25
#: Names are placed on a label map whose longer side has at most so many pixels.
_COARSE = 256
#: A region smaller than this share of the picture gets no name.
_NAMED = 0.001
#: A name is in its region if it takes at most this share of it.
_COVERED = 0.25


def draw_map(picture, labels, names, colours, ignored=(255, ), named: bool = True) -> np.ndarray:
    """Blend a label map into a copy of a picture.

    Args:
        picture: RGB (H, W, 3) uint8.
        labels: Class numbers (H, W).
        names: The classes.
        colours: Their colours, from `class_colours`.
        ignored: Labels that are drawn dark. Other labels without a class are striped in the colour of an alarm.
        named: Whether to write the name of each class on its largest region.

    Returns:
        The new picture.
    """
    picture = np.ascontiguousarray(picture, np.uint8)
    places = _places(np.asarray(labels), len(names), ignored)
    table = np.array([*colours[:len(names)], WHITE, BLACK], np.uint8)
    result = cv2.addWeighted(picture, 1 - _ALPHA, _coloured(places, table), _ALPHA, 0)
    dark, unknown = places == len(names) + 1, places == len(names)
    if dark.any():
        result[dark] = (_DARK * picture[dark]).astype(np.uint8)
    if unknown.any():
        y, x = np.nonzero(unknown)
        striped = (x + y) // max(round((picture.shape[0] * picture.shape[1])**0.5 / 100), 4) % 2 == 0
        result[y[striped], x[striped]] = ALARM
    if named:
        _draw_names(result, places, names, colours)
    return result


def _places(labels, count, ignored):
    """Return labels as positions in a table: classes, no class, ignored; uint8 where that is enough."""
    kind = np.uint8 if count <= 254 else np.int32
    places = np.where((labels >= 0) & (labels < count), labels, count).astype(kind)
    for label in ignored:
        places[labels == label] = count + 1
    return places


def _coloured(places, table):
    if places.dtype == np.uint8:
        full = np.zeros((1, 256, 3), np.uint8)
        full[0, :len(table)] = table
        return cv2.LUT(cv2.merge([places] * 3), full)
    return table[places]


def _draw_names(picture, places, names, colours):
    height, width = picture.shape[:2]
    step = max(-(-max(height, width) // _COARSE), 1)
    coarse, size = places[step // 2::step, step // 2::step], text_size(picture)
    regions = []
    for label in np.unique(coarse):
        if label < len(names):
            region = _largest_region(coarse == label)
            if region[0] >= _NAMED * coarse.size:
                regions.append((int(label), *region))
    regions.sort(key=lambda region: -region[1])
    boxes, chips = [], []
    for label, area, (x, y), reach in regions:
        found = chip(names[label], size, tuple(colours[label]), min(width, 18 * size))
        x, y, reach = (x + 0.5) * step, (y + 0.5) * step, reach * step
        if found[..., 0].size <= _COVERED * area * step**2 and found.shape[0] <= 2 * reach:
            x, y, room = x - found.shape[1] / 2, y + found.shape[0] / 2, 0
        else:  # next to a small region
            room = reach
        boxes.append((x - room, y - room, x + room, y + room))
        chips.append(found)
    corners = place(boxes, [found.shape[1::-1] for found in chips], (height, width))
    for found, corner in zip(chips, corners, strict=True):
        if corner:
            paste(picture, found, *corner)


def _largest_region(mask):
    """Return the area of the largest region, its innermost point (x, y), and how far that is from the edge."""
    _, regions, stats, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=8)
    largest = int(stats[1:, cv2.CC_STAT_AREA].argmax()) + 1
    x, y, width, height, area = (int(value) for value in stats[largest])
    inside = np.pad(regions[y:y + height, x:x + width] == largest, 1).view(np.uint8)
    _, reach, _, (left, top) = cv2.minMaxLoc(cv2.distanceTransform(inside, cv2.DIST_L2, 3))
    return area, (x + left - 1, y + top - 1), reach
