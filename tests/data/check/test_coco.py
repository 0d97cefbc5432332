"""Problems of annotation files, each planted in generated data, and at both sides of every limit; files of images."""
import json
import os

import mmcv
import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile
from mmdet.datasets.transforms import LoadAnnotations
from PIL import Image
from pycocotools import mask as mask_api

from helpers.faulty_data import ANNOTATIONS, INFINITE, NAN, append, coco, fields, kinds_of, only, polygon, rewrite
from xcit_dense.data.check.check import check_data_set
from xcit_dense.data.check.coco import check_coco
from xcit_dense.data.check.coco_file import counts_in
from xcit_dense.data.check.findings import Finding
from xcit_dense.data.files import read_header

WIDTH, HEIGHT, TINY = 40, 30, 1e-6
TRIANGLE, OUTSIDE = [1, 1, 5, 1, 5, 5], [50, 50, 60, 50, 60, 60]


def test_file_that_is_not_coco(root):
    whole = (root / ANNOTATIONS).read_bytes()
    for content in ('no json', '', '[]', '{}', '{"images": [', '[' * 100_000, '\ufeff{}',
                    '{"images": {}, "annotations": [], "categories": []}', '{"images": [{}], "annotations": []}',
                    '{"images": [], "annotations": [], "categories": []}', whole[:-100], b'\xff\xfe' + whole):
        (root / ANNOTATIONS).write_bytes(content if isinstance(content, bytes) else content.encode())
        finding, = only(check_data_set(coco(root)), 'not-coco')
        assert finding.severity == 'error' and finding.sentence.startswith(str(root / ANNOTATIONS)), content[:50]
    (root / ANNOTATIONS).unlink()
    only(check_data_set(coco(root)), 'not-there')
    (root / ANNOTATIONS).write_bytes(whole)  # as COCO's image_info_test-dev2017.json
    rewrite(root, lambda content: content.pop('annotations'))
    report = check_data_set(coco(root, test_mode=True))
    assert report.findings == [] and report.counts['images'] == 6
    assert 'annotations' in only(check_data_set(coco(root)), 'not-coco')[0].sentence


def rle(counts):
    def change(content):
        height, width = (content['images'][0][side] for side in ('height', 'width'))
        content['annotations'][0]['segmentation'] = dict(
            size=[height, width], counts=counts(height * width) if callable(counts) else counts)
    return change


def without(key):
    return lambda content: content['annotations'][0].pop(key)


#: Kind, the function that plants it, and a part of the finding: the place or the value.
FAULTS = (
    ('bad-record', lambda c: c['annotations'].insert(0, [1]), 'annotations[0]'),
    ('bad-record', lambda c: c['images'].append(None), 'images[6]'), ('bad-record', without('bbox'), "no 'bbox'"),
    ('bad-record', fields('annotations', 0, image_id=[1]), "'image_id'"),
    ('bad-record', fields('annotations', 0, bbox=[1, 2, 3, '4']), "[1, 2, 3, '4']"),
    ('bad-record', fields('categories', 0, name=3), "'name'"),
    ('category-id-twice', append('categories', name='other'), "'other'"),
    ('category-name-twice', append('categories', id=77), "'disc'"),
    ('image-id-twice', append('images', file_name='000000000002.jpg'), "'000000000002.jpg'"),
    ('file-name-twice', lambda c: c['images'].append(dict(c['images'][0])), "'000000000001.jpg'"),
    ('file-name-twice', append('images', id=77), "'000000000001.jpg'"),
    ('annotation-id-twice', lambda c: c['annotations'][1].update(id=1), 'annotation 1 '),
    ('unknown-category', fields('annotations', 0, category_id=77), 'the category 77'),
    ('orphan', fields('annotations', 0, image_id=77), 'the image 77'),
    ('image-dimensions', fields('images', 0, width=-64), '-64 x '),
    ('mask-missing', without('segmentation'), 'annotation 1 '),
    ('mask-missing', fields('annotations', 0, segmentation=[]), 'annotation 1 '),
    ('mask-malformed', fields('annotations', 0, segmentation='x'), "'x'"),
    ('mask-malformed', fields('annotations', 0, segmentation=[1, 1, 5, 1, 5, 5]), 'RLE: 1'),
    ('mask-malformed', polygon(1, 1, 5, 5, 1, 'x'), "'x'"),
    ('mask-malformed', polygon(1, 1, 5, 5, 1, 10**400), '[1, 1, 5, 5, 1, 1000'),
    ('rle-size', fields('annotations', 0, segmentation=dict(size='x', counts='x')), "'x', not "),
    ('mask-malformed', fields('annotations', 0, segmentation=dict(size=[4, 4])), 'size'),
    ('polygon-absurd', polygon(1, 1, 5, NAN, 1, 5), 'nan'),
    ('polygon-absurd', polygon(1, 1, -2147483648, 5, 1, 5), '-2.14748e+09'),
    ('rle-counts', rle(lambda total: [total + 5, -5]), '-5'),
    *(('rle-counts', rle(bad), repr(bad)[:6]) for bad in ([1, 'x'], '11', '1P', '1é', '', 'oooooooooooo1')),
    ('image-missing', fields('images', 0, file_name='a\0b'), r'a\x00b'),
    ('image-missing', fields('images', 0, file_name='\ud800'), r'\ud800'),
    ('image-missing', fields('images', 0, file_name='\x1b[31m\n.jpg'), r'\x1b[31m\n.jpg'),  # acts on a terminal
    ('image-size', fields('images', 0, width=640, height=480), 'not 640 x 480'))


