"""Looking at the image files of a data set."""
import os

import cv2
import numpy as np
from PIL import Image

from ...text import shown
from ..files import FORMATS, Unreadable, read_files

_ORIENTATION = 0x0112
#: What a whole file has near its end; cameras write something behind it.
_END_MARKS = {'JPEG': b'\xff\xd9', 'PNG': b'IEND'}
_TAIL = 4096


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
    # of these few some can be decoded all the same; from memory, as mmcv does it
    if 'cut_off' in header and cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR) is None:
        raise Unreadable(f'it is cut off: a {kind} without its end')
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
    step = steps[0] if steps else {}
    kind = step.get('color_type', 'color')
    return (kind != 'unchanged' and 'ignore_orientation' not in kind
            and step.get('imdecode_backend') not in ('turbojpeg', 'tifffile'))


def loads_masks(dataset) -> bool:
    """Whether the pipeline of a data set reads masks; one without any step of loading counts as one that does."""
    steps = [step for step in dataset.get('pipeline') or [] if step.get('type') == 'LoadAnnotations']
    return not steps or any(step.get('with_mask') for step in steps)
