"""YOLO labels, boxes and polygons, converted to COCO format."""
import os
import re
from pathlib import Path

import yaml

from .._utils.files import read_text
from .._utils.text import counted, listed, shown, with_slashes
from ..data.files import read_class_list, read_files, read_header
from ..data.folders import IMAGE_SUFFIXES, OTHER_SUFFIXES, WORDS, files_below, names_in_list
from ..errors import DataError
from .types import Part, below

_FILES = ('data.yaml', 'data.yml', 'dataset.yaml', 'dataset.yml', 'obj.data')
#: Because of rounding, numbers of a label may be outside the image by this share of it; they are clipped.
_ROUNDING = 0.01


def find_yolo(root: Path):
    """Return the file that describes a YOLO data set, or the folder of one without such a file; None if it has none.

    Raises:
        DataError: There are several files.
    """
    found = [name for name in _FILES if (root / name).is_file()]
    if len(found) > 1:
        raise DataError(f'{root} has several descriptions of data: {listed(found)}. Choose one with '
                        '--train-annotations FILE')
    if found:
        return root / found[0]
    folders = root / 'images', root / 'labels'
    return root if all(folder.is_dir() for folder in folders) and any(
        path.suffix == '.txt' for path in files_below(folders[1])) else None


def read_yolo(source: Path, root: Path, images=None) -> dict:
    """Return the annotations of a YOLO data set by part.

    Args:
        source: Its description file, or its folder.
        root: The data root.
        images: By part, the folder of the images that the user names.

    Raises:
        DataError: The description or a label cannot be read; the message has file and line.
    """
    base = source.parent if source.is_file() else source
    description = _read_description(source) if source.is_file() else _usual_folders(source)
    names = _names_of(description, source, base)
    entries = {part: next((description[key] for key in keys if description.get(key)), None)
               for part, keys in WORDS.items()}
    found = {}
    for part, entry in {**entries, **(images or {})}.items():
        paths = _images_of(entry, base, description.get('path')) if entry else []
        if paths:
            found[part] = paths
        elif part == 'train':
            raise DataError(f'{source}: its training images {shown(entry)} do not exist. Set their folder with '
                            '--train-images DIR')
    labels = {path: _own_labels_of(path, base, description.get('path')) or _labels_of(path)
              for paths in found.values() for path in paths}
    lines = {path: _read_lines(file, source, names, description.get('kpt_shape')) for path, file in labels.items()}
    if not any(lines.values()):
        image, file = next(iter(labels.items()))
        raise DataError(f'{source}: none of {counted(len(lines), "images")} has a label. For example, {image} has none '
                        f'in {file}')
    return {part: _converted(source, root, paths, lines, names) for part, paths in found.items()}


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
    names = description.get('names')
    if names is None:
        names = read_class_list(base / 'classes.txt') or read_class_list(base / 'labels/classes.txt')
        if not names:
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
        place = _place_of(str(name), base, above)
        if place is None:
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


def _own_labels_of(image, base, above):
    """Return the label file of an image in ``labels`` next to the description, by its name below ``path``, or None:
    `xcit_dense predict --labels yolo` writes them there, as the folder of the images may hold other labels."""
    top = Path(base, with_slashes(str(above or '')))
    own = Path(base, 'labels', image.relative_to(top)).with_suffix('.txt') if image.is_relative_to(top) else None
    return own if own and own.is_file() else None


def _labels_of(image):
    """Return the label file of an image: in ``labels`` instead of ``images``, or next to the image."""
    above, folder, name = str(image).rpartition('/images/')
    file, beside = (Path(path).with_suffix('.txt') for path in (f'{above}/labels/{name}' if folder else image, image))
    # a folder named images may also be above the whole data set
    return beside if not file.parent.is_dir() and beside.is_file() else file


def _read_lines(file, source, names, points):
    """Return the labels of an image: the class, its numbers, four for a box, more for a polygon, and its place.

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
            found.append((*label, f'{file}, line {number}'))
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


def _converted(source, root, paths, lines, names):
    folder = Path(os.path.commonpath([path.parent for path in paths]))
    states = read_files(paths, read_header, 'headers', source, name='images')
    images, annotations, unread = [], [], []
    mixed = len({len(numbers) > 4 for path in paths for _, numbers, _ in lines[path] or ()}) > 1
    for path, state in zip(paths, states, strict=True):
        if state.fault or 'size' not in state.content or path.suffix.lower() in OTHER_SUFFIXES:
            unread.append(below(path, root))
            continue
        width, height = state.content['turned']  # as people see the image, and mmdet reads it
        images.append(dict(id=len(images) + 1, file_name=path.relative_to(folder).as_posix(), width=width,
                           height=height))
        annotations += [dict(id=len(annotations) + place, image_id=len(images), category_id=kind + 1, iscrowd=0,
                             **_geometry(numbers, width, height),
                             **(dict(yolo_box=f' (only a box, in {line})') if mixed and len(numbers) == 4 else {}))
                        for place, (kind, numbers, line) in enumerate(lines[path] or (), 1)]
    categories = [dict(id=number, name=name) for number, name in enumerate(names, 1)]
    kind = 'polygons' if any(annotation['segmentation'] for annotation in annotations) else 'boxes'
    words = f'{kind} of {below(source, root)}'
    content = dict(info=dict(description=words), images=images, annotations=annotations, categories=categories)
    notes = [f'ignored {counted(len(unread), "images that cannot be read")}: {listed(unread)}' + (
        '; convert GIF, HEIC and such to PNG or JPEG' * any(name.lower().endswith(OTHER_SUFFIXES) for name in unread))
    ] if unread else []
    without = [name for path in paths if lines[path] is None and (name := below(path, root)) not in unread]
    if without:
        notes.append(f'no objects in {counted(len(without), "images without a label file")}: {listed(without)}')
    return Part(folder, source, origin=words, content=content, notes=notes)


def _geometry(numbers, width, height):
    """Return box, area and polygon of an object in pixels; parts outside the image are clipped."""
    if is_box := len(numbers) == 4:
        x, y, w, h = numbers
        numbers = x - w / 2, y - h / 2, x + w / 2, y + h / 2
    xs, ys = ([min(max(number, 0.), 1.) * size for number in numbers[first::2]]
              for first, size in enumerate((width, height)))
    w, h = max(xs) - min(xs), max(ys) - min(ys)
    corners = list(zip(xs, ys, strict=True))
    area = w * h if is_box else abs(sum(xs[i - 1] * y - x * ys[i - 1] for i, (x, y) in enumerate(corners))) / 2
    return dict(bbox=[min(xs), min(ys), w, h], area=area,
                segmentation=[] if is_box else [[number for corner in corners for number in corner]])
