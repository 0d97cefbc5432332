"""Reads many files of a data set, but only those that changed since last time.

The check of the data and the training itself use it to read label maps and class lists.
"""
import gc
import hashlib
import json
import os
import stat
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import orjson
from PIL import Image
from tqdm import tqdm

from .._utils.files import atomic_write, read_text, stamp_of
from .._utils.text import first_line
from ..errors import DataError, OutputError
from .channels import ARRAY_SUFFIXES, decode

#: Formats that OpenCV reads too; PIL has others that run external programs.
FORMATS = ('JPEG', 'PNG', 'BMP', 'TIFF', 'WEBP', 'JPEG2000', 'PPM', 'GIF')
#: The bytes near the end of a complete file; cameras may write more after them.
_END_MARKS = {'JPEG': b'\xff\xd9', 'PNG': b'IEND'}
_TAIL = 4096
#: The label of a pixel without a class.
IGNORED = 255
#: Part of every key of the cache: entries of other versions are not read.
_VERSION = 11
_AT_ONCE = 32


class FileState(NamedTuple):
    """One file: ``fault`` is '', ``missing`` or ``unreadable``, with the reason in ``value``; ``content`` is what was
    read from it."""
    fault: str
    value: str
    content: Any = None


class Unreadable(Exception):
    """Raised by a reader if a file cannot be used."""


def read_files(paths, read, kind, source, use_cache: bool = True, name: str = 'files') -> list:
    """Read files in several threads, with a progress bar, and return a `FileState` for each.

    Args:
        read: Called with the path of a regular file; its result must fit in JSON. It raises `Unreadable` or `OSError`.
        kind, source: What is read of which data set, for the cache.
        use_cache: Whether to reuse results for files with the same size and time.
        name: The name of the files in the progress bar.
    """
    known = use_cache and recall(kind, source) or {}

    def look(path):
        try:
            state = os.stat(path)
        except (OSError, ValueError):  # a name with a zero byte, or one that no file system allows
            return ['missing', ''], None
        if not stat.S_ISREG(state.st_mode):  # it may block for ever, or has no bytes
            return ['unreadable', 'it is not a regular file'], None
        stamp = stamp_of(state)
        if path in known and known[path][0] == stamp:
            return known[path][1], stamp
        try:
            return ['', '', read(path)], stamp
        except Unreadable as error:
            return ['unreadable', str(error)], stamp
        except OutputError:  # of a reader that also writes
            raise
        except Exception as error:  # PIL's readers raise many types of errors
            return ['unreadable', str(error) or type(error).__name__], None  # it may be readable next time

    here, results = os.getcwd(), []
    paths = [os.path.join(here, path) for path in paths]
    groups = [paths[i:i + _AT_ONCE] for i in range(0, len(paths), _AT_ONCE)]
    Image.init()  # not in all threads at once
    pool = ThreadPoolExecutor(min(16, 4 * (os.cpu_count() or 1)))
    try:
        with warnings.catch_warnings(), tqdm(total=len(paths), desc=name, unit=' files', leave=False,
                                             disable=None) as bar:
            warnings.simplefilter('ignore', Image.DecompressionBombWarning)
            for group in pool.map(lambda group: [look(path) for path in group], groups):
                results += group
                bar.update(len(group))
    finally:
        pool.shutdown(cancel_futures=True)
    # other calls may have read more files of the same source
    seen = {**known, **{path: [stamp, state] for path, (state, stamp) in zip(paths, results, strict=True) if stamp}}
    if use_cache and seen != known:
        remember(kind, source, seen)
    return [FileState(*state) for state, _ in results]


def read_header(path) -> dict:
    """Return the ``size`` of an image as it is stored and ``turned``, as OpenCV and mmcv read it. What only
    `LoadImageChannels` reads has ``channels``, and an image of 16 bits its ``highest`` value.

    `Unreadable`: it is cut off, or neither an image that OpenCV reads nor the array of an image.
    """
    if os.path.splitext(path)[1].lower() in ARRAY_SUFFIXES:
        return _read_array_header(path)
    try:
        with Image.open(path, formats=FORMATS) as image:
            size, kind, orientation, is_deep = image.size, image.format, None, ';16' in f'{image.mode} {image.tile}'
            # OpenCV rotates only these; a PNG without a mark at its start would be decoded to look for one at its end
            if kind in ('JPEG', 'MPO', 'PNG') and 'exif' in image.info:
                with suppress(Exception):  # a damaged mark raises many types of errors, and OpenCV ignores it
                    orientation = image.getexif().get(0x0112)
    except (Image.UnidentifiedImageError, Image.DecompressionBombError):  # Pillow refuses large ones, OpenCV does not
        return _decoded_header(path)
    if kind in _END_MARKS:
        with open(path, 'rb') as file:
            file.seek(max(0, os.path.getsize(path) - _TAIL))
            is_whole = _END_MARKS[kind] in file.read()
        # some of these few can still be decoded; from memory, as mmcv does it
        if not is_whole and cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR) is None:
            raise Unreadable(f'it is cut off: a {kind} file without its end')
    header = dict(size=list(size), turned=list(size[::-1] if orientation in (5, 6, 7, 8) else size))
    if is_deep and (pixels := cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_UNCHANGED)) is not None:
        header['highest'] = int(pixels.max())
    return header


