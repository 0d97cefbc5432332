"""YOLO labels, boxes and polygons, converted to COCO format."""
import os
import re
from pathlib import Path

import yaml

from ..._utils.text import counted, listed, read_text, shown, with_slashes
from ...errors import DataError
from ..files import Unreadable, read_class_list, read_files, read_header
from ..folders import IMAGE_SUFFIXES, WORDS, files_below, names_in_list
from .coco import Source
from .layout import below

_FILES = ('data.yaml', 'data.yml', 'dataset.yaml', 'dataset.yml', 'obj.data')
#: Because of rounding, numbers of a label may be outside the image by this share of it; they are clipped.
_ROUNDING = 0.01


def find_yolo(root: Path):
    """Return the file that describes a YOLO data set, or the folder if there is no such file; None without a data set.

    Raises:
        DataError: There are several files.
    """
    found = [root / name for name in _FILES if (root / name).is_file()]
    if len(found) > 1:
        raise DataError(f'{root} has several descriptions of data: {listed(path.name for path in found)}. Choose one '
                        'with --train-annotations FILE')
    if found:
        return found[0]
    folders = root / 'images', root / 'labels'
    return root if all(folder.is_dir() for folder in folders) and any(
        path.suffix == '.txt' for path in files_below(folders[1])) else None


def read_yolo(source: Path, root: Path, turned: bool = True, images=None) -> dict:
    """Return the annotations of a YOLO data set by part.

    Args:
        source: Its description file, or its folder.
        root: The data root.
        turned: Whether images are rotated as their EXIF orientation says; the labels are for these images then.
        images: By part, the folder of the images that the user names.

    Raises:
        DataError: The description or a label cannot be read; the message has file and line.
    """
    description = _read_description(source) if source.is_file() else {}
    base = source.parent if source.is_file() else source
    entries = {part: next((description[key] for key in keys if description.get(key)), None)
               for part, keys in WORDS.items()} if description else _usual_folders(source)
    found = {}
    for part, entry in {**entries, **(images or {})}.items():
        paths = _images_of(entry, base, description.get('path')) if entry else []
        if paths:
            found[part] = paths
        elif entry and part == 'train':
            raise DataError(f'{source}: its training images {shown(entry)} do not exist. Set their folder with '
                            '--train-images DIR')
    if not found:
        return {}
    paths = [path for part in found.values() for path in part]
    labels = {path: _labels_of(path) for path in paths}
    lines = {path: _read_lines(file, source, description) for path, file in labels.items()}
    names = _names_of(description, source, base, lines)
    if not any(lines.values()):
        raise DataError(f'{source}: none of {counted(len(lines), "images")} has a label. For example, {paths[0]} '
                        f'has none in {labels[paths[0]]}')
    return {part: _converted(source, root, paths, [labels[path] for path in paths], lines, names, turned)
            for part, paths in found.items()}


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
    file = _place_of(content.get('names', 'obj.names'), path.parent, None)
    if file is None:
        raise DataError(f'{path}: its file of class names, {content.get("names", "obj.names")}, does not exist')
    parts = {key: value for key, value in content.items() if key in ('train', 'valid', 'test')}
    return dict(parts, names=[name.strip() for name in read_text(file).splitlines() if name.strip()])


def _usual_folders(root):
    """Return the image folders by part, for a folder without a description."""
    folders = {part: next((f'images/{key}' for key in keys if (root / 'images' / key).is_dir()), None)
               for part, keys in WORDS.items()}
    return folders if folders['train'] else dict(train='images')


def _images_of(entry, base, above):
    """Return the image paths of a part: from a folder, several folders, or a list of images."""
    paths = []
    for name in entry if isinstance(entry, list) else [entry]:
        place = _place_of(str(name), base, above)
        if place is None:
            continue
        if place.is_dir():
            paths += [path for path in files_below(place) if path.suffix.lower() in IMAGE_SUFFIXES]
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
    parts = list(image.parts)
    place = max((i for i, part in enumerate(parts[:-1]) if part == 'images'), default=None)
    if place is not None:
        parts[place] = 'labels'
    file, beside = Path(*parts).with_suffix('.txt'), image.with_suffix('.txt')
    # a folder named images may also be above the whole data set
    return beside if not file.parent.is_dir() and beside.is_file() else file


