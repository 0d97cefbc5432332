"""Names of classes in pictures: on a chip in the colour of the class, in a size that fits the picture."""
import logging
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..text import printable
from .colours import INK, ink_on

#: Smallest text that can be read, in pixels.
_SMALLEST = 9
#: The name that the warning about fonts was about: there is one in a process.
_WARNED = []


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
    _warn_of(name)
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
    from fontTools.ttLib import TTFont, TTLibError
    try:
        with TTFont(file, fontNumber=0, lazy=True) as font:
            return frozenset(map(chr, font.getBestCmap() or ()))
    except (OSError, TTLibError):
        return frozenset()


def _warn_of(name):
    if _WARNED:
        return
    _WARNED.append(name)
    logging.getLogger(__name__).warning(
        'no font of this system has the letters of %r: pictures show codes instead. Install a font with them, such as '
        'fonts-noto-cjk', name)


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

    Args:
        name: The name; it is cut where it is too long.
        size: Size of the text in pixels.
        colour: (r, g, b).
        width: Largest width of the chip in pixels.
        suffix: Text after the name that is never cut, such as a score.
        framed: Whether it has a frame, in the colour of its text.
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

    Args:
        image: The image.
        x: Left end of the line in pixels.
        y: Top of the line.
        end: Right end of the line.
        names: The names, the most important first.
        colours: Their colours.
        size: Size of the text in pixels.
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