def _read_array_header(path):
    try:
        shape = np.load(path, mmap_mode='r', allow_pickle=False).shape
    except (EOFError, ValueError) as error:
        raise Unreadable(first_line(error)) from None
    if len(shape) not in (2, 3):
        raise Unreadable(f'an array of shape {shape} is not an image (H, W, channels)')
    size = [shape[1], shape[0]]
    return dict(size=size, turned=size, channels=shape[2] if len(shape) == 3 else 1)


def _decoded_header(path):
    """Return the header of an image of a format that only OpenCV or tifffile reads, such as ``.hdr``."""
    pixels = np.fromfile(path, np.uint8)
    is_of_opencv = pixels.size and cv2.imdecode(pixels, cv2.IMREAD_COLOR) is not None
    try:
        shape = decode(pixels.tobytes(), path).shape
    except DataError:
        raise Unreadable('it is not an image of a format that OpenCV reads') from None
    header = dict(size=[shape[1], shape[0]], turned=[shape[1], shape[0]])
    return header if is_of_opencv else dict(header, channels=shape[2] if len(shape) == 3 else 1)


def read_map(path) -> dict:
    """Return the ``size`` of a label map, its ``mode``, and ``labels``, each with its number of pixels; without labels
    if its pixels are not single numbers from 0 to 255."""
    with Image.open(path, formats=FORMATS) as image:
        pixels = np.asarray(image)
        content = dict(size=list(image.size), mode=image.mode)
    # mmseg accepts numbers of any type, and reads those beyond 8 bits as other labels: -1 as 255, which has no class
    if pixels.ndim == 2 and (pixels.dtype == np.uint8 or pixels.min() >= -(pixels.dtype.kind == 'i') and (
            (pixels.astype(np.uint8) == pixels) | (pixels == -1)).all()):
        counts = np.bincount(pixels.ravel().astype(np.uint8))
        labels = np.flatnonzero(counts)
        content['labels'] = np.stack([labels, counts[labels]], 1).tolist()
    elif pixels.ndim == 2:
        content['mode'] += f' with the values {pixels.min():g} to {pixels.max():g}'
    return content


def read_class_list(path):
    """Return the names in a ``classes.txt``, None if there is none; `DataError`: no, empty or repeated names."""
    if not path.is_file():
        return None
    try:
        names = tuple(line.strip() for line in read_text(path).strip().splitlines())
        fault = '' if names and all(names) and len(set(names)) == len(names) else repr(list(names))
    except (OSError, ValueError) as error:
        fault = str(error)
    if fault:
        raise DataError(f'{path} must have one unique class name per line and no empty lines: {fault}')
    return names


def read_json(path):
    """Return the content of a JSON file; orjson needs a third of the time of Python's parser on COCO's annotations.

    `ValueError`: it is not JSON. NaN and Infinity, as Python writes them, are accepted.
    """
    data, was_on = Path(path).read_bytes(), gc.isenabled()
    gc.disable()  # it would search millions of new objects for cycles, which JSON does not have
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode('utf-8-sig'))  # Windows begins UTF-8 with a byte order mark
    finally:
        if was_on:
            gc.enable()


def cached(kind, path, make, use_cache: bool = True):
    """Return what ``make()`` returns, which must fit in JSON; a result is kept until the file at ``path`` changes."""
    stamp = stamp_of(path) if use_cache and path.is_file() else None
    known = recall(kind, path) if stamp else None
    if known and known['stamp'] == stamp:
        return known['found']
    found = make()
    if stamp:
        remember(kind, path, dict(stamp=stamp, found=found))
    return found


def recall(kind, path):
    """Return the result that `remember` kept, or None, also if its file is damaged."""
    with suppress(OSError, ValueError, RuntimeError):
        return json.loads(_cache_file(kind, path).read_text())


def remember(kind, path, content):
    """Keep a result in the user's cache folder for the next run; if it cannot be written, only time is lost."""
    # errors: a read-only home, a full disk, no home at all
    with suppress(OSError, RuntimeError), atomic_write(_cache_file(kind, path)) as part:
        part.write_text(json.dumps(content))


def _cache_file(kind, path):
    folder = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache', 'xcit_dense/data_check')
    key = json.dumps([_VERSION, kind, os.path.abspath(path)])
    return folder / f'{hashlib.sha256(key.encode()).hexdigest()[:32]}.json'
