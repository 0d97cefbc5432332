"""What the objects of a COCO file measure."""
import json
from itertools import repeat

import numpy as np
import pytest

from helpers.boxes import config_for, write_boxes
from xcit_dense.data import files
from xcit_dense.fit import objects as objects_module
from xcit_dense.fit.objects import measure_objects

FOUR = ((100, 80, [('a', 10, 10), ('a', 20, 5), ('b', 4, 4)]), (100, 80, [('a', 10, 10)]), (50, 60, []),
        (6, 90, [('b', 5, 5)]))


def change(root, edit):
    path = root / 'annotations/instances_train2017.json'
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_what_is_counted(tmp_path):
    found = measure_objects(config_for(write_boxes(tmp_path, *FOUR)))
    assert found.images.tolist() == [[50, 60, 1], [100, 80, 2]] and found.count == 3
    assert found.too_small == 1  # below the min_size of 8
    assert found.classes == dict(a=[3, 2], b=[2, 2])
    assert found.per_image.tolist() == [[1, 2], [3, 1]] and found.total == 5
    assert [found.most(percent) for percent in (50, 99, 100)] == [1, 3, 3]
    assert sorted(found.boxes.tolist()) == [[100, 80, 4, 4], [100, 80, 10, 10], [100, 80, 10, 10], [100, 80, 20, 5]]


@pytest.mark.parametrize('fault', (dict(iscrowd=1), dict(ignore=1), dict(area=0), dict(bbox=[0, 0, 0.5, 9]),
                                   dict(bbox='none'), dict(image_id=77), dict(category_id=77)))
def test_what_a_detector_does_not_learn_does_not_count(fault, tmp_path):
    root = write_boxes(tmp_path, *FOUR)
    change(root, lambda content: content['annotations'][1].update(fault))
    assert measure_objects(config_for(root)).classes['a'] == [2, 2]


def test_classes_that_the_config_leaves_out(tmp_path):
    root = write_boxes(tmp_path, *FOUR)
    cfg = config_for(root)
    cfg.train_dataloader.dataset.metainfo = dict(classes=('b', ))
    assert measure_objects(cfg).classes == dict(b=[2, 2])


def test_it_is_read_once_until_it_changes(tmp_path, monkeypatch):
    root = write_boxes(tmp_path, *FOUR)
    cfg, reads = config_for(root), []
    read = objects_module.read_coco
    monkeypatch.setattr(objects_module, 'read_coco', lambda *args: reads.append(1) or read(*args))
    first, again = measure_objects(cfg), measure_objects(cfg)
    assert reads == [1] and first.classes == again.classes and np.array_equal(first.boxes, again.boxes)
    change(root, lambda content: content['annotations'].pop())
    assert measure_objects(cfg).classes['b'] == [1, 1] and reads == [1, 1]


@pytest.mark.parametrize('break_it', ('elsewhere', 'gone', 'no json', 'empty', 'another kind'))
def test_data_that_cannot_be_measured(break_it, tmp_path):
    root = write_boxes(tmp_path, *FOUR)
    cfg, path = config_for(root), root / 'annotations/instances_train2017.json'
    if break_it == 'elsewhere':
        cfg.train_dataloader.dataset.data_root = 's3://bucket/'
    elif break_it == 'gone':
        path.unlink()
    elif break_it == 'no json':
        path.write_text('{')
    elif break_it == 'empty':
        change(root, lambda content: content.update(annotations=[]))
    else:
        cfg.train_dataloader.dataset.type = 'XMLDataset'
    assert measure_objects(cfg) is None


def test_several_files_are_one_data_set(tmp_path):
    cfg = config_for(write_boxes(tmp_path, *FOUR))
    part = cfg.train_dataloader.dataset
    cfg.train_dataloader.dataset = dict(type='ConcatDataset', datasets=[part, part])
    found = measure_objects(cfg)
    assert (found.count, found.total, found.too_small, found.classes['a']) == (6, 10, 2, [6, 4])
    assert found.most(50) == 1 and len(found.boxes) == 8


def test_of_many_boxes_a_sample_is_kept_and_all_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(objects_module, '_SAMPLE', 10)
    root = write_boxes(tmp_path, *repeat((100, 80, [('a', 10, 10)] * 7), 5))
    found = measure_objects(config_for(root))
    assert found.total == 35 and len(found.boxes) == 10 and files.recall(
        f'objects {("a", "b")!r}', root / 'annotations/instances_train2017.json')
