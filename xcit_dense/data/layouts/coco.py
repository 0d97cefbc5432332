"""Annotations in COCO format, as tools export them: which files, for which part, and where their images are."""
import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ..._utils.text import listed, with_slashes
from ...errors import DataError
from ..files import read_json
from ..folders import part_of
from .derived import is_made
from .layout import PARTS, below

#: Prefixes of the names of COCO files that are not about objects.
_OTHERS = ('captions_', 'panoptic_', 'stuff_', 'image_info_')
#: A folder with more JSON files than this has one file for each image, from another tool.
_MOST_FILES = 20
_PROBES = 20
_KEYS = 'id', 'image_id', 'category_id', 'name', 'supercategory'
#: Names of folders that usually hold images.
_IMAGES = ('images', 'data', 'imgs', 'img', 'jpegimages')
#: So deep below the data root, and in so many folders of one depth, files are looked for.
_DEPTH, _MOST_FOLDERS = 3, 500


@dataclass
class Source:
    """Annotations in COCO format.

    Attributes:
        path: The file that they come from.
        content: Its content, possibly converted.
        images: Folder that the image names are relative to.
        changed: How ``content`` differs from the file, as text; empty if the file itself can be read.
        notes: Sentences on what a user might not expect.
    """
    path: Path
    content: dict
    images: Path
    changed: str = ''
    notes: list = field(default_factory=list)


def without_parents(sources, root: Path) -> list:
    """Drop categories that no object has and that others name as their ``supercategory``; Roboflow's exports have one.

    Args:
        sources: All sources of one data set; a category that one of them needs stays in all. They are changed.
        root: The folder of the data.

    Returns:
        The names that were dropped.
    """
    sources = list(sources)
    used = {annotation.get('category_id') for source in sources for annotation in source.content['annotations']}
    left_out = {}
    for source in sources:
        categories = source.content['categories']
        parents = {(category.get('supercategory'), other) for other, category in enumerate(categories)}
        gone = [place for place, category in enumerate(categories) if category.get('id') not in used
                and any(name == category.get('name') and other != place for name, other in parents)]
        if gone and len(gone) < len(categories):
            left_out.update((categories[place].get('name'), None) for place in gone)
            kept = [category for place, category in enumerate(categories) if place not in gone]
            source.content = dict(source.content, categories=kept)
            source.changed = source.changed or below(source.path, root)
    return list(left_out)


def with_ids_from_1(source: Source):
    """Renumber the ids of annotations from 1 if one of them is 0, which means "no object" to pycocotools."""
    annotations = source.content['annotations']
    if any(annotation.get('id') == 0 for annotation in annotations):
        annotations = [dict(annotation, id=number) for number, annotation in enumerate(annotations, 1)]
        source.content = dict(source.content, annotations=annotations)
        source.changed = source.changed or f'{source.path.name} with ids from 1'


def folders_of(root: Path) -> list:
    """Return a folder and those below it, nearest first, except hidden ones and those that this program wrote."""
    found, level = [], [root]
    for _ in range(_DEPTH + 1):
        found += level
        level = [Path(entry) for folder in level for entry in _folders_in(folder)][:_MOST_FOLDERS]
    return found


def _folders_in(folder):
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.path for entry in entries if entry.is_dir()
                           and not entry.name.startswith(('.', '__MACOSX')))
    except OSError:  # not readable; missing files are reported later
        return []
    return [name for name in names if not is_made(name)]


def find_files(folders, named=()) -> list:
    """Return the annotation files in some folders: pairs of a path and its content.

    Args:
        folders: The folders.
        named: Files that the config names, whose problems are reported elsewhere.

    Raises:
        DataError: A file that is an annotation file according to its name is damaged.
    """
    found = []
    for folder in folders:
        paths = sorted(path for path in folder.glob('*.json') if not path.name.startswith('.') and path.is_file())
        paths = [path for path in paths if not path.name.lower().startswith(_OTHERS)]
        instances = [path for path in paths if _is_usual(path)]
        if instances:  # person_keypoints_... next to them has the same images
            paths = instances
        elif len(paths) > _MOST_FILES:
            continue
        for path in paths:
            if content := read_annotations(path, '' if _is_usual(path) and path not in named else None):
                found.append((path, content))
    return found


def read_annotations(path: Path, needed_by: str = None):
    """Return the content of an annotation file; None if it is something else.

    Args:
        path: The file.
        needed_by: The begin of the error if it cannot be read; None if it counts as something else then.

    Raises:
        DataError: It cannot be read, but is needed.
    """
    try:
        content = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        if needed_by is None:
            return None
        raise DataError(f'{needed_by}{path} cannot be read: {error}') from error
    return content if _is_coco(content) else None


def _is_usual(path):
    return path.name.lower().startswith(('instances', '_annotations.coco'))


