"""YOLO labels, boxes and polygons, converted to COCO format."""
import os
import re
from functools import partial
from pathlib import Path

import yaml

from .._utils.files import read_text
from .._utils.text import counted, listed, shown, with_slashes
from ..data.files import read_class_list
from ..data.folders import IMAGE_SUFFIXES, OTHER_SUFFIXES, WORDS, files_below, names_in_list
from ..errors import DataError
from .objects import Picture, box, outline, to_part
from .types import NO_OPTIONS, below

#: Suffixes of the files that describe data.
DESCRIPTIONS = '.yaml', '.yml', '.data'
_FILES = ('data.yaml', 'data.yml', 'dataset.yaml', 'dataset.yml', 'obj.data')
#: Because of rounding, numbers of a label may be outside the image by this share of it; they are clipped.
_ROUNDING = 0.01


def find_yolo(root: Path, folders, options) -> Path | None:
    """Return the file that describes YOLO data, or a folder of it without one, or None; `DataError`: two such files."""
    inner = [path for path in folders if path.parent == root]  # archives often have one folder around everything
    return _find(root) or (_find(inner[0]) if len(inner) == 1 else None)


def _find(root):
    found = [name for name in _FILES if (root / name).is_file()]
    if len(found) > 1:
        raise DataError(f'{root} has several descriptions of data: {listed(found)}. Choose one with '
                        '--train-annotations FILE')
    if found:
        return root / found[0]
    folders = root / 'images', root / 'labels'
    return root if all(folder.is_dir() for folder in folders) and any(
        path.suffix == '.txt' for path in files_below(folders[1])) else None


def read_yolo(source: Path, root: Path, folders=(), options=NO_OPTIONS, made=None) -> dict:
    """Return the annotations of a YOLO data set by part; ``source`` is its description file, or its folder.

    `DataError`: the description or a label cannot be read; the message has file and line.
    """
    base = source.parent if source.is_file() else source
    description = _read_description(source) if source.is_file() else _usual_folders(source)
    names = _names_of(description, source, base)
    entries = {part: next((description[key] for key in keys if description.get(key)), None)
               for part, keys in WORDS.items()}
    entries, found = entries if any(entries.values()) else _usual_folders(base), {}
    images = {part: path for part in WORDS if (path := options.path(part, 'images', root))}
    for part, entry in {**entries, **images}.items():
        if paths := _images_of(entry, base, description.get('path')) if entry else []:
            found[part] = paths
        elif part == 'train':
            raise DataError(f'{source}: its training images {shown(entry)} do not exist. Set their folder with '
                            '--train-images DIR')
    own, above = description.get('labels'), Path(base, with_slashes(str(description.get('path') or '')))
    labels = {path: Path(base, own, os.path.relpath(path, above)).with_suffix('.txt') if own else _labels_of(path)
              for paths in found.values() for path in paths}
    lines = {path: _read_lines(file, source, names, description.get('kpt_shape')) for path, file in labels.items()}
    if not any(lines.values()):
        image, file = next(iter(labels.items()))
        raise DataError(f'{source}: none of {counted(len(lines), "images")} has a label. For example, {image} has none '
                        f'in {file}')
    parts = {}
    for part, paths in found.items():
        pictures = [Picture(path, partial(_objects, lines[path] or (), names), labels[path]) for path in paths]
        parts[part] = to_part(source, root, pictures, names)
        if without := [path for path in paths if lines[path] is None and path.suffix.lower() not in OTHER_SUFFIXES]:
            parts[part].notes.append(f'no objects in {counted(len(without), "images without a label file")}: '
                                     f'{listed(below(path, root) for path in without)}')
    return parts


def _read_description(path):
    try:
        content = _read_darknet(path) if path.suffix == '.data' else yaml.safe_load(read_text(path))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f'{path} cannot be read: {error}') from error
    if not isinstance(content, dict):
        raise DataError(f'{path} must have train, val and names, not {shown(content)}')
    return content


def _read_darknet(path):
    """Return the content of CVAT's "YOLO 1.1" description: lines of key and value, and classes in a separate file."""
    pairs = [line.partition('=')[::2] for line in read_text(path).splitlines() if '=' in line]
    content = {key.strip(): value.strip() for key, value in pairs}
    name = content.get('names', 'obj.names')
    file = _place_of(name, path.parent, None) or path.parent / name
    return dict(content, names=[name.strip() for name in read_text(file).splitlines() if name.strip()])


