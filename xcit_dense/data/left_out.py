"""What a training without labels leaves out of a folder of images: label maps, and images held out for later."""
import io
import os
import re
from collections import defaultdict
from glob import escape

import numpy as np
from PIL import Image

from .files import FORMATS
from .names import MAP_SUFFIXES, MAPS, part_in, plain

#: A label map has at most so many different values, counted in about so many pixels; a photograph has more.
_VALUES, _PIXELS = 64, 1 << 16
#: So many files of a group are read to see whether all are label maps.
_LOOKED_AT = 32
#: More files in different folders with one name are numbered, not images and their label maps.
_NAMESAKES = 16
_NAMES = {*MAPS, 'gtcoarse'}
_PARTS = dict(val='images for validation', test='images for test')


def find_left_out(names, read) -> dict:
    """Return what not to train on: label maps, and images of the validation and the test if there are training ones.

    Images are label maps if they have few values and either are below a folder with a usual name of such folders, or
    have the name, apart from an ending, and the size of an image with many values. Images are for validation or test
    if a folder beside theirs, or beside one above it, has the same name with "train" in place of "val" or "test".

    Args:
        names: The images, relative to their folder.
        read: Returns the bytes of an image.

    Returns:
        What they are, by pattern.
    """
    names = [name.replace(os.sep, '/') for name in names]
    maps, patterns = _maps(names, read)
    if len(maps) == len(names):
        return {}
    return dict.fromkeys(patterns, 'label maps') | _held_out(name for name in names if name not in maps)


def _held_out(names):
    """Return the parts for which images are held out, by pattern."""
    folders = {os.path.dirname(name) for name in names}
    while above := {os.path.dirname(folder) for folder in folders} - folders:
        folders |= above
    beside = defaultdict(list)
    for folder in sorted(folders):
        above, name = os.path.split(folder)
        part, rest = part_in(name)
        beside[above, rest].append((part, folder))
    return {f'{escape(folder)}/*': _PARTS[part] for found in beside.values() if 'train' in dict(found)
            for part, folder in found if part in _PARTS}


def _maps(names, read):
    """Return the names of label maps, and patterns that match them and, as far as samples show, nothing else."""
    candidates = [name for name in names if name.lower().endswith(MAP_SUFFIXES)]
    by_stem, groups = defaultdict(list), defaultdict(dict)
    for name in names if candidates else ():
        folder, stem = os.path.dirname(name), _stem(name)
        by_stem[stem].append(name)
        by_stem[folder, stem].append(name)
    for name in candidates:
        folder, end = _named(name), os.path.splitext(name)[1]
        if folder:
            groups[f'{folder}/', end][name] = None
            continue
        ending, others = _others(name, by_stem)
        if others:  # one pattern for all *_mask.png
            folder = os.path.dirname(name) if ending == end else ''
            groups[f'{folder}/'.lstrip('/'), ending][name] = others
    found, patterns = set(), []
    for (folder, end), members in groups.items():
        if _all(members, lambda name, members=members: _is_map(read, name, members[name])):
            matched = {name for name in names if name.startswith(folder) and name.endswith(end)}
            strangers = sorted(matched - members.keys())
            if not strangers or _all(strangers, lambda name: _is_map(read, name)):
                found |= matched
                patterns.append(f'{escape(folder)}*{escape(end)}')
    return found, sorted(patterns)


def _stem(name):
    return os.path.splitext(os.path.basename(name))[0]


def _named(name):
    """Return the nearest folder above an image that has a name of folders of label maps, or ''."""
    folder = os.path.dirname(name)
    while folder and plain(os.path.basename(folder)) not in _NAMES:
        folder = os.path.dirname(folder)
    return folder


def _others(name, by_stem):
    """Return the ending of an image's name after that of others, and these others: in its folder or, if none, in all.

    The ending of ``1_mask.png`` beside ``1.png`` is ``_mask.png``.
    """
    folder, stem = os.path.dirname(name), _stem(name)
    for cut in (stem, *(stem[:found.start()] for found in reversed(list(re.finditer(r'[_.-]', stem))))):
        for same in (by_stem.get((folder, cut), ()), by_stem.get(cut, ())) if cut else ():
            others = [other for other in same if other != name] if len(same) <= _NAMESAKES else []
            if others:
                return os.path.basename(name)[len(cut):], others
    return '', []


def _all(names, test):
    """Whether some of the images pass a test, evenly chosen; None of an image that cannot be read does not count."""
    names, passed = list(names), False
    for name in names[::-(-len(names) // _LOOKED_AT)]:
        result = test(name)
        if result is False:
            return False
        passed |= result is not None
    return passed


def _is_map(read, name, others=None):
    """Whether an image has few values and, if there are others, one of them has its size and many; None: unreadable."""
    look = _look(read, name)
    if look is None:
        return None
    size, values = look
    return values <= _VALUES and (others is None or any(
        found and found[0] == size and found[1] > _VALUES for found in (_look(read, other) for other in others)))


def _look(read, name):
    """Return the size of an image and the number of its different values; None if it cannot be read."""
    try:
        with Image.open(io.BytesIO(read(name)), formats=FORMATS) as image:
            pixels = np.asarray(image)
    except Exception:  # PIL raises many types of errors; the data check reports the file
        return None
    step = max(int((pixels.shape[0] * pixels.shape[1] / _PIXELS) ** 0.5), 1)
    values = pixels[::step, ::step]
    if values.ndim > 2:  # of bytes; as one number, whose sorting is much faster
        values = values @ (1 << 8 * np.arange(values.shape[2]))
    return pixels.shape[:2], len(np.unique(values))