@pytest.mark.parametrize('kind, plant, words', FAULTS, ids=[f'{i}-{kind}' for i, (kind, *_) in enumerate(FAULTS)])
def test_fault_of_an_annotation_file(root, kind, plant, words, monkeypatch):
    for name in ('frPyObjects', 'decode', 'merge', 'area'):  # C code that such values bring down
        monkeypatch.setattr(mask_api, name, None)
    rewrite(root, plant)
    report = check_data_set(coco(root))
    found = [finding for finding in report.findings if finding.kind == kind]
    assert any(words in finding.sentence for finding in found), report.summary()
    # an image that cannot be used takes its annotations with it, and a category its name
    expected = {kind, *(('image-size', ) if kind == 'image-id-twice' else ())}
    expected |= {'orphan'} if kind == 'bad-record' and 'images' in words else set()
    expected |= {'unknown-category', 'class-missing', 'objects-lost'} if "'name'" in words else set()
    expected |= {'class-unused'} if kind == 'category-id-twice' else set()
    assert {finding.kind for finding in report.findings} <= expected, report.summary()
    again = check_data_set(coco(root))  # out of the cache
    assert repr(again.findings) == repr(report.findings)


@pytest.mark.parametrize('polygons', (
    [[1, 2, 3, 4]], [[], [1, 1, 9, 1, 9, 9]], [[1, 1, 9, 1, 9]], [[1, 1, 9, 1, 9, 9], [1, 2, 3, 4]]), ids=str)
def test_short_polygons_are_no_error_where_the_framework_goes_on(root, polygons):
    rewrite(root, fields('annotations', 0, segmentation=polygons))
    # training leaves them out, and the object where none is left
    masks = LoadAnnotations(with_mask=True)._process_masks(dict(instances=[dict(mask=polygons, ignore_flag=0)]))
    finding, = only(check_data_set(coco(root)), 'polygon-points')
    assert finding.severity == 'warning' and len(masks[0]) == 1
    # the evaluation reads the file itself
    try:
        ends = not mask_api.frPyObjects(polygons, 64, 64)
    except Exception:
        ends = True
    report = check_data_set(coco(root, test_mode=True))
    assert kinds_of(report) == {'polygon-points', *(['polygon-first'] if ends else [])}
    assert bool(report.errors) == ends
    assert only(check_data_set(coco(root)), 'polygon-points') == [finding]  # the cache keeps the two apart


