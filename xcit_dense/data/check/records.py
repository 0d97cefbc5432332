"""Records of a JSON file as columns, with the records that do not fit sorted out."""
from array import array
from itertools import chain
from operator import itemgetter

import numpy as np

from ...text import shown

#: Records are looked at this many at a time; only groups that hold a bad one are looked at more closely.
_CHUNK = 4096
_TYPES = {
    'id': ((int, str, float), 'a number or a text'),  # 1.0 is 1, to Python and the frameworks
    'text': ((str, ), 'a text'),
    'number': ((int, float), 'a number'),
    'box': ((list, ), 'a list of 4 numbers'),
}


def columns_of(records, fields):
    """Read some fields of many records.

    Args:
        records: A list that should hold dicts.
        fields: The kind of value by the name of the field: ``id``, ``text``, ``number`` or ``box``.

    Returns:
        The places (int array) of the records that have every field; a column by name, of those records alone: a list
        of ids or texts, or an array of float64 (n) or, for boxes, (n, 4), not all of them finite; the places and
        faults of the other records.
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
        TypeError: A value is no number.
        OverflowError: One is too large for a float.
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
