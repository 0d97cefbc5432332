"""Problems of label maps, label by label; and layouts that are wrong."""
import shutil

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from helpers.faulty_data import coco, folders, image_and_map, kinds_of, only, rewrite, save_map
from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data import label_maps
from xcit_dense.data.check.check import check_before_training, check_data_set
from xcit_dense.data.classes import classes_of_data, take_classes
from xcit_dense.data.files import read_map


@pytest.mark.parametrize('kind, plant, words', (
    ('map-missing', lambda image, path: path.unlink(), '000000000001.jpg. JPEG files are not read'),
    ('files-left-out', lambda image, path: image.with_suffix('.HEIC').touch(), '1 image of formats that are not read'),
    ('map-unreadable', lambda image, path: path.write_bytes(path.read_bytes()[:-60]), 'cannot be read'),
    ('image-depth', lambda image, path: cv2.imwrite(f'{image.with_suffix(".png")}', np.linspace(
        0, 1279, 64 * 62).reshape(64, 62).astype(np.uint16))
     and [image.unlink()], 'the highest value is 1,279, which leaves 5 grey values'),
    ('map-mode', save_map(lambda m: m.astype(np.uint16) + 256), 'I;16 with the values 256 to '),
    ('map-mode', save_map(lambda m: np.stack([m] * 3, 2)), 'RGB'),
    ('map-size', save_map(lambda m: m[:-1]), 'not '),
    ('map-labels', save_map(lambda m: np.where(m == 0, 6, m).astype(np.uint8)), '[6]'),
    ('map-ignored', save_map(lambda m: np.full_like(m, 255)), '000000000001.png has no pixel with a class'),
    ('map-shared', lambda image, path: shutil.copy(image, image.with_suffix('.JPEG')), '000000000001.JPEG'),
    ('image-unreadable', lambda image, path: image.write_bytes(b'no picture'), 'not an image of a format')))
def test_fault_of_a_label_map(root, kind, plant, words):
    plant(*image_and_map(root))
    finding, = only(check_data_set(folders(root)), kind)
    assert words in finding.sentence
    assert check_data_set(folders(root)).findings == [finding]  # out of the cache
    if kind == 'image-depth':  # who reads all bits loses none
        steps = [dict(type='LoadImageFromFile', color_type='unchanged'), dict(type='LoadAnnotations')]
        assert check_data_set(folders(root, pipeline=steps)).findings == []


def data_of(root, *maps):
    """A data set of some label maps, each given by pixels by label, in images that are not square."""
    for folder in ('images/training', 'annotations/training', 'images/validation', 'annotations/validation'):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number, pixels in enumerate(maps):
            labels = np.repeat(np.array(list(pixels), np.uint8), list(pixels.values())).reshape(2, -1)
            if folder.startswith('images'):
                Image.new('RGB', labels.shape[::-1]).save(root / folder / f'{number}.jpg')
            else:
                Image.fromarray(labels).save(root / folder / f'{number}.png')
    return root


def dataset_of(root, names=('a', 'b', 'c'), **options):
    return folders(root, metainfo=dict(classes=names), **options)


@pytest.mark.parametrize('zero, ignored, classes', (
    (True, 255, [('a', 1, 2), ('b', 1, 4), ('c', 0, 0), ('(ignored)', 2, 14)]),
    (False, 2, [('a', 2, 11), ('b', 1, 2), ('c', 1, 4), ('(ignored)', 1, 7)])))
def test_labels_are_counted_for_the_right_class(tmp_path, zero, ignored, classes):
    data_of(tmp_path, {0: 1, 1: 2, 2: 4, 255: 3}, {0: 10})
    report = check_data_set(dataset_of(tmp_path, reduce_zero_label=zero, ignore_index=ignored))
    assert report.classes == classes and report.unit == 'pixels'
    # of the second map nothing is left where 0 is unlabelled
    assert kinds_of(report) == ({'map-ignored'} if zero else set())
    assert report.counts == {'images': 2, 'images without labels': zero, 'classes': 3}


def test_without_a_list_each_label_up_to_the_highest_is_a_class(tmp_path):
    data_of(tmp_path, {0: 3, 4: 5, 255: 2})
    for zero in (False, True):
        report = check_data_set(dataset_of(tmp_path, None, reduce_zero_label=zero), from_data=True)
        assert report.findings == [] and report.classes[:-1] == [
            ('0', 1, 3), ('1', 0, 0), ('2', 0, 0), ('3', 0, 0), ('4', 1, 5)][zero:]
    data_of(tmp_path, {0: 3, 254: 5, 255: 2})
    report = check_data_set(dataset_of(tmp_path, tuple(map(str, range(256)))))  # more than labels can count
    counted = [entry for entry in report.classes if entry[2]]
    assert report.findings == [] and counted[:2] == [('0', 1, 3), ('254', 1, 5)] and counted[-1] == ('(ignored)', 1, 2)


def test_a_map_is_read_label_by_label(tmp_path):
    data_of(tmp_path, {0: 1, 7: 2, 254: 4, 255: 3})
    assert read_map(tmp_path / 'annotations/training/0.png') == dict(
        size=[5, 2], mode='L', labels=[[0, 1], [7, 2], [254, 4], [255, 3]])
    image = Image.fromarray(np.eye(4, dtype=np.uint8))
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.save(tmp_path / 'p.png')
    Image.fromarray(np.eye(4, dtype=bool)).save(tmp_path / '1.png')
    for name in ('p.png', '1.png'):
        assert read_map(tmp_path / name)['labels'] == [[0, 12], [1, 4]]
    for kind in (np.uint16, np.float32):  # small labels of more bits are read as mmseg reads them
        Image.fromarray(np.eye(4, dtype=kind) * 7).save(tmp_path / 'i.tif')
        assert read_map(tmp_path / 'i.tif')['labels'] == [[0, 12], [7, 4]]
    Image.fromarray(np.eye(4, dtype=np.int32) - 1).save(tmp_path / 'i.tif')  # -1 as 255
    assert read_map(tmp_path / 'i.tif')['labels'] == [[0, 4], [255, 12]]


