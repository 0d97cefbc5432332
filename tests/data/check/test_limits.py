"""Numbers of an annotation file at both sides of every limit, in an image that is not square; and files of images."""
import json
import os

import mmcv
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as mask_api

from helpers.faulty_data import INFINITE, NAN, coco, fields, kinds_in, only, rewrite
from xcit_dense.data.check import Finding, check_data_set
from xcit_dense.data.check.coco import check_coco
from xcit_dense.data.files import read_header

WIDTH, HEIGHT = 40, 30
TINY = 1e-6


def found_in(tmp_path, image=(), **annotation):
    """The findings of a file with one image of 40 x 30 and one annotation."""
    content = dict(
        images=[dict(dict(id=5, file_name='a.jpg', width=WIDTH, height=HEIGHT), **dict(image))],
        categories=[dict(id=7, name='thing')],
        annotations=[dict(dict(id=9, image_id=5, category_id=7, bbox=[1, 2, 3, 4], area=12.), **annotation)])
    path = tmp_path / 'a.json'
    path.write_text(json.dumps(content))
    found = [Finding(*f) for f in check_coco(path, 'segmentation' in annotation)['findings']]
    return [f for f in found if f.kind != 'objects-lost']  # the only object, which is ignored


#: Boxes (x, y, width, height) by what is found.
BOXES = {
    None: (
        [0, 0, 40, 30], [39, 29, 1, 1], [0, 0, 1, 1], [30, 20, 10, 10],  # the whole image, and its border from within
        # coordinates that were rounded stick out by a pixel at most, at each side
        [0, 0, 41, 30], [0, 0, 40, 31], [-1, 0, 5, 5], [0, -1, 5, 5], [30, 5, 11, 5], [5, 20, 5, 11],
        [40 - TINY, 0, 1, 5], [0, 30 - TINY, 5, 1], [35, 0, 2, 2],  # the last is inside 40, outside 30
        [5, 5, 1, 4], [5, 5, 4, 1]),  # a pixel is the least side
    'box-sticks-out': (
        [0, 0, 41 + TINY, 30], [0, 0, 40, 31 + TINY], [-1 - TINY, 0, 5, 5], [0, -1 - TINY, 5, 5],
        [30, 5, 11 + TINY, 5], [5, 20, 5, 11 + TINY], [-5, 0, 5 + TINY, 5], [0, -5, 5, 5 + TINY], [0, 0, 400, 5],
        [0, 0, 5, 400]),
    'box-ignored': (  # also ten times the longer side away and more
        [40, 0, 1, 5], [0, 30, 5, 1], [-5, 0, 5, 5], [0, -5, 5, 5], [0, 35, 2, 2], [400, 0, 5, 5],
        [400 + TINY, 0, 5, 5], [0, 400 + TINY, 5, 5], [-400 - TINY, 0, 5, 5],
        [5, 5, 1 - TINY, 4], [5, 5, 4, 1 - TINY], [5, 5, 0, 4], [5, 5, 4, 0], [50, 5, 0, 4],
        [5, 5, -TINY, 4], [5, 5, 4, -TINY], [0, 0, -400, 5], [0, 0, -401, 5],
        [NAN, 0, 5, 5], [INFINITE, 0, 5, 5], [0, -INFINITE, 5, 5], [0, 0, NAN, 5]),
    'box-absurd': ([0, 0, 400 + TINY, 5], [0, 0, 5, 400 + TINY], [0, 0, 5, INFINITE], [-5, 0, INFINITE, 5])}


@pytest.mark.parametrize('kind', BOXES)
def test_boxes_at_the_limits(tmp_path, kind):
    for box in BOXES[kind]:
        findings = found_in(tmp_path, bbox=box)
        assert [(f.kind, f.part, f.row, f.id) for f in findings] == [(kind, 'annotations', 0, 9)] * bool(kind), box
        assert all(f.value.endswith('in an image of 40 x 30') for f in findings)


def run_lengths(more, coded):
    """A mask of the whole image with some pixels more, as a list or compressed."""
    counts = [100, 7, WIDTH * HEIGHT - 107 + more]
    mask = np.repeat(np.array([0, 1, 0], np.uint8), counts)
    return mask_api.encode(np.asfortranarray(mask[:, None]))['counts'].decode() if coded else counts


