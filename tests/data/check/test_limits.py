"""Numbers of an annotation file at both sides of every limit, in images that are not square."""
import json

import mmcv
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as mask_api

from helpers.faulty_data import INFINITE, NAN, coco, fields, kinds_of, rewrite
from xcit_dense.data.check import check_data_set, files
from xcit_dense.data.check.coco import check_coco
from xcit_dense.data.check.coco_file import Use
from xcit_dense.data.check.findings import Finding

WIDTH, HEIGHT = 40, 30
TINY = 1e-6


def found_in(tmp_path, image=(), **annotation):
    """The kinds of findings of a file with one image of 40 x 30 and one annotation, and their values."""
    content = dict(
        images=[dict(dict(id=5, file_name='a.jpg', width=WIDTH, height=HEIGHT), **dict(image))],
        categories=[dict(id=7, name='thing')],
        annotations=[dict(dict(id=9, image_id=5, category_id=7, bbox=[1, 2, 3, 4], area=12.), **annotation)])
    path = tmp_path / 'a.json'
    path.write_text(json.dumps(content))
    return [Finding(*f) for f in check_coco(path, Use('segmentation' in annotation))['findings']]


def kinds_in(tmp_path, **changes):
    return [finding.kind for finding in found_in(tmp_path, **changes)]


#: Boxes (x, y, width, height), and what is found.
BOXES = (
    # the whole image, and its border from within
    ([0, 0, 40, 30], None), ([39, 29, 1, 1], None), ([0, 0, 1, 1], None), ([30, 20, 10, 10], None),
    # coordinates that were rounded stick out by a pixel at most, at each side for itself
    ([0, 0, 41, 30], None), ([0, 0, 40, 31], None), ([-1, 0, 5, 5], None), ([0, -1, 5, 5], None),
    ([0, 0, 41 + TINY, 30], 'box-sticks-out'), ([0, 0, 40, 31 + TINY], 'box-sticks-out'),
    ([-1 - TINY, 0, 5, 5], 'box-sticks-out'), ([0, -1 - TINY, 5, 5], 'box-sticks-out'),
    ([30, 5, 11, 5], None), ([30, 5, 11 + TINY, 5], 'box-sticks-out'),
    ([5, 20, 5, 11], None), ([5, 20, 5, 11 + TINY], 'box-sticks-out'),
    # nothing of the box is in the image
    ([40 - TINY, 0, 1, 5], None), ([40, 0, 1, 5], 'box-outside'), ([0, 30 - TINY, 5, 1], None),
    ([0, 30, 5, 1], 'box-outside'), ([-5, 0, 5, 5], 'box-outside'), ([-5, 0, 5 + TINY, 5], 'box-sticks-out'),
    ([0, -5, 5, 5], 'box-outside'), ([0, -5, 5, 5 + TINY], 'box-sticks-out'),
    ([35, 0, 2, 2], None), ([0, 35, 2, 2], 'box-outside'),  # inside 40, outside 30
    # a pixel is the least side, and none is less than nothing
    ([5, 5, 1, 4], None), ([5, 5, 4, 1], None), ([5, 5, 1 - TINY, 4], 'box-empty'), ([5, 5, 4, 1 - TINY], 'box-empty'),
    ([5, 5, 0, 4], 'box-empty'), ([5, 5, 4, 0], 'box-empty'), ([5, 5, -TINY, 4], 'box-negative'),
    ([5, 5, 4, -TINY], 'box-negative'), ([50, 5, 0, 4], 'box-empty'),
    # ten times the longer side
    ([400, 0, 5, 5], 'box-outside'), ([400 + TINY, 0, 5, 5], 'box-outside'), ([0, 400, 5, 5], 'box-outside'),
    ([0, 400 + TINY, 5, 5], 'box-outside'), ([-400, 0, 5, 5], 'box-outside'), ([-400 - TINY, 0, 5, 5], 'box-outside'),
    ([0, 0, 400, 5], 'box-sticks-out'), ([0, 0, 400 + TINY, 5], 'box-absurd'), ([0, 0, 5, 400], 'box-sticks-out'),
    ([0, 0, 5, 400 + TINY], 'box-absurd'), ([0, 0, -400, 5], 'box-negative'), ([0, 0, -401, 5], 'box-negative'),
    ([NAN, 0, 5, 5], 'box-not-finite'), ([0, 0, 5, INFINITE], 'box-infinite'),
    ([INFINITE, 0, 5, 5], 'box-not-finite'),
    ([0, -INFINITE, 5, 5], 'box-not-finite'), ([-5, 0, INFINITE, 5], 'box-infinite'),
    ([0, 0, NAN, 5], 'box-not-finite'),
)


@pytest.mark.parametrize('box, kind', BOXES, ids=[f'{box}-{kind}' for box, kind in BOXES])
def test_boxes_at_the_limits(tmp_path, box, kind):
    findings = found_in(tmp_path, bbox=box)
    assert [finding.kind for finding in findings] == ([kind] if kind else [])
    for finding in findings:
        assert (finding.part, finding.row, finding.id) == ('annotations', 0, 9)
        assert not np.isfinite(box).all() or finding.value.endswith('in an image of 40 x 30')


@pytest.mark.parametrize('area, kinds', (
    (TINY, []), (0, ['area-empty']), (-TINY, ['area-empty']), (INFINITE, ['area-not-finite']),
    (-INFINITE, ['area-not-finite']), (NAN, ['area-not-finite'])))
