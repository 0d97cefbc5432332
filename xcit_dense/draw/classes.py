"""How classes look in pictures: their colours, their names on chips, and where there is room for these."""
import colorsys
import logging
from functools import lru_cache
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .._utils.text import printable

#: RGB, as everywhere in this folder.
PAPER, INK, FRAME, FAINT = (250, 250, 248), (30, 30, 30), (225, 225, 222), (110, 110, 110)
ALARM, WHITE, BLACK = (176, 0, 32), (255, 255, 255), (0, 0, 0)
_BACKGROUND = (90, 90, 90)
#: Saturation and value of the first classes, of as many more, and so on: by hue alone, only a few look different.
_TONES = ((0.85, 0.95), (0.45, 1.), (0.95, 0.6))
_HUES = 8
#: Smallest text that can be read, in pixels.
_SMALLEST = 9
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


def class_colours(names, palette=None) -> list:
    """Return the colour of each class, (r, g, b) from 0 to 255.

    Args:
        names: The classes, in the order of their numbers.
        palette: The palette of the data set, one colour for each class. If it is missing or shorter, colours are
            generated: they depend only on the position of a class, neighbours are far apart in hue, and the background
            is grey. It does not count as a position, so that a detector without it has the same colours.
    """
    if palette is not None and not isinstance(palette, str) and len(palette) >= len(names):
        return [tuple(int(value) for value in colour) for colour in palette[:len(names)]]
    places = count()
    return [_BACKGROUND if name == 'background' else _generated(next(places)) for name in names]


def ink_on(colour) -> tuple:
    """Return black or white, whichever is easier to read on a colour."""
    red, green, blue = colour
    return BLACK if 0.3 * red + 0.59 * green + 0.11 * blue > 140 else WHITE


def _generated(place):
    saturation, value = _TONES[place // _HUES % len(_TONES)]
    return tuple(round(part * 255) for part in colorsys.hsv_to_rgb(place * 0.618034 % 1, saturation, value))


def text_size(picture) -> int:
    """Return the size of text for a picture (H, W, ...): readable also when a large picture is shown smaller."""
    height, width = picture.shape[:2]
    return max(round((height * width)**0.5 / 44), _SMALLEST)


def font_of(size, text: str = ''):
    """Return a font in a size in pixels that has the letters of a text: matplotlib's, or one of the system."""
    return ImageFont.truetype(_file_with(frozenset(text)) or _own_file(), size)


def legible(name) -> str:
    """Return a name as pictures show it: escaped where it is not printable, or where no font has its letters."""
    name = printable(name)
    if _file_with(frozenset(name)):
        return name
    _warn()
    return ''.join(c if c.isascii() else c.encode('unicode_escape').decode() for c in name)


@lru_cache(1)
def _own_file():
    import matplotlib  # slow to import
    return Path(matplotlib.get_data_path(), 'fonts/ttf/DejaVuSans.ttf')


@lru_cache(4096)
def _file_with(letters):
    """Return the file of a font with some letters, or None."""
    if all(letter.isascii() for letter in letters) or letters <= _letters_of(_own_file()):
        return _own_file()
    return next((file for file in _system_files() if letters <= _letters_of(file)), None)


@lru_cache(1)
def _system_files():
    from matplotlib import font_manager
    return sorted(font_manager.findSystemFonts(), key=lambda file: ('cjk' not in file.lower(), file))


@lru_cache(256)
def _letters_of(file) -> frozenset:
    from matplotlib.ft2font import FT2Font
    try:
        return frozenset(map(chr, FT2Font(str(file)).get_charmap()))
    except RuntimeError:  # it is damaged
        return frozenset()


@lru_cache(1)
def _warn():
    logging.getLogger(__name__).warning(
        'no font of this system has the letters of some names: pictures show codes instead. Install a font with them, '
        'such as fonts-noto-cjk')


def fit_text(text, font, width) -> str:
    """Return a text in printable form, cut to a width in pixels."""
    text = printable(text)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f'{text}...') > width:
        text = text[:-1]
    return f'{text}...'


@lru_cache(1024)
def chip(name, size, colour, width, suffix='', framed: bool = False) -> np.ndarray:
    """Return a name on its colour, (h, w, 3) uint8; read only, because it is kept.

    ``size`` is that of the text, and ``width`` the largest of the chip, in pixels. A name that is too long is cut, but
    not a suffix, such as a score. A frame has the colour of the text.
    """
    name = legible(name)
    font, edge = font_of(size, name), max(round(size / 5), 2)
    suffix = f' {suffix}' if suffix else ''
    text = fit_text(name, font, max(width - 2 * edge - font.getlength(suffix), 0)) + suffix
    shape = max(int(font.getlength(text)) + 2 * edge, 1), round(1.25 * size)
    image = Image.new('RGB', shape, colour)
    if framed:
        ImageDraw.Draw(image).rectangle((0, 0, shape[0] - 1, shape[1] - 1), outline=ink_on(colour),
                                        width=max(size // 12, 1))
    ImageDraw.Draw(image).text((edge, shape[1] / 2), text, fill=ink_on(colour), font=font, anchor='lm')
    result = np.asarray(image)
    result.flags.writeable = False
    return result


def draw_legend(image, x, y, end, names, colours, size):
    """Write as many names with their colours as fit into a line of a PIL image, and how many more there are.

    The line goes from ``x`` to ``end``, with its top at ``y``, in pixels as the ``size`` of the text.
    """
    draw, side = ImageDraw.Draw(image), round(0.85 * size)
    for place, (name, colour) in enumerate(zip(names, colours, strict=True)):
        name = legible(name)
        font = font_of(size, name)
        text = fit_text(name, font, 11 * size)
        width = font.getlength(text) + 2 * size
        if x + width > end - 3 * size and place < len(names) - 1 or x + width > end:
            draw.text((x, y), f'+{len(names) - place}', fill=INK, font=font)
            return
        draw.rectangle((x, y + 2, x + side, y + 2 + side), fill=colour, outline=INK)
        draw.text((x + side + 5, y), text, fill=INK, font=font)
        x += width


def place(boxes, sizes, shape) -> list:
    """Return for each box the corner (x, y) of its chip, or None where there is no room.

    Args:
        boxes: (n, 4): x1 y1 x2 y2 in pixels, the most important first.
        sizes: Width and height of each chip.
        shape: Height and width of the picture.
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
    corners = np.array(corners).clip(0, (max(shape[1] - width, 0), max(shape[0] - height, 0)))
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
