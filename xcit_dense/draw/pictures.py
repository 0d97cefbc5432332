"""Pictures: masks, boxes, label maps and the names of classes over an image, and rows of panels with maps."""
import textwrap
from typing import NamedTuple

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
#: In pixels: largest width of a picture, largest height of a panel, gap around panels, height of a title and of a line
#: of the note, and width of a column, as titles would not fit into narrower ones.
WIDTH, PANEL_HEIGHT, GAP, TITLE, LINE, COLUMN = 1600, 480, 12, 26, 20, 185
#: Percentiles of a map that its colour scale starts and ends at.
LOW, HIGH = 1, 99
RULE = (f'Each map has its own colour scale, from its {LOW}st to its {HIGH}th percentile (dark to bright); values '
        'beyond are clipped.')


def draw_objects(picture, boxes, labels, names, colours, masks=None, scores=None, marks=None,
                 size: int = None) -> np.ndarray:
    """Draw objects into a copy of a picture, the best on top: highest score, then smallest; without scores, smallest.

    Each mask is blended with the picture, not with worse objects below it. Boxes are drawn over all masks, except those
    of duplicates: like the names of duplicates, they are not drawn into the better object. Where names would hide
    objects or each other, only the most important are drawn: marked ones, then large ones with a high score, then
    duplicates.

    Args:
        picture: RGB (H, W, 3) uint8.
        boxes: (n, 4): x1 y1 x2 y2 in pixels.
        labels: Class number of each object.
        names: The classes; one that is ``''`` is not written.
        colours: Their colours, from `class_colours`.
        masks: Sequence of n masks (H, W); or, where all may not fit into memory, a function from the index of an object
            to its mask; or None.
        scores: Score of each object, or None.
        marks: For each object ``''``, or a word that is written before its name in white on black, such as ``missed``,
            ``wrong`` or ``duplicate``; or None. A marked object has a frame in white and black, which no class has
            together, around it: nothing of it is under the frame, and the frame is over all masks.
        size: Size of the names in pixels. Default: it depends on the size of the picture.
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
            mask = masks(int(index)) if callable(masks) else masks[int(index)]
            _draw_mask(drawn, picture, mask, hues[index], line)
        if again[index] and not marks[index]:
            _draw_box(drawn, boxes[index], hues[index], line, '')
    for index in best_first[::-1]:
        if not again[index] or marks[index]:
            _draw_box(drawn, boxes[index], hues[index], line, marks[index])
    first = sorted(range(len(labels)), key=lambda index: (not marks[index], again[index], -areas[index] * worth[index]))
    named, chips = [], []
    for index in first:
        name = names[labels[index]] if 0 <= labels[index] < len(names) else f'class {labels[index]}'
        name = ': '.join(filter(None, (marks[index], name)))
        if scores is not None or name:
            named.append(index)
            chips.append(chip(name, size, BLACK if marks[index] else hues[index], min(width, 18 * size),
                              '' if scores is None else f'{float(scores[index]):.2f}', bool(marks[index])))
    frames = np.outer([4 * line * bool(marks[index]) for index in named], (-1, -1, 1, 1)).reshape(-1, 4)
    places = place(boxes[named] + frames, [found.shape[1::-1] for found in chips], (height, width))
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
    if not mark:
        cv2.rectangle(picture, (x1, y1), (x2, y2), colour, line)
    for ring in range(4 * line) if mark else ():  # from the object outwards
        cv2.rectangle(picture, (x1 - 1 - ring, y1 - 1 - ring), (x2 + 1 + ring, y2 + 1 + ring),
                      (colour, WHITE, BLACK, BLACK)[ring // line], 1)


def draw_map(picture, labels, names, colours, ignored=(255, ), named: bool = True) -> np.ndarray:
    """Blend a label map into a copy of a picture.

    Args:
        picture: RGB (H, W, 3) uint8.
        labels: Class numbers (H, W).
        colours: Their colours, from `class_colours`.
        ignored: Labels that are drawn dark. Other labels without a class are striped in the colour of an alarm.
        named: Whether to write the name of each class on its largest region.
    """
    picture = np.ascontiguousarray(picture, np.uint8)
    labels, count = np.asarray(labels).astype(np.int32), len(names)
    places = np.where((labels >= 0) & (labels < count), labels, count)  # in the table: classes, no class, ignored
    places[np.isin(labels, ignored)] = count + 1
    table = np.array([*colours[:count], WHITE, BLACK], np.uint8)
    result = cv2.addWeighted(picture, 1 - _MAP_ALPHA, np.take(table, places, 0), _MAP_ALPHA, 0)
    dark, unknown = places == count + 1, places == count
    if dark.any():
        result[dark] = (_DARK * picture[dark]).astype(np.uint8)
    if unknown.any():
        y, x = np.nonzero(unknown)
        striped = (x + y) // max(round((picture.shape[0] * picture.shape[1])**0.5 / 100), 4) % 2 == 0
        result[y[striped], x[striped]] = ALARM
    if named:
        _draw_names(result, places, names, colours)
    return result


def _draw_names(picture, places, names, colours):
    height, width = picture.shape[:2]
    step = max(-(-max(height, width) // _COARSE), 1)
    coarse, size = places[step // 2::step, step // 2::step], text_size(picture)
    regions = [(int(label), *_largest_region(coarse == label)) for label in np.unique(coarse) if label < len(names)]
    boxes, chips = [], []
    for label, area, (x, y), reach in sorted(regions, key=lambda region: -region[1]):
        if area < _NAMED * coarse.size:
            break
        found = chip(names[label], size, tuple(colours[label]), min(width, 18 * size))
        x, y, reach = (x + 0.5) * step, (y + 0.5) * step, reach * step
        room = reach  # next to a small region
        if found[..., 0].size <= _COVERED * area * step**2 and found.shape[0] <= 2 * reach:
            x, y, room = x - found.shape[1] / 2, y + found.shape[0] / 2, 0
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


class Panel(NamedTuple):
    """The image, or a map over it.

    Args:
        title: The text above it.
        values: A map (h, w), drawn in a perceptually uniform colormap, or (h, w, 3), drawn as RGB; None for the image
            itself.
        cells: How many rows and columns of the map the image covers, as fractional numbers: the last cells may reach
            beyond the image, or end before it.
        ahead: By how many cells the map starts above and to the left of the image.
        over_image: Whether the image shows through, in grey.
    """
    title: str
    values: np.ndarray = None
    cells: tuple = None
    ahead: float = 0.
    over_image: bool = False


def draw_panels(image, rows, note, file):
    """Write a picture as PNG, at most `WIDTH` wide, into a file of any name.

    Args:
        image: RGB (H, W, 3) uint8.
        rows: Lists of `Panel`; None leaves a place empty.
        note: What the panels show; `RULE` is added.
    """
    from matplotlib.figure import Figure  # slow to import
    columns = max(map(len, rows))
    height, width = _panel_size(image, columns)
    pitch = max(width, COLUMN)
    total_width = columns * (pitch + GAP) + GAP
    lines = textwrap.wrap(f'{note} {RULE}', total_width // 7)
    total_height = len(rows) * (height + TITLE) + len(lines) * LINE + 2 * GAP
    figure = Figure((total_width / 100, total_height / 100), dpi=100)
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            if panel is None:
                continue
            left, top = GAP + j * (pitch + GAP) + (pitch - width) // 2, i * (height + TITLE) + TITLE
            figure.figimage(colours_of(panel, small), left, total_height - top - height, resize=False)
            figure.text((left + width / 2) / total_width, 1 - (top - 7) / total_height, panel.title, fontsize=10.5,
                        ha='center', va='baseline')
    figure.text(GAP / total_width, (GAP + len(lines) * LINE / 2) / total_height, '\n'.join(lines), fontsize=9,
                color='0.3', va='center', linespacing=1.4)
    figure.savefig(file, format='png')


def colours_of(panel: Panel, image) -> np.ndarray:
    """Return a panel as RGB (H, W, 3) uint8, as large as ``image`` (also RGB uint8); white where the map ends early."""
    if panel.values is None:
        return image
    # percentiles become 0 and 1, for each channel if there are some; a flat map is 0
    low, high = np.percentile(panel.values, (LOW, HIGH), axis=(0, 1))
    values = ((panel.values - low) / np.maximum(high - low, 1e-30)).clip(0, 1).astype(np.float32)
    rows, columns = panel.cells
    height, width = image.shape[:2]
    # cells smaller than pixels are averaged, larger ones keep their borders
    sizes = [min(count, max(round(length * count / cells), 1))
             for count, length, cells in zip(values.shape, (height, width), (rows, columns), strict=False)]
    places = [(np.arange(length) + 0.5) / length * cells
              for length, cells in zip((height, width), (rows, columns), strict=True)]
    # the last cell of a map that starts ahead of the image is stretched to where the map would end otherwise
    ends = [place >= count for place, count in zip(places, values.shape, strict=False)]
    down, across = (((place + panel.ahead) * size / count).astype(int).clip(max=size - 1)
                    for place, size, count in zip(places, sizes, values.shape, strict=False))
    values = cv2.resize(values, sizes[::-1], interpolation=cv2.INTER_AREA)[down][:, across]
    if values.ndim == 2:
        from matplotlib import colormaps
        values = colormaps['inferno'](values)[..., :3]
    if panel.over_image:
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None] / 255
        values = 0.35 * grey + 0.65 * values
    colours = (255 * values).round().astype(np.uint8)
    colours[ends[0]] = colours[:, ends[1]] = 255
    return colours


def _panel_size(image, columns):
    """Return height and width of a panel, with the aspect ratio of the image."""
    height, width = image.shape[:2]
    scale = min(((WIDTH - GAP) // columns - GAP) / width, PANEL_HEIGHT / height)
    return max(round(height * scale), 1), max(round(width * scale), 1)