def _usual_folders(root):
    """Return the description of a folder that has none: the image folders by part."""
    folders = {part: next((f'images/{key}' for key in keys if (root / 'images' / key).is_dir()), None)
               for part, keys in WORDS.items()}
    return dict(folders, train=folders['train'] or 'images')


def _names_of(description, source, base):
    """Return the class names in the order of their numbers: of the description, or else in classes.txt."""
    if (names := description.get('names')) is None:
        if not (names := read_class_list(base / 'classes.txt') or read_class_list(base / 'labels/classes.txt')):
            raise DataError(f'{source} has no class names: write them into {base / "classes.txt"}, one per line')
    elif isinstance(names, dict):
        numbered = {str(number): name for number, name in names.items()}
        names = [numbered.get(str(number)) for number in range(len(names))]
    if not isinstance(names, (list, tuple)) or not names or None in names:
        raise DataError(f'{source}: names must be a list of class names, or have the keys 0, 1 and so on, not '
                        f'{shown(description.get("names"))}')
    return [str(name) for name in names]


def _images_of(entry, base, above):
    """Return the image paths of a part: from a folder, several folders, or a list of images."""
    paths = []
    for name in entry if isinstance(entry, list) else [entry]:
        if (place := _place_of(str(name), base, above)) is None:
            continue
        if place.is_dir():
            paths += [path for path in files_below(place) if path.suffix.lower() in IMAGE_SUFFIXES + OTHER_SUFFIXES]
        else:  # one image per line, relative to the list or the data set
            paths += [_place_of(line, place.parent, above) or place.parent / line for line in names_in_list(place)]
    return list(dict.fromkeys(paths))


def _place_of(name, base, above):
    """Return the path of a folder or file that a description names: below its ``path``, or next to it.

    For files next to the description Roboflow writes ``../train/images``, and CVAT ``data/train.txt``.
    """
    name = with_slashes(name)
    bases = [base / with_slashes(str(above)), base] if above else [base]
    names = [name, re.sub(r'^(\.\./)+', '', name), name.removeprefix('data/')]
    return next((path for name in names for folder in bases if (path := Path(folder, name)).exists()), None)


def _labels_of(image):
    """Return the label file of an image: in ``labels`` instead of ``images``, or next to the image."""
    above, folder, name = str(image).rpartition('/images/')
    file, beside = (Path(path).with_suffix('.txt') for path in (f'{above}/labels/{name}' if folder else image, image))
    # a folder named images may also be above the whole data set
    return beside if not file.parent.is_dir() and beside.is_file() else file


def _read_lines(file, source, names, points):
    """Return the labels of an image: the class, its numbers, four for a box, more for a polygon, and its line.

    None for an image without a file, which has no objects.
    """
    try:
        lines = read_text(file).splitlines()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f'{file} cannot be read: {error}') from error
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            if (label := _read_label(line.split(), points)) is None:
                raise DataError(f'{file}, line {number}: a label is a class number from 0, followed by x, y, width and '
                                'height of a box, or x and y of the corners of a polygon, from 0 to 1; got '
                                f'{shown(line.strip())}')
            if label[0] >= len(names):
                raise DataError(f'{file}, line {number}: it has the class {label[0]}, but {source} has '
                                f'{counted(len(names), "classes")}: 0 to {len(names) - 1}')
            found.append((*label, number))
    return found


def _read_label(words, points):
    """Return the class and the numbers of a label; None if it is none."""
    try:
        kind, *numbers = map(float, words)
    except ValueError:
        return None
    if points:  # of a skeleton, after the box
        numbers = numbers[:4]
    is_shape = len(numbers) == 4 or len(numbers) >= 6 and not len(numbers) % 2
    if kind < 0 or not kind.is_integer() or not is_shape or not all(  # NaN is not between two numbers
            -_ROUNDING <= number <= 1 + _ROUNDING for number in numbers):
        return None
    return int(kind), numbers


def _objects(labels, names, width, height):
    """Return the objects of labels; what rounding puts outside the image is clipped."""
    records = []
    for kind, numbers, number in labels:
        if is_box := len(numbers) == 4:
            x, y, w, h = numbers
            numbers = x - w / 2, y - h / 2, x + w / 2, y + h / 2
        xs, ys = ([min(max(share, 0.), 1.) * size for share in numbers[first::2]]
                  for first, size in enumerate((width, height)))
        shape = box(xs[0], ys[0], xs[1], ys[1]) if is_box else outline([*zip(xs, ys, strict=True)])
        records.append(dict(shape, label=names[kind], label_place=f'line {number}'))
    return records