def _read_lines(file, source, description):
    """Return the labels of an image: line, class and numbers, four for a box, more for a polygon.

    An image without a file has no objects.
    """
    try:
        lines = read_text(file).splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise DataError(f'{file} cannot be read: {error}') from error
    points = description.get('kpt_shape')
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            if (label := _read_label(line.split(), points)) is None:
                raise DataError(f'{file}, line {number}: a label is a class number from 0, followed by x, y, width and '
                                'height of a box, or x and y of the corners of a polygon, from 0 to 1; got '
                                f'{shown(line.strip())}')
            found.append((number, *label))
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


def _names_of(description, source, base, lines):
    """Return the class names in the order of their numbers."""
    highest = max((kind for labels in lines.values() for _, kind, _ in labels), default=-1)
    names = description.get('names')
    file = next((path for path in (base / 'classes.txt', base / 'labels/classes.txt') if path.is_file()), None)
    if isinstance(names, dict):
        numbered = {str(number): name for number, name in names.items()}
        names = [numbered.get(str(number)) for number in range(len(names))]
    elif file and not description:
        try:
            names, source = read_class_list(file), file
        except Unreadable as error:
            raise DataError(f'{file} must have one unique class name per line and no empty lines: {error}') from error
    elif names is None:
        count = description.get('nc')
        names = range(max(highest + 1, count if isinstance(count, int) else 0))
    if not isinstance(names, (list, tuple, range)) or not names or None in names:
        raise DataError(f'{source}: names must be a list of class names, or have the keys 0, 1 and so on, not '
                        f'{shown(description.get("names"))}')
    if highest >= len(names):
        image, line = next((image, line) for image, labels in lines.items() for line, kind, _ in labels
                           if kind == highest)
        raise DataError(f'{_labels_of(image)}, line {line}: it has the class {highest}, but {source} has '
                        f'{counted(len(names), "classes")}: 0 to {len(names) - 1}')
    return [str(name) for name in names]


def _converted(source, root, paths, labels, lines, names, turned):
    folder = _common_folder(paths)
    states = read_files(paths, read_header, 'headers', source, name='images')
    images, annotations, unread = [], [], []
    for path, state in zip(paths, states, strict=True):
        if state.fault or 'size' not in state.content:
            unread.append(below(path, root))
            continue
        width, height = state.content['turned' if turned else 'size']
        images.append(dict(id=len(images) + 1, file_name=path.relative_to(folder).as_posix(), width=width,
                           height=height))
        annotations += [dict(id=len(annotations) + place, image_id=len(images), category_id=kind + 1, iscrowd=0,
                             **_geometry(numbers, width, height))
                        for place, (_, kind, numbers) in enumerate(lines[path], 1)]
    categories = [dict(id=number, name=name) for number, name in enumerate(names, 1)]
    kind = 'polygons' if any(annotation['segmentation'] for annotation in annotations) else 'boxes'
    content = dict(info=dict(description=f'{kind} of {below(source, root)}'), images=images, annotations=annotations,
                   categories=categories)
    notes = [f'ignored {counted(len(unread), "images that cannot be read")}: {listed(unread)}'] if unread else []
    return Source(source, content, folder, f'{kind} in {below(_common_folder(labels), root)}', notes)


def _common_folder(paths):
    """Return the folder that contains all files."""
    return Path(os.path.commonpath([path.parent for path in paths]))


def _geometry(numbers, width, height):
    """Return box, area and polygon of an object in pixels; parts outside the image are clipped."""
    if len(numbers) == 4:
        x, y, w, h = numbers
        corners, polygon = [x - w / 2, y - h / 2, x + w / 2, y + h / 2], []
    else:
        corners = [min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])]
        polygon = _in_pixels(numbers, width, height)
    left, top, right, bottom = _in_pixels(corners, width, height)
    area = _area(polygon) if polygon else (right - left) * (bottom - top)
    return dict(bbox=[left, top, right - left, bottom - top], area=area, segmentation=[polygon] if polygon else [])


def _in_pixels(numbers, width, height):
    return [min(max(number, 0.), 1.) * (height if place % 2 else width) for place, number in enumerate(numbers)]


def _area(polygon):
    xs, ys = polygon[::2], polygon[1::2]
    twice = sum(xs[i - 1] * y - x * ys[i - 1] for i, (x, y) in enumerate(zip(xs, ys, strict=True)))
    return abs(twice) / 2
