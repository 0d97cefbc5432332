"""The objects of an image, merged from those of its tiles, with masks that take little memory.

Two finds of one class in two tiles are one object if they agree in the area that both tiles see: if their IoU there is
above one half, by their masks or, without masks, their boxes. So an object that the border of a tile cuts is joined
with its other part, an object that both tiles see whole is kept once, and two objects that touch stay two. Without an
overlap, objects at borders stay in parts.
"""
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from mmengine.structures import InstanceData
from pycocotools import mask as mask_api

from ..compat.masks import ObjectMasks, encode_part
from .tiles import Span, Tile

#: The IoU above which finds agree, and the share of a cut find above which it is part of another.
SHARE = 0.5


class CutMask(NamedTuple):
    """The mask of an object in a large image: only the box around it is kept. Create it with `of`."""
    y: Span  # rows of the box
    x: Span  # columns of the box
    packed: dict  # its pixels, as COCO's compressed RLE

    @classmethod
    def of(cls, mask, top: int = 0, left: int = 0):
        """Return the `CutMask` of a mask (H, W) bool that starts at row ``top`` and column ``left`` of the image."""
        # the box of an empty mask is its first pixel
        y, x = (Span(*map(int, (places.min(), places.max() + 1))) if len(places) else Span(0, 1)
                for places in (np.flatnonzero(mask.any(axis)) for axis in (1, 0)))
        packed = mask_api.encode(np.asfortranarray(mask[slice(*y), slice(*x)], np.uint8))
        return cls(Span(top + y.start, top + y.end), Span(left + x.start, left + x.end), packed)

    def pixels(self) -> np.ndarray:
        """Return the pixels of the box: (height, width) bool."""
        return mask_api.decode(self.packed).astype(bool)

    def sampled(self, rows, columns) -> np.ndarray:
        """Return the mask at some rows and columns of the image, both ascending."""
        part = np.zeros((len(rows), len(columns)), bool)
        y, x = (slice(*np.searchsorted(places, span)) for places, span in ((rows, self.y), (columns, self.x)))
        part[y, x] = self.pixels()[np.ix_(rows[y] - self.y.start, columns[x] - self.x.start)]
        return part

    def within(self, y: Span, x: Span) -> np.ndarray:
        """Return the mask of a part of the image."""
        return self.sampled(np.arange(*y), np.arange(*x))

    def __or__(self, other):
        """Return the union of both masks."""
        y, x = (Span(min(a.start, b.start), max(a.end, b.end)) for a, b in ((self.y, other.y), (self.x, other.x)))
        return CutMask.of(self.within(y, x) | other.within(y, x), y.start, x.start)

    def rle(self, height: int, width: int) -> dict:
        """Return the mask of the whole image as COCO's compressed RLE, as pycocotools encodes it."""
        return encode_part(self.pixels(), self.x.start, self.y.start, height, width)


class CutMasks(ObjectMasks):
    """`CutMask` of each object: ``masks[i]`` returns one mask (H, W), ``masks[scores > 0.5]`` the `CutMasks` of some,
    and ``numpy.asarray(masks)`` all of them, n times the size of the image."""

    dtype = np.dtype(bool)

    def __getitem__(self, place):
        if isinstance(place, (int, np.integer)):
            return self.each[place].within(*(Span(0, length) for length in self.shape[1:]))
        return CutMasks([self.each[number] for number in np.arange(len(self))[place]], *self.shape[1:])

    def rle(self, place: int) -> dict:
        """Return one mask as COCO's compressed RLE; faster than encoding the whole mask."""
        return self.each[place].rle(*self.shape[1:])


class Find(NamedTuple):
    """An object in one or more tiles, in pixels of the image."""
    box: np.ndarray  # left, top, right, bottom, float32
    score: float  # from 0 to 1
    label: int
    mask: CutMask | None
    cut: bool  # whether it reaches a border of each of its tiles that is not a border of the image
    tiles: frozenset  # those that see it


def find_in_tiles(predict, image):
    """Predict the objects of a `xcit_dense.predict.reading.BigImage`: a data sample of mmdet, highest score first.

    ``predict`` is a function from a tile as `xcit_dense.predict.reading.ReadImage` to its data sample on the CPU. If
    the model has masks, those of the result are a list of `CutMask`.
    """
    from mmdet.structures import DetDataSample
    finds, found = {}, {}
    for tile, part in image.read():
        found = dict(predict(part).pred_instances.numpy().items())
        finds[tile] = finds_in(tile, found, image.size, image.margin)
    merged = merge(finds)
    boxes = np.array([find.box for find in merged], np.float32).reshape(-1, 4)
    objects = InstanceData(bboxes=torch.from_numpy(boxes), scores=torch.tensor([find.score for find in merged]),
                           labels=torch.tensor([find.label for find in merged]).long())
    if 'masks' in found:
        objects.masks = [find.mask for find in merged]
    return DetDataSample(metainfo=dict(ori_shape=image.size), pred_instances=objects)