def _is_coco(content):
    """Whether the content of a JSON file is COCO annotations, as far as it matters here."""
    if not isinstance(content, dict):
        return False
    parts = [content.get(part) for part in ('images', 'annotations', 'categories')]
    return (all(isinstance(part, list) and all(map(_is_record, part)) for part in parts)
            and bool(parts[0] and parts[2])
            and all('id' in image and isinstance(image.get('file_name'), str) for image in parts[0]))


def _is_record(record):
    """Whether it is a record whose ids and names are not lists or records themselves."""
    return isinstance(record, dict) and not any(isinstance(record.get(key), (list, dict)) for key in _KEYS)


def source_of(path: Path, content: dict, part, root: Path, folders, images=None, otherwise=None) -> Source:
    """Return an annotation file with the folder of its images; image names that lead elsewhere are changed.

    Args:
        path: The file.
        content: Its content.
        part: ``train``, ``val`` or ``test``; None if it is for all.
        root: The data root.
        folders: The folders that may contain the images.
        images: The folder that the user names.
        otherwise: The folder to use if the images are in none of these.

    Raises:
        DataError: Its images are in no folder, or in several.
    """
    names = [image['file_name'] for image in content['images']]
    probes = names[::max(len(names) // _PROBES, 1)][:_PROBES]
    option = f'--{part or "train"}-images'
    candidates = [images] if images else [path.parent, *(folder for folder in folders if folder != path.parent)]
    for shorten in _forms(probes):
        hits = {folder: sum(os.path.isfile(folder / shorten(name)) for name in probes) for folder in candidates}
        ranks = {}
        for folder, number in hits.items():
            if number:
                ranks.setdefault(_rank(folder, path, part, root), []).append((number, folder))
        for _, ranked in sorted(ranks.items()):
            most = max(number for number, _ in ranked)
            best = list({os.path.realpath(folder): folder for number, folder in ranked if number == most}.values())
            if len(best) > 1:
                raise DataError(f'images of {below(path, root)} are in several folders of {root}: '
                                f'{listed(below(folder, root) for folder in best)}. Choose one with {option} DIR')
            return _renamed(path, content, best[0], shorten, root)
    if otherwise:
        return Source(path, content, otherwise)
    where = below(images, root) if images else f'{root} and {listed(below(folder, root) for folder in folders[1:])}'
    raise DataError(f'{below(path, root)} lists images such as {names[0]!r}, which are not in {where}. Set their '
                    f'folder with {option} DIR')


def _forms(names):
    """Yield ways to read a name, the most literal first: unchanged, without some of its leading folders, and without
    the prefix that Label Studio adds to the name of an upload."""
    longest = max((len(_steps(name)) for name in names), default=1)
    yield lambda name: name
    for skipped in range(longest):
        yield lambda name, skipped=skipped: _shortened(name, skipped)
    yield lambda name: re.sub('^[0-9a-f]{8}-', '', _shortened(name, longest))


def _steps(name):
    """Return the folders and the file in a name below a folder; tools on Windows write backslashes."""
    return [part for part in PurePosixPath(with_slashes(name)).parts if part not in ('/', '..') and part[-1] != ':']


def _shortened(name, skipped):
    steps = _steps(name)
    return '/'.join(steps[min(skipped, len(steps) - 1):]) or name


def _rank(folder, path, part, root):
    """Return how well a folder fits: next to the file, of the same part, of no part, of another; usual names first."""
    own = part_of(folder, root)
    fit = 0 if folder == path.parent else 1 if part and own == part else 2 if own is None else 3
    return fit, folder.name.lower() not in _IMAGES


def _renamed(path, content, folder, shorten, root):
    images = [dict(image, file_name=shorten(image['file_name'])) for image in content['images']]
    if images == content['images']:
        return Source(path, content, folder)
    return Source(path, dict(content, images=images), folder, f'{below(path, root)}, with shortened image names')


def by_part(files, root: Path) -> dict:
    """Return the annotation files by part; None is the key of files whose names do not say the part.

    Raises:
        DataError: Several are for one part.
    """
    parts = {}
    for path, content in files:
        parts.setdefault(part_of(path, root), []).append((path, content))
    if set(parts) >= {'train', 'val'}:
        parts.pop(None, None)
    for part, found in parts.items():
        unnamed = parts.get(None, []) if part == 'train' else []
        if len(found) + len(unnamed) > 1:
            raise DataError(
                f'{root} has several annotation files for {PARTS.get(part, "all images")}: '
                f'{listed(below(path, root) for path, _ in (*found, *unnamed))}. Choose with '
                f'--{part or "train"}-annotations FILE, and --val-annotations FILE if one is for validation')
    return {part: found[0] for part, found in parts.items()}
