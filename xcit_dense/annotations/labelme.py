"""LabelMe: a JSON file for each image, as AnyLabeling and X-AnyLabeling write them too."""
import base64
import io
import math
from collections import Counter

import numpy as np
from PIL import Image
from pycocotools import mask as mask_api

from .._utils.text import shown
from ..data.files import FORMATS, Unreadable, read_json
from .objects import box, mask_of, outline

#: Labels that are no class: of pixels that are ignored, and of the background.
IGNORE, BACKGROUND = '__ignore__', '_background_'
#: No image has a longer side, in pixels.
_LONGEST = 2**16
#: A circle becomes a polygon with so many corners, whose area is 0.2 percent smaller.
_CORNERS = 64


def read_labels(path) -> dict | None:
    """Read a file for `xcit_dense.annotations.label_files`; None if it is JSON of another kind."""
    try:
        content = read_json(path)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f'it is not JSON: {error}') from None
    if not isinstance(content, dict) or not isinstance(content.get('shapes'), list):
        return None
    size = [content.get(f'image{side}') for side in ('Width', 'Height')]
    size = size if all(isinstance(side, int) for side in size) else [0, 0]
    if max(size) > _LONGEST:
        raise Unreadable(f'imageWidth and imageHeight are {size[0]} and {size[1]}')
    objects, left_out = [], Counter()
    for number, shape in enumerate(content['shapes'], 1):
        try:
            found = _shape(shape, size, left_out)
        except Unreadable:
            raise
        except Exception as error:  # of any type, depending on what is there
            raise Unreadable(f'shape {number} cannot be read ({type(error).__name__}: {error}): '
                             f'{shown(shape)}') from None
        if found:
            objects.append(dict(found, label=str(shape['label']).strip(), label_place=f'shape {number}',
                                group=shape.get('group_id')))
    return dict(image=str(content.get('imagePath') or ''), size=size, objects=objects, left_out=left_out,
                embedded=bool(content.get('imageData')))


def image_in(path) -> bytes:
    """Return the image that a file holds, as ``imageData``."""
    return base64.b64decode(read_json(path)['imageData'])


def _shape(shape, size, left_out):
    """Return the fields of an object, or None after counting a shape that has no area."""
    kind = shape.get('shape_type') or 'polygon'
    points = np.array(shape['points'], np.float64).reshape(-1, 2)
    if not np.isfinite(points).all():
        raise ValueError('a coordinate is not a number')
    if not len(points):
        left_out['shapes without points'] += 1
        return None
    low, high = points.min(0).tolist(), points.max(0).tolist()
    if kind == 'rectangle':
        return box(*low, *high)
    if kind == 'mask':
        return _mask(shape['mask'], points, size)
    if kind == 'circle' and len(points) == 2:
        return outline(_ellipse(points[0], [math.dist(*points)] * 2))
    if kind == 'ellipse':
        return outline(_ellipse((points.min(0) + points.max(0)) / 2, (points.max(0) - points.min(0)) / 2))
    if kind in ('polygon', 'rotation', 'oriented_rectangle') and len(points) > 2:
        return outline(points.tolist())
    left_out[f'polygons of {len(points)} points' if kind == 'polygon' else f'shapes without an area ({kind})'] += 1
    return None


def _ellipse(centre, radii):
    turns = np.arange(_CORNERS) * (2 * math.pi / _CORNERS)
    return (centre + np.stack([np.cos(turns), np.sin(turns)], 1) * radii).tolist()


def _mask(text, points, size):
    """Return the fields of a mask, a PNG file as base64, whose first point is its corner in the image."""
    with Image.open(io.BytesIO(base64.b64decode(text)), formats=FORMATS) as image:
        pixels = np.asarray(image)
    pixels = pixels.any(2) if pixels.ndim == 3 else pixels > 0
    if min(size) <= 0:
        raise Unreadable('imageWidth and imageHeight must be those of the image, as it has a mask')
    whole = Image.new('L', size)
    whole.paste(Image.fromarray(pixels.astype(np.uint8)), tuple(map(int, points.min(0))))  # as far as it is inside
    return mask_of(mask_api.encode(np.asfortranarray(whole)))
