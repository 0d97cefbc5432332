"""What objects of a COCO file and label maps measure."""
import json

import numpy as np
import pytest
from config.fit.boxes import SEG, band, config_for, write_boxes, write_maps

from xcit_dense.config.fit import geometry
from xcit_dense.config.fit.geometry import measure_objects
from xcit_dense.config.fit.maps import measure_maps

FOUR = ((100, 80, [('a', 10, 10), ('a', 20, 5), ('b', 4, 4)]), (100, 80, [('a', 10, 10)]), (50, 60, []),
        (6, 90, [('b', 5, 5)]))


@pytest.fixture
def root(tmp_path):
    return write_boxes(tmp_path, *FOUR)


def change(root, edit):
    path = root / 'annotations/instances_train2017.json'
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_what_is_counted(root, monkeypatch):
    """Classes that the config leaves out do not count. Of many boxes a sample is kept."""
    cfg = config_for(root)
    found, part = measure_objects(cfg), cfg.train_dataloader.dataset
    assert found.images.tolist() == [[50, 60, 1], [100, 80, 2]] and found.count == 2
    assert found.too_small == found.empty == 1  # below the min_size of 8; without objects
    assert found.classes == dict(a=[3, 2], b=[1, 1])
    assert found.per_image.tolist() == [[1, 1], [3, 1]] and found.total == 4
    assert [found.most(percent) for percent in (50, 60, 99, 100)] == [1, 3, 3, 3]
    assert sorted(found.boxes.tolist()) == [[100, 80, 4, 4], [100, 80, 10, 10], [100, 80, 10, 10], [100, 80, 20, 5]]
    cfg.train_dataloader.dataset = dict(part, metainfo=dict(classes=('b', )))
    assert measure_objects(cfg).classes == dict(b=[1, 1])
    monkeypatch.setattr(geometry, '_SAMPLE', 3)
    cfg.train_dataloader.dataset = dict(part, filter_cfg={})
    found = measure_objects(cfg)
    assert (found.total, len(found.boxes), found.too_small, found.empty) == (5, 3, 0, 0)


@pytest.mark.parametrize('fault', (dict(iscrowd=1), dict(ignore=1), dict(area=0), dict(bbox=[0, 0, 0.5, 9]),
                                   dict(image_id=77), dict(category_id=77)))
def test_what_a_detector_does_not_learn_does_not_count(fault, root):
    change(root, lambda content: content['annotations'][1].update(fault))
    assert measure_objects(config_for(root)).classes['a'] == [2, 2]


def test_it_is_read_once_until_it_changes(root, monkeypatch):
    cfg, reads = config_for(root), []
    read = geometry.read_coco
    monkeypatch.setattr(geometry, 'read_coco', lambda *args: reads.append(1) or read(*args))
    first, again = measure_objects(cfg), measure_objects(cfg)
    assert reads == [1] and first.classes == again.classes and np.array_equal(first.boxes, again.boxes)
    change(root, lambda content: content['annotations'].pop())
    assert measure_objects(cfg).classes['b'] == [1, 1] and reads == [1, 1]


@pytest.mark.parametrize('break_it', (
    lambda cfg, path: cfg.train_dataloader.dataset.update(data_root='s3://bucket/'), lambda cfg, path: path.unlink(),
    lambda cfg, path: path.write_text('{'), lambda cfg, path: cfg.train_dataloader.dataset.update(type='XMLDataset'),
    lambda cfg, path: change(path.parents[1], lambda content: content['annotations'][1].update(bbox='none')),
    lambda cfg, path: change(path.parents[1], lambda content: content.update(annotations=[]))))
def test_data_that_cannot_be_measured(break_it, root):
    cfg = config_for(root)
    break_it(cfg, root / 'annotations/instances_train2017.json')
    assert measure_objects(cfg) is None


def test_the_width_of_a_band_and_of_what_is_around_it(tmp_path):
    for width in (2, 3, 4, 8):
        found = measure_maps(config_for(write_maps(tmp_path, band(width), band(width)), SEG))
        assert found.widths == pytest.approx(dict(a=60 - width, b=width))
        assert found.images.tolist() == [[60, 40, 2]] and found.count == 2


def test_pixels_and_images_of_classes_without_those_that_are_ignored(tmp_path):
    root = write_maps(tmp_path, band(6), band(6, 2, void=10), band(0, void=60), names=('a', 'b', 'c', 'd'))
    cfg = config_for(root, SEG)
    found, total = measure_maps(cfg), 60 + 50
    assert found.classes == dict(a=(pytest.approx(98 / total), 2), b=(pytest.approx(6 / total), 1),
                                 c=(pytest.approx(6 / total), 1), d=(0, 0))
    assert found.widths.keys() == {*'abc'}
    cfg.train_dataloader.dataset.reduce_zero_label = True  # the first class is 1
    assert {name: images for name, (_, images) in measure_maps(cfg).classes.items()} == dict(a=1, b=1, c=0, d=0)
    cfg = config_for(write_maps(tmp_path / 'two', band(6)), SEG)
    cfg.model.decode_head.ignore_index = 1  # a label that the config leaves out
    assert measure_maps(cfg).classes == dict(a=(1, 1))


def test_maps_that_cannot_be_measured(tmp_path):
    elsewhere, gone, colour = (config_for(write_maps(tmp_path / str(i), band(3)), SEG) for i in range(3))
    elsewhere.train_dataloader.dataset.data_root = 's3://bucket/'
    (tmp_path / '1/annotations/training/0.png').unlink()
    write_maps(tmp_path / '2', np.zeros((9, 9, 3)))
    assert [measure_maps(cfg) for cfg in (elsewhere, gone, colour)] == [None] * 3


def test_maps_of_a_list(tmp_path):
    root = write_maps(tmp_path, band(3), band(5), band(5))
    cfg = config_for(root, SEG)
    for kind, suffix in (('BaseSegDataset', ''), ('ImageFolderDataset', '.jpg')):
        (root / 'train.txt').write_text(f'0{suffix}\n2{suffix}\n')
        cfg.train_dataloader.dataset.update(type=kind, ann_file='train.txt')
        assert measure_maps(cfg).count == 2
