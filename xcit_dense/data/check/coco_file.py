"""An annotation file of COCO: how it is used, its records as columns, and its masks."""
from array import array
from itertools import chain, repeat
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ..._utils.text import counted, shown
from ..files import read_json

#: The fields of each list that are read, and their kinds.
PARTS = dict(
    images=dict(id='id', file_name='text', width='number', height='number'),
    categories=dict(id='id', name='text'),
    annotations=dict(id='id', image_id='id', category_id='id', bbox='box', area='number'),
)
#: Records are checked in groups of this size; only groups with a bad record are checked more closely.
_RECORDS = 4096
_TYPES = {
    'id': ((int, str, float), 'a number or a string'),  # 1.0 equals 1 in Python and the frameworks
    'text': ((str, ), 'a string'),
    'number': ((int, float), 'a number'),
    'box': ((list, ), 'a list of 4 numbers'),
}
#: Coordinates beyond this many times the longer side of the image are absurd.
FAR = 10
#: Masks are checked in groups of this size, which bounds the memory.
_MASKS = 1 << 15


class Use(NamedTuple):
    """How an annotation file is used.

    Args:
        masks: Whether the pipeline reads the masks.
        tested: Whether it is test data: nothing is filtered out then.
        evaluated: Whether the metric reads the masks, including those that the data set drops.
        classes: The names that the config wants, or None if any will do. Objects of other classes are ignored.
    """
    masks: bool
    tested: bool = False
    evaluated: bool = False
    classes: tuple | None = None


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
    good, faults = [], []
    queue = [(start, min(start + _RECORDS, len(records))) for start in range(0, len(records), _RECORDS)][::-1]
    while queue:
        start, stop = queue.pop()
        try:
            good.append((start, stop, [_column(records[start:stop], *field) for field in fields.items()]))
        except (KeyError, TypeError, OverflowError):
            if stop - start == 1:
                faults.append((start, _fault(records[start], fields)))
            else:
                middle = (start + stop) // 2
                queue += [(middle, stop), (start, middle)]
    rows = np.concatenate([np.arange(0), *(np.arange(start, stop) for start, stop, _ in good)])
    columns = {}
    for place, (name, kind) in enumerate(fields.items()):
        parts = [part[place] for *_, part in good]
        if kind in ('id', 'text'):
            columns[name] = list(chain.from_iterable(parts))
        else:
            columns[name] = np.concatenate([np.empty((0, 4) if kind == 'box' else 0), *parts])
    return rows, columns, faults


def floats(values) -> array:
    """Return numbers as an array of float64.

    Raises:
        TypeError: A value is not a number.
        OverflowError: A value is too large for a float.
    """
    return array('d', values)


def _column(records, name, kind):
    values = list(map(itemgetter(name), records))
    if not set(map(type, values)) <= set(_TYPES[kind][0]):
        raise TypeError
    if kind in ('id', 'text'):
        return values
    if kind == 'number':
        return np.array(floats(values))
    if not set(map(len, values)) <= {4}:
        raise TypeError
    return np.array(floats(chain.from_iterable(values))).reshape(-1, 4)


def _fault(record, fields):
    if not isinstance(record, dict):
        return f'it must be an object, not {shown(record)}'
    for name, kind in fields.items():
        if name not in record:
            return f'it has no {name!r}'
        try:
            _column([record], name, kind)
        except (TypeError, OverflowError):
            return f'its {name!r} must be {_TYPES[kind][1]}, not {shown(record[name])}'
    raise AssertionError('a record without a fault')


def check_masks(segmentations, widths, heights):
    """Yield the problems of masks.

    Args:
        segmentations: The value of each annotation's ``segmentation``, None if it has none.
        widths: The widths of their images in pixels.
        heights: The heights of their images in pixels.

    Yields:
        The index of the annotation, the kind of problem and its value; one annotation can have several.
    """
    for start in range(0, len(segmentations), _MASKS):
        part = slice(start, start + _MASKS)
        for index, kind, value in _check_chunk(segmentations[part], widths[part], heights[part]):
            yield start + index, kind, value


def _check_chunk(segmentations, widths, heights):
    owners, polygons = [], []
    for index, segmentation in enumerate(segmentations):
        if not segmentation and (segmentation is None or isinstance(segmentation, (list, dict))):
            yield index, 'mask-missing', ''
        elif type(segmentation) is list:
            if type(segmentation[0]) is list and len(segmentation[0]) < 5:
                yield index, 'polygon-first', counted(len(segmentation[0]), 'numbers')
            polygons += segmentation
            owners += repeat(index, len(segmentation))
        elif type(segmentation) is dict:
            if fault := _fault_of_rle(segmentation, int(widths[index]), int(heights[index])):
                yield index, *fault
        else:
            yield index, 'mask-malformed', shown(segmentation)
    yield from _check_polygons(owners, polygons, widths, heights)


def _check_polygons(owners, polygons, widths, heights):
    numbers, lengths, kept, short = array('d'), [], [], {}
    for owner, polygon in zip(owners, polygons, strict=True):
        if type(polygon) is not list:
            yield owner, 'mask-malformed', shown(polygon)
        elif len(polygon) < 6 or len(polygon) % 2:
            short.setdefault(owner, counted(len(polygon), 'numbers'))
        else:
            try:
                numbers.fromlist(polygon)
            except (TypeError, OverflowError):
                yield owner, 'mask-malformed', shown(polygon)
                continue
            lengths.append(len(polygon))
            kept.append(owner)
    others = set(kept)
    for owner, value in short.items():
        yield owner, 'polygon-points' if owner in others else 'polygon-none', value
    if not kept:
        return
    lengths, kept, numbers = np.array(lengths), np.array(kept), np.array(numbers)
    starts = (np.cumsum(lengths) - lengths) // 2
    low, high = (np.stack([f.reduceat(numbers[axis::2], starts) for axis in (0, 1)], 1)  # NaN goes through both
                 for f in (np.minimum, np.maximum))
    sides = np.stack([widths, heights], 1)[kept]
    finite = np.isfinite(low).all(1) & np.isfinite(high).all(1)
    absurd = finite & (np.maximum(-low, high) > FAR * sides.max(1, keepdims=True)).any(1)
    inside = ((high > 0) & (low < sides)).all(1)
    # an object may have parts outside, but not all of them
    outside = finite & ~absurd & ~np.isin(kept, kept[inside | ~finite | absurd])
    for kind, wrong in (('polygon-not-finite', ~finite), ('polygon-absurd', absurd), ('polygon-outside', outside)):
        for place in np.flatnonzero(wrong).tolist():
            (x1, y1), (x2, y2) = low[place], high[place]
            yield int(kept[place]), kind, f'x from {x1:g} to {x2:g}, y from {y1:g} to {y2:g}'


def _fault_of_rle(rle, width, height):
    """Return the kind and value of the problem of run lengths, or None."""
    size, counts = rle.get('size'), rle.get('counts')
    if type(size) is not list or len(size) != 2 or type(counts) not in (list, str):
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
    return None


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
