"""Masks of objects in a large image: memory holds only the box around each object, compressed."""
import zlib
from typing import NamedTuple

import numpy as np
from pycocotools import mask as mask_api


class CutMask(NamedTuple):
    """The mask of an object: its box, and the pixels in that. Create it with `of`.

    Args:
        top: The first row of the box around the object.
        left: The first column of the box.
        height: Height of the box.
        width: Width of the box.
        packed: The pixels of the box, 8 per byte, compressed.
    """
    top: int
    left: int
    height: int
    width: int
    packed: bytes

    @classmethod
    def of(cls, mask, top: int = 0, left: int = 0):
        """Return the `CutMask` of a mask (H, W) bool that starts at row ``top`` and column ``left`` of the image."""
        rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
        if not len(rows):
            return cls(top, left, 0, 0, b'')
        mask = mask[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1]
        return cls(top + int(rows[0]), left + int(columns[0]), *mask.shape, zlib.compress(np.packbits(mask), 1))

    def pixels(self) -> np.ndarray:
        """Return the pixels of the box: (height, width) bool."""
        if not self.packed:
            return np.zeros((self.height, self.width), bool)
        bits = np.unpackbits(np.frombuffer(zlib.decompress(self.packed), np.uint8), count=self.height * self.width)
        return bits.reshape(self.height, self.width).astype(bool)

    def within(self, y, x) -> np.ndarray:
        """Return the mask of the part of the image with the `Span`s ``y`` and ``x``."""
        part = np.zeros((y.end - y.start, x.end - x.start), bool)
        rows = max(y.start, self.top), min(y.end, self.top + self.height)
        columns = max(x.start, self.left), min(x.end, self.left + self.width)
        if rows[0] < rows[1] and columns[0] < columns[1]:
            part[rows[0] - y.start:rows[1] - y.start, columns[0] - x.start:columns[1] - x.start] = self.pixels()[
                rows[0] - self.top:rows[1] - self.top, columns[0] - self.left:columns[1] - self.left]
        return part

    def sampled(self, rows, columns) -> np.ndarray:
        """Return the mask at some rows and columns of the image, both ascending."""
        part = np.zeros((len(rows), len(columns)), bool)
        inside = [slice(*np.searchsorted(places, (first, first + count)))
                  for places, first, count in ((rows, self.top, self.height), (columns, self.left, self.width))]
        part[tuple(inside)] = self.pixels()[np.ix_(rows[inside[0]] - self.top, columns[inside[1]] - self.left)]
        return part

    def __or__(self, other):
        """Return the union of both masks."""
        first, last = (next((mask for mask in pair if mask.packed), self) for pair in ((self, other), (other, self)))
        top, left = min(first.top, last.top), min(first.left, last.left)
        bottom = max(first.top + first.height, last.top + last.height)
        right = max(first.left + first.width, last.left + last.width)
        both = np.zeros((bottom - top, right - left), bool)
        for mask in (first, last):
            both[mask.top - top:, mask.left - left:][:mask.height, :mask.width] |= mask.pixels()
        return CutMask.of(both, top, left)

    def rle(self, height: int, width: int) -> dict:
        """Return the mask of the whole image as COCO's compressed RLE, as pycocotools encodes it."""
        # runs go down the columns: a run starts and ends where a column changes, with zeros above and below it
        edges = np.pad(self.pixels().T.astype(np.int8), ((0, 0), (1, 1)))
        columns, rows = np.nonzero(np.diff(edges, axis=1))
        places = (columns + self.left) * height + rows + self.top
        starts, ends = places[::2], places[1::2]
        joined = starts[1:] == ends[:-1]  # across the end of a column
        bounds = np.stack([np.delete(starts, np.flatnonzero(joined) + 1), np.delete(ends, np.flatnonzero(joined))], 1)
        counts = np.diff(np.r_[0, bounds.ravel(), height * width])
        counts = counts[:-1] if counts[-1] == 0 else counts
        return mask_api.frPyObjects(dict(counts=counts.tolist(), size=[height, width]), height, width)


class CutMasks:
    """The masks of n objects in an image, which can be used like an array (n, H, W) of bool.

    ``masks[i]`` returns one mask (H, W). ``numpy.asarray(masks)`` returns all of them, n times the size of the image.

    Args:
        masks: The `CutMask`s.
        height: Height of the image.
        width: Width of the image.
    """

    dtype = np.dtype(bool)

    def __init__(self, masks, height: int, width: int):
        self._masks, self.shape = list(masks), (len(masks), height, width)

    def __len__(self):
        return len(self._masks)

    def __getitem__(self, place) -> np.ndarray:
        if isinstance(place, slice):
            return CutMasks(self._masks[place], *self.shape[1:])
        mask, whole = self._masks[place], np.zeros(self.shape[1:], bool)
        whole[mask.top:mask.top + mask.height, mask.left:mask.left + mask.width] = mask.pixels()
        return whole

    def __array__(self, dtype=None, copy=None):
        whole = np.zeros(self.shape, dtype or bool)
        for i in range(len(self)):
            whole[i] = self[i]
        return whole

    def rle(self, place: int) -> dict:
        """Return one mask as COCO's compressed RLE; faster than encoding the whole mask."""
        return self._masks[place].rle(*self.shape[1:])
