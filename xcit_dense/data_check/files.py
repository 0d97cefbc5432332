"""Looking at many files at once: where they lie, what is in them, and only at those that changed since last time."""
import os
import stat
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from tqdm import tqdm

from .cache import recall, remember
from .findings import shown

#: What OpenCV reads too; PIL knows formats that run other programs.
FORMATS = ('JPEG', 'PNG', 'BMP', 'TIFF', 'WEBP', 'JPEG2000', 'PPM', 'GIF')
_ORIENTATION = 0x0112
#: What a whole file has near its end; cameras write something behind it.
_END_MARKS = {'JPEG': b'\xff\xd9', 'PNG': b'IEND'}
_TAIL = 4096
_AT_ONCE = 32


class FileState(NamedTuple):
    """One file: ``fault`` is '', ``missing``, ``outside`` or ``unreadable``, with its words in ``value``; ``content``
    is what was read of it."""
    fault: str
    value: str
    content: Any = None


class Unreadable(Exception):
    """A reader's word that a file cannot be used."""


def read_files(paths, read, roots, kind, source, use_cache: bool, name: str = 'files') -> list:
    """Look at files in several threads, with a progress bar.

    Args:
        paths: Theirs.
        read: Called with the path of a regular file inside a root; what it returns can be held by JSON. It raises
            `Unreadable` or `OSError`.
        roots: Folders; a file that really lies in none of them is not read.
        kind: What is read, for the cache.
        source: The data set, for the cache.
        use_cache: Whether to believe what was read of a file that has the same size and time.
        name: What the progress bar calls them.

    Returns:
        A `FileState` for each path.
    """
    known = recall(kind, source) if use_cache else None
    known = known if isinstance(known, dict) else {}
    roots = [os.path.realpath(root) for root in roots]
    folders = {}  # where they really are: a look at a link for each part of a path, once for all files in it

    def really(path):
        folder, name = os.path.split(path)
        if name in ('', '.', '..') or os.path.islink(path):
            return os.path.realpath(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        return os.path.join(folders[folder], name)

    def look(path):
        try:
            real = really(path)
            # before anything is said of what may lie there
            if not any(real == root or real.startswith(os.path.join(root, '')) for root in roots):
                return ['outside', real], None
            state = os.stat(real)
        except (OSError, ValueError):  # a name with a zero byte, or one that no file system has
            return ['missing', ''], None
        if not stat.S_ISREG(state.st_mode):
            return ['unreadable', 'it is no regular file'], None
        stamp = [state.st_size, state.st_mtime_ns]
        if path in known and known[path][0] == stamp:
            return known[path][1], stamp
        try:
            return ['', '', read(path)], stamp
        except Unreadable as error:
            return ['unreadable', str(error)], stamp
        except Exception as error:  # PIL's readers raise whatever the bytes lead them to
            return ['unreadable', str(error) or type(error).__name__], None  # the disk may do better next time

    paths = [str(path) for path in paths]
    results = _in_threads(look, paths, name)
    seen = {path: [stamp, state] for path, (state, stamp) in zip(paths, results, strict=True) if stamp}
    if use_cache and seen != known:
        remember(kind, source, seen)
    return [FileState(*state) for state, _ in results]


def _in_threads(function, items, name):
    groups = [items[i:i + _AT_ONCE] for i in range(0, len(items), _AT_ONCE)]
    results = []
    Image.init()  # not in all threads at once
    pool = ThreadPoolExecutor(min(16, 4 * (os.cpu_count() or 1)))
    try:
        with warnings.catch_warnings(), tqdm(total=len(items), desc=name, unit=' files', leave=False,
                                             disable=None) as bar:
            warnings.simplefilter('ignore', Image.DecompressionBombWarning)
            for group in pool.map(lambda group: [function(item) for item in group], groups):
                results += group
                bar.update(len(group))
    finally:
        pool.shutdown(cancel_futures=True)
    return results


def read_header(path) -> dict:
    """Return the ``size`` of an image as it is stored and ``turned``, as OpenCV and mmcv read it; ``mode``, and marks
    of harm: ``cut_off``, its format, and ``huge``.

    Raises:
        Unreadable: It is no image that OpenCV reads.
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            size, mode, kind = image.size, image.mode, image.format
            orientation = _orientation(image)
    except Image.DecompressionBombError as error:
        return dict(huge=str(error))
    except Image.UnidentifiedImageError:
        raise Unreadable('it is no image of a kind that OpenCV reads') from None
    header = dict(size=list(size), mode=mode, turned=list(size[::-1] if orientation in (5, 6, 7, 8) else size))
    if kind in _END_MARKS:
        with open(path, 'rb') as file:
            file.seek(max(0, os.path.getsize(path) - _TAIL))
            if _END_MARKS[kind] not in file.read():
                header['cut_off'] = kind
    return header


def _orientation(image):
    # OpenCV turns these kinds alone; a PNG without a mark at its start would be decoded to look for one at its end
    if image.format not in ('JPEG', 'MPO', 'PNG') or 'exif' not in image.info:
        return None
    try:
        return image.getexif().get(_ORIENTATION)
    except Exception:  # a damaged mark raises whatever its bytes lead to, and is no mark to OpenCV
        return None


def check_images(report_file, folder, entries, roots, turned: bool, use_cache: bool):
    """Yield the faults of the image files of an annotation file.

    Args:
        report_file: The annotation file, for the cache.
        folder: The folder that the names are relative to.
        entries: For each image its place in the file, id, name, width and height.
        roots: As for `read_files`.
        turned: Whether the pipeline turns images as their EXIF marks ask; mmcv does unless it is told not to.
        use_cache: As for `read_files`.

    Yields:
        Kind, path, place, id and value.
    """
    paths = [os.path.join(folder, name) for _, _, name, _, _ in entries]
    states = read_files(paths, read_header, roots, 'headers', report_file, use_cache, 'images')
    for path, state, (row, id, name, width, height) in zip(paths, states, entries, strict=True):
        if state.fault:
            value = f'{state.value}, by the name {shown(name)}' if state.fault == 'outside' else state.value
            yield f'image-{state.fault}', path, row, id, value
            continue
        yield from ((kind, path, row, id, value) for kind, value in faults_of_header(state.content))
        if 'size' in state.content:
            real = state.content['turned' if turned else 'size']
            if real != [width, height]:
                kind = 'image-rotated' if turned and state.content['size'] == [width, height] else 'image-size'
                yield kind, path, row, id, f'{real[0]} x {real[1]}, not {width:g} x {height:g} (width x height)'


def faults_of_header(header):
    """Yield kind and value of the marks of harm in a header."""
    for name, kind in (('cut_off', 'image-cut-off'), ('huge', 'image-huge')):
        if name in header:
            yield kind, header[name]


def turns_images(dataset) -> bool:
    """Whether the pipeline of a data set reads images turned as their EXIF marks ask."""
    steps = [step for step in dataset.get('pipeline') or [] if step.get('type') == 'LoadImageFromFile']
    kind = steps[0].get('color_type', 'color') if steps else 'color'
    return kind != 'unchanged' and 'ignore_orientation' not in kind


def loads_masks(dataset) -> bool:
    """Whether the pipeline of a data set reads masks; one without any step of loading counts as one that does."""
    steps = [step for step in dataset.get('pipeline') or [] if step.get('type') == 'LoadAnnotations']
    return not steps or any(step.get('with_mask') for step in steps)


def folder_of(dataset, key) -> Path:
    """Return the folder of a key of ``data_prefix``."""
    return Path(dataset.get('data_root') or '', dataset.get('data_prefix', {}).get(key) or '').expanduser()
