"""Annotations in COCO format, as tools export them: which files, for which part, and where their images are."""
import os
import re
from collections import Counter
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path, PurePosixPath

from .._utils.files import drawn_in
from .._utils.text import counted, listed, with_slashes
from ..data.files import read_json
from ..data.folders import part_of
from ..errors import DataError
from .derived import is_made
from .types import PARTS, Part, below

#: Prefixes of the names of files that are about objects, whatever else is in their folder.
_USUAL = ('instances', '_annotations.coco')
#: Prefixes of the names of files in the same format that are not about objects.
_OTHERS = ('panoptic_', 'stuff_')
#: Names of folders that usually hold images.
_IMAGES = ('images', 'data', 'imgs', 'img', 'jpegimages')
#: A folder with more JSON files than this has one file for each image, from another tool.
_MOST_FILES = 20
_PROBES = 20
#: So deep below the data root, and in so many folders of one folder, files are looked for.
_DEPTH, _MOST_FOLDERS = 3, 500


def without_parents(parts, root: Path) -> list:
    """Drop categories that no object has and that others name as their ``supercategory``; Roboflow's exports have one.

    A category that one of the parts needs stays in all. The parts are changed; returns the names that were dropped.
    """
    used = {annotation.get('category_id') for part in parts for annotation in part.content['annotations']}
    names = []
    for part in parts:
        categories = part.content['categories']
        gone = [category for category in categories if category.get('id') not in used and any(
            other.get('supercategory') == category.get('name') for other in categories if other is not category)]
        if gone and len(gone) < len(categories):
            names += [category.get('name') for category in gone]
            part.content = dict(part.content, categories=[kept for kept in categories if kept not in gone])
            part.origin = part.origin or below(part.annotations, root)
    return list(dict.fromkeys(names))


def join(parts, root: Path) -> Part:
    """Return one part of several: classes of one name are one, images of one path too, and equal objects of these."""
    folder = Path(os.path.commonpath([part.images for part in parts]))
    images, categories, annotations, taken = {}, {}, [], set()
    for part in parts:
        ids, kinds = {}, {}
        for image in part.content['images']:
            name = os.path.relpath(part.images / image['file_name'], folder)
            ids[repr(image['id'])] = images.setdefault(name, dict(image, id=len(images) + 1, file_name=name))['id']
        for category in part.content['categories']:
            kinds[repr(category.get('id'))] = categories.setdefault(
                repr(category.get('name')), dict(category, id=len(categories) + 1))['id']
        objects = [dict(record, image_id=ids.get(repr(record.get('image_id')), -1),
                        category_id=kinds.get(repr(record.get('category_id')), -1))
                   for record in part.content['annotations']]
        keys = [(record['image_id'], record['category_id'], repr(record.get('bbox'))) for record in objects]
        annotations += [record for record, key in zip(objects, keys, strict=True) if key not in taken]
        taken.update(keys)
    annotations = [dict(record, id=number) for number, record in enumerate(annotations, 1)]
    seen = Counter(os.path.join(each.images, image['file_name']) for each in parts for image in each.content['images'])
    shared = sum(number > 1 for number in seen.values())
    origin = f'{listed(below(part.annotations, root) for part in parts)}, joined' + (
        f'; {counted(shared, "images")} in several of them have the objects of all, equal ones once') * bool(shared)
    return Part(folder, parts[0].annotations, origin=origin,
                content=dict(images=[*images.values()], categories=[*categories.values()], annotations=annotations))


def number_alike(parts, root: Path):
    """Give categories the ids and the order that they have in the first part, if that has all that have objects: mmdet
    numbers them in the order of each file."""
    first, *others = parts
    wanted = {category.get('name'): category.get('id') for category in first.content['categories']}
    for part in others:
        names = {category.get('id'): category.get('name') for category in part.content['categories']}
        found = {names.get(record.get('category_id')) for record in part.content['annotations']}
        if [*names.values()] != [*wanted] and found <= wanted.keys():
            part.content = dict(part.content, categories=first.content['categories'], annotations=[
                dict(record, category_id=wanted.get(names.get(record.get('category_id')), -1))
                for record in part.content['annotations']])
            part.origin = (part.origin or below(part.annotations, root)) + ', with the category ids of training by name'


def folders_of(root: Path, all_of_them: bool = False) -> list:
    """Return a folder and those below it, nearest first, except hidden ones and those that this program wrote; without
    ``all_of_them`` only those where annotation files are looked for."""
    found, seen = [], {os.path.realpath(root)}
    for folder, inside, _ in os.walk(root, followlinks=True):  # what cannot be read is left out
        path = Path(folder)
        found.append(path)
        most = None if all_of_them else 0 if len(path.relative_to(root).parts) == _DEPTH else _MOST_FOLDERS
        names = [name for name in sorted(inside) if not name.startswith(('.', '__MACOSX'))][:most]
        inside[:] = []
        for name in sorted(names, key=lambda name: os.path.islink(path / name)):
            real = os.path.realpath(path / name)  # a link may lead back, or to a folder that is there too
            if real not in seen and not is_made(real):
                inside.append(name)
                seen.add(real)
    return sorted(found, key=lambda path: len(path.parts))


