"""Objects in a picture: masks, boxes and names."""
import cv2
import numpy as np

from .colours import ALARM, WHITE
from .names import chip, text_size
from .places import place

_ALPHA = 0.43


def draw_objects(picture, boxes, labels, names, colours, masks=None, scores=None, marks=None,
                 size: int = None) -> np.ndarray:
    """Draw objects into a copy of a picture, large ones first.

    Args:
        picture: RGB (H, W, 3) uint8.
        boxes: (n, 4): x1 y1 x2 y2 in pixels.
        labels: Class number of each object.
        names: The classes.
        colours: Their colours, from `class_colours`.
        masks: Sequence of n masks (H, W), or None.
        scores: Score of each object, or None.
        marks: For each object ``''``, or a word that is written before its name in the colour of an alarm, such as
            ``missed``, ``wrong`` or ``duplicate``; or None.
        size: Size of the names in pixels. Default: it depends on the size of the picture.

    Returns:
        The new picture. Where names would hide objects or each other, only the most important are drawn: marked ones,
        then large ones with a high score.
    """
    picture = np.array(picture, np.uint8, order='C')
    height, width = picture.shape[:2]
    boxes = np.nan_to_num(np.asarray(boxes, np.float64).reshape(-1, 4)).clip(0, (width, height) * 2)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    order, labels = np.argsort(-areas, kind='stable'), [int(label) for label in labels]
    hues = [tuple(colours[label]) if 0 <= label < len(colours) else WHITE for label in labels]
    size, marks = size or text_size(picture), marks or [''] * len(labels)
    line = max(round((height * width)**0.5 / 350), 1)
    if masks is not None:
        for index in order:
            _draw_mask(picture, masks[int(index)], hues[index], line)
    for index in order:
        _draw_box(picture, boxes[index], hues[index], line, marks[index])
    worth = areas * (1 if scores is None else np.asarray(scores, np.float64))
    first = sorted(range(len(labels)), key=lambda index: (not marks[index], -worth[index]))
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
            paste(picture, found, *corner)
    return picture


def paste(picture, part, x, y):
    """Copy a part into a picture, as far as it is inside."""
    target = picture[y:y + part.shape[0], x:x + part.shape[1]]
    target[:] = part[:target.shape[0], :target.shape[1]]


def _draw_mask(picture, mask, colour, line):
    mask = np.ascontiguousarray(mask).astype(bool, copy=False).view(np.uint8)
    x, y, width, height = cv2.boundingRect(mask)
    if not width:
        return
    mask, crop = mask[y:y + height, x:x + width], picture[y:y + height, x:x + width]
    tinted = cv2.addWeighted(crop, 1 - _ALPHA, np.full_like(crop, colour), _ALPHA, 0)
    cv2.copyTo(tinted, mask, crop)
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
