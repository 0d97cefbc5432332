"""Objects and regions of an image as labels: boxes, and polygons that follow the edges of pixels."""
from typing import NamedTuple

import cv2
import numpy as np
from pycocotools import mask as mask_api

#: Polygons may differ from an outline by so many pixels, if the IoU stays above `_CLOSE`, and above `_CLOSE_BETWEEN`
#: in pixels a quarter as large; also if somebody rounds their numbers a little.
_TOLERANCES = (0.3, 0.5, 0.75, 1)
_CLOSE, _CLOSE_BETWEEN, _ROUNDING = 0.985, 0.9, 0.01
#: Edges of up to so many pixels are steps of a slanted line.
_STEP = 4
#: At most about so many distances are compared for one bridge.
_COMPARED = 200_000
_BACKGROUND = ('background', '_background_')


class Label(NamedTuple):
    """An object, or a region of a class: ``place`` is the index of its class, ``box`` left, top, right and bottom in
    pixels, cut to the image, and ``pieces`` its polygons from `polygons_of`, none without a mask."""
    place: int
    box: tuple
    pieces: list
    score: float = None
    area: float = None


def labels_of_objects(records, numbers, size, score_thr: float = 0.) -> list:
    """Return the `Label`s of records in COCO's results format, cut to the image, without those that are empty then.

    Args:
        numbers: The category ids in the order of the classes.
        size: Height and width of the image.
        score_thr: Records with a lower score are left out.
    """
    found = []
    for record in (record for record in records if record['score'] >= score_thr):
        x, y, width, height = record['bbox']
        ends = zip((x, y, x + width, y + height), (*size[::-1], ) * 2, strict=True)
        left, top, right, bottom = box = tuple(round(min(max(end, 0.), float(limit)), 3) for end, limit in ends)
        pieces, area = [], (right - left) * (bottom - top)
        if 'segmentation' in record and area > 0:
            pieces = polygons_of(mask_api.decode(record['segmentation']))
            area = int(mask_api.area(record['segmentation'])) if pieces else 0
        if area > 0:
            found.append(Label(numbers.index(record['category_id']), box, pieces, record['score'], area))
    return found


def labels_of_regions(outputs, names) -> list:
    """Return the `Label`s of the connected regions of each class except background, of labels (H, W)."""
    places = [place for place in np.unique(outputs).tolist()
              if place < len(names) and str(names[place]).lower() not in _BACKGROUND]
    return [Label(place, (*ring.min(0), *ring.max(0)), [ring])
            for place in places for ring in polygons_of(outputs == place)]


def polygons_of(mask) -> list:
    """Return the polygons of a mask, one for each piece whose pixels touch, also at corners only.

    A polygon goes around the holes of its piece too, over bridges of zero width: filled by the even-odd rule, it has
    the right area. It has few corners, at most a pixel from the outline, and an IoU above 0.98 with its piece, as
    pycocotools draws it.

    Args:
        mask: (H, W) bool, or numbers of which 0 is outside.

    Returns:
        A list of (N, 2) float64: x and y of the corners in pixels, the first not repeated at the end. (0, 0) is the
        outer corner of the first pixel, and (W, H) that of the last. An empty mask has no polygons.
    """
    mask = np.asarray(mask) != 0
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    if not len(rows):
        return []
    part = mask[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1].astype(np.uint8)
    # OpenCV connects the middles of pixels: in a mask of twice the size, each is next to one corner of an old pixel
    rings, tree = cv2.findContours(part.repeat(2, 0).repeat(2, 1), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    parents = tree[0, :, 3].tolist()
    pieces = {i: [_corners(ring)] for i, ring in enumerate(rings) if parents[i] < 0}
    for ring, parent in zip(rings, parents, strict=True):
        if parent >= 0:
            pieces[parent].append(_corners(ring))
    return [_simplified(piece, part.shape) + [columns[0], rows[0]] for piece in pieces.values()]


def joined(rings) -> np.ndarray:
    """Return several polygons (N, 2) as one, over bridges of zero width; by the even-odd rule the area is the same."""
    whole, *others = (np.asarray(ring, np.float64) for ring in rings)
    for ring in others:
        every = len(whole) * len(ring) // _COMPARED + 1
        apart = (whole[::every, None, 0] - ring[:, 0])**2 + (whole[::every, None, 1] - ring[:, 1])**2
        i, j = np.unravel_index(apart.argmin(), apart.shape)
        i *= every
        whole = np.concatenate([whole[:i + 1], ring[j:], ring[:j + 1], whole[i:]])
    return whole


def _corners(ring):
    """Return the corners of an outline, (N, 2) int32, in pixels of the old size."""
    ring = (ring[:, 0] + 1) // 2
    ring = ring[(ring != np.roll(ring, 1, 0)).any(1)]
    before, after = ring - np.roll(ring, 1, 0), np.roll(ring, -1, 0) - ring
    return ring[before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]]


def _slants(ring):
    """Return the middles of short edges and the ends of the others: a slanted line goes through the middles."""
    after = np.roll(ring, -1, 0)
    long = np.abs(after - ring).sum(1) > _STEP
    points = np.stack([np.where(long[:, None], ring, (ring + after) / 2), after], 1)
    return points[np.stack([np.ones_like(long), long], 1)].astype(np.float32)


def _simplified(rings, size):
    """Return an outline and its holes as one polygon, with as few corners as are close enough."""
    exact, found = joined(rings), []
    for forms in (rings, [_slants(ring) for ring in rings]):
        for tolerance in _TOLERANCES:
            outline, *holes = (cv2.approxPolyDP(form, tolerance, True)[:, 0] for form in forms)
            if len(outline) > 2:
                found.append([outline, *(hole for hole in holes if len(hole) > 2)])
    for few in sorted(found, key=lambda rings: sum(map(len, rings))):
        polygon = joined(few)
        # pixels hide what is between their middles, and change if the numbers of a corner at a middle are rounded
        if len(polygon) < len(exact) and _overlap(polygon, exact, size, 4) > _CLOSE_BETWEEN and all(
                _overlap(polygon + moved, exact, size) > _CLOSE for moved in (0, -_ROUNDING, _ROUNDING)):
            return polygon
    return exact


def _overlap(polygon, other, size, scale: int = 1):
    """Return the IoU of two polygons in pixels, drawn ``scale`` times as large."""
    drawn = (mask_api.frPyObjects([(scale * each).ravel().tolist()], *(scale * side for side in size))
             for each in (polygon, other))
    return mask_api.iou(*drawn, [0])[0, 0]
