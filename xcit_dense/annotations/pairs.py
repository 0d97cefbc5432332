"""Pairs of folders with images and label maps, found by their usual names and by the files in them."""
import os
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from .._utils.text import counted, listed
from ..data.folders import IMAGE_SUFFIXES, MAP_SUFFIXES, MAPS, WORDS, names_below, names_in_list, part_in, plain
from ..errors import DataError

#: Names of folders of images, as `plain` writes them.
_IMAGES = ('images', 'image', 'imgs', 'img', 'imgdir', 'jpegimages', 'leftimg8bit', 'rgb', 'pictures',
           'input', 'inputs', 'pngimages')
#: Ends of names, as `plain` writes them, by which the label map with classes is chosen if an image has several.
_BEST = ('', 'labeltrainids', 'labelids', 'mask', 'masks', 'label', 'labels', 'seg', 'gt', 'l')
#: Kind and part of a folder by its plain name, or that of a folder in it: ``trainannot``, ``images/train``.
_KNOWN = {name: (kind, part) for kind in ('', *_IMAGES, *MAPS) for part, words in (('', ('', )), *WORDS.items())
          for word in words for name in (kind + word, word + kind)}
#: Masks of objects may be arrays; masks in black and white may be JPEG, which changes other labels.
_ARRAYS, JPEG = ('.npy', ), ('.jpg', '.jpeg')
_VOC = ('VOCdevkit/VOC2012', 'VOC2012', 'VOCdevkit/VOC2010', 'VOCdevkit/VOC2007')


@dataclass
class Pair:
    """A folder of images and one of label maps, and how their files match.

    Attributes:
        images: The folder of the images.
        maps: The folder of the label maps; it may be the same.
        names: The images, relative to their folder, in order.
        with_map: The images that have a label map.
        ending: The part before the suffix that only the names of images have.
        suffix: What label maps have instead of an image's ending and suffix, such as ``_mask.png``.
        chosen: The images that are used; None for all images in the folder.
        origin: The source, if it was divided.
    """
    images: Path
    maps: Path
    names: list
    with_map: list
    ending: str
    suffix: str
    chosen: list = None
    origin: str = ''

    def map_of(self, name: str) -> Path:
        """Return the path of the label map of an image."""
        return self.maps / (os.path.splitext(name)[0].removesuffix(self.ending) + self.suffix)


def ways_in(root: Path, best=_BEST) -> tuple:
    """Return the first folder that has data with label maps, the root or one below it, and every way to read it.

    Each way is a dict: `Pair` by ``train``, ``val``, ``test``, or by '' for data that is not divided. ``best`` is that
    of `match`.
    """
    children = list(_folders(root).values())
    bases = (root, *(root / name for name in _VOC), *(children if len(children) == 1 else ()))
    for others, base in product((False, True), bases):
        if base.is_dir() and (found := _ways(base, best, others)):
            return base, found
    return root, []


def match(images: Path, maps: Path, best=_BEST, others: bool = True) -> Pair | None:
    """Find out how the files of two folders, or of one, match; None if no label map has an image.

    `DataError`: several kinds of label maps fit the images equally well.

    Args:
        best: Ends of names, as `plain` writes them: the first decides if images have several kinds of label maps.
        others: Whether to look for arrays, and for JPEG, if there is no label map of the usual kinds.
    """
    files = sorted(os.path.relpath(path, images) for path in names_below(images))
    files = [name for name in files if name.lower().endswith(IMAGE_SUFFIXES)]
    stems = {os.path.splitext(name)[0]: name for name in files}
    labels, is_same = sorted(os.path.relpath(path, maps) for path in names_below(maps)), images == maps
    kinds = (MAP_SUFFIXES, *([_ARRAYS if is_same else _ARRAYS + JPEG] if others else ()))
    for suffixes, ending in product(kinds, ('', '_img' if is_same else _common_ending(stems))):
        own = {stem.removesuffix(ending): name for stem, name in stems.items() if stem.endswith(ending)}
        maps_of_kind = [name for name in labels if name.lower().endswith(suffixes)
                        and not (is_same and ending and name in own.values())]
        if found := _endings(maps_of_kind, own, is_same):
            break
    else:
        return None
    suffix = _best(found, maps, best)
    taken = {name for labels in found.values() for name in labels.values()} if is_same else ()
    names = [name for name in files if name not in taken]
    return Pair(images, maps, names, sorted(found[suffix]), ending, suffix, names if is_same else None)


