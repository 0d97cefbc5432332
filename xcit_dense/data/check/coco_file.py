"""An annotation file of COCO: its records as columns, and its masks."""
import gc
from array import array
from contextlib import contextmanager
from itertools import chain, repeat
from math import isfinite

import numpy as np

from ..._utils.text import counted, shown
from ..files import read_json

#: The fields of each list that are read, and their kinds.
PARTS = dict(
    images=dict(id='id', file_name='text', width='number', height='number'),
    categories=dict(id='id', name='text'),
    annotations=dict(id='id', image_id='id', category_id='id', bbox='box', area='number'),
)
_TYPES = {
    'id': ((int, str, float), 'a number or a string'),  # 1.0 equals 1 in Python and the frameworks
    'text': ((str, ), 'a string'),
    'number': ((int, float), 'a number'),
    'box': ((list, ), 'a list of 4 numbers'),
}
#: Masks are checked in groups of this size, which bounds the memory.
_MASKS = 1 << 15
#: Coordinates beyond this many times the longer side of the image are absurd.
FAR = 10


def read_coco(path, tested: bool = True):
    """Return the content of an annotation file, and what is wrong with the file or None.

    Args:
        path: The file.
        tested: Whether it may lack the list of annotations, as COCO's own file for the test images does.
    """
    try:
        content = read_json(path)
    except (OSError, RecursionError) as error:
        return None, f'it cannot be read: {error}'
    except ValueError as error:
        return None, f'it is not valid JSON: {error}'
    if not isinstance(content, dict):
        return None, f'it must be an object, not {shown(content)}'
    if tested:
        content.setdefault('annotations', [])
    for part in PARTS:
        if not isinstance(content.get(part), list):
            return None, f'it has no list {part!r}'
        if not content[part] and part != 'annotations':
            return None, f'its list {part!r} is empty'
    return content, None


def columns_of(records, fields):
    """Read some fields of many records.

    Args:
        records: A list that should hold dicts.
        fields: The kind of value of each field: ``id``, ``text``, ``number`` or ``box``.

    Returns:
        The indices (int array) of the records that have every field; the columns of these records by name: a list of
        ids or texts, or a float64 array (n) or, for boxes, (n, 4), not all of them finite; the indices and problems of
        the other records.
    """
    rows, faults = np.arange(len(records)), []
    try:
        return rows, {name: _column(records, name, kind) for name, kind in fields.items()}, faults
    except (KeyError, TypeError, OverflowError):  # few files have such records, so that only they are looked at singly
        faults = [(row, fault) for row, record in enumerate(records) if (fault := _fault(record, fields))]
    rows = np.delete(rows, [row for row, _ in faults])
    kept = [records[row] for row in rows.tolist()]
    return rows, {name: _column(kept, name, kind) for name, kind in fields.items()}, faults


def _column(records, name, kind):
    values = [record[name] for record in records]
    if not set(map(type, values)) <= set(_TYPES[kind][0]) or kind == 'box' and set(map(len, values)) - {4}:
        raise TypeError
    if kind in ('id', 'text'):
        return values
    # numpy would accept texts of numbers
    return np.array(array('d', values)) if kind == 'number' else np.array(
        array('d', chain.from_iterable(values))).reshape(-1, 4)


def _fault(record, fields):
    if not isinstance(record, dict):
        return f'it must be an object, not {shown(record)}'
    for name, kind in fields.items():
        try:
            _column([record], name, kind)
        except KeyError:
            return f'it has no {name!r}'
        except (TypeError, OverflowError):
            return f'its {name!r} must be {_TYPES[kind][1]}, not {shown(record[name])}'
    return ''


def places_of(ids, wanted):
    """Return the index of each wanted id among the ids: the last if several are equal, -1 if there is none."""
    index = {id: place for place, id in enumerate(ids)}
    return np.fromiter(map(index.get, wanted, repeat(-1)), np.int64, len(wanted))


def repeated(ids):
    """Return for each id whether it occurred before."""
    if len(set(ids)) == len(ids):
        return np.zeros(len(ids), bool)
    return places_of(ids[::-1], ids) != np.arange(len(ids))[::-1]


