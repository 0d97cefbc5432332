"""How many images and objects a training uses: the check counts what mmdet's data set has, with the reasons."""
import shutil

import pytest
from mmdet.datasets import CocoDataset

from helpers.faulty_data import coco, kinds_of, rewrite
from xcit_dense.data.check import check_data_set, check_data_sets
from xcit_dense.train.startup import _amounts


def each(**values):
    """A change of every second annotation."""
    return lambda content: [a.update({key: value(a) for key, value in values.items()})
                            for a in content['annotations'][::2]]


def of_all(change):
    return lambda content: [change(a) for a in content['annotations']]


def first_image_only(content):
    content['annotations'] = [a for a in content['annotations'] if a['image_id'] == 1]


def fractions(a):
    a['bbox'] = [number / 64 for number in a['bbox']]


def corners(a):
    x, y, width, height = a['bbox']
    a['bbox'] = [x, y, x + width, y + height]


@pytest.mark.parametrize('change, kinds, words', (
    (each(iscrowd=lambda a: 1), {'objects-lost'}, '12 of 24 objects: 12 marked as crowds (iscrowd). Set "iscrowd": 0'),
    (each(ignore=lambda a: 1), {'objects-lost'}, '12 marked "ignore"'),
    (each(area=lambda a: 0), {'objects-lost', 'area-empty'}, '12 with an area of 0'),
    (each(bbox=lambda a: [500, 5, 9, 9]), {'objects-lost', 'box-ignored'}, '12 with a box outside'),
    (each(image_id=lambda a: str(a['image_id'])), {'objects-lost', 'orphan'}, '1 is not "1"'),
    (each(category_id=lambda a: 77), {'objects-lost', 'unknown-category'}, '12 whose category_id no category has'),
    (of_all(lambda a: a.update(iscrowd=1)), {'objects-unused'}, '24 of 24 objects: 24 marked as crowds'),
    (of_all(lambda a: a.update(ignore=1)), {'objects-unused'}, '24 marked "ignore"'),
    (of_all(fractions), {'objects-unused', 'box-ignored'}, 'A box must be x, y, width and height in pixels'),
    (of_all(lambda a: a.update(image_id=str(a['image_id']))), {'objects-unused', 'orphan'}, '24 whose image_id no'),
    (of_all(corners), {'box-corners', 'box-sticks-out'}, 'boxes of two corners'),
    (lambda c: c['annotations'].clear(), {'objects-unused'}, 'nothing to learn from: it has no objects'),
    (first_image_only, {'images-unused'}, '5 of 6 images, which have no objects. To learn from them as background: '
     '--cfg-options train_dataloader.dataset.filter_cfg.filter_empty_gt=False')))
def test_what_is_not_used_is_counted_with_its_reason(root, change, kinds, words):
    rewrite(root, of_all(lambda a: a.update(iscrowd=0)))
    rewrite(root, change)
    dataset = coco(root, filter_cfg=dict(filter_empty_gt=True, min_size=1), pipeline=[])
    report, = check_data_sets(dict(train_dataloader=dict(dataset=dataset))).values()
    assert kinds_of(report) == kinds and words in report.summary()
    if report.judged:  # mmdet's own data set fails without an image
        built = CocoDataset(**{key: value for key, value in dataset.items() if key != 'type'})
        assert _amounts(built)[1] == report.judged
        unused = [sum(int(why.split()[0]) for why in report.left_out if why.split()[1].startswith(what))
                  for what in ('image', 'object')]
        assert unused == [report.counts['images'] - len(built), report.counts['annotations'] - report.judged]


def test_large_boxes_are_no_corners(root):
    """They have x + width > x and more, too; their far corner lies in the image, or nearly."""
    rewrite(root, of_all(lambda a: a.update(bbox=[8, 2, 58, 59] if a['id'] % 2 else [2, 4, 60, 60])))
    assert kinds_of(check_data_set(coco(root))) == {'box-sticks-out'}


@pytest.mark.parametrize('change', (lambda c: c['annotations'].clear(), of_all(lambda a: a.update(iscrowd=1))))
def test_background_beside_data_with_objects_is_no_error(root, tmp_path, change):
    other = shutil.copytree(root, tmp_path / 'other')
    rewrite(root, change)
    members = [coco(part, filter_cfg=dict(filter_empty_gt=False)) for part in (root, other)]
    cfg = dict(train_dataloader=dict(dataset=dict(type='ConcatDataset', datasets=members)))
    assert not [report.errors for report in check_data_sets(cfg).values() if 'objects-unused' in kinds_of(report)]
    del cfg['train_dataloader']['dataset']['datasets'][1]
    assert 'objects-unused' in kinds_of(next(iter(check_data_sets(cfg).values())))


def test_few_left_out_are_no_finding_and_small_images_are_counted(root):
    rewrite(root, lambda c: [a.update(iscrowd=a is c['annotations'][0]) for a in c['annotations']])
    assert kinds_of(check_data_set(coco(root))) == set()
    rewrite(root, lambda c: c['images'][0].update(width=20))
    found = check_data_set(coco(root, filter_cfg=dict(min_size=32))).left_out
    assert found[0] == '1 image with a side below min_size' and found[1].endswith(' of images below min_size')


@pytest.mark.parametrize('change, metric, error', (
    (lambda c: c['annotations'].clear(), {}, True),
    (of_all(lambda a: a.update(bbox=[side / 100 for side in a['bbox']])), {}, True),
    (of_all(lambda a: a.update(iscrowd=1)), {}, True),
    (of_all(lambda a: a.update(image_id=str(a['image_id']))), {}, True), (each(iscrowd=lambda a: 1), {}, False),
    (lambda c: c['annotations'].clear(), dict(format_only=True), False)))
def test_validation_data_has_something_to_evaluate(root, change, metric, error):
    rewrite(root, change)
    cfg = dict(val_dataloader=dict(dataset=coco(root, test_mode=True)), val_evaluator=dict(type='CocoMetric', **metric))
    report, = check_data_sets(cfg).values()
    assert ('nothing-judged' in kinds_of(report)) == error