def find_files(folders) -> list:
    """Return the annotation files in folders, pairs of path and content; `DataError`: a usual one is damaged."""
    found = []
    for folder in folders:
        paths = sorted(path for path in folder.glob('[!.]*.json') if path.is_file()
                       and not path.name.lower().startswith(_OTHERS))
        instances = [path for path in paths if path.name.lower().startswith(_USUAL)]
        if instances:  # person_keypoints_... next to them has the same images
            paths = instances
        elif len(paths) > _MOST_FILES:
            continue
        for path in paths:
            with nullcontext() if instances else suppress(DataError):
                if content := read_annotations(path):
                    found.append((path, content))
    return found


def read_annotations(path: Path):
    """Return the content of an annotation file, None if it is something else; `DataError`: it cannot be read."""
    try:
        content = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f'{path} cannot be read: {error}') from error
    parts = [isinstance(content, dict) and content.get(part) for part in ('images', 'annotations', 'categories')]
    is_coco = (all(isinstance(part, list) and all(isinstance(record, dict) for record in part) for part in parts)
               and parts[0] and parts[2] and 'segments_info' not in (parts[1] or [{}])[0]  # COCO panoptic
               and all('id' in image and isinstance(image.get('file_name'), str) for image in parts[0]))
    return content if is_coco else None


def part_from(path: Path, content: dict, name: str, root: Path, folders, images=None, of_config=None) -> Part:
    """Return a part (``name``) with the folder of its images; image names that lead elsewhere are changed.

    The images are in the folder that the user names (``images``), otherwise in that of the config, the first choice and
    the last if there are no images, or in one of ``folders``. `DataError`: they are in none, or in several.
    """
    names = [image['file_name'] for image in content['images']]
    probes = names[::max(len(names) // _PROBES, 1)][:_PROBES]
    candidates = [images] if images else list(dict.fromkeys([of_config or path.parent, path.parent, *folders]))
    drawn = {path for folder in candidates for path in drawn_in(folder)}  # predictions are named as their images
    for shorten in _forms(probes):
        paths = {folder: {folder / shorten(probe) for probe in probes} - drawn for folder in candidates}
        hits = {folder: sum(map(os.path.isfile, paths[folder])) for folder in candidates}
        fits = {folder: (folder != of_config, *_rank(folder, path, name, root), -number,
                         -len(os.path.commonpath([folder, path])))
                for folder, number in hits.items() if number}
        best = {os.path.realpath(folder): folder for folder, fit in fits.items() if fit == min(fits.values())}
        if len(best) > 1:
            raise DataError(f'images of {below(path, root)} are in several folders of {root}: '
                            f'{listed(below(folder, root) for folder in best.values())}. Choose one with '
                            f'--{name}-images DIR, or move the file into the folder of its images')
        for folder in best.values():
            renamed = [dict(image, file_name=shorten(image['file_name'])) for image in content['images']]
            origin = '' if renamed == content['images'] else f'{below(path, root)}, with shortened image names'
            return Part(folder, path, origin=origin, content=dict(content, images=renamed))
    if of_config:  # the data check says more
        return Part(of_config, path, content=content)
    raise DataError(f'{below(path, root)} lists images such as {names[0]!r}, which are not in {images or root}. Set '
                    f'their folder with --{name}-images DIR')


def _forms(names):
    """Return ways to read a name, the most literal first: unchanged, without some of its leading folders, and without
    the prefix that Label Studio adds to the name of an upload."""
    deepest = max(with_slashes(name).count('/') for name in names)
    shortened = [partial(_shortened, skipped=skipped) for skipped in range(deepest + 1)]
    return [lambda name: name, *shortened, lambda name: re.sub('^[0-9a-f]{8}-', '', shortened[-1](name))]


def _shortened(name, skipped):
    """Return a name without some of its leading folders; tools on Windows write backslashes."""
    steps = [part for part in PurePosixPath(with_slashes(name)).parts if part not in ('/', '..') and part[-1] != ':']
    return '/'.join(steps[min(skipped, len(steps) - 1):]) or name


def _rank(folder, path, name, root):
    """Return how well a folder fits: next to the file, of the same part, of no part, of another; usual names first."""
    own = part_of(folder, root)
    fit = 0 if folder == path.parent else 1 if own == name else 2 if own is None else 3
    return fit, folder.name.lower() not in _IMAGES


def by_part(files, root: Path, known=()) -> dict:
    """Return the annotation files, pairs of a path and its content, by part, but for those that are ``known``.

    A file whose name does not say the part is for training. `DataError`: several are for one part.
    """
    parts = {}
    for path, content in files:
        parts.setdefault(part_of(path, root), []).append((path, content))
    unnamed = parts.pop(None, [])
    if unnamed and not {'train', 'val'} <= {*parts, *known}:
        parts['train'] = parts.get('train', []) + unnamed
    for part in parts.keys() - known:
        if len(parts[part]) > 1:
            raise DataError(f'{root} has several annotation files for {PARTS[part]}: '
                            f'{listed(below(path, root) for path, _ in parts[part])}. Choose with '
                            f'--{part}-annotations FILE, or join several: --{part}-annotations FILE FILE; and '
                            '--val-annotations FILE if one is for validation')
    return {part: found[0] for part, found in parts.items() if part not in known}
