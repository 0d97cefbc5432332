"""The objects of an image, merged from those of its tiles.

Two finds of one class in two tiles are one object if they agree in the area that both tiles see: if their IoU there is
above one half, by their masks or, without masks, their boxes. So an object that the border of a tile cuts is joined
with its other part, an object that both tiles see whole is kept once, and two objects that touch stay two.
"""
from typing import NamedTuple

import numpy as np

from .cut_masks import CutMask
from .tiling import Span, Tile

#: The IoU above which finds agree, and the share of a cut find above which it is part of another.
SHARE = 0.5


class Find(NamedTuple):
    """An object in a tile, in pixels of the image.

    Args:
        box: Left, top, right, bottom, float32.
        score: From 0 to 1.
        label: Its class.
        mask: A `CutMask`, or None.
        cut: Whether it reaches a border of the tile that is not a border of the image.
    """
    box: np.ndarray
    score: float
    label: int
    mask: CutMask | None
    cut: bool


def finds_in(tile: Tile, found: dict, size: tuple, margin: int) -> list:
    """Return the `Find`s of a tile.

    Args:
        tile: The tile.
        found: ``bboxes``, ``scores``, ``labels`` and optionally ``masks``, as arrays, in pixels of the tile.
        size: Height and width of the image.
        margin: Finds within this distance of a border, in pixels, may continue behind it.
    """
    top, left, inner = tile.y.start, tile.x.start, _inner_borders(tile, size)
    boxes = found['bboxes'] + np.array([left, top, left, top], np.float32)
    masks = found.get('masks', [None] * len(boxes))
    return [Find(box, float(score), int(label), mask if mask is None else CutMask.of(mask.astype(bool), top, left),
                 any(abs(side - border) <= margin for side, border in zip(box, inner, strict=True)))
            for box, score, label, mask in zip(boxes, found['scores'], found['labels'], masks, strict=True)]


def merge(finds: dict, margin: int) -> list:
    """Return the objects of an image as `Find`s, highest score first.

    Args:
        finds: The `Find`s of each `Tile`, by tile.
        margin: Width of the strips that are compared if two tiles share a border but no pixel.
    """
    tiles = list(finds)
    group = {(tile, i): (tile, i) for tile in tiles for i in range(len(finds[tile]))}

    def first(one):
        while group[one] != one:
            group[one] = one = group[group[one]]
        return one

    for number, tile in enumerate(tiles):
        for other in tiles[:number]:
            if (shared := _shared(tile, other, margin)) is None:
                continue
            for i, j in _pairs(finds[tile], finds[other], shared):
                if _agreement(finds[tile][i], finds[other][j], *shared) > SHARE:
                    group[first((tile, i))] = first((other, j))
    members = {}
    for tile, i in group:
        members.setdefault(first((tile, i)), []).append((tile, finds[tile][i]))
    objects = sorted((_Group.of(*zip(*pairs, strict=True)) for pairs in members.values()),
                     key=lambda one: -one.find.score)
    return [one.find for one in _without_parts(objects)]


class _Group(NamedTuple):
    """One object: the tiles that see it, and their merged find."""
    tiles: tuple
    find: Find

    @classmethod
    def of(cls, tiles, finds):
        return cls(tiles, _joined(finds))


def _inner_borders(tile, size):
    """Return left, top, right and bottom of a tile; infinity for sides where the image ends."""
    height, width = size
    return [tile.x.start or -np.inf, tile.y.start or -np.inf, tile.x.end if tile.x.end < width else np.inf,
            tile.y.end if tile.y.end < height else np.inf]


def _shared(tile, other, margin):
    """Return the area that two tiles share as pairs of `Span`s (y, x), one for each, or None if they are apart.

    If neighbours share a border but no pixel, it is a strip along that border on each side.
    """
    spans = [_shared_span(a, b, margin if abs(apart) == 1 else 0) for a, b, apart in (
        (tile.y, other.y, tile.row - other.row), (tile.x, other.x, tile.column - other.column))]
    return None if None in spans else tuple(zip(*spans, strict=True))


def _shared_span(a, b, margin):
    start, end = max(a.start, b.start), min(a.end, b.end)
    if start < end:
        return Span(start, end), Span(start, end)
    if start > end or not margin:
        return None
    before, after = Span(end - margin, end), Span(end, end + margin)
    return (before, after) if a.end == end else (after, before)


def _pairs(finds, others, shared):
    """Return pairs of indices of finds of the same class whose boxes meet in the area that their tiles share."""
    if not finds or not others:
        return []
    a, b = (_clipped(np.array([find.box for find in part]), *place)
            for part, place in zip((finds, others), shared, strict=True))
    meet = ((np.maximum(a[:, None, :2], b[None, :, :2]) < np.minimum(a[:, None, 2:], b[None, :, 2:])).all(-1)
            & (np.array([find.label for find in finds])[:, None] == [find.label for find in others]))
    return np.argwhere(meet).tolist()


def _agreement(a, b, place_of_a, place_of_b):
    """Return the IoU of two finds in the area that their tiles share."""
    if a.mask is not None and b.mask is not None:
        one, other = a.mask.within(*place_of_a), b.mask.within(*place_of_b)
        return (one & other).sum() / max((one | other).sum(), 1)
    one, other = _clipped(a.box, *place_of_a), _clipped(b.box, *place_of_b)
    both = _area(_meeting(one, other))
    return both / (_area(one) + _area(other) - both)


def _clipped(boxes, y, x):
    """Return boxes clipped to a part of the image, relative to its first row and column."""
    low = np.array([x.start, y.start, x.start, y.start], np.float32)
    return np.clip(boxes - low, 0, [x.end - x.start, y.end - y.start] * 2)


def _area(box):
    return max(float(box[2] - box[0]), 0.) * max(float(box[3] - box[1]), 0.)


def _joined(finds):
    """Return the object that several finds show: the one with the highest score if none is cut, otherwise their union.

    The result is cut if all of them are.
    """
    best = max(finds, key=lambda find: find.score)
    cut = [find.cut for find in finds]
    if not any(cut):
        return best
    boxes, mask = np.array([find.box for find in finds]), best.mask
    for find in finds if mask is not None else ():
        mask |= find.mask
    return Find(np.r_[boxes[:, :2].min(0), boxes[:, 2:].max(0)], best.score, best.label, mask, all(cut))


def _without_parts(groups):
    """Return groups without those that are cut in every tile and lie mostly within a find of other tiles."""
    boxes = np.array([group.find.box for group in groups]).reshape(-1, 4)
    labels = np.array([group.find.label for group in groups])
    kept = []
    for group in groups:
        box = group.find.box
        meet = (np.maximum(boxes[:, :2], box[:2]) < np.minimum(boxes[:, 2:], box[2:])).all(1)
        near = np.flatnonzero(meet & (labels == group.find.label)) if group.find.cut else ()
        if not any(_share_within(group.find, groups[i].find) > SHARE for i in near
                   if set(group.tiles).isdisjoint(groups[i].tiles)):
            kept.append(group)
    return kept


def _share_within(find, other):
    """Return the share of a find that is inside another, by their masks or boxes."""
    if find.mask is not None and other.mask is not None:
        y = Span(find.mask.top, find.mask.top + find.mask.height)
        x = Span(find.mask.left, find.mask.left + find.mask.width)
        mine = find.mask.within(y, x)
        return (mine & other.mask.within(y, x)).sum() / max(mine.sum(), 1)
    return _area(_meeting(find.box, other.box)) / _area(find.box)


def _meeting(box, other):
    return np.r_[np.maximum(box[:2], other[:2]), np.minimum(box[2:], other[2:])]