@contextmanager
def without_garbage_collection():
    """Turn off the search for reference cycles among millions of new objects: JSON has none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def check_masks(segmentations, sizes):
    """Yield the problems of masks: the index of the annotation, the kind and the value; an object can have several.

    Args:
        segmentations: The value of each annotation's ``segmentation``, None if it has none.
        sizes: The width and height of their images (n, 2) in pixels.
    """
    for start in range(0, len(segmentations), _MASKS):
        part = slice(start, start + _MASKS)
        for index in (start + np.flatnonzero(_doubtful(segmentations[part], sizes[part]))).tolist():
            for kind, value in faults_of_mask(segmentations[index], *sizes[index].tolist()).items():
                yield index, kind, value


def _doubtful(segmentations, sizes):
    """Return which masks may have a problem: all but polygons in their images, which most are."""
    doubtful = np.array([not mask or type(mask) is not list or not all(
        type(polygon) is list and len(polygon) > 5 and not len(polygon) % 2 for polygon in mask)
        for mask in segmentations], bool)
    places = np.flatnonzero(~doubtful)
    polygons = [polygon for place in places.tolist() for polygon in segmentations[place]]
    if not polygons:
        return doubtful
    try:
        corners = np.array(array('d', chain.from_iterable(polygons))).reshape(-1, 2)
    except (TypeError, OverflowError):  # there is something else than numbers
        return np.ones(len(segmentations), bool)
    starts = np.cumsum([0, *map(len, polygons)])[:-1] // 2
    owners = np.repeat(places, [len(segmentations[place]) for place in places.tolist()])
    low, high, sides = np.minimum.reduceat(corners, starts), np.maximum.reduceat(corners, starts), sizes[owners]
    far = FAR * sides.max(1, keepdims=True)
    good = ((low >= -far) & (high <= far) & (low < sides) & (high > 0)).all(1)  # NaN is not
    doubtful[owners[~good]] = True
    return doubtful


def faults_of_mask(segmentation, width: float, height: float) -> dict:
    """Return the kinds of the problems of a mask, with a value for each.

    Args:
        segmentation: The ``segmentation`` of an annotation, None if it has none.
        width: The width of its image in pixels.
        height: The height of its image in pixels.
    """
    if not segmentation and (segmentation is None or isinstance(segmentation, (list, dict))):
        return {'mask-missing': ''}
    if type(segmentation) is not list:
        kind, value = (_fault_of_rle(segmentation, int(width), int(height)) if type(segmentation) is dict else
                       ('mask-malformed', shown(segmentation)))
        return {kind: value} if kind else {}
    found, first = {}, segmentation[0]
    for polygon in segmentation:
        kind, value = _fault_of_polygon(polygon, width, height)
        found.setdefault(kind, value)
    used = set(found) - {'mask-malformed', 'polygon-points'}  # of the polygons that have enough points
    if not used and 'polygon-points' in found:
        found['polygon-none'] = found.pop('polygon-points')
    if used != {'polygon-outside'}:  # an object may have parts outside, but not all of them
        found.pop('polygon-outside', None)
    if type(first) is list and len(first) < 5:
        found['polygon-first'] = counted(len(first), 'numbers')
    found.pop('', None)
    return found


def _fault_of_polygon(polygon, width, height):
    """Return the kind and value of the problem of a polygon, '' if there is none."""
    if type(polygon) is not list:
        return 'mask-malformed', shown(polygon)
    if len(polygon) < 6 or len(polygon) % 2:
        return 'polygon-points', counted(len(polygon), 'numbers')
    try:
        if not all(map(isfinite, polygon)):
            return 'polygon-not-finite', shown(polygon)
    except (TypeError, OverflowError):
        return 'mask-malformed', shown(polygon)
    x, y = polygon[::2], polygon[1::2]
    left, right, top, bottom = min(x), max(x), min(y), max(y)
    if max(-left, -top, right, bottom) > FAR * max(width, height):
        kind = 'polygon-absurd'
    elif right > 0 and bottom > 0 and left < width and top < height:
        return '', ''
    else:
        kind = 'polygon-outside'
    return kind, f'x from {left:g} to {right:g}, y from {top:g} to {bottom:g}'


def _fault_of_rle(rle, width, height):
    """Return the kind and value of the problem of run lengths, '' if there is none."""
    size, counts = rle.get('size'), rle.get('counts')
    if size is None or type(counts) not in (list, str):
        return 'mask-no-counts', shown(rle)
    if type(size) is not list or len(size) != 2:
        return 'mask-malformed', shown(rle)
    if any(type(side) is not int for side in size) or size != [height, width]:
        return 'rle-size', f'{shown(size)}, not {[height, width]} (height, width)'
    if isinstance(counts, str):
        total = sum_of_coded(counts)
    else:
        total = sum(counts) if set(map(type, counts)) <= {int} else None
    if total is None:
        return 'rle-malformed', shown(counts)
    if isinstance(counts, list) and min(counts, default=0) < 0:
        return 'rle-counts', f'a count of {min(counts)}'
    if total != height * width:
        return 'rle-counts', f'their sum is {shown(total)}, but the mask has {counted(height * width, "pixels")}'
    return '', ''


def sum_of_coded(text: str) -> int | None:
    """Return the sum of the counts in a compressed RLE text; None if it cannot be read.

    A count is written in characters of 6 bits, starting at '0': 5 bits of the number, lowest first, and one bit that
    says that more follow; the highest of the last 5 bits is the sign. From the fourth count on, each is stored as the
    difference to the count two before it, which is a run of the same value.
    """
    counts, value, shift = [], 0, 0
    for code in text.encode(errors='surrogatepass'):
        code -= ord('0')
        if not 0 <= code < 64 or shift > 30:  # more than 35 bits are not a count
            return None
        value |= (code & 31) << shift
        shift += 5
        if not code & 32:
            value += (counts[-2] if len(counts) > 2 else 0) - (code & 16 and 1 << shift)
            if value < 0:
                return None
            counts.append(value)
            value = shift = 0
    return sum(counts) if counts and not shift else None
