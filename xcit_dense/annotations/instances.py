"""Masks of objects as pictures: a file for each object, or the number of an object in each pixel."""
import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image
from pycocotools import mask as mask_api

from .._utils.text import counted, listed
from ..data.channels import CHANNEL_SUFFIXES, decode
from ..data.files import FORMATS, Unreadable, read_files
from ..data.folders import IMAGE_SUFFIXES, MAP_SUFFIXES, WORDS, files_below, part_of
from ..errors import ConfigError, DataError
from .conversion import names_beside
from .objects import Picture, mask_of, to_part
from .pairs import class_of_folder, match, ways_in

#: Ends of names by which the file is chosen if an image has several, as in `pairs`.
_BEST = 'instanceids', 'instances', 'instance', 'cpmasks', 'masks', 'mask', '', 'labels', 'label'
#: So many pictures are judged, and so many numbers of each; for most of them it must be true that they are of objects.
_PROBES, _NUMBERS, _MOST = 10, 50, 0.8
_FORM = re.compile(r'number|class\*([1-9]\d*)\+number')


class _Mask(NamedTuple):
    """A file with masks of an image, None if it has none; the part of the data; and the class of its objects if the
    file's folder is one. ``is_one``: the file is of one object."""
    image: Path
    part: str
    file: Path | None
    kind: str | None = None
    is_one: bool = False


