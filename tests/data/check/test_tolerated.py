"""Data that mmdet and mmseg accept, so the check must too; how many images and objects a training uses."""
import shutil

import numpy as np
import pytest
from mmcv.transforms import BaseTransform
from mmdet.datasets import CocoDataset
from mmengine.config import Config
from PIL import Image

from helpers.faulty_data import NAN, coco, fields, folders, image_and_map, kinds_in, kinds_of, only, rewrite
from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.check.check import check_before_training, check_data_set, check_data_sets
from xcit_dense.data.check.outputs import draw_contact_sheet
from xcit_dense.data.classes import take_classes
from xcit_dense.data.demo import CLASSES, make_demo_data
from xcit_dense.train.startup import _amounts


def records_of(root, **changes):
    """What mmdet makes of a training set."""
    config = coco(root, **{'pipeline': [], **changes})
    dataset = CocoDataset(**{key: value for key, value in config.items() if key != 'type'})
    return [dataset.get_data_info(i) for i in range(len(dataset))]


@pytest.mark.parametrize('harm', (dict(segmentation='x'), dict(bbox=[0, 0, 1e6, 5]), None))
def test_categories_that_the_config_does_not_use_may_be_as_they_are(root, tmp_path, harm):
    def change(content):
        number = next(c['id'] for c in content['categories'] if c['name'] == CLASSES[-1])
        for annotation in content['annotations']:
            if annotation['category_id'] == number:
                annotation.update(harm) if harm else annotation.pop('segmentation')
    rewrite(root, change)
    used = dict(metainfo=dict(classes=CLASSES[:-1]))
    for tested in (False, True):
        report = check_data_set(coco(root, test_mode=tested, **used))
        only(report, 'class-unused')
        assert kinds_in(coco(root, test_mode=tested))  # the cache keeps the two apart
    assert draw_contact_sheet(report, tmp_path / 'a.png') == 6
    others = [dict(id=77, name='x'), dict(id=78, name='x'), dict(id=78, name='y')]  # they may be there twice
    rewrite(root, lambda content: content['categories'].extend(others))
    only(check_data_set(coco(root, **used)), 'class-unused')


@pytest.mark.parametrize('change, kind', (
    (dict(area=0), 'area-empty'), (dict(bbox=[5, 5, -4, 4]), 'box-ignored'), (dict(bbox=[NAN] * 4), 'box-ignored'),
    (dict(ignore=1), None), (dict(category_id=77), 'unknown-category'), (dict(image_id=77), 'orphan')))
def test_no_mask_is_asked_of_what_training_leaves_out(root, tmp_path, change, kind):
    content = rewrite(root, fields('annotations', 0, **change))
    rewrite(root, lambda content: content['annotations'][0].pop('segmentation'))
    assert sum(len(record['instances']) for record in records_of(root)) == len(content['annotations']) - 1
    report = check_data_set(coco(root))
    assert kinds_of(report) == ({kind} if kind else set()) and not report.errors
    assert draw_contact_sheet(report, tmp_path / 'a.png') > 0
    # the metric reads all masks of the images and classes that there are
    assert ('mask-missing' in kinds_in(coco(root, test_mode=True))) == (kind not in ('unknown-category', 'orphan'))


@pytest.mark.parametrize('rules, gone', (
    (dict(filter_empty_gt=True), {2}), (dict(min_size=63), {3}), (dict(filter_empty_gt=True, min_size=63), {2, 3}),
    (dict(min_size=62), set()), (None, set())))
def test_files_of_images_that_are_filtered_out_need_not_be_there(root, rules, gone):
    def change(content):
        content['annotations'] = [a for a in content['annotations'] if a['image_id'] != 2]
        for image in content['images']:
            width = 62 if image['id'] == 3 else 64
            Image.new('RGB', (width, 64)).save(root / 'train2017' / image['file_name'])
            image.update(width=width, height=64)
    rewrite(root, change)
    for number in (2, 3):
        (root / f'train2017/00000000000{number}.jpg').unlink()
    assert {2, 3} - {record['img_id'] for record in records_of(root, filter_cfg=rules)} == gone
    errors = check_data_set(coco(root, filter_cfg=rules)).errors
    assert [(f.kind, f.id) for f in errors] == [('image-missing', number) for number in sorted({2, 3} - gone)]
    assert len(check_data_set(coco(root, filter_cfg=rules, test_mode=True)).errors) == 2


def test_images_that_a_step_of_the_user_reads_are_not_checked(root, tmp_path):
    def change(content):
        for image in content['images']:
            path = root / 'train2017' / image['file_name']
            np.save(path.with_suffix('.npy'), np.asarray(Image.open(path)))
            path.unlink()
            image['file_name'] = f'{path.stem}.npy'
    rewrite(root, change)
    loader = type('NumpyLoader', (BaseTransform, ), dict(transform=lambda self, results: None))
    report = check_data_set(coco(root, pipeline=[dict(type=loader)]))
    assert 'only NumpyLoader' in only(report, 'not-checked')[0].sentence
    draw_contact_sheet(report, tmp_path / 'a.png')
    only(check_data_set(coco(root)), 'image-unreadable')


