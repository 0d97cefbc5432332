"""Names and numbers of classes: what the outputs of a model mean in the data."""
import json

import pytest
from mmdet.datasets import CocoDataset
from mmseg.datasets import ADE20KDataset, BaseSegDataset

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.datasets import DataSet
from xcit_dense.predict.classes import classes_of_objects, classes_of_pixels

SHAPES = ('disc', 'square', 'triangle', 'star', 'cross')
FEW, LISTED = ('disc', 'square', 'star'), ('star', 'disc', 'other', 'cross', 'square')
FILE, CONFIG, CHECKPOINT = 'annotations/instances_val2017.json', 'the config', 'w.pth'


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


@pytest.mark.parametrize('file, config, meta, wanted', (
    ((SHAPES, (7, 90, 3, 0, 10**12)), {}, dict(classes=SHAPES), (SHAPES, (7, 90, 3, 0, 10**12), CHECKPOINT, FILE)),
    ((SHAPES, (7, 90, 3, 0, 8)), {}, dict(classes=SHAPES, category_ids=(1, 2, 3, 4, 5)),
     (SHAPES, (7, 90, 3, 0, 8), CHECKPOINT, FILE)),
    ((SHAPES, (7, 90, 3, 0, 8)), {}, {}, (SHAPES, (7, 90, 3, 0, 8), FILE, FILE)),
    # by name, in the order of the file, by which mmdet numbers classes, unless the checkpoint says its own ids
    ((LISTED, (5, 6, 7, 8, 9)), {}, dict(classes=FEW, category_ids=(1, 2)),  # which are not all
     (('star', 'disc', 'square'), (5, 6, 9), CHECKPOINT, FILE)),
    ((LISTED, (5, 6, 7, 8, 9)), {}, dict(classes=FEW, category_ids=(1, 2, 3)), (FEW, (6, 9, 5), CHECKPOINT, FILE)),
    ((LISTED, (5, 6, 7, 8, 9)), dict(metainfo=dict(classes=FEW)), {},
     (('star', 'disc', 'square'), (5, 6, 9), CONFIG, FILE)),
    # a file of other classes says nothing
    ((('cat', 'dog'), (7, 8)), {}, dict(classes=SHAPES, category_ids=(10, 20, 30, 40, 50)),
     (SHAPES, (10, 20, 30, 40, 50), CHECKPOINT, CHECKPOINT)),
    ((('cat', 'dog'), (7, 8)), {}, dict(classes=SHAPES), (SHAPES, (1, 2, 3, 4, 5), CHECKPOINT, 'counted'))))
def test_category_ids_are_those_of_the_annotation_file(file, config, meta, wanted, tmp_path):
    found = classes_of_objects(detector(tmp_path, *file[::-1], **config), meta, CHECKPOINT)
    assert found[:2] == wanted[:2]
    for origin, words in zip(found[2:], wanted[2:], strict=True):
        assert origin == words or words in (FILE, 'counted') and words in origin


def test_no_file_and_no_checkpoint_give_nobody_elses_names(tmp_path):
    """COCO's names are for as many classes as COCO has; its ids have the gaps of the file of 2017."""
    found = classes_of_objects(detector(tmp_path), {}, CHECKPOINT)
    assert found.names == ('0', '1', '2', '3', '4') and 'metainfo.classes' in found.names_from
    cfg = detector(tmp_path, num_classes=3, metainfo=dict(classes=('a', 'b', 'c')))
    found = classes_of_objects(cfg, {}, CHECKPOINT)
    assert found[:3] == (('a', 'b', 'c'), (1, 2, 3), CONFIG)
    found = classes_of_objects(detector(tmp_path, num_classes=80), {}, CHECKPOINT)
    assert found.names == CocoDataset.METAINFO['classes']
    assert (found.names_from, found.numbers_from) == ('CocoDataset', 'COCO 2017')
    ids = dict(zip(found.names, found.numbers, strict=True))
    # some at both sides of each gap, as instances_val2017.json has them
    wanted = {
        'person': 1, 'fire hydrant': 11, 'stop sign': 13, 'zebra': 24, 'giraffe': 25, 'backpack': 27, 'umbrella': 28,
        'handbag': 31, 'bottle': 44, 'wine glass': 46, 'cup': 47, 'bed': 65, 'dining table': 67, 'toilet': 70,
        'tv': 72, 'refrigerator': 82, 'book': 84, 'toothbrush': 90}
    assert {name: ids[name] for name in wanted} == wanted
    other = dict(classes=CocoDataset.METAINFO['classes'][::-1])
    assert classes_of_objects(detector(tmp_path), other, CHECKPOINT).numbers == tuple(range(1, 81))


@pytest.mark.parametrize('kind, dataset, meta, numbers', (
    ('ADE20KDataset', dict(reduce_zero_label=False), {}, (0, 1, 2)),
    ('ADE20KDataset', {}, dict(reduce_zero_label=False), (0, 1, 2)),
    ('mmseg.ADE20KDataset', {}, {}, (1, 2, 3)),  # the default of its class
    (ADE20KDataset, {}, {}, (1, 2, 3)), ('CityscapesDataset', {}, {}, (0, 1, 2)),
    ('ImageFolderDataset', dict(reduce_zero_label=True, ignore_labels=[2, 4]), {}, (1, 3, 5))))
def test_the_first_label_is_that_of_the_data(kind, dataset, meta, numbers):
    cfg = segmentor(type=kind, **dataset)
    assert issubclass(DataSet(cfg.test_dataloader.dataset).type, BaseSegDataset)
    found = classes_of_pixels(cfg, dict(meta, classes=('a', 'b', 'c')), CHECKPOINT)
    assert found.numbers == numbers and (found.numbers_from == CHECKPOINT) == bool(meta)


def test_names_of_pixels(tmp_path):
    found = classes_of_pixels(segmentor(type='ADE20KDataset'), {}, CHECKPOINT)
    assert found.names == ADE20KDataset.METAINFO['classes'] and found.names_from == 'ADE20KDataset'
    assert classes_of_pixels(segmentor(1, type='ADE20KDataset'), dict(classes='sky'), CHECKPOINT).names == ('sky', )
    (tmp_path / 'classes.txt').write_text('sky\nland\nsea\n')
    for dataset, names, origin in ((dict(type='ADE20KDataset'), ('0', '1'), 'metainfo.classes'),
                                   (dict(metainfo=dict(classes=('road', 'rest'))), ('road', 'rest'), CONFIG),
                                   (dict(data_root=str(tmp_path), ignore_labels=[1]), ('sky', 'sea'), 'classes.txt')):
        cfg = segmentor(2, type='ImageFolderDataset')
        cfg.test_dataloader.dataset.update(dataset)
        found = classes_of_pixels(cfg, {}, CHECKPOINT)
        assert found.names == names and origin in found.names_from
