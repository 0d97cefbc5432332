"""An annotation file of COCO: its records as columns, and its masks."""
import re
from contextlib import suppress
from itertools import repeat
from math import isfinite
from numbers import Real

import numpy as np

from ..._utils.text import counted, shown
from ...compat.internals import read_annotations_with
from ..files import read_json

#: The fields of each list that are read, and their kinds.
PARTS = dict(
    images=dict(id='id', file_name='text', width='number', height='number'),
    categories=dict(id='id', name='text'),
    annotations=dict(id='id', image_id='id', category_id='id', bbox='box', area='number'))
#: By kind of field, whether a value is right, and what it must be.
_KINDS = {
    'id': (lambda value: isinstance(value, (int, str, float)), 'a number or a string'),  # 1.0 equals 1 everywhere
    'text': (lambda value: isinstance(value, str), 'a string'),
    'number': (lambda value: isinstance(value, (int, float)), 'a number'),
    'box': (lambda value: isinstance(value, list) and len(value) == 4 and set(map(type, value)) <= {int, float},
            'a list of 4 numbers')}
#: Coordinates beyond this many times the longer side of the image are absurd.
FAR = 10


def read_coco(path, tested: bool = True):
    """Return the content of an annotation file, and what is wrong with the file or None.

    If it is ``tested``, it may lack the list of annotations, as COCO's own file for the test images does.
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
    add_areas(content)
    return content, None


def read_completed(path) -> dict:
    """Return the content of an annotation file with what pycocotools and mmdet need of each object.

    Tools omit ``area``, see `add_areas`, and ``iscrowd``, which becomes 0. pycocotools ignores an object with the id 0,
    so that every detection of it counts as wrong, and it needs numeric ids: if it cannot use some, all become 1, 2, ...
    """
    content = read_json(path)
    if not isinstance(content, dict):
        return content
    add_areas(content)
    objects = [record for record in content.get('annotations') or () if 'bbox' in record]
    for record in objects:
        if record.get('iscrowd') is None:
            record['iscrowd'] = 0
    if not all(isinstance(id, Real) and id != 0 and id == id for id in (record.get('id') for record in objects)):
        for number, record in enumerate(objects, 1):
            record['id'] = number
    return content


def add_areas(content):
    """Add the ``area`` of objects that have none: that of the mask or, without a usable one, of the box."""
    for record in content.get('annotations') or ():
        if isinstance(record, dict) and record.get('area') is None:
            with suppress(KeyError, TypeError, ValueError):  # the check reports the box
                _, _, width, height = record['bbox']
                record['area'] = float(_area_of(record.get('segmentation')) or width * height)


def _area_of(mask):
    with suppress(KeyError, TypeError, ValueError):
        if isinstance(mask, dict):
            counts = mask['counts']
            return sum((counts_in(counts) if isinstance(counts, str) else counts)[1::2])
        sides = [np.reshape(polygon, (-1, 2)).astype(float).T for polygon in mask]
        return sum(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2 for x, y in sides)
    return 0


def columns_of(records, fields):
    """Read some fields, by their kinds of value in `_KINDS`, of a list of records that should be dicts.

    Returns:
        The indices (int array) of the records that have every field; the columns of these records by name: a list of
        ids or texts, or a float64 array (n) or, for boxes, (n, 4), not all of them finite; the indices and problems of
        the other records.
    """
    faults = [(row, fault) for row, record in enumerate(records) if (fault := _fault(record, fields))]
    rows = np.delete(np.arange(len(records)), [row for row, _ in faults])
    kept = [records[row] for row in rows.tolist()]
    columns = {name: [record[name] for record in kept] for name in fields}
    for name, kind in fields.items():
        if kind in ('number', 'box'):
            columns[name] = np.array(columns[name], np.float64).reshape((-1, 4) if kind == 'box' else -1)
    return rows, columns, faults


def _fault(record, fields):
    if not isinstance(record, dict):
        return f'it must be an object, not {shown(record)}'
    for name, kind in fields.items():
        if name not in record:
            return f'it has no {name!r}'
        is_right, words = _KINDS[kind]
        if not is_right(record[name]):
            return f'its {name!r} must be {words}, not {shown(record[name])}'
    return ''


def places_of(ids, wanted):
    """Return the index of each wanted id among the ids: the last if several are equal, -1 if there is none."""
    index = {id: place for place, id in enumerate(ids)}
    return np.fromiter(map(index.get, wanted, repeat(-1)), np.int64, len(wanted))


def repeated(ids):
    """Return for each id whether it occurred before."""
    return places_of(ids[::-1], ids) != np.arange(len(ids))[::-1]


def faults_of_mask(segmentation, width: int, height: int, tested: bool) -> dict:
    """Return the kinds of the problems of a mask, with a value for each."""
    if not segmentation and (segmentation is None or isinstance(segmentation, (list, dict))):
        return {'mask-missing': ''}
    if isinstance(segmentation, dict):
        found = dict([_fault_of_rle(segmentation, width, height)])
    elif isinstance(segmentation, list):
        found, first = {}, segmentation[0]
        for polygon in segmentation:
            found.setdefault(*_fault_of_polygon(polygon, width, height))
        if '' in found:  # an object may have parts outside, but not all of them
            found.pop('polygon-outside', None)
        if tested and isinstance(first, list) and len(first) < 5:
            found['polygon-first'] = counted(len(first), 'numbers')
    else:
        found = {'mask-malformed': shown(segmentation)}
    found.pop('', None)
    return found


def _fault_of_polygon(polygon, width, height):
    """Return the kind and value of the problem of a polygon, '' if there is none."""
    if not isinstance(polygon, list):
        return 'mask-malformed', shown(polygon)
    if len(polygon) < 6 or len(polygon) % 2:
        return 'polygon-points', counted(len(polygon), 'numbers')
    try:
        if not all(map(isfinite, polygon)):
            return 'polygon-absurd', shown(polygon)
    except (TypeError, OverflowError):
        return 'mask-malformed', shown(polygon)
    x, y = polygon[::2], polygon[1::2]
    left, right, top, bottom = min(x), max(x), min(y), max(y)
    is_absurd = max(-left, -top, right, bottom) > FAR * max(width, height)
    if not is_absurd and right > 0 and bottom > 0 and left < width and top < height:
        return '', ''
    return ('polygon-absurd' if is_absurd else 'polygon-outside',
            f'x from {left:g} to {right:g}, y from {top:g} to {bottom:g}')


def _fault_of_rle(rle, width, height):
    """Return the kind and value of the problem of run lengths, '' if there is none."""
    size, counts = rle.get('size'), rle.get('counts')
    if not isinstance(counts, (list, str)):
        return 'mask-malformed', shown(rle)
    if size != [height, width]:
        return 'rle-size', f'{shown(size)}, not {[height, width]} (height, width)'
    if isinstance(counts, str):
        counts = counts_in(counts)
    if not counts or set(map(type, counts)) != {int} or min(counts) < 0 or sum(counts) != height * width:
        return 'rle-counts', f'{shown(rle["counts"])}; the mask has {counted(height * width, "pixels")}'
    return '', ''


def counts_in(text: str) -> list:
    """Return the counts in a compressed RLE text; none if it cannot be read. pycocotools reads wrong ones unchecked.

    Each character has 5 bits of a number, the lowest first, and a bit that says that more follow; the highest bit of
    the last is the sign. From the fourth count on, the number is the difference to the count two before it.
    """
    counts = []
    for code in re.findall('[P-o]*[0-O]', text) if re.fullmatch('([P-o]{0,6}[0-O])*', text) else ():
        digits = [ord(character) - ord('0') & 31 for character in code]
        number = sum(digit << 5 * place for place, digit in enumerate(digits)) - (digits[-1] >> 4 << 5 * len(digits))
        counts.append(number + (counts[-2] if len(counts) > 2 else 0))
    return counts


read_annotations_with(read_completed)
