"""The data check: every fault is planted in generated data, found, and named."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mmcv
import numpy as np
import pytest
from conftest import MAIN_CONFIG, ROOT, SAMPLES, TINY_CONFIG, TINY_SEG_CONFIG, run_tool
from mmdet.datasets.transforms import LoadAnnotations
from mmengine.config import Config
from PIL import Image
from pycocotools import mask as mask_api

import xcit_dense.for_mmseg  # noqa: F401  registers ImageFolderDataset
from xcit_dense.config.loading import load_config
from xcit_dense.data import check as data_check
from xcit_dense.data import files as data_files
from xcit_dense.data.check import (
    KINDS,
    check,
    check_before_training,
    check_classes,
    check_data_set,
    check_data_sets,
    draw_contact_sheet,
    files,
)
from xcit_dense.data.check.masks import sums_of_coded
from xcit_dense.data.classes import classes_of_data, difference_of, palette_of, take_classes
from xcit_dense.data.datasets import check_data
from xcit_dense.data.demo import CLASSES
from xcit_dense.data.files import read_map
from xcit_dense.errors import ConfigError, DataError
from xcit_dense.text import counted

ANNOTATIONS = 'annotations/instances_train2017.json'
NAN, INFINITE = float('nan'), float('inf')


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.fixture
def root(demo_data, tmp_path):
    """A copy of the generated data, to break."""
    return shutil.copytree(demo_data, tmp_path / 'data')


def coco(root, **changes):
    """The config of its training set for detection."""
    pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_mask=True)]
    return dict(dict(type='CocoDataset', data_root=str(root), ann_file=ANNOTATIONS, metainfo=dict(classes=CLASSES),
                     data_prefix=dict(img='train2017/'), pipeline=pipeline), **changes)


def folders(root, **changes):
    """The config of its training set for segmentation."""
    return dict(dict(type='ImageFolderDataset', data_root=str(root),
                     metainfo=dict(classes=('background', *CLASSES)),
                     data_prefix=dict(img_path='images/training', seg_map_path='annotations/training')), **changes)


def rewrite(root, change):
    """Change the training annotations."""
    content = json.loads((root / ANNOTATIONS).read_text())
    change(content)
    (root / ANNOTATIONS).write_text(json.dumps(content))


def kinds_of(report):
    return {finding.kind for finding in report.findings}


def only(report, kind):
    """The findings, which must all be of one kind."""
    assert kinds_of(report) == {kind}, report.summary()
    return report.findings


def test_good_data_has_no_findings(root):
    report = check_data_set(coco(root))
    assert report.findings == [] and report.counts['images'] == 6
    content = json.loads((root / ANNOTATIONS).read_text())
    assert sum(amount for *_, amount in report.classes) == len(content['annotations']) == report.counts['annotations']
    for category, (name, images, amount) in zip(content['categories'], report.classes, strict=True):
        of_class = [a['image_id'] for a in content['annotations'] if a['category_id'] == category['id']]
        assert (name, images, amount) == (category['name'], len(set(of_class)), len(of_class))
    report = check_data_set(folders(root))
    assert report.findings == [] and report.counts == {'images': 6, 'images without labels': 0, 'classes': 6}
    maps = [np.asarray(Image.open(path)) for path in (root / 'annotations/training').iterdir()]
    for label, (_, images, pixels) in enumerate(report.classes):
        assert (images, pixels) == (sum((m == label).any() for m in maps), sum((m == label).sum() for m in maps))


@pytest.mark.parametrize('text', (
    'no json', '', '[]', '{}', '{"images": [', '[' * 100_000, '{"images": {}, "annotations": [], "categories": []}',
    '{"images": [{}], "annotations": []}', '\ufeff{}', '{"images": [], "annotations": [], "categories": []}'))
def test_file_that_is_not_coco(root, text):
    (root / ANNOTATIONS).write_text(text)
    finding, = only(check_data_set(coco(root)), 'not-coco')
    assert finding.severity == 'error' and finding.sentence.startswith(str(root / ANNOTATIONS))


def test_file_that_is_cut_off_or_no_text(root):
    whole = (root / ANNOTATIONS).read_bytes()
    for content in (whole[:-100], b'\xff\xfe' + whole):
        (root / ANNOTATIONS).write_bytes(content)
        only(check_data_set(coco(root)), 'not-coco')
    (root / ANNOTATIONS).unlink()
    only(check_data_set(coco(root)), 'not-there')


def fields(part, row, **values):
    return lambda content: content[part][row].update(values)


def append(part, **values):
    return lambda content: content[part].append({**content[part][0], **values})


def polygon(*numbers):
    return fields('annotations', 0, segmentation=[list(numbers)])


def rle(counts, size=None):
    def change(content):
        image = content['images'][0]
        height, width = size or (image['height'], image['width'])
        total = image['height'] * image['width']
        content['annotations'][0]['segmentation'] = dict(
            size=[height, width], counts=counts(total) if callable(counts) else counts)
    return change


def without(key):
    return lambda content: content['annotations'][0].pop(key)


#: Kind, what plants it, and what the finding says: the place or the value.
FAULTS = (
    ('bad-record', lambda c: c['annotations'].insert(0, [1]), 'annotations[0]'),
    ('bad-record', lambda c: c['images'].append(None), 'images[6]'),
    ('bad-record', without('bbox'), "no 'bbox'"),
    ('bad-record', without('area'), "no 'area'"),
    ('bad-record', fields('annotations', 0, image_id=[1]), "'image_id' must be a whole number, not [1]"),
    ('bad-record', fields('annotations', 0, bbox=[1, 2, 3]), "'bbox' must be a list of 4 numbers"),
    ('bad-record', fields('annotations', 0, bbox=[1, 2, 3, '4']), 'list of 4 numbers'),
    ('bad-record', fields('annotations', 0, bbox=[1, 2, 3, 10**400]), 'list of 4 numbers'),
    ('bad-record', fields('categories', 0, name=3), "'name' must be a text"),
    ('category-id-twice', append('categories', name='other'), "'other'"),
    ('category-name-twice', append('categories', id=77), "'disc'"),
    ('image-id-twice', append('images', file_name='000000000002.jpg'), "'000000000002.jpg'"),
    ('image-id-twice', lambda c: c['images'].append(dict(c['images'][0])), "'000000000001.jpg'"),
    ('file-name-twice', append('images', id=77), "'000000000001.jpg'"),
    ('annotation-id-twice', lambda c: c['annotations'][1].update(id=1), 'annotation 1 '),
    ('unknown-category', fields('annotations', 0, category_id=77), 'the category 77'),
    ('orphan', fields('annotations', 0, image_id=77), 'the image 77'),
    ('image-dimensions', fields('images', 0, width=-64), '-64 x '),
    ('image-dimensions', fields('images', 0, height=0), ' x 0'),
    ('image-dimensions', fields('images', 0, height=NAN), 'nan'),
    ('box-not-finite', fields('annotations', 0, bbox=[NAN, 1, 5, 5]), '[nan, 1, 5, 5]'),
    ('box-not-finite', fields('annotations', 0, bbox=[0, 1, INFINITE, 5]), 'inf'),
    ('box-absurd', fields('annotations', 0, bbox=[1e300, 1, 5, 5]), '1e+300'),
    ('box-absurd', fields('annotations', 0, bbox=[0, 0, 1e6, 5]), '1e+06'),
    ('box-negative', fields('annotations', 0, bbox=[5, 5, -4, 4]), '[5, 5, -4, 4]'),
    ('box-empty', fields('annotations', 0, bbox=[5, 5, 0, 4]), '[5, 5, 0, 4]'),
    ('box-outside', fields('annotations', 0, bbox=[70, 5, 4, 4]), '[70, 5, 4, 4] in an image of '),
    ('box-sticks-out', fields('annotations', 0, bbox=[20, 5, 60, 4]), '[20, 5, 60, 4]'),
    ('area-not-finite', fields('annotations', 0, area=NAN), 'nan'),
    ('area-empty', fields('annotations', 0, area=0), 'area 0'),
    ('mask-missing', without('segmentation'), 'annotation 1 '),
    ('mask-missing', fields('annotations', 0, segmentation=[]), 'annotation 1 '),
    ('mask-malformed', fields('annotations', 0, segmentation='x'), "'x'"),
    ('mask-malformed', fields('annotations', 0, segmentation=[3]), '3'),
    ('mask-malformed', polygon(1, 1, 5, 5, 1, 'x'), "'x'"),
    ('mask-malformed', polygon(1, 1, 5, 5, 1, 10**400), 'neither'),
    ('mask-malformed', fields('annotations', 0, segmentation=dict(size=[4, 4])), 'size'),
    ('polygon-none', polygon(1, 1, 5, 5), 'polygon of 4 numbers and none of 6'),
    ('polygon-none', polygon(1, 1, 5, 5, 1, 5, 3), 'polygon of 7 numbers and none of 6'),
    ('polygon-none', polygon(), 'polygon of 0 numbers and none of 6'),
    ('polygon-points', fields('annotations', 0, segmentation=[[1, 1, 5, 5, 1, 5], [1, 2, 3, 4]]),
     'polygon of 4 numbers, which training leaves out without a word'),
    ('polygon-not-finite', polygon(1, 1, 5, NAN, 1, 5), 'nan'),
    ('polygon-not-finite', polygon(1, 1, 5, -INFINITE, 1, 5), '-inf'),
    ('polygon-absurd', polygon(1, 1, 5, 1e30, 1, 5), '1e+30'),
    ('polygon-absurd', polygon(1, 1, -2147483648, 5, 1, 5), '-2.14748e+09'),
    ('polygon-outside', polygon(-9, -9, -5, -5, -9, -5), 'x from -9 to -5'),
    ('rle-size', rle(lambda total: [total], size=(4, 4)), '[4, 4], not '),
    ('rle-size', rle(lambda total: [total], size=('4', None)), "['4', None]"),
    ('rle-counts', rle(lambda total: [total, 1]), 'the mask has'),
    ('rle-counts', rle(lambda total: [total + 5, -5]), '-5'),
    ('rle-counts', rle('11'), 'their sum is 2'),
    ('rle-malformed', rle([1, 'x']), "[1, 'x']"),
    ('rle-malformed', rle('1P'), "'1P'"),
    ('rle-malformed', rle('1é'), "'1é'"),
    ('rle-malformed', rle('1 '), "'1 '"),
    ('rle-malformed', rle(''), "''"),
    ('rle-malformed', rle('oooooooooooo1'), 'ooooo'),
    ('image-missing', fields('images', 0, file_name='no.jpg'), 'no.jpg'),
    ('image-missing', fields('images', 0, file_name='a\0b'), r'a\x00b'),
    ('image-missing', fields('images', 0, file_name='\ud800'), r'\ud800'),
    ('image-outside', fields('images', 0, file_name='../../beside.jpg'), 'beside.jpg'),
    ('image-unreadable', fields('images', 0, file_name=f'../{ANNOTATIONS}'), 'no image of a kind'),
    ('image-unreadable', fields('images', 0, file_name='.'), 'no regular file'),
    ('image-size', fields('images', 0, width=640, height=480), 'not 640 x 480'),
)


@pytest.mark.parametrize('kind, plant, words', FAULTS, ids=[f'{i}-{kind}' for i, (kind, *_) in enumerate(FAULTS)])
def test_fault_of_an_annotation_file(root, kind, plant, words, monkeypatch):
    for name in ('frPyObjects', 'decode', 'merge', 'area'):  # C code that such values bring down
        monkeypatch.setattr(mask_api, name, None)
    shutil.copy(root / 'train2017/000000000001.jpg', root.parent / 'beside.jpg')
    rewrite(root, plant)
    report = check_data_set(coco(root))
    found = [finding for finding in report.findings if finding.kind == kind]
    assert any(words in finding.sentence for finding in found), report.summary()
    # an image that cannot be used takes its annotations with it, and a category its name
    expected = {kind, *(('image-size', ) if kind == 'image-id-twice' else ())}
    expected |= {'orphan'} if kind == 'bad-record' and 'images' in words else set()
    expected |= {'unknown-category', 'class-missing'} if "'name'" in words else set()
    expected |= {'class-unused'} if kind == 'category-id-twice' else set()
    assert {finding.kind for finding in report.findings} <= expected, report.summary()
    again = check_data_set(coco(root))  # out of the cache
    assert repr(again.findings) == repr(report.findings)


@pytest.mark.parametrize('polygons', (
    [[1, 2, 3, 4]], [[1, 2, 3, 4], [1, 1, 9, 1, 9, 9]], [[]], [[], [1, 1, 9, 1, 9, 9]], [[1, 1, 9, 1, 9]],
    [[1, 1, 9, 1, 9, 9, 3]], [[1, 1, 9, 1, 9, 9], [1, 2, 3, 4]]), ids=str)
def test_short_polygons_are_no_error_where_the_framework_goes_on(root, polygons):
    rewrite(root, fields('annotations', 0, segmentation=polygons))
    # training leaves them out, and the object where none is left
    instance = dict(mask=polygons, ignore_flag=0)
    masks = LoadAnnotations(with_mask=True)._process_masks(dict(instances=[instance]))
    kind = 'polygon-none' if instance['ignore_flag'] else 'polygon-points'
    finding, = only(check_data_set(coco(root)), kind)
    assert finding.severity == 'warning' and len(masks[0]) == 1 and finding.drops == bool(instance['ignore_flag'])
    # the evaluation reads the file itself
    try:
        mask_api.frPyObjects(polygons, 64, 64)
        ends = False
    except Exception:
        ends = True
    report = check_data_set(coco(root, test_mode=True))
    assert kinds_of(report) == {kind, *(['polygon-first'] if ends else [])}
    assert bool(report.errors) == ends
    assert only(check_data_set(coco(root)), kind) == [finding]  # the cache keeps the two apart
    both = dict(train_dataloader=dict(dataset=coco(root)), val_dataloader=dict(dataset=coco(root, test_mode=True)))
    assert len(check_data_sets(both)) == 2


def test_masks_do_not_count_where_nothing_reads_them(root):
    rewrite(root, polygon(1, 1, NAN, 5))
    pipeline = [dict(type='LoadAnnotations', with_bbox=True)]
    assert check_data_set(coco(root, pipeline=pipeline)).findings == []
    assert check_data_set(coco(root)).findings  # the cache keeps the two apart


def test_many_faults_are_all_found(root):
    """More records than are looked at together, and faulty ones among them."""
    def change(content):
        one = content['annotations'][0]
        content['annotations'] = [dict(one, id=i) for i in range(10_000)]
        for i in range(0, 10_000, 1000):
            content['annotations'][i] = dict(one, id=i, bbox=None)
        for i in range(1, 10_000, 1000):
            content['annotations'][i] = dict(one, id=i, bbox=[NAN] * 4)
    rewrite(root, change)
    report = check_data_set(coco(root))
    assert [f.row for f in report.findings if f.kind == 'bad-record'] == list(range(0, 10_000, 1000))
    assert [f.row for f in report.findings if f.kind == 'box-not-finite'] == list(range(1, 10_000, 1000))
    assert len(report.findings) == 20
    assert 'and 7 more' in report.summary(first=3)


def test_sums_of_compressed_masks_are_those_of_pycocotools():
    random = np.random.default_rng(0)
    texts, sizes = [], []
    for height, width in ((1, 1), (7, 5), (64, 48), (480, 640), (1000, 1000)):
        for share in (0., 0.01, 0.5, 1.):
            mask = np.asfortranarray(random.random((height, width)) < share).astype(np.uint8)
            mask[height // 3:height // 2] = 1
            texts.append(mask_api.encode(np.asfortranarray(mask))['counts'].decode())
            sizes.append(height * width)
    assert sums_of_coded(texts).tolist() == sizes
    texts[3:3] = ['', '1P', 'ä']
    assert sums_of_coded(texts).tolist() == [*sizes[:3], -1, -1, -1, *sizes[3:]]


def test_words_out_of_the_data_cannot_act_on_a_terminal(root):
    rewrite(root, fields('images', 0, file_name='\x1b[31m\n.jpg'))
    assert r'\x1b[31m\n.jpg' in only(check_data_set(coco(root)), 'image-missing')[0].sentence


@pytest.mark.parametrize('way', ('absolute', 'file link', 'folder link', 'not there'))
def test_images_outside_the_root_are_refused(root, tmp_path, way):
    beside = tmp_path / 'beside'
    beside.mkdir()
    shutil.copy(root / 'train2017/000000000001.jpg', beside / 'a.jpg')
    names = {'absolute': str(beside / 'a.jpg'), 'file link': 'a.jpg', 'folder link': 'deep/a.jpg',
             'not there': '../../beside/none.jpg'}
    (root / 'train2017/a.jpg').symlink_to(beside / 'a.jpg')
    (root / 'train2017/deep').symlink_to(beside)
    rewrite(root, fields('images', 0, file_name=names[way]))
    finding, = only(check_data_set(coco(root)), 'image-outside')
    assert f'it is {beside}' in finding.sentence and finding.id == 1


def test_a_data_root_or_image_folder_that_is_a_link_is_no_way_out(root, tmp_path):
    (root / 'train2017').rename(tmp_path / 'elsewhere')
    (root / 'train2017').symlink_to(tmp_path / 'elsewhere')
    (tmp_path / 'link').symlink_to(root)
    assert check_data_set(coco(tmp_path / 'link')).findings == []


def test_images_that_cannot_be_used(root, monkeypatch):
    first = root / 'train2017/000000000001.jpg'
    whole = first.read_bytes()
    os.mkfifo(root / 'pipe')  # opening it would wait for ever
    first.write_bytes(b'no picture')
    assert 'no image of a kind' in only(check_data_set(coco(root)), 'image-unreadable')[0].sentence
    first.write_bytes(whole[:len(whole) // 2])
    assert 'cut off: a JPEG without its end' in only(check_data_set(coco(root)), 'image-unreadable')[0].sentence
    first.write_bytes(whole + bytes(5000))  # mmcv reads it
    assert only(check_data_set(coco(root)), 'image-cut-off')[0].severity == 'warning'
    first.unlink()
    (root / 'pipe').rename(first)
    assert 'no regular file' in only(check_data_set(coco(root)), 'image-unreadable')[0].sentence
    first.unlink()
    first.write_bytes(whole)
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 10)
    only(check_data_set(coco(root), use_cache=False), 'image-huge')


@pytest.mark.parametrize('suffix', ('jpg', 'png', 'webp'))
def test_turned_images_have_the_size_that_mmcv_reads(root, suffix):
    path = root / f'train2017/turned.{suffix}'
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (40, 30)).save(path, exif=exif)
    header = files.read_header(path)
    assert header['size'] == [40, 30]
    assert header['turned'] == list(mmcv.imread(str(path)).shape[1::-1])
    if suffix == 'jpg':
        rewrite(root, fields('images', 0, file_name=path.name, width=40, height=30))
        kinds = kinds_of(check_data_set(coco(root)))
        assert 'image-rotated' in kinds
        steps = [dict(type='LoadImageFromFile', color_type='unchanged'), dict(type='LoadAnnotations', with_mask=True)]
        assert 'image-rotated' not in kinds_of(check_data_set(coco(root, pipeline=steps)))
        rewrite(root, fields('images', 0, width=30, height=40))
        assert 'image-rotated' not in kinds_of(check_data_set(coco(root)))


def image_and_map(root):
    return root / 'images/training/000000000001.jpg', root / 'annotations/training/000000000001.png'


def save_map(array):
    return lambda image, path: Image.fromarray(array(np.asarray(Image.open(path)))).save(path)


@pytest.mark.parametrize('kind, plant, words', (
    ('map-missing', lambda image, path: path.unlink(), '000000000001.jpg'),
    ('map-unreadable', lambda image, path: path.write_bytes(b'no picture'), 'cannot be read'),
    ('map-unreadable', lambda image, path: path.write_bytes(path.read_bytes()[:-60]), 'cannot be read'),
    ('map-16-bit', save_map(lambda m: m.astype(np.uint16)), 'I;16'),
    ('map-colour', save_map(lambda m: np.stack([m] * 3, 2)), 'RGB'),
    ('map-colour', save_map(lambda m: np.stack([m] * 4, 2)), 'RGBA'),
    ('map-size', save_map(lambda m: m[:-1]), 'not '),
    ('map-labels', save_map(lambda m: np.where(m == 0, 6, m).astype(np.uint8)),
     '[6]; the labels of classes are 0 to 5, and ignored ones [255]'),
    ('map-ignored', save_map(lambda m: np.full_like(m, 255)), '000000000001.png has no pixel with a class'),
    ('map-shared', lambda image, path: shutil.copy(image, image.with_suffix('.JPEG')), '000000000001.JPEG'),
    ('map-without-image', lambda image, path: shutil.copy(path, path.with_name('x.png')), 'x.png'),
    ('map-outside', lambda image, path: (shutil.move(path, path.parents[3] / 'm.png'),
                                         path.symlink_to(path.parents[3] / 'm.png')), 'm.png'),
    ('image-unreadable', lambda image, path: image.write_bytes(b'no picture'), 'no image of a kind'),
    ('image-outside', lambda image, path: (shutil.move(image, image.parents[3] / 'i.jpg'),
                                           image.symlink_to(image.parents[3] / 'i.jpg')), 'i.jpg'),
))
def test_fault_of_a_label_map(root, kind, plant, words):
    plant(*image_and_map(root))
    finding, = only(check_data_set(folders(root)), kind)
    assert words in finding.sentence
    assert check_data_set(folders(root)).findings == [finding]  # out of the cache


def test_labels_without_a_class_are_ignored_as_training_does(root):
    _, path = image_and_map(root)
    labels = np.asarray(Image.open(path)).copy()
    labels[:2] = 255
    Image.fromarray(labels).save(path)
    report = check_data_set(folders(root))
    assert report.findings == [] and report.classes[-1] == ('(ignored)', 1, 2 * labels.shape[1])
    # 0 is unlabelled, 1 the first class
    for names, wrong in ((CLASSES, False), (CLASSES[:-1], True)):
        report = check_data_set(folders(root, reduce_zero_label=True, metainfo=dict(classes=names)))
        assert ('map-labels' in kinds_of(report)) == wrong
        assert report.classes[0][0] == 'disc'
    assert report.classes[0][2] == sum((np.asarray(Image.open(p)) == 1).sum()
                                       for p in (root / 'annotations/training').iterdir())


def test_palettes_and_single_bits_are_label_maps(tmp_path):
    image = Image.fromarray(np.eye(4, dtype=np.uint8))
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.save(tmp_path / 'p.png')
    Image.fromarray(np.eye(4, dtype=bool)).save(tmp_path / '1.png')
    for name in ('p.png', '1.png'):
        assert read_map(tmp_path / name)['labels'] == [[0, 12], [1, 4]]


def test_data_set_that_reads_one_suffix_or_a_list(root):
    dataset = folders(root, type='BaseSegDataset')
    image, path = image_and_map(root)
    shutil.copy(image, image.with_name('x.jpeg'))
    assert only(check_data_set(dataset), 'image-left-out')[0].file.endswith('x.jpeg')
    shutil.rmtree(image.parent)
    assert 'no-images' in kinds_of(check_data_set(dataset))
    (root / 'list.txt').write_text('000000000001\n')
    listed = folders(root, type='BaseSegDataset', ann_file='list.txt', data_prefix=dict(
        img_path='train2017', seg_map_path='annotations/training'))
    assert check_data_set(listed).findings == [] and check_data_set(listed).counts['images'] == 1
    only(check_data_set(dict(listed, ann_file='no.txt')), 'not-there')


def test_other_kinds_of_data_sets_say_that_they_are_not_checked(root):
    only(check_data_set(coco(root, type='CocoPanopticDataset')), 'not-checked')


def test_classes_are_matched_by_name(root):
    rewrite(root, fields('categories', 0, name='Disk'))
    report = check_data_set(coco(root))
    assert kinds_of(report) == {'class-missing', 'class-unused'}
    assert "does not have 1 of the 5 classes of the config: 'disc' (it has 'Disk')" in report.errors[0].sentence
    assert "has 1 class that the config does not use: 'Disk'" in report.warnings[0].sentence
    assert check_data_set(coco(root, metainfo={}), from_data=True).findings == []
    many, = check_data_set(coco(root, metainfo={})).errors  # the data set's own are COCO's
    assert many.sentence.endswith("does not have 80 of the 80 classes of the config: 'person', 'bicycle', 'car', "
                                  "'motorcycle', 'airplane' and 75 more")
    order = check_data_set(coco(root, metainfo=dict(classes=('Disk', 'triangle', 'square', 'star', 'cross'))))
    assert "class 1 is 'square', not 'triangle'" in only(order, 'class-order')[0].sentence


def test_classes_of_label_maps(root):
    names = ('background', *CLASSES)
    swapped = folders(root, metainfo=dict(classes=(*names[:-2], names[-1], names[-2])))
    only(check_data_set(swapped), 'class-order')
    (root / 'classes.txt').write_text('sky\nsky\n')
    only(check_data_set(folders(root)), 'class-list')
    (root / 'classes.txt').unlink()
    report = check_data_set(folders(root, metainfo={}), from_data=True)
    assert report.findings == [] and [name for name, *_ in report.classes] == list('012345')
    ade = folders(root, type='ADE20KDataset', reduce_zero_label=True, metainfo=dict(classes=('wall', 'bilding')))
    assert "'bilding' (it has 'building')" in only(check_data_set(ade), 'class-missing')[0].sentence


def test_layout_that_the_class_of_a_data_set_knows(root):
    """Suffixes and the first label are those of the class where the config does not say them."""
    street = dict(type='CityscapesDataset', data_root=str(root), data_prefix=dict(
        img_path='leftImg8bit/train', seg_map_path='gtFine/train'))
    images, maps = (root / street['data_prefix'][key] / 'town' for key in ('img_path', 'seg_map_path'))
    for folder in (images, maps):
        folder.mkdir(parents=True)
    for number in range(2):
        Image.new('RGB', (40, 30)).save(images / f'town_{number}_leftImg8bit.png')
        Image.fromarray(np.full((30, 40), [18, 255][number], np.uint8)).save(
            maps / f'town_{number}_gtFine_labelTrainIds.png')
        Image.new('RGBA', (40, 30)).save(maps / f'town_{number}_gtFine_color.png')
    report = check_data_set(street)
    only(report, 'map-ignored')
    assert report.counts['images'] == 2 and report.classes[18] == ('bicycle', 1, 1200)
    assert 'no-images' in kinds_of(check_data_set(dict(street, img_suffix='.jpg')))  # what the config says goes first
    (root / 'classes.txt').unlink()
    assert classes_of_data(Config(street))['classes'] == tuple(map(str, range(19)))  # the colours are no label maps
    # 0 is unlabelled, 150 the last class
    save_map(lambda m: np.where(m == 0, 150, 0).astype(np.uint8))(*image_and_map(root))
    ade = folders(root, type='ADE20KDataset', metainfo=None)
    report = check_data_set(ade)
    assert report.findings == [] and report.classes[149][:2] == ('flag', 1)
    only(check_data_set(dict(ade, reduce_zero_label=False)), 'map-labels')


def test_config_without_prefixes_and_names(root):
    assert check_data_set(coco(root, metainfo=None), from_data=True).findings == []
    bare = dict(type='ImageFolderDataset', data_root=str(root / 'images'), data_prefix=None, metainfo=None)
    report = check_data_set(bare)
    assert report.findings == [] and report.counts['images'] > 6
    check_data(Config(dict(train_dataloader=dict(dataset=bare))))
    only(check_data_set(folders(root, type='CocoPanopticDataset', data_prefix=None)), 'not-checked')


@pytest.mark.parametrize('harm', (lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b'\xff')))
def test_file_of_names_that_cannot_be_read(root, tmp_path, harm):
    names = tmp_path / 'names.txt'
    names.write_text('\n'.join(CLASSES))
    dataset = coco(root, metainfo=dict(classes=str(names)))
    assert check_data_set(dataset).findings == []
    names.unlink()
    harm(names)
    with pytest.raises(DataError, match=f'metainfo.classes .*{names}'):
        check_data_set(dataset)


def test_heads_whose_classes_are_not_those_of_the_data(root):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    cfg.classes_from_data = False
    cfg.model.rpn_head.num_classes = 1
    cfg.model.backbone.num_classes = 1000
    cfg.model.roi_head.semantic_head = dict(type='SCNetSemanticHead', num_classes=183)
    cfg.model.auxiliary_head = [dict(type=kind, num_classes=number) for kind, number in (
        ('STDCHead', 2), ('mmdet.FusedSemanticHead', 9), ('FCNHead', 80))]
    assert check_classes(cfg) == []
    cfg.model.auxiliary_head[2].num_classes = 79
    assert [finding.file for finding in check_classes(cfg)] == ['model.FCNHead']
    cfg.classes_from_data = True
    take_classes(cfg)
    assert [head.num_classes for head in (
        cfg.model.rpn_head, cfg.model.backbone, cfg.model.roi_head.semantic_head, *cfg.model.auxiliary_head,
        cfg.model.roi_head.bbox_head, cfg.model.roi_head.mask_head)] == [1, 1000, 183, 2, 9, 5, 5, 5]
    # of panoptic data the heads know the things alone
    things = Config(dict(model=dict(bbox_head=dict(type='FCOSHead', num_classes=80)), train_dataloader=dict(
        dataset=coco(root, type='CocoPanopticDataset', metainfo={}))))
    assert check_classes(things) == []
    things.model.bbox_head.num_classes = 133
    assert [finding.file for finding in check_classes(things)] == ['model.FCOSHead']


def test_heads_with_another_number_of_classes(root):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    assert check_classes(cfg) == []  # they come from the data
    cfg.classes_from_data = False
    assert check_classes(cfg) == []  # 80 and 80
    cfg.train_dataloader.dataset.metainfo = dict(classes=CLASSES)
    found = check_classes(cfg)
    assert {f.file for f in found if f.file.startswith('model.')} == {'model.Shared2FCBBoxHead', 'model.FCNMaskHead'}
    assert 'has num_classes = 80, and the training data has 5 classes' in found[0].sentence
    assert {f.file for f in found if 'loader' in f.file} == {'val_dataloader', 'test_dataloader'}
    assert {f.kind for f in found} == {'class-count'}
    assert any(f.sentence.endswith("another order: without 'disc', 'square', 'triangle', 'star', 'cross' and with "
                                   "'person', 'bicycle', 'car', 'motorcycle', 'airplane' and 75 more") for f in found)
    assert difference_of('abc', 'acb') == "class 1 is 'b', not 'c'" and difference_of('ab', 'ab') == ''
    assert difference_of('aab', 'ab') == "class 1 is 'a', not 'b'" and difference_of('a', 'ab') == "without 'b'"


def test_second_look_reads_only_what_changed(root, monkeypatch):
    read, looks = [], []
    header, coco_file = files.read_header, check.check_coco
    monkeypatch.setattr(files, 'read_header', lambda path: read.append(path) or header(path))
    monkeypatch.setattr(check, 'check_coco', lambda *args: looks.append(args) or coco_file(*args))

    def look():
        read.clear()
        looks.clear()
        return check_data_set(coco(root)), len(looks), len(read)

    assert look()[1:] == (1, 6)
    report, *counted = look()
    assert counted == [0, 0] and report.findings == [] and report.samples and report.counts['images'] == 6
    os.utime(root / 'train2017/000000000002.jpg', ns=(0, 0))
    assert look()[1:] == (0, 1)
    Image.new('RGB', (9, 9)).save(root / 'train2017/000000000003.jpg')
    report, *counted = look()
    assert counted == [0, 1] and only(report, 'image-size')[0].id == 3
    (root / 'train2017/000000000004.jpg').unlink()
    report, *counted = look()
    assert counted == [0, 0] and {f.kind for f in report.findings} == {'image-size', 'image-missing'}
    rewrite(root, fields('annotations', 0, bbox=[NAN] * 4))
    report, *counted = look()
    assert counted == [1, 0] and 'box-not-finite' in kinds_of(report)
    assert check_data_set(coco(root), use_cache=False) and len(read) == 5


@pytest.mark.parametrize('harm', (
    lambda path: path.write_bytes(path.read_bytes()[:-20]),
    lambda path: path.write_bytes(path.read_bytes().replace(b'"findings": []', b'"findings": 00')
                                  .replace(b'64', b'65')),
    lambda path: path.write_bytes(b'\xff'),
    lambda path: (path.unlink(), path.mkdir()),
))
def test_damaged_cache_is_not_believed(root, tmp_path, harm):
    rewrite(root, fields('annotations', 0, bbox=[NAN] * 4))
    first = check_data_set(coco(root))
    kept = sorted((tmp_path / 'cache/xcit_dense/data_check').iterdir())
    assert len(kept) == 2
    for path in kept:
        harm(path)
    assert repr(check_data_set(coco(root)).findings) == repr(first.findings)


def test_without_a_place_for_the_cache_there_is_none(root, tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    assert check_data_set(coco(root)).findings == []


def test_training_is_stopped_with_the_first_faults(root, monkeypatch, caplog):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    check_before_training(cfg)

    def change(content):
        for annotation in content['annotations'][:12]:
            annotation['bbox'] = [NAN] * 4
    rewrite(root, change)
    with pytest.raises(DataError) as stopped:
        check_before_training(cfg)
    message = str(stopped.value)
    assert 'the data has 12 faults' in message and 'and 2 more' in message and message.count('box [nan') == 10
    assert f'run if it has any: python -m xcit_dense check_data {TINY_CONFIG} --data-root {root}\n' in message
    assert '--drop DIR' in message
    with pytest.raises(ConfigError, match='on_findings'):
        check_before_training(cfg, on_findings='no')
    said = []
    monkeypatch.setattr(check, 'print_log', lambda text, **options: said.append(text))
    check_before_training(cfg, on_findings='warn')
    assert any('the data has 12 faults' in text for text in said)
    # one process of several looks, and ends the others with itself
    cfg.launcher = 'pytorch'
    monkeypatch.setenv('RANK', '1')
    check_before_training(cfg)


def test_first_lines_have_a_fault_of_every_kind_and_drop_where_it_helps(root):
    def change(content):
        content['annotations'][0]['segmentation'] = 'x'
        for annotation in content['annotations'][1:12]:
            annotation['bbox'] = [NAN] * 4

    def message(config):
        with pytest.raises(DataError) as stopped:
            check_before_training(load_config(config, data_root=root, pretrained=False))
        return str(stopped.value)

    rewrite(root, change)
    assert 'the data has 12 faults that' in message(TINY_CONFIG) and 'neither polygons' in message(TINY_CONFIG)
    (root / ANNOTATIONS).write_text('no json')
    assert 'the data has 1 fault that' in message(TINY_CONFIG) and '--drop' not in message(TINY_CONFIG)
    image_and_map(root)[1].unlink()
    assert 'the data has 1 fault that' in message(TINY_SEG_CONFIG) and '--drop' not in message(TINY_SEG_CONFIG)


@pytest.mark.parametrize('number, words, text', (
    (1, 'faults', '1 fault'), (0, 'faults', '0 faults'), (1, 'classes', '1 class'),
    (1, 'images without annotations', '1 image without annotations'),
    (1, 'categories', '1 category'), (1234, 'categories', '1,234 categories')))
def test_one_of_a_kind(number, words, text):
    assert counted(number, words) == text


def test_maps_are_counted_and_read_once_for_check_and_training(root, monkeypatch):
    """What the check has read is not read again where a training takes its classes, whatever way the root is named."""
    save_map(lambda m: np.full_like(m, 255))(*image_and_map(root))
    monkeypatch.chdir(root.parent)
    (root / 'classes.txt').unlink()
    report = check_data_set(folders('data', metainfo={}), from_data=True)
    assert report.counts['images without labels'] == 1 and report.findings[0].severity == 'warning'
    check_before_training(load_config(TINY_SEG_CONFIG, data_root='data', pretrained=False))
    monkeypatch.setattr(data_files, 'read_map', lambda path: pytest.fail(f'{path} is read again'))
    for place in ('data', root):
        cfg = load_config(TINY_SEG_CONFIG, data_root=place, pretrained=False)
        take_classes(cfg)
        assert cfg.model.decode_head.num_classes == 6
    (root / 'annotations/training/000000000002.png').touch()
    with pytest.raises(pytest.fail.Exception, match='000000000002.png is read again'):
        take_classes(cfg)


def test_results_of_one_folder_are_kept_beside_each_other(root, monkeypatch):
    """Two data sets in one folder, each of some of its files."""
    listed = folders(root, type='BaseSegDataset', ann_file='list.txt')
    looks, read = [], read_map
    monkeypatch.setattr(data_files, 'read_map', lambda path: looks.append(path) or read(path))
    for number in (1, 2, 1, 2):
        (root / 'list.txt').write_text(f'00000000000{number}\n')
        check_data_set(listed)
    assert len(looks) == 2


@pytest.mark.parametrize('change', (
    dict(img_suffix='.png'), dict(seg_map_suffix='_x.png'), dict(ignore_index=3), dict(backend_args=dict(backend='x')),
    dict(pipeline=[dict(type='LoadImageFromFile', imdecode_backend='turbojpeg'), dict(type='LoadAnnotations')])),
    ids=lambda change: next(iter(change)))
def test_data_sets_are_one_where_all_that_is_checked_is_the_same(root, change):
    cfg = load_config(TINY_SEG_CONFIG, data_root=root, pretrained=False)
    assert len(check_data_sets(cfg)) == 2  # validation and test data are one
    cfg.test_dataloader.dataset = dict(cfg.val_dataloader.dataset, **change)
    assert len(check_data_sets(cfg)) == 3


def colours_of(path):
    return {colour for _, colour in Image.open(path).convert('RGB').getcolors(1 << 24)}


def test_sheets_show_what_was_found_first(root, tmp_path):
    def change(content):
        content['annotations'][-1].update(bbox=[70, 5, 4, 4])
        content['images'][4].update(width=640)
        content['images'][3].update(file_name='../../beside.jpg')
    shutil.copy(root / 'train2017/000000000001.jpg', root.parent / 'beside.jpg')
    rewrite(root, change)
    report = check_data_set(coco(root))
    content = json.loads((root / ANNOTATIONS).read_text())
    owner = content['annotations'][-1]['image_id']
    # what lies outside is not opened
    assert [Path(sample['file']).name for sample in report.samples] == [
        f'00000000000{number}.jpg' for number in (5, *dict.fromkeys((owner, 1, 2, 3, 6))) if number != 4]
    captions = {Path(sample['file']).stem[-1]: sample['captions'] for sample in report.samples}
    assert 'not 640 x' in captions['5'][0] and 'wholly outside its image' in captions[str(owner)][-1]
    assert draw_contact_sheet(report, tmp_path / 'a.png') == 5
    alarm = (176, 0, 32)
    assert alarm in colours_of(tmp_path / 'a.png')
    assert draw_contact_sheet(check_data_set(coco(root, ann_file=ANNOTATIONS.replace('train', 'val'),
                                                  data_prefix=dict(img='val2017/'))), tmp_path / 'b.png') == 3
    assert alarm not in colours_of(tmp_path / 'b.png')


def test_masks_that_nothing_has_checked_are_not_drawn(root, tmp_path):
    rewrite(root, polygon(1, 1, NAN, 5, 3))
    report = check_data_set(coco(root, pipeline=[dict(type='LoadAnnotations', with_bbox=True)]))
    assert draw_contact_sheet(report, tmp_path / 'a.png') == 6


def test_label_maps_with_faults_are_drawn(root, tmp_path):
    image, path = image_and_map(root)
    save_map(lambda m: np.where(m == 0, 77, m).astype(np.uint8))(image, path)
    save_map(lambda m: np.stack([m] * 3, 2))(image, path.with_name('000000000002.png'))
    os.rename(path.with_name('000000000003.png'), root.parent / 'm.png')
    path.with_name('000000000003.png').symlink_to(root.parent / 'm.png')
    report = check_data_set(folders(root))
    drawn = {Path(sample['file']).stem[-1]: sample for sample in report.samples}
    assert [bool(sample['captions']) for sample in report.samples] == [True] * 3 + [False] * 3
    assert drawn['2']['map'] is None and drawn['3']['map'] is None and drawn['1']['map'] == str(path)
    assert draw_contact_sheet(report, tmp_path / 'a.png') == 6


def test_classes_have_one_colour_in_all_sheets(root, tmp_path):
    names = ('background', *CLASSES)
    first, other = (check_data_set(folders(root, metainfo=dict(classes=order))) for order in (names, names[::-1]))
    for report, file in ((first, 'a.png'), (other, 'b.png')):
        report.samples = report.samples[:1]
        report.samples[0].update(captions=[])
        draw_contact_sheet(report, tmp_path / file, names)
    # the legend, where colours are not mixed with a picture
    wanted = set(palette_of(names))
    assert colours_of(tmp_path / 'a.png') & wanted and colours_of(tmp_path / 'b.png') & wanted
    assert not colours_of(tmp_path / 'b.png') & (set(palette_of(names[::-1])) - wanted)


def test_warnings_are_logged_and_do_not_stop(root, monkeypatch):
    rewrite(root, fields('annotations', 0, area=0))
    said = []
    monkeypatch.setattr(check, 'print_log', lambda text, **options: said.append(text))
    check_before_training(load_config(TINY_CONFIG, data_root=root, pretrained=False))
    assert len(said) == 1 and 'area-empty' in said[0]


@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG))
def test_tool_counts_and_draws(demo_data, tmp_path, config):
    command = [sys.executable, '-m', 'xcit_dense', 'check_data', str(config), '--data-root', str(demo_data)]
    done = subprocess.run([*command, '--out', str(tmp_path / 'out'), '--strict'], text=True, capture_output=True,
                          cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '6 images' in done.stdout and re.search(r'star +\d+ +[\d,]+ +[\d.]+%', done.stdout)
    assert '0 errors and 0 warnings' in done.stdout
    assert json.loads((tmp_path / 'out/findings.json').read_text()) == []
    sheet = Image.open(tmp_path / 'out/train_dataloader.png').convert('RGB')
    assert len(sheet.getcolors(1 << 24)) > 1000
    assert (tmp_path / 'out/val_dataloader.png').is_file()


def test_tool_prints_all_and_ends_with_1(root, tmp_path, call_tool):
    rewrite(root, fields('annotations', 0, bbox=[NAN] * 4))
    rewrite(root, fields('annotations', 1, image_id=77))
    out = tmp_path / 'out'
    code, message = call_tool('check_data.py', TINY_CONFIG, '--data-root', root, '--out', out)
    assert code == 1 and message.startswith('error: 2 errors and 0 warnings')
    found = json.loads((out / 'findings.json').read_text())
    assert {f['kind'] for f in found} == {'box-not-finite', 'orphan'}
    assert all(f['file'] == str(root / ANNOTATIONS) and f['sentence'] and f['severity'] == 'error' for f in found)


def test_tool_compares_the_classes_of_training_and_validation(root, tmp_path, call_tool):
    rewrite(root, fields('categories', 0, name='Disk'))
    code, message = call_tool('check_data.py', TINY_CONFIG, '--data-root', root, '--out', tmp_path)
    assert code == 1 and message.startswith('error: 1 error and 0 warnings, ')
    finding, = json.loads((tmp_path / 'findings.json').read_text())
    assert finding['kind'] == 'class-count' and "'Disk'" in finding['sentence'] and "'disc'" in finding['sentence']


def test_strict_stops_at_warnings(root, tmp_path, call_tool):
    rewrite(root, fields('annotations', 0, bbox=[20, 5, 60, 4]))
    code, message = call_tool('check_data.py', TINY_CONFIG, '--data-root', root, '--out', tmp_path / 'out', '--strict')
    assert code == 1 and '0 errors and 1 warning, ' in message


def test_drop_leaves_a_clean_file_beside(root, tmp_path, call_tool):
    def change(content):
        for place, values in enumerate((dict(bbox=[NAN] * 4), dict(image_id=77), dict(category_id=77), dict(area=0),
                                        dict(segmentation=[[1, 2, 3, 4]]), dict(bbox=None))):
            content['annotations'][place].update(values)
        content['images'][3]['width'] = 0
        content['images'][4]['file_name'] = 'no.jpg'
        content['images'].append(dict(content['images'][5]))
    rewrite(root, change)
    before = (root / ANNOTATIONS).read_bytes()
    args = ('check_data.py', TINY_CONFIG, '--data-root', root, '--out', tmp_path / 'out', '--drop', tmp_path / 'clean')
    assert call_tool(*args)[0] == 1
    clean = tmp_path / 'clean/train_dataloader/instances_train2017.json'
    assert (root / ANNOTATIONS).read_bytes() == before
    report = check_data_set(coco(root, ann_file=str(clean)))
    assert report.findings == [] and report.counts['images'] == 4
    kept, old = json.loads(clean.read_text()), json.loads(before)
    gone = {4, 5}
    assert [a['id'] for a in kept['annotations']] == [a['id'] for a in old['annotations'][6:]
                                                      if a['image_id'] not in gone]
    assert kept['info'] == old['info'] and kept['categories'] == old['categories']
    written = clean.read_bytes()
    call_tool(*args)
    assert clean.read_bytes() == written
    assert sorted(p.name for p in (tmp_path / 'clean').iterdir()) == ['train_dataloader']  # the rest has no fault


def test_image_ids_that_are_there_twice_are_dropped_with_what_means_either(root, tmp_path):
    rewrite(root, fields('images', 1, id=1))
    report = check_data_set(coco(root))
    words = data_check.drop_findings(report, tmp_path / 'clean')
    assert 'without 2 images' in words and 'image-id-twice 2' in words
    kept = json.loads((tmp_path / 'clean/instances_train2017.json').read_text())
    assert [image['id'] for image in kept['images']] == [3, 4, 5, 6]
    assert {a['image_id'] for a in kept['annotations']} <= {3, 4, 5, 6}
    with pytest.raises(DataError, match='overwrites nothing'):
        data_check.drop_findings(report, tmp_path / 'clean')
    with pytest.raises(DataError, match='overwrites nothing'):
        data_check.drop_findings(report, root / 'annotations')
    (root / ANNOTATIONS).write_text('no json')
    with pytest.raises(DataError, match='cannot be cleaned'):
        data_check.drop_findings(check_data_set(coco(root)), tmp_path / 'other')


def test_drop_lists_bad_images_of_folders(root, tmp_path):
    image, path = image_and_map(root)
    path.unlink()
    words = data_check.drop_findings(check_data_set(folders(root)), tmp_path / 'clean')
    assert '1 image to take out of' in words
    assert (tmp_path / 'clean/take_away.txt').read_text() == f'{image}\n'
    assert image.is_file()


def test_every_kind_of_finding_is_planted_here():
    text = Path(__file__).read_text()
    assert [kind for kind in KINDS if f"'{kind}'" not in text] == []


@pytest.mark.skipif(not (SAMPLES / 'coco_sample').is_dir(), reason='no samples beside the checkout')
@pytest.mark.parametrize('config, folder', (
    (MAIN_CONFIG, 'coco_sample'),
    (ROOT / 'configs/semfpn_xcit_s12_p16_ade20k.py', 'ade20k_sample/ADEChallengeData2016')))
def test_real_data_has_no_errors(tmp_path, config, folder):
    done = run_tool('check_data.py', config, '--data-root', SAMPLES / folder, '--out', tmp_path)
    assert re.search(r'^0 errors', done.stdout, re.M) and re.search(r'^  person ', done.stdout, re.M)
