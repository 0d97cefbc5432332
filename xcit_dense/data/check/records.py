"""Records of a JSON file as columns, without the records that do not fit."""
from array import array
from itertools import chain
from operator import itemgetter

import numpy as np

from ...text import shown

#: Records are checked in groups of this size; only groups with a bad record are checked more closely.
_CHUNK = 4096
_TYPES = {
    'id': ((int, str, float), 'a number or a string'),  # 1.0 equals 1 in Python and the frameworks
    'text': ((str, ), 'a string'),
    'number': ((int, float), 'a number'),
    'box': ((list, ), 'a list of 4 numbers'),
}


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
    queue = [(start, min(start + _CHUNK, len(records))) for start in range(0, len(records), _CHUNK)][::-1]
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