def test_a_label_that_heads_and_metrics_ignore(root):
    for path in root.glob('annotations/*/*.png'):
        labels = np.asarray(Image.open(path)).copy()
        labels[:2] = 254
        Image.fromarray(labels).save(path)
    cfg = load_config(TINY_SEG_CONFIG, data_root=root, pretrained=False)
    assert kinds_of(check_data_sets(cfg)['train_dataloader']) == {'map-labels'}
    cfg.model.decode_head.ignore_index = 254
    reports = check_data_sets(cfg)
    assert reports['train_dataloader'].findings == [] and 'map-labels' in kinds_of(list(reports.values())[1])
    cfg.val_evaluator.ignore_index = 254
    check_before_training(cfg)
    take_classes(cfg)
    assert cfg.model.decode_head.num_classes == 6
    cfg = Config(dict(cfg, model=dict(decode_head=dict(num_classes=6, ignore_index=254),
                                auxiliary_head=[dict(num_classes=6)])))
    assert 'map-labels' in kinds_of(check_data_sets(cfg)['train_dataloader'])  # one head does not


def test_label_maps_in_the_ratio_of_their_images_are_resized_with_them(root):
    """Smaller ones are made to save space; a test compares with the image's own size."""
    _, path = image_and_map(root)
    image = Image.open(path)
    steps = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'),
             dict(type='RandomResize', scale=(128, 128), ratio_range=(0.5, 2.0), keep_ratio=True)]
    image.resize((image.width * 2, image.height * 2), Image.NEAREST).save(path)
    only(check_data_set(folders(root, pipeline=steps)), 'map-ratio')
    only(check_data_set(folders(root, pipeline=steps), trained=False), 'map-size')
    only(check_data_set(folders(root, pipeline=steps[:2])), 'map-size')
    image.resize((image.width * 2, image.height * 2 + 1), Image.NEAREST).save(path)
    only(check_data_set(folders(root, pipeline=steps)), 'map-size')


def each(**values):
    """A change of every second annotation."""
    return lambda content: [a.update({key: value(a) for key, value in values.items()})
                            for a in content['annotations'][::2]]


def of_all(change):
    return lambda content: [change(a) for a in content['annotations']]


@pytest.mark.parametrize('change, kinds, words', (
    (each(iscrowd=lambda a: 1), {'objects-lost'}, '12 of 24 objects: 12 marked as crowds (iscrowd). Set "iscrowd": 0'),
    (each(ignore=lambda a: 1), {'objects-lost'}, '12 marked "ignore"'),
    (each(area=lambda a: 0), {'objects-lost', 'area-empty'}, '12 with an area of 0'),
    (each(bbox=lambda a: [500, 5, 9, 9]), {'objects-lost', 'box-ignored'}, '12 with a box outside'),
    (each(image_id=lambda a: str(a['image_id'])), {'objects-lost', 'orphan'}, '1 is not "1"'),
    (each(category_id=lambda a: 77), {'objects-lost', 'unknown-category'}, '12 whose category_id no category has'),
    (of_all(lambda a: a.update(iscrowd=1)), {'objects-unused'}, '24 of 24 objects: 24 marked as crowds'),
    (of_all(lambda a: a.update(ignore=1)), {'objects-unused'}, '24 marked "ignore"'),
    (of_all(lambda a: a.update(bbox=[number / 64 for number in a['bbox']])), {'objects-unused', 'box-ignored'},
     'A box must be x, y, width and height in pixels'),
    (of_all(lambda a: a.update(image_id=str(a['image_id']))), {'objects-unused', 'orphan'}, '24 whose image_id no'),
    (of_all(lambda a: a.update(bbox=np.add(a['bbox'], [0, 0, *a['bbox'][:2]]).tolist())),
     {'box-corners', 'box-sticks-out'}, 'boxes of two corners'),
    (lambda c: c['annotations'].clear(), {'objects-unused'}, 'nothing to learn from: it has no objects'),
    (lambda c: c.update(annotations=[a for a in c['annotations'] if a['image_id'] == 1]), {'images-unused'},
     '5 of 6 images, which have no objects. To learn from them as background: '
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
    rewrite(root, lambda c: c.update(annotations=c['annotations'][:9]))  # nor are a few that might be
    rewrite(root, of_all(lambda a: a.update(bbox=[30, 30, 45, 45])))
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
    many = root.parent / 'many'
    make_demo_data(many, 12, 1, 48)
    rewrite(many, lambda c: c.update(annotations=[a for a in c['annotations'] if a['image_id'] > 1]))
    assert kinds_of(check_data_set(coco(many, filter_cfg=dict(filter_empty_gt=True)))) == set()
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
    found = [finding.value for finding in report.findings if finding.kind == 'nothing-judged']
    assert found == ['val_evaluator'] * error
