"""Problems of label maps, and layouts that are wrong."""
import shutil

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from helpers.faulty_data import folders, image_and_map, kinds_of, only, save_map
from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data import files as data_files
from xcit_dense.data.check import (
    check_before_training,
    check_data_set,
)
from xcit_dense.data.classes import classes_of_data, take_classes
from xcit_dense.data.demo import CLASSES
from xcit_dense.data.files import read_map

FAULTS = (
    ('map-missing', lambda image, path: path.unlink(), '000000000001.jpg'),
    ('map-unreadable', lambda image, path: path.write_bytes(b'no picture'), 'cannot be read'),
    ('map-unreadable', lambda image, path: path.write_bytes(path.read_bytes()[:-60]), 'cannot be read'),
    ('map-16-bit', save_map(lambda m: m.astype(np.uint16) + 256), 'I;16'),
    ('map-colour', save_map(lambda m: np.stack([m] * 3, 2)), 'RGB'),
    ('map-colour', save_map(lambda m: np.stack([m] * 4, 2)), 'RGBA'),
    ('map-size', save_map(lambda m: m[:-1]), 'not '),
    ('map-labels', save_map(lambda m: np.where(m == 0, 6, m).astype(np.uint8)),
     '[6]'),
    ('map-ignored', save_map(lambda m: np.full_like(m, 255)), '000000000001.png has no pixel with a class'),
    ('map-shared', lambda image, path: shutil.copy(image, image.with_suffix('.JPEG')), '000000000001.JPEG'),
    ('map-without-image', lambda image, path: shutil.copy(path, path.with_name('x.png')), 'x.png'),
    ('image-unreadable', lambda image, path: image.write_bytes(b'no picture'), 'not an image of a format'),
)


@pytest.mark.parametrize('kind, plant, words', FAULTS)
def test_fault_of_a_label_map(root, kind, plant, words):
    plant(*image_and_map(root))
    finding, = only(check_data_set(folders(root)), kind)
    assert words in finding.sentence
    assert check_data_set(folders(root)).findings == [finding]  # out of the cache


def test_a_list_from_windows(root):
    """Our data set reads marks and separators of Windows; for mmseg's own they are a part of the first name."""
    (root / 'list.txt').write_text('\ufefftraining\\000000000001.jpg\r\ntraining\\000000000002.jpg\r\n')
    listed = folders(root, ann_file='list.txt', data_prefix=dict(img_path='images', seg_map_path='annotations'))
    report = check_data_set(listed)
    assert report.findings == [] and report.counts['images'] == 2
    missing = [f for f in check_data_set(dict(listed, type='BaseSegDataset', img_suffix='')).errors
               if f.kind == 'image-missing']
    assert len(missing) == 2 and '/\\ufefftraining' in missing[0].sentence


def test_links_are_read_as_the_frameworks_read_them(root):
    """A file for itself and a whole folder, as Hugging Face's cache, DVC and ``ln -s`` leave them."""
    for path in image_and_map(root):
        (root.parent / path.name).write_bytes(path.read_bytes())
        path.unlink()
        path.symlink_to(root.parent / path.name)
    for folder in ('images', 'annotations'):
        (root / folder / 'training').rename(root.parent / folder)
        (root / folder / 'training').symlink_to(root.parent / folder)
    for kind in ('ImageFolderDataset', 'BaseSegDataset'):
        report = check_data_set(folders(root, type=kind))
        assert report.findings == [] and report.counts['images'] == 6, kind


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


def test_maps_are_counted_and_read_once_for_check_and_training(root, monkeypatch):
    """A training does not read again what the check has read, however the root is written."""
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