TRIANGLE, OUTSIDE = [1, 1, 5, 1, 5, 5], [50, 50, 60, 50, 60, 60]
#: Masks by what is found. A part of an object may be outside; height goes before width, and every pixel is counted.
MASKS = {
    None: ([TRIANGLE], [[*TRIANGLE, 3, 3]], [[-9, 1, TINY, 1, -5, 5]], [[1, -9, 5, TINY, 5, -5]],
           [[40 - TINY, 1, 45, 1, 45, 5]], [[1, 30 - TINY, 5, 35, 1, 35]], [[32, 5, 38, 5, 35, 9]],
           [[1, 1, 400, 1, 5, 5]], [[1, 1, 5, 400, 5, 5]], [[-400, 1, 5, 1, 5, 5]], [TRIANGLE, OUTSIDE],
           [OUTSIDE, TRIANGLE], *(dict(size=[30, 40], counts=run_lengths(0, coded)) for coded in (False, True))),
    'polygon-points': ([[1, 1, 5, 1, 5]], [[*TRIANGLE, 3]], [TRIANGLE, [1, 1, 5, 1, 5]]),
    'polygon-outside': ([[-9, 1, 0, 1, -5, 5]], [[1, -9, 5, 0, 5, -5]], [[40, 1, 45, 1, 45, 5]],
                        [[1, 30, 5, 35, 1, 35]], [[5, 32, 5, 38, 9, 35]]),  # inside 40, outside 30
    'polygon-absurd': ([[1, 1, 400 + TINY, 1, 5, 5]], [[1, 1, 5, 400 + TINY, 5, 5]], [[-400 - TINY, 1, 5, 1, 5, 5]],
                       [[1, -400 - TINY, 5, 1, 5, 5]]),
    'rle-counts': [dict(size=[30, 40], counts=run_lengths(more, coded)) for more in (1, -1) for coded in (False, True)],
    'rle-size': [dict(size=size, counts=run_lengths(0, coded)) for size in ([40, 30], [30, 41], [31, 40])
                 for coded in (False, True)]}


@pytest.mark.parametrize('kind', MASKS)
def test_masks_at_the_limits(tmp_path, kind):
    for mask in MASKS[kind]:
        assert [f.kind for f in found_in(tmp_path, segmentation=mask)] == [kind] * bool(kind), mask


def test_areas_and_sizes_of_images_at_the_limits(tmp_path):
    """Boxes of an image without a size are not looked at; one pixel is an image."""
    for area, kind in ((TINY, None), (0, 'area-empty'), (-TINY, 'area-empty'), (-INFINITE, 'area-empty')):
        assert [f.kind for f in found_in(tmp_path, area=area)] == [kind] * bool(kind), area
    for side in ('width', 'height'):
        for number in (1, 1., 0, -1, 0.5, 1.5, INFINITE, NAN):
            found = found_in(tmp_path, image={'width': 1, 'height': 1, side: number}, bbox=[0, 0, 1, 1])
            assert [f.kind for f in found] == ['image-dimensions'] * (number != 1), (side, number)


@pytest.mark.parametrize('suffix', ('jpg', 'png', 'webp'))
def test_every_orientation_has_the_size_that_mmcv_reads(root, suffix):
    """1 to 8 are marks; 5 to 8 swap width and height. The formats show that the comparison is with OpenCV."""
    path = root / f'train2017/turned.{suffix}'
    unchanged = [dict(type='LoadImageFromFile', color_type='unchanged'), dict(type='LoadAnnotations', with_mask=True)]
    for mark in range(10):
        exif = Image.Exif()
        exif[0x0112] = mark
        Image.new('RGB', (40, 30)).save(path, exif=exif)
        header, real = read_header(path), mmcv.imread(str(path)).shape[1::-1]
        assert header['size'] == [40, 30] and header['turned'] == list(real), mark
        assert suffix != 'jpg' or real == ((30, 40) if mark in (5, 6, 7, 8) else (40, 30))
        for size in ((40, 30), (30, 40), (40, 40)) if suffix == 'jpg' and mark in (1, 6, 9) else ():
            rewrite(root, fields('images', 0, file_name=path.name, width=size[0], height=size[1]))
            told, stored = ({kind for kind in kinds_in(coco(root, **how)) if kind.startswith('image')}
                            for how in ({}, dict(pipeline=unchanged)))
            assert told == (set() if size == real else {'image-rotated'} if size == (40, 30) else {'image-size'})
            assert stored == (set() if size == (40, 30) else {'image-size'})


def test_images_that_cannot_be_used(root):
    first = root / 'train2017/000000000001.jpg'
    whole = first.read_bytes()
    os.mkfifo(root / 'pipe')  # opening it would wait for ever
    first.write_bytes(b'no picture')
    assert 'not an image of a format' in only(check_data_set(coco(root)), 'image-unreadable')[0].sentence
    first.write_bytes(whole[:len(whole) // 2])
    assert 'cut off: a JPEG file without its end' in only(check_data_set(coco(root)), 'image-unreadable')[0].sentence
    first.write_bytes(whole + bytes(5000))  # mmcv reads it
    assert check_data_set(coco(root)).findings == []
    first.unlink()
    (root / 'pipe').rename(first)
    assert 'not a regular file' in only(check_data_set(coco(root)), 'image-unreadable')[0].sentence
