"""The checks of polygons and run lengths (RLE) of COCO annotations; pycocotools' C code reads them unchecked."""
from array import array
from itertools import repeat

import numpy as np

from ...text import counted, shown

#: Coordinates beyond this many times the longer side of the image are absurd.
FAR = 10
_CHUNK = 1 << 15


def check_masks(segmentations, widths, heights):
    """Yield the problems of masks.

    Args:
        segmentations: The value of each annotation's ``segmentation``, None if it has none.
        widths: The widths of their images in pixels.
        heights: The heights of their images in pixels.

    Yields:
        The index of the annotation, the kind of problem and its value; one annotation can have several.
    """
    for start in range(0, len(segmentations), _CHUNK):
        part = slice(start, start + _CHUNK)
        for index, kind, value in _check_chunk(segmentations[part], widths[part], heights[part]):
            yield start + index, kind, value


def _check_chunk(segmentations, widths, heights):
    owners, polygons, coded = [], [], []
    for index, segmentation in enumerate(segmentations):
        if not segmentation and (segmentation is None or isinstance(segmentation, (list, dict))):
            yield index, 'mask-missing', ''
        elif type(segmentation) is list:
            if type(segmentation[0]) is list and len(segmentation[0]) < 5:
                yield index, 'polygon-first', counted(len(segmentation[0]), 'numbers')
            polygons += segmentation
            owners += repeat(index, len(segmentation))
        elif type(segmentation) is dict:
            sized, fault = _check_size(segmentation, int(widths[index]), int(heights[index]))
            if fault:
                yield index, *fault
            elif isinstance(segmentation['counts'], str):
                coded.append((index, segmentation['counts'], sized))
            elif fault := _check_counts(segmentation['counts'], sized):
                yield index, *fault
        else:
            yield index, 'mask-malformed', shown(segmentation)
    yield from _check_polygons(owners, polygons, widths, heights)
    if coded:
        indices, texts, sizes = zip(*coded, strict=True)
        for index, text, size, total in zip(indices, texts, sizes, sums_of_coded(texts).tolist(), strict=True):
            if total < 0:
                yield index, 'rle-malformed', shown(text)
            elif total != size:
                yield index, 'rle-counts', _total(total, size)


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


def _check_size(rle, width, height):
    """Return the number of pixels of a mask, and its problem or None."""
    size, counts = rle.get('size'), rle.get('counts')
    if type(size) is not list or len(size) != 2 or type(counts) not in (list, str):
        return 0, ('mask-malformed', shown(rle))
    if any(type(side) is not int for side in size) or size != [height, width]:
        return 0, ('rle-size', f'{shown(size)}, not {[height, width]} (height, width)')
    return height * width, None


def _check_counts(counts, size):
    if not set(map(type, counts)) <= {int}:
        return 'rle-malformed', shown(counts)
    if min(counts, default=0) < 0 or sum(counts) != size:
        return 'rle-counts', _total(sum(counts), size) if min(counts, default=0) >= 0 else f'a count of {min(counts)}'
    return None


def _total(total, size):
    return f'their sum is {shown(total)}, but the mask has {counted(size, "pixels")}'


def sums_of_coded(texts) -> np.ndarray:
    """Return the sum of the counts in each compressed RLE text; -1 if a text cannot be read.

    A count is written in characters of 6 bits, starting at '0': 5 bits of the number, lowest first, and one bit that
    says that more follow; the highest of the last 5 bits is the sign. From the fourth count on, each is stored as the
    difference to the count two before it, which is a run of the same value.
    """
    usable = np.array([text.isascii() and text != '' for text in texts])
    sums = np.full(len(texts), -1)
    texts = [text for text in texts if text.isascii() and text != '']
    if not texts:
        return sums
    lengths = np.array(list(map(len, texts)))
    owner = np.repeat(np.arange(len(texts)), lengths)
    codes = np.frombuffer(''.join(texts).encode(), np.uint8).astype(np.int64) - 48
    bad = np.zeros(len(texts), bool)
    bad[owner[(codes < 0) | (codes > 63)]] = True
    last = codes & 32 == 0
    text_ends = np.cumsum(lengths) - 1
    bad[~last[text_ends]] = True  # the text ends within a count
    last[text_ends] = True
    stops = np.flatnonzero(last)
    starts = np.append(0, stops[:-1] + 1)
    digits = stops - starts + 1
    place = np.arange(len(codes)) - np.repeat(starts, digits)
    bad[owner[place > 6]] = True  # more than 35 bits are not a count, and would overflow the sums below
    values = np.add.reduceat((codes & 31) << 5 * np.minimum(place, 6), starts)
    values -= np.where(codes[stops] & 16, 1 << 5 * np.minimum(digits, 7), 0)
    owner = owner[stops]
    first = np.searchsorted(owner, np.arange(len(texts)))
    number = np.arange(len(owner)) - first[owner]
    counts = values.copy()
    for parity in (0, 1):
        chosen = np.flatnonzero((number % 2 == parity) & (number > 0))
        total = np.cumsum(values[chosen])
        begins = np.flatnonzero(np.diff(owner[chosen], prepend=-1))
        before = total[begins] - values[chosen][begins]
        counts[chosen] = total - np.repeat(before, np.diff(begins, append=len(chosen)))
    bad[owner[counts < 0]] = True
    sums[usable] = np.where(bad, -1, np.add.reduceat(counts, first))
    return sums
