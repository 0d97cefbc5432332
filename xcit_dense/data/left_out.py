"""What a training without labels leaves out of a folder of images: label maps, and images held out for later."""
import io
import os
import re
from collections import defaultdict
from glob import escape
from pathlib import Path

import numpy as np
from PIL import Image

from .files import FORMATS
from .names import MAP_SUFFIXES, MAPS, part_of, plain

#: A label map has at most so many different values, counted in at most so many pixels; a photograph has more.
_VALUES, _PIXELS = 64, 1 << 16
#: So many files of a group are read to see whether all are label maps.
_LOOKED_AT = 8
_NAMES = {*MAPS, 'gtcoarse'}
_PARTS = dict(val='images for validation', test='images for test')


def find_left_out(names, read) -> dict:
    """Return what not to train on: label maps, and images of the validation and the test if there are training ones.

    Images are label maps if they have few values and are in a folder with a usual name of such folders, or have the
    names of other images, apart from an ending.

    Args:
        names: The images, relative to their folder.
        read: Returns the bytes of an image.

    Returns:
        What they are, by pattern.
    """
    names = [name.replace(os.sep, '/') for name in names]
    found = dict.fromkeys(_maps(names, read), 'label maps')
    folders = {os.path.dirname(name) for name in names}
    parts = {folder: part_of(Path('/', folder), Path('/')) for folder in folders}
    if 'train' in parts.values():
        found.update((f'{escape(folder)}/*', _PARTS[part]) for folder, part in sorted(parts.items())
                     if part in _PARTS and f'{escape(folder)}/*' not in found)
    return found


def _maps(names, read):
    """Return the patterns of label maps; none if nothing else would be left."""
    by_stem = defaultdict(list)
    for name in names:
        by_stem[_stem(name)].append(name)
    groups, is_named = defaultdict(list), {}
    for name in names:
        if name.lower().endswith(MAP_SUFFIXES):
            folder = os.path.dirname(name)
            named = not _NAMES.isdisjoint(map(plain, folder.split('/')))
            end = '' if named else _ending(name, by_stem)
            if end is not None:
                pattern = f'{escape(folder)}/*{escape(end)}'.lstrip('/')
                groups[pattern].append(name)
                is_named[pattern] = named
    found = [pattern for pattern, members in groups.items() if _are_maps(members, read)]
    taken = {name for pattern in found for name in groups[pattern]}
    if len(taken) == len(names):
        return []
    # of two kinds of images with few values, none is the map of the other
    return sorted(pattern for pattern in found if is_named[pattern] or any(
        other not in taken for name in groups[pattern][:_LOOKED_AT] for other in _others(name, by_stem)))


def _stem(name):
    return os.path.splitext(os.path.basename(name))[0]


def _cuts(stem):
    """Yield a stem, and what is left of it without an ending."""
    yield stem
    for found in reversed(list(re.finditer(r'[_.-]', stem))):
        if found.start():
            yield stem[:found.start()]


def _others(name, by_stem):
    """Return other images with the same name, apart from an ending."""
    return next((others for cut in _cuts(_stem(name)) if (others := [
        other for other in by_stem.get(cut, ()) if other != name])), [])


def _ending(name, by_stem):
    """Return the ending of an image's name after that of another, '' if it is only the suffix; None without another."""
    stem = _stem(name)
    cut = next((cut for cut in _cuts(stem) if any(other != name for other in by_stem.get(cut, ()))), None)
    return None if cut is None else name[-len(os.path.basename(name)) + len(cut):] if cut != stem else ''


def _are_maps(names, read):
    """Whether all of some images that can be read have few values."""
    chosen = names[::-(-len(names) // _LOOKED_AT)]
    amounts = (_values(read, name) for name in chosen)
    readable = False
    for amount in amounts:
        if amount is not None and amount > _VALUES:
            return False
        readable |= amount is not None
    return readable


def _values(read, name):
    """Return the number of different values of an image; None if it cannot be read."""
    try:
        with Image.open(io.BytesIO(read(name)), formats=FORMATS) as image:
            pixels = np.asarray(image)
    except Exception:  # PIL raises many types of errors; the data check reports the file
        return None
    step = max(int((pixels.shape[0] * pixels.shape[1] / _PIXELS) ** 0.5), 1)
    pixels = pixels[::step, ::step]
    return len(np.unique(pixels.reshape(-1, *pixels.shape[2:]), axis=0))
