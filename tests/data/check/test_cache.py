"""Files that were checked once are not read again."""
import os

import pytest
from PIL import Image

from helpers.faulty_data import NAN, coco, fields, folders, kinds_of, only, rewrite
from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data import files as data_files
from xcit_dense.data.check import (
    check,
    check_data_set,
    check_data_sets,
    files,
)
from xcit_dense.data.files import read_map


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
    check_data_set(coco(root), use_cache=False)
    assert len(read) == 5


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
