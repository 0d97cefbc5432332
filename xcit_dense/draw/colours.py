"""Colours: one for each class, the same in every tool, and those of paper, text and alarms."""
import colorsys
from itertools import count

#: RGB, as everywhere in this folder.
PAPER, INK, FRAME, FAINT = (250, 250, 248), (30, 30, 30), (225, 225, 222), (110, 110, 110)
ALARM, WHITE, BLACK = (176, 0, 32), (255, 255, 255), (0, 0, 0)
_BACKGROUND = (90, 90, 90)
#: Saturation and value of the first classes, of as many more, and so on: by hue alone, only a few look different.
_TONES = ((0.85, 0.95), (0.45, 1.), (0.95, 0.6))
_HUES = 8


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
