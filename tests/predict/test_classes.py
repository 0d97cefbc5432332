"""Names and numbers of classes: what the outputs of a model mean in the data."""
import json

import pytest
from mmdet.datasets import CocoDataset
from mmseg.datasets import ADE20KDataset, BaseSegDataset

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import classes_of_data
from xcit_dense.data.datasets import type_of
from xcit_dense.predict import classes
from xcit_dense.predict.classes import classes_of_objects, classes_of_pixels

SHAPES = ('disc', 'square', 'triangle', 'star', 'cross')


def detector(tmp_path, ids=None, names=SHAPES, num_classes=5, **dataset):
    """A config whose annotation file has such ids, if any."""
    cfg = load_config(TINY_CONFIG, pretrained=False)
    cfg.model.roi_head.bbox_head.num_classes = cfg.model.roi_head.mask_head.num_classes = num_classes
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.dataset.update(data_root=str(tmp_path), **dataset)
    if ids:
        path = tmp_path / cfg.test_dataloader.dataset.ann_file
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(dict(images=[], annotations=[], categories=[
            dict(id=id, name=name) for id, name in zip(ids, names, strict=True)])))
    return cfg


def segmentor(num_classes=150, **dataset):
    cfg = load_config(TINY_SEG_CONFIG, pretrained=False)
    cfg.model.decode_head.num_classes = num_classes
    cfg.test_dataloader.dataset = dict(data_root='nowhere', data_prefix=dict(img_path='i'), pipeline=[], **dataset)
    return cfg


@pytest.mark.parametrize('meta', (dict(classes=SHAPES), dict(classes=SHAPES, category_ids=(1, 2, 3, 4, 5)), {}))
def test_category_ids_are_those_of_the_annotation_file(tmp_path, meta):
    found = classes_of_objects(detector(tmp_path, (7, 90, 3, 0, 10**12)), meta, 'w.pth')
    assert found.names == SHAPES and found.numbers == (7, 90, 3, 0, 10**12)
    assert found.numbers_from.endswith('.json')
    assert found.names_from == 'w.pth' if meta else found.names_from.endswith('.json')


def test_ids_are_found_by_name(tmp_path):
    """In the order of the file, by which mmdet numbers classes, unless the checkpoint says its own ids."""
    ids, names = (5, 6, 7, 8, 9), ('star', 'disc', 'other', 'cross', 'square')
    few = ('disc', 'square', 'star')
    found = classes_of_objects(detector(tmp_path, ids, names), dict(classes=few), 'w.pth')
    assert found[:2] == (('star', 'disc', 'square'), (5, 6, 9)) and found.names_from == 'w.pth'
    found = classes_of_objects(detector(tmp_path, ids, names), dict(classes=few, category_ids=(1, 2, 3)), 'w.pth')
    assert found[:2] == (few, (6, 9, 5))
    found = classes_of_objects(detector(tmp_path, ids, names, metainfo=dict(classes=few)), {}, 'w.pth')
    assert found[:2] == (('star', 'disc', 'square'), (5, 6, 9)) and found.names_from == 'the config'


def test_an_annotation_file_of_other_classes_says_nothing(tmp_path):
    cfg = detector(tmp_path, (7, 8), ('cat', 'dog'))
    found = classes_of_objects(cfg, dict(classes=SHAPES, category_ids=(10, 20, 30, 40, 50)), 'w.pth')
    assert found == (SHAPES, (10, 20, 30, 40, 50), 'w.pth', 'w.pth')
    found = classes_of_objects(cfg, dict(classes=SHAPES), 'w.pth')
    assert found.numbers == (1, 2, 3, 4, 5) and 'counted' in found.numbers_from


def test_no_file_and_no_checkpoint_give_nobody_elses_names(tmp_path):
    """COCO's names are for as many classes as COCO has."""
    found = classes_of_objects(detector(tmp_path, num_classes=5), {}, 'w.pth')
    assert found.names == ('0', '1', '2', '3', '4') and 'metainfo.classes' in found.names_from
    found = classes_of_objects(detector(tmp_path, num_classes=80), {}, 'w.pth')
    assert found.names == CocoDataset.METAINFO['classes'] and found.names_from == 'CocoDataset'
    found = classes_of_objects(detector(tmp_path, num_classes=3, metainfo=dict(classes=('a', 'b', 'c'))), {}, 'w.pth')
    assert found[:3] == (('a', 'b', 'c'), (1, 2, 3), 'the config')


