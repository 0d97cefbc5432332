"""Predictions as label files: polygons of masks, what the files hold, and that they are read back."""
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from annotations.placing import placed
from PIL import Image
from pycocotools import mask as mask_api
from pycocotools.coco import COCO
from scipy.ndimage import gaussian_filter

from xcit_dense._utils.files import OwnFiles
from xcit_dense.annotations import coco
from xcit_dense.annotations.yolo import read_yolo
from xcit_dense.errors import DataError
from xcit_dense.predict.classes import Classes
from xcit_dense.predict.labels import LabelFiles
from xcit_dense.predict.polygons import joined, labels_of_objects, labels_of_regions, polygons_of

SIZE = 40, 60
Y, X = np.mgrid[:SIZE[0], :SIZE[1]] + 0.5
RING = (abs(np.hypot(Y - 20, X - 20) - 12) < 4) | (X > 52)  # with a second piece
SQUARE = (abs(Y - 10) < 4) & (abs(X - 40) < 4)
NAMES = 'a<&"b"', "it's"
RECORDS = [dict(category_id=9, score=0.9, bbox=[4, 4, 99, 32], mask=RING),
           dict(category_id=7, score=0.5, bbox=[36, 6, 8, 8.25], mask=SQUARE),
           dict(category_id=7, score=0.8, bbox=[5, 5, 9, 9], mask=RING & SQUARE),  # empty
           dict(category_id=7, score=0.7, bbox=[60, -9, 9, 9], mask=SQUARE),  # outside
           dict(category_id=7, score=0.2, bbox=[0, 0, 9, 9], mask=SQUARE)]


def overlap(polygons, mask):
    """The IoU of a mask and of polygons that pycocotools draws, each by the even-odd rule."""
    drawn = mask_api.decode(mask_api.merge(mask_api.frPyObjects(
        [np.ravel(polygon).tolist() for polygon in polygons], *mask.shape))).astype(bool)
    return (drawn & mask).sum() / (drawn | mask).sum()


def masks():
    noise = np.random.default_rng(0)
    for smooth, share in ((0, 0.1), (0, 0.7), (1, 0.5), (2, 0.3), (3, 0.8)) * 8:
        values = gaussian_filter(noise.random(noise.integers(5, 70, 2)), smooth)
        yield values > np.quantile(values, share)
    yield from (RING, SQUARE, np.ones((1, 1)) > 0, np.eye(9) > 0, np.eye(9) < 1, np.eye(2, 8, 5) + [[0], [1]] > 0)


def test_polygons_are_close_to_every_mask_whole_and_joined():
    for mask in masks():
        found = polygons_of(mask)
        assert overlap(found, mask) > 0.98 and overlap([joined(found)], mask) > 0.98
        assert overlap([8 * polygon for polygon in found], mask.repeat(8, 0).repeat(8, 1)) > 0.85  # within pixels
    assert [len(polygons_of(mask)) for mask in (np.zeros(SIZE), RING, np.eye(9))] == [0, 2, 1]


def test_polygons_follow_the_edges_of_pixels_with_few_corners():
    pixel = (Y == 7.5) & (X == 3.5)
    for mask, corners in ((SQUARE, [[36, 6], [36, 14], [44, 6], [44, 14]]), (pixel, [[3, 7], [3, 8], [4, 7], [4, 8]])):
        polygon, = polygons_of(mask)
        assert sorted(polygon.tolist()) == corners and polygon.dtype == np.float64
    disc = np.hypot(*np.mgrid[-40:40, -40:40] + 0.5) < 38
    assert len(polygons_of(disc)[0]) <= 32 and len(polygons_of(disc ^ (disc & np.roll(disc, 30, 0)))[0]) <= 60
    x, y = max(polygons_of(RING), key=len).T  # the hole goes the other way, so its area is subtracted
    assert abs(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2 / (RING & (X < 50)).sum() - 1) < 0.02
    regions = labels_of_regions(np.where(RING, 2, 0) + SQUARE, ('Background', 'b', 'c'))
    assert sorted(label.place for label in regions) == [1, 2, 2]
    assert overlap([label.pieces[0] for label in regions if label.place == 2], RING) > 0.98


@pytest.fixture(params=(True, False), ids=('masks', 'boxes'))
def files(request, tmp_path):
    """A function that writes labels in a form; it returns the output folder and whether there are masks."""
    records = [dict(record, segmentation=mask_api.encode(np.asfortranarray(record['mask'], np.uint8)))
               if request.param else record for record in RECORDS if request.param or record['mask'].any()]
    names, images = [Path('sub ü/ä b.png'), Path('c.png'), Path('d.png')], tmp_path / 'my images'
    (images / 'sub ü').mkdir(parents=True)
    (tmp_path / 'deep/er').mkdir(parents=True)
    (tmp_path / 'out').symlink_to('deep/er')
    for name in (*names, 'not_predicted.png'):
        Image.new('RGB', SIZE[::-1]).save(images / name)
        (images / name).with_suffix('.txt').write_text('1 .5 .5 .1 .1')  # other labels, next to the images

    def write(form):
        out, labels = tmp_path / 'out', LabelFiles(form, Classes(NAMES, (9, 7), '', ''))
        labels.begin(names, [images / name for name in names], dict(zip(names, (31, 8, 5), strict=True)))
        found = labels_of_objects(records, (9, 7), SIZE, 0.3)
        for name, part in zip(names, (found, found[1:], []), strict=True):
            labels.write(part, name, SIZE, out)
        said = labels.close(out)
        assert said.startswith(f'3 labels ({form}) in ') and str(out if form != 'voc' else images) in said
        assert all((out / file).is_file() for file in (*labels.last_files, *labels.files_of(names[0])))
        return out, request.param

    return write


