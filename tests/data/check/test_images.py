"""Problems of image files."""
import os
import shutil

import mmcv
import pytest
from PIL import Image

from helpers.faulty_data import coco, fields, kinds_of, only, rewrite
from xcit_dense.data.check import (
    check_data_set,
    files,
)


def test_words_out_of_the_data_cannot_act_on_a_terminal(root):
    rewrite(root, fields('images', 0, file_name='\x1b[31m\n.jpg'))
    assert r'\x1b[31m\n.jpg' in only(check_data_set(coco(root)), 'image-missing')[0].sentence


@pytest.mark.parametrize('way', ('absolute', 'file link', 'folder link', 'not there'))
def test_names_that_lead_out_of_the_root_are_told_and_links_are_not(root, tmp_path, way):
    """The frameworks read all of these."""
    beside = tmp_path / 'beside'
    beside.mkdir()
    shutil.copy(root / 'train2017/000000000001.jpg', beside / 'a.jpg')
    names = {'absolute': str(beside / 'a.jpg'), 'file link': 'a.jpg', 'folder link': 'deep/a.jpg',
             'not there': '../../beside/none.jpg'}
    (root / 'train2017/a.jpg').symlink_to(beside / 'a.jpg')
    (root / 'train2017/deep').symlink_to(beside)
    rewrite(root, fields('images', 0, file_name=names[way]))
    report = check_data_set(coco(root))
    assert kinds_of(report) == {'absolute': {'image-outside'}, 'not there': {'image-outside', 'image-missing'}}.get(
        way, set())
    for finding in report.warnings:
        assert f'root: {beside}' in finding.sentence and finding.id == 1 and finding.kind == 'image-outside'


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
    assert 'not an image of a format' in only(check_data_set(coco(root)), 'image-unreadable')[0].sentence
    first.write_bytes(whole[:len(whole) // 2])
    assert 'cut off: a JPEG file without its end' in only(check_data_set(coco(root)), 'image-unreadable')[0].sentence
    first.write_bytes(whole + bytes(5000))  # mmcv reads it
    assert only(check_data_set(coco(root)), 'image-cut-off')[0].severity == 'warning'
    first.unlink()
    (root / 'pipe').rename(first)
    assert 'not a regular file' in only(check_data_set(coco(root)), 'image-unreadable')[0].sentence
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