def test_ids_of_coco(tmp_path):
    """COCO's own for COCO's classes, with the gaps of the file of 2017."""
    found = classes_of_objects(detector(tmp_path, num_classes=80), {}, 'w.pth')
    ids = dict(zip(found.names, found.numbers, strict=True))
    # some at both sides of each gap, as instances_val2017.json has them
    wanted = {
        'person': 1, 'fire hydrant': 11, 'stop sign': 13, 'zebra': 24, 'giraffe': 25, 'backpack': 27, 'umbrella': 28,
        'handbag': 31, 'bottle': 44, 'wine glass': 46, 'cup': 47, 'bed': 65, 'dining table': 67, 'toilet': 70,
        'tv': 72, 'refrigerator': 82, 'book': 84, 'toothbrush': 90}
    assert {name: ids[name] for name in wanted} == wanted and found.numbers_from == 'COCO 2017'
    other = dict(classes=CocoDataset.METAINFO['classes'][::-1])
    assert classes_of_objects(detector(tmp_path), other, 'w.pth').numbers == tuple(range(1, 81))


@pytest.mark.parametrize('kind, dataset, meta, first', (
    ('ADE20KDataset', {}, {}, 1),  # the default of its class
    ('ADE20KDataset', dict(reduce_zero_label=False), {}, 0),
    ('ADE20KDataset', {}, dict(reduce_zero_label=False), 0),
    ('mmseg.ADE20KDataset', {}, {}, 1),
    (ADE20KDataset, {}, {}, 1),
    ('CityscapesDataset', {}, {}, 0),
    ('ImageFolderDataset', dict(reduce_zero_label=True), {}, 1)))
def test_the_first_label_is_that_of_the_data(kind, dataset, meta, first):
    cfg = segmentor(type=kind, **dataset)
    assert issubclass(type_of(cfg.test_dataloader.dataset), BaseSegDataset)
    found = classes_of_pixels(cfg, dict(meta, classes=('a', 'b', 'c')), 'w.pth')
    assert found.numbers == (first, first + 1, first + 2)
    assert (found.numbers_from == 'w.pth') == bool(meta)


def test_names_of_pixels(tmp_path):
    found = classes_of_pixels(segmentor(type='ADE20KDataset'), {}, 'w.pth')
    assert found.names == ADE20KDataset.METAINFO['classes'] and found.names_from == 'ADE20KDataset'
    cfg = segmentor(2, type='ADE20KDataset')
    assert classes_of_pixels(cfg, {}, 'w.pth').names == ('0', '1')
    cfg.test_dataloader.dataset.metainfo = dict(classes=('road', 'rest'))
    assert classes_of_pixels(cfg, {}, 'w.pth').names == ('road', 'rest')
    cfg = segmentor(2, type='ImageFolderDataset')
    cfg.test_dataloader.dataset.data_root = str(tmp_path)
    (tmp_path / 'classes.txt').write_text('sky\nsea\n')
    found = classes_of_pixels(cfg, {}, 'w.pth')
    assert found.names == ('sky', 'sea') and found.names_from.endswith('classes.txt')


def test_no_more_files_are_read_than_need_be(tmp_path, monkeypatch):
    """The annotations of a training are large."""
    read = []
    monkeypatch.setattr(classes, 'classes_of_data', lambda dataset: read.append(dataset) or classes_of_data(dataset))
    cfg = detector(tmp_path, (7, 90, 3, 0, 8))
    cfg.train_dataloader.dataset.ann_file = 'annotations/train.json'
    (tmp_path / 'annotations/train.json').write_text('no JSON')
    assert classes_of_objects(cfg, dict(classes=SHAPES), 'w.pth').numbers == (7, 90, 3, 0, 8) and len(read) == 1
    cfg = detector(tmp_path, (7, 90, 3, 0, 8), ('a', 'b', 'c', 'd', 'e'))
    cfg.train_dataloader.dataset.ann_file = 'annotations/train.json'
    assert classes_of_objects(cfg, dict(classes=SHAPES), 'w.pth').numbers_from.startswith('counted') and len(read) == 3