def finds_in(tile: Tile, found: dict, size: tuple, margin: int) -> list:
    """Return the `Find`s of a tile.

    Args:
        found: ``bboxes``, ``scores``, ``labels`` and optionally ``masks``, as arrays, in pixels of the tile.
        size: Height and width of the image.
        margin: Finds within this distance of a border, in pixels, may continue behind it.
    """
    top, left, (height, width) = tile.y.start, tile.x.start, size
    inner = [left or -np.inf, top or -np.inf, tile.x.end if tile.x.end < width else np.inf,
             tile.y.end if tile.y.end < height else np.inf]
    boxes = found['bboxes'] + np.array([left, top, left, top], np.float32)
    masks = found.get('masks', [None] * len(boxes))
    return [Find(box, float(score), int(label), mask if mask is None else CutMask.of(np.asarray(mask, bool), top, left),
                 bool((np.abs(box - inner) <= margin).any()), frozenset([tile]))
            for box, score, label, mask in zip(boxes, found['scores'], found['labels'], masks, strict=True)]


def merge(finds: dict) -> list:
    """Return the objects of an image, highest score first, from the `Find`s of each `Tile`, by tile."""
    parts = [find for found in finds.values() for find in found]
    first = dict(zip(finds, np.cumsum([0, *map(len, finds.values())]), strict=False))
    group = np.arange(len(parts))  # the first find of the object that each belongs to
    for tile, other in combinations(finds, 2):
        if (shared := _shared(tile, other)) is None:
            continue
        for i, j in _pairs(finds[tile], finds[other], shared):
            one, another, both = _areas(finds[tile][i], finds[other][j], shared)
            if both / max(one + another - both, 1e-9) > SHARE:
                low, high = sorted((group[first[tile] + i], group[first[other] + j]))
                group[group == high] = low
    objects = [_joined([parts[i] for i in np.flatnonzero(group == number)]) for number in np.unique(group)]
    return _without_parts(sorted(objects, key=lambda find: -find.score))


def _shared(tile, other):
    """Return the area that two tiles share as `Span`s (y, x), or None if they are apart."""
    y, x = (Span(max(a.start, b.start), min(a.end, b.end)) for a, b in ((tile.y, other.y), (tile.x, other.x)))
    return (y, x) if y.start < y.end and x.start < x.end else None


def _pairs(finds, others, place):
    """Return pairs of indices of finds of the same class whose boxes meet in a part of the image."""
    if not finds or not others:
        return []
    a, b = (_clipped(np.array([find.box for find in part]), *place) for part in (finds, others))
    labels = np.array([find.label for find in finds])[:, None] == [find.label for find in others]
    return np.argwhere(_meet(a[:, None], b) & labels).tolist()


def _areas(a, b, place):
    """Return the areas of two finds in a part (y, x) of the image, and of what both have there."""
    if a.mask is not None and b.mask is not None:
        one, other = a.mask.within(*place), b.mask.within(*place)
        return one.sum(), other.sum(), (one & other).sum()
    one, other = _clipped(a.box, *place), _clipped(b.box, *place)
    both = np.r_[np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])]
    return [max(float(box[2] - box[0]), 0.) * max(float(box[3] - box[1]), 0.) for box in (one, other, both)]


def _clipped(boxes, y, x):
    """Return boxes clipped to a part of the image, relative to its first row and column."""
    low = np.array([x.start, y.start, x.start, y.start], np.float32)
    return np.clip(boxes - low, 0, [x.end - x.start, y.end - y.start] * 2)


def _meet(boxes, others):
    return (np.maximum(boxes[..., :2], others[..., :2]) < np.minimum(boxes[..., 2:], others[..., 2:])).all(-1)


def _joined(finds):
    """Return the object that several finds show: the one with the highest score if none is cut, otherwise their union,
    which is cut if all of them are."""
    best, cut = max(finds, key=lambda find: find.score), [find.cut for find in finds]
    best = best._replace(tiles=frozenset().union(*(find.tiles for find in finds)))
    if not any(cut):
        return best
    boxes, mask = np.array([find.box for find in finds]), best.mask
    for find in finds if mask is not None else ():
        mask |= find.mask
    return best._replace(box=np.r_[boxes[:, :2].min(0), boxes[:, 2:].max(0)], mask=mask, cut=all(cut))


def _without_parts(objects):
    """Return objects without those that are cut in every tile and lie mostly within one of other tiles."""
    boxes, labels = np.array([find.box for find in objects]), np.array([find.label for find in objects])
    kept = []
    for find in objects:
        near = np.flatnonzero(_meet(boxes, find.box) & (labels == find.label)) if find.cut else ()
        others = [objects[i] for i in near if find.tiles.isdisjoint(objects[i].tiles)]
        if all(_share_within(find, other) <= SHARE for other in others):
            kept.append(find)
    return kept


def _share_within(find, other):
    """Return the share of a find that is inside another, by their masks or boxes."""
    place = (Span(0, np.inf), Span(0, np.inf)) if find.mask is None else (find.mask.y, find.mask.x)
    mine, _, both = _areas(find, other, place)
    return both / max(mine, 1e-9)
