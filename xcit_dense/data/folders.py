"""The files in folders, as data sets read them, and what the names of files and folders mean."""
import os
import re
from collections import Counter
from pathlib import Path

from .._utils.files import read_text
from .._utils.text import counted, with_slashes
from ..errors import DataError

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')
#: Suffixes of images that are not read, but may be meant to be.
OTHER_SUFFIXES = ('.heic', '.heif', '.avif', '.gif', '.jxl', '.jp2', '.jfif', '.dng', '.psd')
#: The number of folders that an error lists if nothing is recognised.
_SEEN = 12
#: Words in names by the part that they mean, the usual ones first.
WORDS = dict(train=('train', 'training', 'trn'), val=('val', 'valid', 'validation'), test=('test', 'testing'))
_PARTS = {word: part for part, words in WORDS.items() for word in words}
#: Names of folders of label maps, as `plain` writes them.
MAPS = ('masks', 'mask', 'labels', 'label', 'annotations', 'annotation', 'annots', 'annot', 'anndir', 'gt', 'gtfine',
        'segmentation', 'segmentations', 'segmentationclass', 'labelmaps', 'groundtruth', 'target', 'targets',
        'semantic', 'segmaps', 'seg', 'pedmasks')
#: Suffixes of label maps; JPEG would change labels.
MAP_SUFFIXES = ('.png', '.bmp', '.tif', '.tiff', '.gif')


def files_below(folder, hidden_folders: bool = False) -> list:
    """Return the files below a folder, sorted; none if there is no such folder.

    As in mmseg, links to folders are followed, and files whose names begin with a dot are ignored; folders with such
    names only with ``hidden_folders``. A link back to a folder that contains it is not followed. A broken link counts
    as a file.
    """
    return sorted(map(Path, names_below(folder, hidden_folders)))


def names_below(folder, hidden_folders: bool = False) -> list:
    """Return the paths of `files_below` as strings, unsorted: a million of them takes seconds."""
    try:
        return list(_walk(folder, hidden_folders, ())) if Path(folder).is_dir() else []
    except OSError as error:
        raise DataError(f'a folder with data cannot be read: {error}') from error


def find_images(source, suffixes=IMAGE_SUFFIXES):
    """Return folder and sorted images of a file with any suffix, or a folder, as `files_below`; `DataError`: none."""
    source = Path(source).expanduser()
    if source.is_file():
        return source.parent, [source]
    if not source.is_dir():
        if re.match(r'\d+$|\w\w+:/', str(source)):
            raise DataError(f'{source} is no file on this machine: download what is at an address, record a camera')
        raise DataError(f'there is no image or folder {source.absolute()}')
    if not (paths := [path for path in files_below(source) if path.suffix.lower() in suffixes]):
        raise DataError(f'there is no image in {source.absolute()}; looked for {", ".join(suffixes)}')
    return source, paths


def unread_images(paths, suffixes) -> str:
    """Return how many images among files are not read because of their suffixes, by kind; '' if there are none."""
    kinds = Counter(path.suffix.lower() for path in paths if path.suffix.lower() in {*OTHER_SUFFIXES} - {*suffixes})
    words = ', '.join(f'{number:,} {suffix}' for suffix, number in kinds.most_common())
    return kinds and f'{counted(kinds.total(), "images")} of formats that are not read ({words}): convert to .png' or ''


def seen_in(root) -> str:
    """Return a few lines on the folders below a folder: how many files of which kinds are in each."""
    lines = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith('.'))
        kinds = Counter(Path(name).suffix.lower() or name for name in files if not name.startswith('.'))
        if kinds or not folders:
            words = ', '.join(f'{count:,} {kind}' for kind, count in kinds.most_common(4)) or 'nothing'
            lines.append(f'- {os.path.relpath(folder, root)}: {words}')
        if len(lines) > _SEEN:
            return '\n'.join([*lines[:_SEEN], '- and more'])
    return '\n'.join(lines)


def _walk(folder, hidden_folders, above):
    here = os.path.realpath(folder)
    if here in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            hidden = entry.name.startswith('.')
            if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():  # a link may lead to itself
                if hidden_folders or not hidden:
                    yield from _walk(entry.path, hidden_folders, (*above, here))
            elif not hidden:
                yield entry.path


def names_in_list(path) -> list:
    """Return the names in a list of images, one per line, with ``/`` also from Windows; `DataError`: it is damaged."""
    try:
        return [line.strip() for line in with_slashes(read_text(Path(path).expanduser())).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f'the list of images {path} cannot be read: {error}') from error


def label_map_of(image: Path, folder, maps_folder, map_suffix: str, suffix: str = None, ending: str = '') -> Path:
    """Return the path of the label map of an image below ``folder``: the same name with a different ending.

    Args:
        map_suffix: The end of the names of label maps, such as ``_mask.png``.
        suffix: The end of the names of images; by default everything from the last dot on.
        ending: The part before ``suffix`` that only the names of images have.
    """
    name = str(image.relative_to(folder))
    stem = name[:len(name) - len(image.suffix if suffix is None else suffix)]
    return Path(maps_folder, stem.removesuffix(ending) + map_suffix)


def plain(name) -> str:
    """Return a name in lower case, without blanks, ``-``, ``_`` and dots."""
    return re.sub(r'[\s_.-]+', '', name.lower())


def part_of(path: Path, root: Path):
    """Return ``train``, ``val`` or ``test`` if the name of a file or folder, or of a folder above it, says so.

    The nearest name counts; a name with two of them is ignored.
    """
    names = [path.stem if path.suffix else path.name, *(folder.name for folder in path.parents if folder != root
                                                        and folder.is_relative_to(root))]
    for name in names if path != root else ():
        part, rest = part_in(name)
        if part or rest is None:
            return part
    return None


def part_in(name: str):
    """Return ``train``, ``val`` or ``test`` if a name says so, and what the names of the other parts have in common.

    ``val2017`` is ``val`` and ``*0``, as is ``val2014``. Without such a word, both are '' and the name; with words of
    two parts, None and None.
    """
    words = re.findall('[a-z]+', name.lower())
    found = {_PARTS[word] for word in words if word in _PARTS}
    if len(found) > 1:
        return None, None
    rest = re.sub('[a-z]+', lambda word: '*' if word[0] in _PARTS else word[0], re.sub('[0-9]+', '0', name.lower()))
    return (found.pop(), rest) if found else ('', name)