def test_labelme(files):
    out, masked = files('labelme')
    path = out / 'labels/sub ü/ä b.json'
    content = json.loads(path.read_text('utf-8'))
    assert (content['imageHeight'], content['imageWidth'], content['imageData']) == (*SIZE, None)
    assert (path.parent / content['imagePath']).samefile(out.parent / 'my images/sub ü/ä b.png')
    kind, *group = ('polygon', 0, 0) if masked else ('rectangle', None)
    assert [(s['label'], s['group_id'], s['shape_type'], s['score']) for s in content['shapes']] == [
        *((NAMES[0], number, kind, 0.9) for number in group), (NAMES[1], None, kind, 0.5)]
    points = [shape['points'] for shape in content['shapes']]
    assert overlap(points[:2], RING) > 0.98 if masked else points[0] == [[4, 4], [60, 36]]
    assert json.loads((out / 'labels/d.json').read_text())['shapes'] == []


@pytest.mark.parametrize('form', ('labelme', 'voc'))
def test_labelme_and_voc_are_read_again(form, files, tmp_path):
    """The images are found by the path in the files; pictures of predictions are not taken for them."""
    out, masked = files(form)
    with OwnFiles(out, 'predict') as own:
        own.claim('c.png')
        shutil.copy(tmp_path / 'my images/c.png', out)
    cfg = placed(out, tmp_path / 'read')
    assert Path(cfg.train_dataloader.dataset.data_prefix.img).resolve() == (tmp_path / 'my images').resolve()
    found, masked = [], masked and form == 'labelme'
    for part in ('train', 'val'):
        content = json.loads((tmp_path / f'read/{part}.json').read_text())
        names = {kind['id']: kind['name'] for kind in content['categories']}
        found += [(names[record['category_id']], record) for record in content['annotations']]
    rings, squares = ([record for name, record in found if name == kind] for kind in NAMES)
    assert len(rings) == 1 and len(squares) == 2
    assert all(np.allclose(square['bbox'], [36, 6, 8, 8 if masked else 8.25]) for square in squares)
    assert overlap(rings[0]['segmentation'], RING) > 0.98 if masked else np.allclose(rings[0]['bbox'], [4, 4, 56, 32])


def test_coco(files):
    out, masked = files('coco')
    found = COCO(str(out / 'annotations.json'))
    assert [(i, found.imgs[i]['file_name']) for i in (31, 8, 5)] == [(31, 'sub ü/ä b.png'), (8, 'c.png'), (5, 'd.png')]
    assert found.dataset['categories'] == [dict(id=9, name=NAMES[0]), dict(id=7, name=NAMES[1])]
    ring, square, again = map(found.anns.get, (1, 2, 3))
    assert (ring['image_id'], ring['category_id'], ring['score'], ring['bbox']) == (31, 9, 0.9, [4, 4, 56, 32])
    assert square['area'] == (64 if masked else 66) and square['iscrowd'] == 0
    assert (again['image_id'], again['bbox']) == (8, square['bbox'])
    assert len(ring['segmentation']) == 2 * masked
    assert not masked or overlap(ring['segmentation'], RING) > 0.98
    part = coco.part_from(out / 'annotations.json', found.dataset, 'train', out, [out], out.parent / 'my images')
    assert part.content['images'] == found.dataset['images'] and not part.origin
    with OwnFiles(out, 'predict') as own:
        own.claim('c.png')  # the picture of a prediction is no image of these labels
        shutil.copy(out.parent / 'my images/c.png', out)
    with pytest.raises(DataError, match='--train-images'):
        coco.part_from(out / 'annotations.json', found.dataset, 'train', out, [out])


def test_yolo(files):
    """Read from the folder of the description, though other labels are next to the images."""
    out, masked = files('yolo')
    content = read_yolo(out / 'data.yaml', out)['train'].content
    assert [kind['name'] for kind in content['categories']] == [*NAMES]
    assert sorted(image['file_name'] for image in content['images']) == ['c.png', 'd.png', 'sub ü/ä b.png']
    ring, square, _ = content['annotations']
    assert (ring['category_id'], square['category_id']) == (1, 2)
    assert np.allclose(square['bbox'], [36, 6, 8, 8 if masked else 8.25], atol=1e-4)
    assert overlap(ring['segmentation'], RING) > 0.98 if masked else np.allclose(ring['bbox'], [4, 4, 56, 32])


def test_voc(files):
    out, _ = files('voc')
    root = ElementTree.parse(out / 'Annotations/sub ü/ä b.xml').getroot()
    assert [root.findtext(f'size/{key}') for key in ('width', 'height', 'depth')] == ['60', '40', '3']
    assert root.findtext('filename') == 'ä b.png' and Path(root.findtext('path')).is_file()
    assert [child.findtext('name') for child in root.iter('object')] == [*NAMES]
    assert [[float(value.text) for value in box] for box in root.iter('bndbox')] == [[4, 4, 60, 36], [36, 6, 44, 14.25]]