def test_areas_at_the_limits(tmp_path, area, kinds):
    assert kinds_in(tmp_path, area=area) == kinds


@pytest.mark.parametrize('side', ('width', 'height'))
@pytest.mark.parametrize('number, good', (
    (1, True), (1., True), (0, False), (-1, False), (0.5, False), (1.5, False), (INFINITE, False), (NAN, False)))
def test_sizes_of_images_at_the_limits(tmp_path, side, number, good):
    """Boxes of an image without a size are not looked at; one pixel is an image."""
    found = kinds_in(tmp_path, image={'width': 1, 'height': 1, side: number}, bbox=[0, 0, 1, 1])
    assert found == ([] if good else ['image-dimensions'])


#: Polygons, and what is found.
POLYGONS = (
    ([[1, 1, 5, 1, 5]], 'polygon-none'), ([[1, 1, 5, 1, 5, 5]], None), ([[1, 1, 5, 1, 5, 5, 3]], 'polygon-none'),
    ([[1, 1, 5, 1, 5, 5, 3, 3]], None), ([[1, 1, 5, 1, 5, 5], [1, 1, 5, 1, 5]], 'polygon-points'),
    ([[-9, 1, TINY, 1, -5, 5]], None), ([[-9, 1, 0, 1, -5, 5]], 'polygon-outside'),
    ([[1, -9, 5, TINY, 5, -5]], None), ([[1, -9, 5, 0, 5, -5]], 'polygon-outside'),
    ([[40 - TINY, 1, 45, 1, 45, 5]], None), ([[40, 1, 45, 1, 45, 5]], 'polygon-outside'),
    ([[1, 30 - TINY, 5, 35, 1, 35]], None), ([[1, 30, 5, 35, 1, 35]], 'polygon-outside'),
    ([[32, 5, 38, 5, 35, 9]], None), ([[5, 32, 5, 38, 9, 35]], 'polygon-outside'),  # inside 40, outside 30
    ([[1, 1, 400, 1, 5, 5]], None), ([[1, 1, 400 + TINY, 1, 5, 5]], 'polygon-absurd'),
    ([[1, 1, 5, 400, 5, 5]], None), ([[1, 1, 5, 400 + TINY, 5, 5]], 'polygon-absurd'),
    ([[-400, 1, 5, 1, 5, 5]], None), ([[-400 - TINY, 1, 5, 1, 5, 5]], 'polygon-absurd'),
    ([[1, 1, 5, 1, 5, 5], [50, 50, 60, 50, 60, 60]], None),  # a part of an object may be outside
    ([[50, 50, 60, 50, 60, 60], [1, 1, 5, 1, 5, 5]], None),
)


@pytest.mark.parametrize('polygons, kind', POLYGONS, ids=[f'{polygons}-{kind}' for polygons, kind in POLYGONS])
def test_polygons_at_the_limits(tmp_path, polygons, kind):
    assert kinds_in(tmp_path, segmentation=polygons) == ([kind] if kind else [])


@pytest.mark.parametrize('coded', (False, True))
@pytest.mark.parametrize('more, size, kind', (
    (0, [30, 40], None), (1, [30, 40], 'rle-counts'), (-1, [30, 40], 'rle-counts'),
    (0, [40, 30], 'rle-size'), (0, [30, 41], 'rle-size'), (0, [31, 40], 'rle-size')))
def test_run_lengths_at_the_limits(tmp_path, coded, more, size, kind):
    """Height goes before width, and every pixel is counted."""
    counts = [100, 7, WIDTH * HEIGHT - 107 + more]
    if coded:
        mask = np.zeros(sum(counts), np.uint8)
        mask[100:107] = 1
        counts = mask_api.encode(np.asfortranarray(mask[:, None]))['counts'].decode()
    assert kinds_in(tmp_path, segmentation=dict(size=size, counts=counts)) == ([kind] if kind else [])


@pytest.mark.parametrize('suffix', ('jpg', 'png', 'webp'))
@pytest.mark.parametrize('mark', range(10))
def test_every_orientation_has_the_size_that_mmcv_reads(root, mark, suffix):
    """1 to 8 are marks; 5 to 8 swap width and height."""
    path = root / f'train2017/turned.{suffix}'
    exif = Image.Exif()
    exif[0x0112] = mark
    Image.new('RGB', (40, 30)).save(path, exif=exif)
    header = files.read_header(path)
    real = list(mmcv.imread(str(path)).shape[1::-1])
    assert header['size'] == [40, 30] and header['turned'] == real
    if suffix != 'jpg':  # the others show that the comparison is with OpenCV, whatever it turns
        return
    assert real == ([30, 40] if mark in (5, 6, 7, 8) else [40, 30])
    unchanged = [dict(type='LoadImageFromFile', color_type='unchanged'), dict(type='LoadAnnotations', with_mask=True)]
    for width, height in ((40, 30), (30, 40), (40, 40)):
        rewrite(root, fields('images', 0, file_name=path.name, width=width, height=height))
        told = {kind for kind in kinds_of(check_data_set(coco(root))) if kind.startswith('image')}
        stored = {kind for kind in kinds_of(check_data_set(coco(root, pipeline=unchanged)))
                  if kind.startswith('image')}
        assert told == (set() if [width, height] == real else
                        {'image-rotated'} if (width, height) == (40, 30) else {'image-size'})
        assert stored == (set() if (width, height) == (40, 30) else {'image-size'})
