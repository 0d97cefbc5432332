"""Predictions and ground truth over a picture: masks, boxes and label maps, with the names of the classes."""
import cv2
import numpy as np

from .classes import ALARM, BLACK, WHITE, chip, place, repeats, text_size

#: How much of the colour of a mask, and of a label, covers the picture.
_MASK_ALPHA, _MAP_ALPHA = 0.43, 0.6
#: How much remains of the picture where the label is ignored.
_DARK = 0.25
#: Names are placed on a label map whose longer side has at most so many pixels.
_COARSE = 256
#: A region smaller than this share of the picture gets no name.
_NAMED = 0.001
#: A name is in its region if it takes at most this share of it.
_COVERED = 0.25


def draw_objects(picture, boxes, labels, names, colours, masks=None, scores=None, marks=None,
                 size: int = None) -> np.ndarray:
    """Draw objects into a copy of a picture, the best on top: highest score, then smallest; without scores, smallest.

    Each mask is blended with the picture, not with worse objects below it. Boxes are drawn over all masks, except those
    of duplicates: like the names of duplicates, they are not drawn into the better object.

    Args:
        picture: RGB (H, W, 3) uint8.
        boxes: (n, 4): x1 y1 x2 y2 in pixels.
        labels: Class number of each object.
        names: The classes.
        colours: Their colours, from `class_colours`.
        masks: Sequence of n masks (H, W), or None.
        scores: Score of each object, or None.
        marks: For each object ``''``, or a word that is written before its name in the colour of an alarm, such as
            ``missed``, ``wrong`` or ``duplicate``; or None. The box of a marked object is over all masks.
        size: Size of the names in pixels. Default: it depends on the size of the picture.

    Returns:
        The new picture. Where names would hide objects or each other, only the most important are drawn: marked ones,
        then large ones with a high score, then duplicates.
    """
    picture = np.ascontiguousarray(picture, np.uint8)
    drawn, (height, width) = picture.copy(), picture.shape[:2]
    boxes = np.nan_to_num(np.asarray(boxes, np.float64).reshape(-1, 4)).clip(0, (width, height) * 2)
    areas, labels = (boxes[:, 2:] - boxes[:, :2]).prod(1), [int(label) for label in labels]
    worth = np.ones(len(labels)) if scores is None else np.asarray(scores, np.float64)
    best_first = np.lexsort((areas, -worth))
    hues = [tuple(colours[label]) if 0 <= label < len(colours) else WHITE for label in labels]
    size, marks = size or text_size(picture), marks or [''] * len(labels)
    line = max(round((height * width)**0.5 / 350), 1)
    again = np.zeros(len(labels), bool)
    if scores is not None:
        again[best_first] = [repeats(boxes[index], boxes[best_first[:rank]]).any()
                             for rank, index in enumerate(best_first)]
    for index in best_first[::-1]:
        if masks is not None:
            _draw_mask(drawn, picture, masks[int(index)], hues[index], line)
        if again[index] and not marks[index]:
            _draw_box(drawn, boxes[index], hues[index], line, '')
    for index in best_first[::-1]:
        if not again[index] or marks[index]:
            _draw_box(drawn, boxes[index], hues[index], line, marks[index])
    first = sorted(range(len(labels)), key=lambda index: (not marks[index], again[index], -areas[index] * worth[index]))
    chips = []
    for index in first:
        name = names[labels[index]] if 0 <= labels[index] < len(names) else f'class {labels[index]}'
        if marks[index]:
            name = f'{marks[index]}: {name}'
        chips.append(chip(name, size, ALARM if marks[index] else hues[index], min(width, 18 * size),
                          '' if scores is None else f'{float(scores[index]):.2f}', bool(marks[index])))
    places = place(boxes[first], [found.shape[1::-1] for found in chips], (height, width))
    for found, corner in zip(chips, places, strict=True):
        if corner:
            paste(drawn, found, *corner)
    return drawn


def paste(picture, part, x, y):
    """Copy a part into a picture, as far as it is inside."""
    target = picture[y:y + part.shape[0], x:x + part.shape[1]]
    target[:] = part[:target.shape[0], :target.shape[1]]


def _draw_mask(drawn, picture, mask, colour, line):
    mask = np.ascontiguousarray(mask).astype(bool, copy=False).view(np.uint8)
    x, y, width, height = cv2.boundingRect(mask)
    if not width:
        return
    mask, crop, below = (array[y:y + height, x:x + width] for array in (mask, drawn, picture))
    cv2.copyTo(cv2.addWeighted(below, 1 - _MASK_ALPHA, np.full_like(crop, colour), _MASK_ALPHA, 0), mask, crop)
    # contours would take long for masks with many holes
    inner = cv2.erode(mask, None, iterations=max(line // 2, 1), borderType=cv2.BORDER_CONSTANT, borderValue=0)
    cv2.copyTo(np.full_like(crop, colour), mask - inner, crop)


def _draw_box(picture, box, colour, line, mark):
    x1, y1, x2, y2 = (int(round(value)) for value in box)
    line = min(line, max(min(x2 - x1, y2 - y1) // 8, 1))
    if mark:
        cv2.rectangle(picture, (x1 - line, y1 - line), (x2 + line, y2 + line), WHITE, 4 * line)
        cv2.rectangle(picture, (x1 - line, y1 - line), (x2 + line, y2 + line), ALARM, 3 * line)
    cv2.rectangle(picture, (x1, y1), (x2, y2), colour, line)


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
    result = cv2.addWeighted(picture, 1 - _MAP_ALPHA, np.take(table, places, 0), _MAP_ALPHA, 0)
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