@pytest.mark.parametrize('size, found', (
    ((6, 4), ''), ((4, 6), 'image-rotated'), ((6, 5), 'map-size'), ((7, 4), 'map-size')))
def test_a_map_has_the_size_of_its_image(tmp_path, size, found):
    """Also where the image is turned on reading, and the map, which has no mark, is not."""
    data_of(tmp_path, {0: 12, 1: 12})
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (4, 6)).save(tmp_path / 'images/training/0.jpg', exif=exif)
    Image.fromarray(np.eye(*size[::-1], dtype=np.uint8)).save(tmp_path / 'annotations/training/0.png')
    report = check_data_set(dataset_of(tmp_path))
    assert kinds_of(report) == {found} - {''}
    if found:  # width goes before height
        words = '6 x 4, not 4 x 6' if found == 'image-rotated' else f'{size[0]} x {size[1]}, not 6 x 4'
        assert report.findings[0].value.startswith(words)
        assert ('color_type=color_ignore_orientation' in report.findings[0].sentence) == (found == 'image-rotated')


def test_shares_of_the_classes(root):
    rewrite(root, lambda content: content.update(annotations=[
        dict(content['annotations'][0], id=i, image_id=image, category_id=category)
        for i, (image, category) in enumerate(((1, 2), (1, 2), (2, 2), (3, 5)))]))
    table = check_data_set(coco(root)).histogram().splitlines()
    assert [line.split() for line in table[1:3]] == [
        ['square', '2', '3', '75.0%', '#' * 40], ['cross', '1', '1', '25.0%', '#' * 13]]
    assert table[3].split(': ')[1] == 'disc, triangle, star'


def test_data_set_that_reads_one_suffix_or_a_list(root):
    dataset = folders(root, type='BaseSegDataset')
    image, path = image_and_map(root)
    shutil.copy(image, image.with_name('x.jpeg'))
    assert only(check_data_set(dataset), 'image-left-out')[0].file.endswith('x.jpeg')
    shutil.rmtree(image.parent)
    assert 'no-images' in kinds_of(check_data_set(dataset))
    (root / 'list.txt').write_text('\ufefftraining\\000000000001\r\ntraining\\000000000004\r\n')  # from Windows
    (root / 'train2017').rename(root / 'images/training')
    listed = folders(root, type='BaseSegDataset', ann_file='list.txt', data_prefix=dict(
        img_path='images', seg_map_path='annotations'))
    assert check_data_set(listed).findings == [] and check_data_set(listed).counts['images'] == 2
    only(check_data_set(dict(listed, ann_file='no.txt')), 'not-there')


def test_layout_that_the_class_of_a_data_set_knows(root):
    """Suffixes and the first label are those of the class where the config does not say them."""
    street = dict(type='CityscapesDataset', data_root=str(root), data_prefix=dict(img_path='a', seg_map_path='b'))
    for folder in 'ab':
        (root / folder / 'town').mkdir(parents=True)
    for number, label in enumerate((18, 255)):
        Image.new('RGB', (40, 30)).save(root / f'a/town/town_{number}_leftImg8bit.png')
        Image.new('L', (40, 30), label).save(root / f'b/town/town_{number}_gtFine_labelTrainIds.png')
        Image.new('RGBA', (40, 30)).save(root / f'b/town/town_{number}_gtFine_color.png')
    (root / 'classes.txt').unlink()
    report = check_data_set(street)
    only(report, 'map-ignored')
    assert report.counts['images'] == 2 and report.classes[18] == ('bicycle', 1, 1200)
    assert 'no-images' in kinds_of(check_data_set(dict(street, img_suffix='.jpg')))  # what the config says goes first
    assert classes_of_data(Config(street))['classes'][18] == 'bicycle'  # the colours are no label maps
    report = check_data_set(dict(street, data_prefix=dict(img_path='a'), test_mode=True))  # without label maps
    assert report.findings == [] and report.counts['images'] == 2
    # 0 is unlabelled, 150 the last class
    save_map(lambda m: np.where(m == 0, 150, 0).astype(np.uint8))(*image_and_map(root))
    ade = folders(root, type='ADE20KDataset', metainfo=None)
    report = check_data_set(ade)
    assert report.findings == [] and report.classes[149][:2] == ('flag', 1)
    only(check_data_set(dict(ade, reduce_zero_label=False)), 'map-labels')


def test_maps_are_counted_and_read_once_for_check_and_training(root, monkeypatch):
    """A training does not read again what the check has read, however the root is written."""
    save_map(lambda m: np.full_like(m, 255))(*image_and_map(root))
    monkeypatch.chdir(root.parent)
    (root / 'classes.txt').unlink()
    check_before_training(load_config(TINY_SEG_CONFIG, data_root='data', pretrained=False))
    monkeypatch.setattr(label_maps, 'read_map', lambda path: pytest.fail(f'{path} is read again'))
    for place in ('data', root):
        cfg = load_config(TINY_SEG_CONFIG, data_root=place, pretrained=False)
        take_classes(cfg)
        assert cfg.model.decode_head.num_classes == 6
    (root / 'list.txt').write_text('000000000001\n')  # of one image; what was read of the others is kept
    check_data_set(folders(root, type='BaseSegDataset', ann_file='list.txt'))
    take_classes(cfg)
    (root / 'annotations/training/000000000002.png').touch()
    with pytest.raises(pytest.fail.Exception, match='000000000002.png is read again'):
        take_classes(cfg)
