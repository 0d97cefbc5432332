"""LabelMe: every kind of shape, for detection and for segmentation, and where images are looked for."""
import base64
import json
import math

import numpy as np
import pytest
from annotations import exports_files as files
from annotations.exports import scenes
from annotations.placing import detector, numbers, placed, segmentor
from PIL import Image
from pycocotools import mask as mask_api

from helpers.exports_segmentation import save
from xcit_dense.data.check.check import check_data_sets
from xcit_dense.errors import DataError

SQUARE = [[10, 10], [50, 10], [50, 50], [10, 50]]


def one(root, shapes, **more):
    """Write two images of 96 pixels; the first has these shapes."""
    for part, found in (('train', shapes), ('val', [files.shape('cat', SQUARE)])):
        save(root / f'{part}/a.jpg', next(scenes(1))[0])
        (root / f'{part}/a.json').write_text(json.dumps(files.labels('a.jpg', found, **more)))
    return root


def objects(root, folder):
    placed(root, folder, detector(root, with_mask=True))
    content = json.loads((folder / 'train.json').read_text())
    return content['annotations'], [category['name'] for category in content['categories']]


@pytest.mark.parametrize('options', (dict(), dict(apart=True), dict(embed=True)))
def test_where_images_are(options, folder, tmp_path):
    root = files.labelme(tmp_path / 'data', dict(train=4, valid=2), **options)
    cfg = placed(root, folder, detector(root, with_mask=True))
    assert numbers(cfg) == (dict(train=(4, 12), val=(2, 6), test=(2, 6)), ('disc', 'square', 'triangle'))
    assert not any(report.errors for report in check_data_sets(cfg, use_cache=False).values())
    if options.get('embed'):
        assert (folder / 'images/train/train0.jpg').read_bytes() == base64.b64decode(
            json.loads((root / 'train/train0.json').read_text())['imageData'])


def test_shapes(folder, tmp_path, capfd):
    mask = np.zeros((20, 30), bool)
    mask[5:, 10:] = True
    root = one(tmp_path / 'data', [
        files.shape('cat', SQUARE),
        files.shape('cat', [[60, 50], [20, 30]], 'rectangle'),
        files.shape('cat', [[40, 40], [40, 50]], 'circle'),
        files.shape('cat', [[20, 30], [60, 50]], 'ellipse'),
        files.shape('cat', [[50, 10], [90, 50], [50, 90], [10, 50]], 'rotation', direction=0.7),
        files.shape('cat', [[2, 3], [31, 22]], 'mask', mask=files.png(mask)),
        files.shape('dog', [[5, 5]], 'point'), files.shape('dog', [[5, 5], [9, 9]], 'linestrip'),
        files.shape('dog', [[5, 5], [9, 9]], 'line'), files.shape('dog', [[5, 5], [9, 9]]),
        files.shape('__ignore__', SQUARE), files.shape('_background_', SQUARE)])
    found, names = objects(root, folder)
    assert names == ['cat'] and len(found) == 6
    assert [record['bbox'] for record in found] == pytest.approx(np.array([
        [10, 10, 40, 40], [20, 30, 40, 20], [30, 30, 20, 20], [20, 30, 40, 20], [10, 10, 80, 80], [12, 8, 20, 15]]))
    assert [record['area'] for record in found] == pytest.approx(
        [1600, 800, 100 * math.pi, 200 * math.pi, 3200, 300], rel=0.01)
    assert found[1]['segmentation'] == [[20, 30, 60, 30, 60, 50, 20, 50]]  # as the others have masks
    drawn = mask_api.decode(found[5]['segmentation'])
    assert drawn[8:23, 12:32].all() and drawn.sum() == 300
    said = capfd.readouterr().out
    assert '1 shape without an area (point)' in said and '1 polygon of 2 points' in said and 'linestrip' in said


def test_boxes_alone_have_no_masks(folder, tmp_path):
    root = one(tmp_path / 'data', [files.shape('cat', [[20, 30], [60, 50]], 'rectangle')])
    (root / 'val/a.json').write_text((root / 'train/a.json').read_text())
    found, _ = objects(root, folder)
    assert not found[0]['segmentation']
    reports = check_data_sets(placed(root, folder, detector(root, with_mask=True)), use_cache=False)
    assert any(f'{root / "train/a.json"}, shape 1 has no segmentation' in finding.sentence
               for report in reports.values() for finding in report.errors)


def test_shapes_of_a_group_are_one_object(folder, tmp_path):
    other = [[x + 40, y + 40] for x, y in SQUARE]
    mask = files.shape('cat', [[0, 0], [9, 9]], 'mask', mask=files.png(np.ones((10, 10), bool)), group_id=2)
    root = one(tmp_path / 'data', [
        files.shape('cat', SQUARE, group_id=1), files.shape('dog', SQUARE, group_id=1),
        files.shape('cat', other, group_id=1), mask, files.shape('cat', other, group_id=2), files.shape('cat', SQUARE)])
    found, names = objects(root, folder)
    assert [(names[record['category_id'] - 1], record['bbox']) for record in found] == [
        ('cat', [10, 10, 80, 80]), ('dog', [10, 10, 40, 40]), ('cat', [0, 0, 90, 90]), ('cat', [10, 10, 40, 40])]
    assert len(found[0]['segmentation']) == 2 and found[2]['area'] == pytest.approx(1700)


def test_label_maps(folder, tmp_path):
    """Later shapes cover earlier ones; the names are in the order of labels.txt."""
    root = one(tmp_path / 'data', [
        files.shape('road', [[0, 0], [96, 0], [96, 96], [0, 96]]), files.shape('cat', SQUARE),
        files.shape('__ignore__', [[0, 0], [10, 10]], 'rectangle'),
        files.shape('_background_', [[80, 80], [96, 96]], 'rectangle')])
    (root / 'labels.txt').write_text('__ignore__\n_background_\nroad\ncat\n')
    for options in ({}, dict(train_annotations='train', train_images='train', val_annotations='val',
                             val_images='val')):
        cfg = segmentor(root, tmp_path / 'run', **options)
        assert cfg.train_dataloader.dataset.metainfo.classes == ('_background_', 'road', 'cat')
        labels = np.asarray(Image.open(tmp_path / 'run/data/maps/train/a.png'))
        assert labels[30, 30] == 2 and labels[60, 60] == 1 and labels[5, 5] == 255 and labels[90, 90] == 0
        assert np.bincount(labels.ravel())[[0, 255]].tolist() == [256, 100]


def test_what_cannot_be_read(folder, tmp_path):
    root = files.labelme(tmp_path / 'data')
    good = json.loads((root / 'a0.json').read_text())
    for change, words in ((dict(points=[[1, 2], [3, 'x']]), 'shape 1 cannot be read'),
                          (dict(points=[[1, 2], [3, 1e999], [1, 1]]), 'a coordinate is not a number'),
                          (dict(shape_type='mask', mask='AAAA'), 'shape 1 cannot be read')):
        bad = json.loads(json.dumps(good))
        bad['shapes'][0].update(change)
        (root / 'a0.json').write_text(json.dumps(bad))
        with pytest.raises(DataError, match=f'1 file of LabelMe cannot be read.*a0.json: .*{words}'):
            placed(root, folder)
