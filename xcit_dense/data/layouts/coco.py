"""Annotation files in COCO's form, as tools export them: which there are, for which part, where their images lie."""
import os
import re
from pathlib import Path, PurePosixPath

from ...errors import DataError
from ...text import listed
from ..files import read_json
from .layout import PARTS, below
from .names import part_of
from .source import Source

#: Beginnings of the names of files in COCO's form that are about other things than objects.
_OTHERS = ('captions_', 'panoptic_', 'stuff_', 'image_info_')
#: A folder with more JSON files than these has one for each image, of another tool.
_MOST_FILES = 20
_PROBES = 20
_KEYS = 'id', 'image_id', 'category_id', 'name', 'supercategory'
#: Folders that hold images by their names alone.
_IMAGES = ('images', 'data', 'imgs', 'img', 'jpegimages')


def find_files(folders, named=()) -> list:
    """Return the annotation files in some folders: pairs of a path and what it holds.

    Args:
        folders: Them.
        named: Files that the config names, whose faults others tell.

    Raises:
        DataError: A file that should be one by its name is damaged.
    """
    found = []
    for folder in folders:
        paths = sorted(path for path in folder.glob('*.json') if not path.name.startswith('.') and path.is_file())
        paths = [path for path in paths if not path.name.lower().startswith(_OTHERS)]
        instances = [path for path in paths if _is_usual(path)]
        if instances:  # person_keypoints_... beside them has the same images
            paths = instances
        elif len(paths) > _MOST_FILES:
            continue
        for path in paths:
            try:
                content = read_json(path)
            except (OSError, ValueError, RecursionError) as error:
                if _is_usual(path) and path not in named:
                    raise DataError(f'{path} cannot be read: {error}') from error
                continue
            if is_coco(content):
                found.append((path, content))
    return found


def _is_usual(path):
    return path.name.lower().startswith(('instances', '_annotations.coco'))


def is_coco(content) -> bool:
    """Whether what a JSON file holds are images and objects, in COCO's form as far as it matters here."""
    if not isinstance(content, dict):
        return False
    parts = [content.get(part) for part in ('images', 'annotations', 'categories')]
    return (all(isinstance(part, list) and all(map(_is_record, part)) for part in parts)
            and bool(parts[0] and parts[2])
            and all('id' in image and isinstance(image.get('file_name'), str) for image in parts[0]))


def _is_record(record):
    """Whether it is a record, whose ids and names are no lists or records themselves."""
    return isinstance(record, dict) and not any(isinstance(record.get(key), (list, dict)) for key in _KEYS)


def source_of(path: Path, content: dict, part, root: Path, folders, images=None, otherwise=None) -> Source:
    """Return an annotation file with the folder of its images; their names are changed where they lead elsewhere.

    Args:
        path: The file.
        content: What it holds.
        part: ``train``, ``val`` or ``test``; None where it is for all.
        root: The data root.
        folders: Those that may hold the images.
        images: The one that the user names.
        otherwise: That of images that lie nowhere.

    Raises:
        DataError: Its images lie nowhere, or in several folders.
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
            best = _distinct([folder for number, folder in ranked if number == max(ranked)[0]])
            if len(best) > 1:
                raise DataError(f'images of {below(path, root)} lie in several folders of {root}: '
                                f'{listed(below(folder, root) for folder in best)}. Say which with {option} DIR')
            return _renamed(path, content, best[0], shorten, root)
    if otherwise:
        return Source(path, content, otherwise)
    where = below(images, root) if images else f'{root} and {listed(below(folder, root) for folder in folders[1:])}'
    raise DataError(f'{below(path, root)} names images such as {names[0]!r}, which are not in {where}. Say where they '
                    f'lie with {option} DIR')


def _forms(names):
    """Return ways to read a name, the most literal first: as it is, without some of the folders that it begins with,
    and without what Label Studio puts before the name of an upload."""
    longest = max((len(_path(name).parts) for name in names), default=1)
    yield lambda name: name
    for skipped in range(longest):
        yield lambda name, skipped=skipped: _shortened(name, skipped)
    yield lambda name: re.sub('^[0-9a-f]{8}-', '', _shortened(name, longest))


def _path(name):
    """Return a name as a path below a folder; tools on Windows write backslashes."""
    parts = PurePosixPath(name.replace('\\', '/')).parts
    return PurePosixPath(*(part for part in parts if part not in ('/', '..') and not part.endswith(':')))


def _shortened(name, skipped):
    parts = _path(name).parts
    return str(PurePosixPath(*parts[min(skipped, len(parts) - 1):])) if parts else name


def _rank(folder, path, part, root):
    """Return how well a folder fits: beside the file, of the same part, of none, of another; usual names first."""
    own = part_of(folder, root)
    fit = 0 if folder == path.parent else 1 if part and own == part else 2 if own is None else 3
    return fit, folder.name.lower() not in _IMAGES


def _distinct(folders):
    return list({os.path.realpath(folder): folder for folder in folders}.values())


def _renamed(path, content, folder, shorten, root):
    images = [dict(image, file_name=shorten(image['file_name'])) for image in content['images']]
    if images == content['images']:
        return Source(path, content, folder)
    return Source(path, dict(content, images=images), folder, f'{below(path, root)}, names of images shortened')


def by_part(files, root: Path) -> dict:
    """Return the annotation files by their part, None for those whose names say none.

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
                f'{listed(below(path, root) for path, _ in (*found, *unnamed))}. Say which with '
                f'--{part or "train"}-annotations FILE, and --val-annotations FILE where one is for validation')
    return {part: found[0] for part, found in parts.items()}


def name_of(files) -> str:
    """Return the name of the layout that annotation files show."""
    names = [path.name.lower() for path, _ in files]
    infos = [content['info'] for _, content in files if isinstance(content.get('info'), dict)]
    tool = next((tool for tool, fits in (
        ('Roboflow', '_annotations.coco.json' in names),
        ('Label Studio', any(info.get('contributor') == 'Label Studio' for info in infos) or 'result.json' in names),
        ('FiftyOne', any('fiftyone' in str(info).lower() for info in infos) or 'labels.json' in names),
        ('CVAT', any(re.fullmatch(r'instances_[a-z]+\.json', name) for name in names)),
        ('COCO 2017', any(re.fullmatch(r'instances_[a-z]+2017\.json', name) for name in names))) if fits), '')
    return tool if tool.startswith('COCO') else f'{tool} (COCO)' if tool else 'COCO'
