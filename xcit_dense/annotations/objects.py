"""Objects of image files, whatever format describes them, in COCO's format."""
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pycocotools import mask as mask_api

from .._utils.text import counted, listed
from ..data.files import read_files, read_header
from ..data.folders import OTHER_SUFFIXES
from .types import Part, below


class Picture(NamedTuple):
    """An image file and what a format says of it.

    Attributes:
        path: The image.
        objects: Called with its width and height in pixels, returns its objects: records of COCO's format with
            ``label``, the name of the class, instead of ids, and ``label_place``, such as ``line 3`` of ``labels``.
        labels: The file with its labels.
        size: The width and height that its labels are for; None if they are for the size of the file.
        problem: What is odd about the file with its labels.
    """
    path: Path
    objects: Callable
    labels: Path
    size: tuple | None = None
    problem: str = ''


def to_part(source: Path, root: Path, pictures, names, notes=()) -> Part:
    """Return a part whose annotations are in COCO's format.

    Args:
        source: The file or folder with the labels.
        root: The data root.
        pictures: Each `Picture`.
        names: The names of the classes, in the order of their ids; objects with other names are left out.
        notes: Sentences on what a user might not expect.
    """
    paths, ids = [picture.path for picture in pictures], {name: number for number, name in enumerate(names, 1)}
    folder = Path(os.path.commonpath([path.parent for path in paths]))
    states = read_files(paths, read_header, 'headers', source, name='images')
    images, annotations, unread = [], [], []
    for picture, state in zip(pictures, states, strict=True):
        if state.fault or 'size' not in state.content or picture.path.suffix.lower() in OTHER_SUFFIXES:
            unread.append(below(picture.path, root))
            continue
        width, height = picture.size or state.content['turned']  # as people see the image, and mmdet reads it
        images.append(dict(id=len(images) + 1, file_name=picture.path.relative_to(folder).as_posix(), width=width,
                           height=height, label_file=str(picture.labels), label_problem=picture.problem))
        for record in picture.objects(width, height):
            if (label := record.pop('label')) in ids:
                annotations.append(dict(dict(iscrowd=0), **record, id=len(annotations) + 1, image_id=len(images),
                                        category_id=ids[label]))
    masks = [annotation['segmentation'] for annotation in annotations if annotation['segmentation']]
    kind = 'boxes' if not masks else 'masks' if any(isinstance(mask, dict) for mask in masks) else 'polygons'
    words = f'{kind} of {place}' if (place := below(source, root)) != '.' else kind
    content = dict(info=dict(description=words), images=images, annotations=annotations,
                   categories=[dict(id=number, name=name) for name, number in ids.items()])
    advice = '; convert GIF, HEIC and such to PNG or JPEG' * any(
        name.lower().endswith(OTHER_SUFFIXES) for name in unread)
    notes = [f'ignored {counted(len(unread), "images that cannot be read")}: {listed(unread)}{advice}'] * bool(
        unread) + [*notes]
    return Part(folder, source, origin=words, content=content, notes=notes)


def box(left, top, right, bottom) -> dict:
    """Return the fields of an object without a mask, by the sides of its box in pixels."""
    width, height = right - left, bottom - top
    return dict(bbox=[left, top, width, height], area=width * height, segmentation=[])


def outline(*polygons) -> dict:
    """Return the fields of an object by its polygons, each a list of corners (x, y) in pixels."""
    xs, ys = zip(*(corner for polygon in polygons for corner in polygon), strict=True)
    area = sum(abs(sum(polygon[i - 1][0] * y - x * polygon[i - 1][1] for i, (x, y) in enumerate(polygon))) / 2
               for polygon in polygons)
    return dict(box(min(xs), min(ys), max(xs), max(ys)), area=area, segmentation=[
        [number for corner in polygon for number in corner] for polygon in polygons])


def mask_of(rle: dict) -> dict:
    """Return the fields of an object by its mask as compressed run lengths, whose ``counts`` are text or bytes."""
    counts = rle['counts'] if isinstance(rle['counts'], str) else rle['counts'].decode()
    return dict(bbox=mask_api.toBbox(rle).tolist(), area=float(mask_api.area(rle)),
                segmentation=dict(size=list(rle['size']), counts=counts))


def drawn(record: dict, width: int, height: int) -> dict:
    """Return the mask of an object as compressed run lengths; without a mask, its box is one."""
    segmentation, far = with_corners(record)['segmentation'], 10 * max(width, height)
    if isinstance(segmentation, dict):
        return segmentation
    polygons = [np.clip(polygon, -far, far).tolist() for polygon in segmentation]  # larger numbers crash pycocotools
    return mask_api.merge(mask_api.frPyObjects(polygons, height, width))


def together(records, width: int, height: int) -> dict:
    """Return one object of those that are parts of it."""
    if len(records) == 1:
        return records[0]
    if not any(record['segmentation'] for record in records):
        lows, extents = np.split(np.array([record['bbox'] for record in records]), 2, 1)
        return dict(records[0], **box(*lows.min(0).tolist(), *(lows + extents).max(0).tolist()))
    if all(isinstance(record['segmentation'], list) for record in records):
        polygons = [polygon for record in map(with_corners, records) for polygon in record['segmentation']]
        return dict(records[0], **outline(*([*zip(polygon[::2], polygon[1::2], strict=True)] for polygon in polygons)))
    return dict(records[0], **mask_of(mask_api.merge([drawn(record, width, height) for record in records])))


def with_corners(record: dict) -> dict:
    """Return an object whose box is its mask too, if it has no mask."""
    left, top, width, height = record['bbox']
    right, bottom = left + width, top + height
    return record if record['segmentation'] else dict(record, segmentation=[
        [left, top, right, top, right, bottom, left, bottom]])