def class_of_folder(folder: Path, root: Path) -> str:
    """Return the name of the only class of masks: that of their folder or, if that is a usual one, of the root."""
    return root.name if plain(folder.name) in _KNOWN or part_in(folder.name)[0] != '' else folder.name


def _folders(base):
    """Return the folders in a folder by their plain names; the first of those with the same plain name."""
    try:
        paths = sorted((path for path in base.iterdir() if path.is_dir() and path.name[0] != '.'), reverse=True)
    except OSError:
        return {}
    return {plain(path.name): path for path in paths}


def _ways(base, best, others):
    """Return the pairs of each way to read a folder."""
    inside = _folders(base)
    paths = {**inside, **{name + inner: path for name, folder in inside.items()
                          for inner, path in _folders(folder).items()}}
    found = {}  # the folder of each part by kind
    for kind, part, path in ((*_KNOWN[name], path) for name, path in paths.items() if name in _KNOWN):
        found.setdefault(kind, {}).setdefault(part, path)
    ways = []
    for images, maps in ((found[image], found[kind]) for image in ('', *_IMAGES) for kind in MAPS
                         if image in found and kind in found):
        way = {part: (images[part], maps[part]) for part in WORDS if part in images and part in maps
               and maps[part].parent != images[part]}
        top = images.get(''), maps.get('')
        if all(top) and 'train' not in way and not any(path.parent in top for pair in way.values() for path in pair):
            way = {'train' if way else '': top, **way}  # images, masks beside val/images, val/masks
        ways.append(way)
    ways = [pairs for way in ways if (pairs := _matching(way, best, others))]
    if not ways and (beside := _matching({part: (path, path) for part, path in found.get('', {}).items()}
                                         if inside else {'': (base, base)}, best, others)):  # a.jpg, a_mask.png
        ways = [beside]
    return ways


def _matching(way, best, others):
    return {part: pair for part, folders in way.items() if (pair := match(*folders, best, others))}


def _endings(labels, stems, is_same):
    """Return the label map of each image that has one, by what label maps have after the name of the image."""
    found = {}
    for label in labels:
        stem = os.path.splitext(label)[0]
        ends = [len(stem), *sorted((m.start() for m in re.finditer(r'[_.-]', stem)), reverse=True)]
        end = next((end for end in ends if stem[:end] in stems and not (is_same and end == len(stem))), None)
        if end is not None:
            found.setdefault(label[end:], {})[stems[stem[:end]]] = label
    return found


def _common_ending(stems):
    """Return the common end of all stems from a ``_``, ``-`` or ``.`` on; '' if there is none."""
    common = os.path.commonprefix([stem[::-1] for stem in stems])[::-1]
    return re.search(r'[_.-].*|$', common, re.DOTALL)[0]


def _best(found, maps, best):
    most = max(map(len, found.values()))
    wide = [suffix for suffix, images in found.items() if len(images) == most]
    words = {plain(os.path.splitext(f'x{suffix}')[0][1:]): suffix for suffix in wide}
    for word in best:
        for name, suffix in words.items():
            if name == word or word and name.endswith(word) and len(word) > 1:
                return suffix
    if len(wide) > 1:
        raise DataError(f'images match label maps in {maps} with several endings: {", ".join(sorted(wide))}. Move all '
                        'but one kind elsewhere')
    return wide[0]


def read_list(path, images) -> list:
    """Return the images that a list names: a line begins with a path, a name or a name without its suffix.

    ``images`` are all, relative to their folder. `DataError`: the list names others.
    """
    known = {word: name for name in images
             for word in (Path(name).stem, Path(name).name, os.path.splitext(name)[0], name)}
    found, missing = [], []
    for line in names_in_list(path):
        word = line.split()[0].strip(',')
        tries = (line, word, Path(word).name, Path(word).stem)
        image = next((known[text] for text in tries if text in known), None)
        (missing if image is None else found).append(image or line)
    if missing:
        raise DataError(f'{path} lists {counted(len(missing), "images")} not found in the data: {listed(missing, 3)}')
    return list(dict.fromkeys(found))