def find_instances(root: Path, folders, options) -> Path | None:
    """Return the folder of masks as pictures below a folder, None if there is none.

    Without ``--instances``, the numbers in pixels must be those of objects for certain: 1 to n, another n in other
    pictures, and each in one piece.
    """
    masks = _masks(root, folders)
    files = [mask.file for mask in masks if mask.file]
    if files and not (options.instances or masks[0].is_one):
        states = read_files(files[::max(len(files) // _PROBES, 1)][:_PROBES], _pieces, 'pieces', root, name='masks')
        whole, judged, count, last = np.array([state.content for state in states if state.content] or [[0] * 4]).T
        if len({*count.tolist()}) == 1 or whole.sum() < _MOST * judged.sum() or (count == last).mean() < _MOST:
            return None
    return Path(os.path.commonpath([file.parent for file in files])) if files else None


def read_instances(source: Path, root: Path, folders, options, made) -> dict:
    """Return the annotations of masks as pictures by part; ``source`` is from `find_instances`."""
    if not (found := _FORM.fullmatch(options.instances or 'number')):
        raise ConfigError('--instances must be number, or class*1000+number with any number for 1000, not '
                          f'{options.instances!r}')
    divisor = int(found[1] or 0)
    given = {part: match(*paths, _BEST) for part in WORDS
             if all(paths := [options.path(part, kind, root) for kind in ('images', 'annotations')])}
    masks = [*_of_pairs(given)] if given else _masks(root, folders)
    files, rule = [mask.file for mask in masks if mask.file], -1 if masks and masks[0].is_one else divisor
    states = read_files(files, partial(_read, rule), f'instances {rule}', source, name='masks')
    if wrong := [f'{file} ({state.value or "it does not exist"})'
                 for file, state in zip(files, states, strict=True) if state.fault]:
        raise DataError(f'{counted(len(wrong), "files with masks")} cannot be read: {listed(wrong, 3)}')
    alone, in_file = options.class_name or class_of_folder(source, root), names_beside((root, source))[0]
    by_number, objects, parts, numbers = dict(enumerate(in_file)), {}, {}, {}
    contents = dict(zip(files, (state.content for state in states), strict=True))
    for mask in masks:
        found = objects.setdefault((mask.image, mask.part), [])
        for value, size, counts in contents.get(mask.file, ()):
            label = mask.kind or (by_number.get(value // divisor, str(value // divisor)) if divisor else alone)
            numbers[label] = value // divisor if divisor else 0
            place = f'{os.path.relpath(mask.file, source)}, number {value}'
            found.append(dict(mask_of(dict(size=size, counts=counts)), label=label, label_place=place))
    for (image, part), found in objects.items():
        parts.setdefault(part, []).append(Picture(image, lambda *size, found=found: found, source))
    names = sorted(numbers, key=lambda name: (numbers[name], name))
    without = sum(mask.file is None for mask in masks)
    notes = [f'no object in {counted(without, "images without a mask")}'] * bool(without) + [
        f'the class is named after its folder, {alone}; --class-name gives another name'] * (
            names == [alone] and not options.class_name)
    return {part: to_part(source, root, pictures, names, notes if part == masks[0].part else ())
            for part, pictures in parts.items()}


def _masks(root, folders):
    """Return each `_Mask` below a folder."""
    if found := _in_folders(folders):
        return found
    by_class = []
    for folder in folders:  # images/a.jpg, masks/cell/a.png
        if folder.name.lower() == 'masks' and (images := folder.with_name('images')).is_dir():
            pairs = {inner.name: pair for inner in folders if inner.parent == folder
                     and not part_of(inner, folder) and (pair := match(images, inner, _BEST))}
            by_class += [mask._replace(kind=name, part=part_of(folder.parent, root) or 'train')
                         for name, pair in pairs.items() for mask in _of_pairs({'': pair})]
    if by_class:
        return by_class
    with suppress(DataError):  # nothing tells which of several files are the masks
        _, ways = ways_in(root, _BEST)
        return [*_of_pairs(ways[0])] if len(ways) == 1 else []
    return []


def _in_folders(folders):
    """Return each `_Mask` of data with a folder for each image, ``ID/images/a.png``, and a file for each object."""
    tops = dict.fromkeys(folder.parent for folder in folders[1:] if _has_both(folder))
    found, several = [], []
    for folder in [path for top in tops for path in sorted(top.iterdir()) if _has_both(path)]:
        images = [path for path in files_below(folder / 'images') if path.suffix.lower() in IMAGE_SUFFIXES]
        files = [path for path in files_below(folder / 'masks') if path.suffix.lower() in MAP_SUFFIXES]
        if len(images) != 1 or len(files) == 1 and files[0].stem.startswith(images[0].stem):
            several.append(folder)
            continue
        part = part_of(folder.parent, folders[0]) or 'train'  # the folder of an image may be test_1
        found += [_Mask(images[0], part, file, file.parent.name if file and file.parent != folder / 'masks' else None,
                        True) for file in files or [None]]
    if several and len({mask.image for mask in found}) > len(several):
        raise DataError(f'{listed(map(str, several), 3)}: a folder for each image must have one picture in images/, '
                        'and not its own name in masks/')
    return [] if several else found


def _has_both(folder):
    return all((folder / name).is_dir() for name in ('images', 'masks'))


def _of_pairs(pairs):
    for part, pair in pairs.items():
        with_map = {*pair.with_map} if pair else ()
        yield from (_Mask(pair.images / name, part or 'train', pair.map_of(name) if name in with_map else None)
                    for name in (pair.names if pair else ()))


def _numbers(path):
    """Return the numbers in the pixels of a file, (H, W)."""
    if Path(path).suffix.lower() in CHANNEL_SUFFIXES:
        pixels = decode(Path(path).read_bytes(), path)
    else:
        with Image.open(path, formats=FORMATS) as image:  # with a palette, the numbers of its colours
            pixels = np.asarray(image)
            if image.mode == 'P':
                pixels = np.where(pixels == 255, 0, pixels)  # the border of VOC's objects
    if pixels.ndim == 3 and (pixels[..., :3] == pixels[..., :1]).all():
        pixels = pixels[..., 0]  # grey
    if pixels.ndim != 2 or not (pixels == pixels.astype(np.int64)).all():
        raise Unreadable('a pixel must have one whole number, that of its object')
    return pixels.astype(np.int64)


def _pieces(path):
    """Return how many first numbers are in one piece, but for crumbs; of how many; the count of all; the last."""
    numbers, whole = _numbers(path), 0
    found = [number for number in np.unique(numbers).tolist() if number]
    for number in found[:_NUMBERS]:
        *_, stats, _ = cv2.connectedComponentsWithStats((numbers == number).astype(np.uint8))
        areas = stats[1:, cv2.CC_STAT_AREA]
        whole += int((areas > 0.05 * areas.sum()).sum() == 1)
    return whole, min(len(found), _NUMBERS), len(found), max(found, default=0)


def _read(divisor, path):
    """Return for each object in a file its number, and the size and counts of its mask as compressed run lengths.

    Args:
        divisor: What a class is multiplied by; 0 if numbers have no class, -1 for a file of one object, whose rim may
            be soft. Below it are pixels of no object; the numbers of a class begin at 0 with 1000, as in Cityscapes,
            otherwise at 1, as in KITTI.
    """
    numbers = _numbers(path)
    if divisor < 0:
        numbers = (2 * numbers > numbers.max()).astype(np.int64)
    height, width = numbers.shape
    flat = np.append(numbers.T.ravel(), -1)  # run lengths go down the columns
    ends = np.flatnonzero(np.diff(flat)) + 1
    starts, values, found = np.append(0, ends[:-1]), flat[ends - 1], []
    order = np.argsort(values, kind='stable')
    for runs in np.split(order, np.flatnonzero(np.diff(values[order])) + 1):
        value = int(values[runs[0]])
        if value <= 0 or divisor > 0 and (value < divisor or divisor != 1000 and not value % divisor):
            continue
        bounds = np.stack([starts[runs], ends[runs]], 1).ravel()
        counts = np.diff([0, *bounds, height * width]).tolist()
        rle = mask_api.frPyObjects(dict(size=[height, width], counts=counts), height, width)
        found.append((value, rle['size'], rle['counts'].decode()))
    return found