def test_counts_of_compressed_masks_are_those_of_pycocotools():
    random = np.random.default_rng(0)
    for height, width, share in ((1, 1, 1.), (7, 5, 0.), (48, 64, 0.5), (480, 640, 0.01)):
        mask = np.asfortranarray(random.random((height, width)) < share).astype(np.uint8)
        mask[height // 3:height // 2] = 1
        text = mask_api.encode(mask)['counts']
        again = dict(size=[height, width], counts=counts_in(text.decode()))
        assert sum(again['counts']) == height * width and mask_api.frPyObjects(again, height, width)['counts'] == text


@pytest.mark.parametrize('box, drawn', (
    ([-100000, 0, 5, 5], True), ([NAN, 0, 5, 5], False), ([5, 5, -1, 4], False), ([5, 5, 0, 4], True)))
def test_boxes_with_faults_are_drawn_where_they_can_be(root, box, drawn):
    """Marked, and without a mask if none is read; the others do not change."""
    content = rewrite(root, fields('annotations', 0, bbox=box))
    image = content['annotations'][0]['image_id']
    sample, *others = check_data_set(coco(root)).samples
    assert sample['file'].endswith(f'{image:012d}.jpg') and len(sample['captions']) == 1
    wanted = [a for a in content['annotations'] if a['image_id'] == image][not drawn:]
    assert [(a['bbox'], a['marked'], a['segmentation']) for a in sample['annotations']] == [
        (a['bbox'], a['bbox'] == box, None if a['bbox'] == box else a['segmentation']) for a in wanted]
    assert not any(a['marked'] for sample in others for a in sample['annotations'])


def test_counts_are_those_of_the_file(root):
    """Records that cannot be used count too, where they are records of the file; images without annotations do once."""
    def change(content):
        used.update(a['image_id'] for a in content['annotations'])
        objects.extend(content['annotations'])
        content['images'] += [None, dict(content['images'][0], id=70, file_name='000000000001.jpg')]
        content['annotations'] += [None, 5, dict(content['annotations'][0], id=71, image_id=77)]
        content['categories'].append(dict(id=9, name='none'))
    used, objects = set(), []
    rewrite(root, change)
    report = check_data_set(coco(root))
    assert report.counts == {'images': 8, 'images without annotations': 7 - len(used),
                             'annotations': len(objects) + 3, 'categories': 6}
    rewrite(root, lambda content: content.update(annotations=[*objects, 5], images=content['images'][:6]))
    report = check_data_set(coco(root))  # what is no record is said of no image
    assert 'bad-record' in kinds_of(report) and not any(sample['captions'] for sample in report.samples)


def found_in(tmp_path, image=(), **annotation):
    """The findings of a file with one image of 40 x 30 and one annotation."""
    content = dict(
        images=[dict(dict(id=5, file_name='a.jpg', width=WIDTH, height=HEIGHT), **dict(image))],
        categories=[dict(id=7, name='thing')],
        annotations=[dict(dict(id=9, image_id=5, category_id=7, bbox=[1, 2, 3, 4], area=12.), **annotation)])
    (tmp_path / 'a.json').write_text(json.dumps(content))
    found = [Finding(*f) for f in check_coco(tmp_path / 'a.json', 'segmentation' in annotation)['findings']]
    return [f for f in found if f.kind != 'objects-lost']  # the only object, which is ignored


@pytest.mark.parametrize('kind, boxes', {  # x, y, width, height
    None: (
        [0, 0, 40, 30], [39, 29, 1, 1], [0, 0, 1, 1], [30, 20, 10, 10],  # the whole image, and its border from within
        # coordinates that were rounded stick out by a pixel at most, at each side
        [0, 0, 41, 30], [0, 0, 40, 31], [-1, 0, 5, 5], [0, -1, 5, 5], [30, 5, 11, 5], [5, 20, 5, 11],
        [40 - TINY, 0, 1, 5], [0, 30 - TINY, 5, 1], [35, 0, 2, 2],  # the last is inside 40, outside 30
        [5, 5, 1, 4], [5, 5, 4, 1]),  # a pixel is the least side
    'box-sticks-out': (
        [0, 0, 41 + TINY, 30], [0, 0, 40, 31 + TINY], [-1 - TINY, 0, 5, 5], [0, -1 - TINY, 5, 5],
        [30, 5, 11 + TINY, 5], [5, 20, 5, 11 + TINY], [-5, 0, 5 + TINY, 5], [0, -5, 5, 5 + TINY], [0, 0, 400, 5],
        [0, 0, 5, 400]),
    'box-ignored': (  # also ten times the longer side away and more
        [40, 0, 1, 5], [0, 30, 5, 1], [-5, 0, 5, 5], [0, -5, 5, 5], [0, 35, 2, 2], [400, 0, 5, 5],
        [400 + TINY, 0, 5, 5], [0, 400 + TINY, 5, 5], [-400 - TINY, 0, 5, 5],
        [5, 5, 1 - TINY, 4], [5, 5, 4, 1 - TINY], [5, 5, 0, 4], [5, 5, 4, 0], [50, 5, 0, 4],
        [5, 5, -TINY, 4], [5, 5, 4, -TINY], [0, 0, -400, 5], [0, 0, -401, 5],
        [NAN, 0, 5, 5], [INFINITE, 0, 5, 5], [0, -INFINITE, 5, 5], [0, 0, NAN, 5]),
    'box-absurd': ([0, 0, 400 + TINY, 5], [0, 0, 5, 400 + TINY], [0, 0, 5, INFINITE], [-5, 0, INFINITE, 5])}.items())
def test_boxes_at_the_limits(tmp_path, kind, boxes):
    for box in boxes:
        findings = found_in(tmp_path, bbox=box)
        assert [(f.kind, f.part, f.row, f.id) for f in findings] == [(kind, 'annotations', 0, 9)] * bool(kind), box
        assert all(f.value.endswith('in an image of 40 x 30') for f in findings)


def run_lengths(more, coded):
    """A mask of the whole image with some pixels more, as a list or compressed."""
    counts = [100, 7, WIDTH * HEIGHT - 107 + more]
    mask = np.repeat(np.array([0, 1, 0], np.uint8), counts)
    return mask_api.encode(np.asfortranarray(mask[:, None]))['counts'].decode() if coded else counts


@pytest.mark.parametrize('kind, masks', {
    None: ([TRIANGLE], [[*TRIANGLE, 3, 3]], [[-9, 1, TINY, 1, -5, 5]], [[1, -9, 5, TINY, 5, -5]],
           [[40 - TINY, 1, 45, 1, 45, 5]], [[1, 30 - TINY, 5, 35, 1, 35]], [[32, 5, 38, 5, 35, 9]],
           [[1, 1, 400, 1, 5, 5]], [[1, 1, 5, 400, 5, 5]], [[-400, 1, 5, 1, 5, 5]], [TRIANGLE, OUTSIDE],
           [OUTSIDE, TRIANGLE], *(dict(size=[30, 40], counts=run_lengths(0, coded)) for coded in (False, True))),
    'polygon-points': ([[1, 1, 5, 1, 5]], [[*TRIANGLE, 3]], [TRIANGLE, [1, 1, 5, 1, 5]]),
    'polygon-outside': ([[-9, 1, 0, 1, -5, 5]], [[1, -9, 5, 0, 5, -5]], [[40, 1, 45, 1, 45, 5]],
                        [[1, 30, 5, 35, 1, 35]], [[5, 32, 5, 38, 9, 35]]),  # inside 40, outside 30
    'polygon-absurd': ([[1, 1, 400 + TINY, 1, 5, 5]], [[1, 1, 5, 400 + TINY, 5, 5]], [[-400 - TINY, 1, 5, 1, 5, 5]],
                       [[1, -400 - TINY, 5, 1, 5, 5]]),
    'rle-counts': [dict(size=[30, 40], counts=run_lengths(more, coded)) for more in (1, -1) for coded in (False, True)],
    'rle-size': [dict(size=size, counts=run_lengths(0, coded)) for size in ([40, 30], [30, 41], [31, 40])
                 for coded in (False, True)]}.items())
def test_masks_at_the_limits(tmp_path, kind, masks):
    """A part of an object may be outside; height goes before width, and every pixel is counted."""
    for mask in masks:
        assert [f.kind for f in found_in(tmp_path, segmentation=mask)] == [kind] * bool(kind), mask


def test_areas_and_sizes_of_images_at_the_limits(tmp_path):
    """Boxes of an image without a size are not looked at; one pixel is an image."""
    for area, kind in ((TINY, None), (0, 'area-empty'), (-TINY, 'area-empty'), (-INFINITE, 'area-empty')):
        assert [f.kind for f in found_in(tmp_path, area=area)] == [kind] * bool(kind), area
    for side in ('width', 'height'):
        for number in (1, 1., 0, -1, 0.5, 1.5, INFINITE, NAN):
            found = found_in(tmp_path, image={'width': 1, 'height': 1, side: number}, bbox=[0, 0, 1, 1])
            assert [f.kind for f in found] == ['image-dimensions'] * (number != 1), (side, number)


@pytest.mark.parametrize('suffix', ('jpg', 'png', 'webp'))
def test_every_orientation_has_the_size_that_mmcv_reads(root, suffix):
    """1 to 8 are marks; 5 to 8 swap width and height. The formats show that the comparison is with OpenCV."""
    path, loads = root / f'train2017/turned.{suffix}', dict(type='LoadAnnotations', with_mask=True)
    untouched = (dict(type='mmcv.LoadImageFromFile', color_type='unchanged'),
                 dict(type=LoadImageFromFile, color_type='color_ignore_orientation'),
                 dict(type='RandomChoice', transforms=[[dict(type=LoadImageFromFile, imdecode_backend='turbojpeg')]]))
    for mark in range(10):
        exif = Image.Exif()
        exif[0x0112] = mark
        Image.new('RGB', (40, 30)).save(path, exif=exif)
        header, real = read_header(path), mmcv.imread(str(path)).shape[1::-1]
        assert header['size'] == [40, 30] and header['turned'] == list(real), mark
        assert suffix != 'jpg' or real == ((30, 40) if mark in (5, 6, 7, 8) else (40, 30))
        for size in ((40, 30), (30, 40), (40, 40)) if suffix == 'jpg' and mark in (1, 6, 9) else ():
            rewrite(root, fields('images', 0, file_name=path.name, width=size[0], height=size[1]))
            told, *stored = ({kind for kind in kinds_of(check_data_set(coco(root, **how))) if kind.startswith('image')}
                             for how in ({}, *(dict(pipeline=[step, loads]) for step in untouched)))
            assert told == (set() if size == real else {'image-rotated'} if size == (40, 30) else {'image-size'})
            assert stored == [set() if size == (40, 30) else {'image-size'}] * 3


def test_images_that_cannot_be_used(root):
    first = root / 'train2017/000000000001.jpg'
    whole = first.read_bytes()
    first.write_bytes(b'no picture')
    assert 'not an image of a format' in only(check_data_set(coco(root)), 'image-unreadable')[0].sentence
    first.write_bytes(whole[:len(whole) // 2])
    assert 'cut off: a JPEG file without its end' in only(check_data_set(coco(root)), 'image-unreadable')[0].sentence
    first.write_bytes(whole + bytes(5000))  # mmcv reads it
    assert check_data_set(coco(root)).findings == []
    first.unlink()
    os.mkfifo(first)  # opening it would wait for ever
    assert 'not a regular file' in only(check_data_set(coco(root)), 'image-unreadable')[0].sentence


def test_converted_files_are_named_instead(root):
    """Of labels in other formats, findings name the user's own file and the place of the object in it."""
    def convert(content):
        content['images'][0].update(label_file='a.xml', label_problem='names no image')
        first, second = [record for record in content['annotations'] if record['image_id'] == 1][:2]
        first.update(label_place='object 1', bbox=[500, 1, 5, 5])
        second.update(image_id=2, bbox=[600, 1, 5, 5])

    rewrite(root, convert)
    found = {finding.kind: [] for finding in check_data_set(coco(root)).findings}
    for finding in check_data_set(coco(root)).findings:
        found[finding.kind].append(finding.sentence)
    assert found['label-file'] == ['a.xml names no image'] and len(found['box-ignored']) == 2
    first, second = sorted(found['box-ignored'], key=lambda sentence: '600' in sentence)
    assert first.startswith('a.xml, object 1 has the box [500,') and second.startswith(f'{root / ANNOTATIONS}: ')
