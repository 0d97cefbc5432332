"""Copies of the data as COCO files, or as images and label maps: a config reads them as it reads the data."""
import json

import numpy as np
import pytest
from annotations import exports, exports_files
from annotations.placing import placed, read, segmentor
from PIL import Image

from helpers import exports_segmentation
from helpers.exports_segmentation import found
from helpers.faulty_data import rewrite
from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import files_in, run_tool
from xcit_dense.annotations.copying import copy_data
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError, DataError


def objects(cfg):
    """What mmdet reads of each part: the classes, and by the bytes of an image its name and its objects."""
    kept = 'bbox', 'bbox_label', 'mask', 'ignore_flag'
    return {part: (data.metainfo['classes'], data.cat_ids, {open(record['img_path'], 'rb').read(): (
        record['img_path'].rpartition('/')[2], [[one.get(key) for key in kept] for one in record['instances']])
        for record in map(data.get_data_info, range(len(data)))}) for part, data in read(cfg).items()}


@pytest.mark.parametrize('make, options, test', (
    (exports.roboflow, {}, True), (exports.yolo, dict(polygons=True), False), (exports.label_studio, {}, False),
    (exports_files.voc, {}, False), (exports_files.labelme, dict(embed=True), False),
    (exports_files.numbers, {}, False)))
def test_objects_are_read_alike_from_their_copy(make, options, test, folder, tmp_path):
    root, out = make(tmp_path / 'data', **options), tmp_path / 'copy'
    before, cfg = files_in(root), placed(root, folder)
    said = copy_data(cfg, 'coco', out)
    assert f'--data-root {out}' in said and files_in(root) == before
    file = 'annotations/instances_test2017.json'
    assert (out / file).is_file() == test == (f'--test-annotations {file}' in said)
    again = placed(out, tmp_path / 'again', **(dict(test_annotations=file) if test else {}))
    assert objects(again) == objects(cfg)
    assert 'label_place' not in (out / 'annotations/instances_train2017.json').read_text()
    copy_data(cfg, 'coco', out)  # its own files are written again


@pytest.mark.parametrize('make, options', (
    (exports_segmentation.camvid, dict(ignore_label=(4, ))), (exports_segmentation.camvid_colours, {}),
    (exports_segmentation.voc, dict(ignore_label=(0, 4))), (exports_segmentation.label_studio, {}),
    (exports_files.labelme, {})))
def test_labels_are_read_alike_from_their_copy_without_options(make, options, tmp_path):
    root, out = make(tmp_path / 'data'), tmp_path / 'copy'
    before, cfg = files_in(root), segmentor(root, tmp_path / 'run', **options)
    said, folders = copy_data(cfg, 'maps', out), dict(test_images='images/test', test_annotations='annotations/test')
    has_test = '--test-images images/test --test-annotations annotations/test' in said
    again = segmentor(out, tmp_path / 'again', **(folders if has_test else {}))
    assert files_in(root) == before and (out / 'images/test').is_dir() == has_test == (root / 'test').is_dir()
    for part in ('train', 'val', 'test'):
        wanted, labels = found(cfg, part), found(again, part)
        assert wanted.keys() == labels.keys() and all((labels[name] == wanted[name]).all() for name in wanted)
        assert again[f'{part}_dataloader'].dataset.metainfo == cfg[f'{part}_dataloader'].dataset.metainfo


def test_the_first_label_stays_that_of_the_data_set(root, tmp_path):
    """ADE20k's zeros mean no class. What is no longer in the data is not in its next copy."""
    cfg = segmentor(root, tmp_path / 'run')
    for loader in ('train', 'val', 'test'):
        cfg[f'{loader}_dataloader'].dataset.update(type='BaseSegDataset', reduce_zero_label=True, seg_map_suffix='.png')
    out = tmp_path / 'copy'
    copy_data(cfg, 'maps', out)
    for path in (root / 'annotations/validation').iterdir():
        written, labels = (np.array(Image.open(file)) for file in (out / 'annotations/validation' / path.name, path))
        assert (written == np.where(labels == 0, 255, labels)).all()
    path.unlink()
    (root / 'images/validation' / f'{path.stem}.jpg').unlink()
    copy_data(cfg, 'maps', out)
    assert files_in(out / 'images/validation').keys() == files_in(root / 'images/validation').keys()


def test_what_is_not_there_is_left_out_and_named(root, tmp_path, capfd):
    (gone := root / 'train2017/000000000002.jpg').unlink()
    copy_data(load_config(TINY_CONFIG, data_root=root), 'coco', tmp_path / 'copy')
    content = json.loads((tmp_path / 'copy/annotations/instances_train2017.json').read_text())
    assert 2 not in {record['id'] for record in content['images']} | {a['image_id'] for a in content['annotations']}
    assert f'left out 1 image: there is no {gone}' in capfd.readouterr().out and len(content['images']) == 5
    rewrite(root, lambda content: content['images'][0].update(file_name='../val2017/000000000003.jpg'))
    with pytest.raises(DataError, match='would have one name in the copy, train2017/000000000003.jpg'):
        copy_data(load_config(TINY_CONFIG, data_root=root), 'coco', tmp_path / 'again')


@pytest.mark.parametrize('config, form, out, words', (
    (TINY_SEG_CONFIG, 'coco', 'x', 'coco does not fit train_dataloader.*ImageFolderDataset.*maps for segmentation'),
    (TINY_CONFIG, 'voc', 'x', '--to voc does not fit .*coco is for detection'),
    (TINY_CLS_CONFIG, 'maps', 'x', 'CustomDataset.*class folders need no other format'),
    (TINY_CONFIG, 'coco', '.', 'this is the data itself'), (TINY_SEG_CONFIG, 'maps', 'a', 'or in it.*another folder')))
def test_copies_that_cannot_be(config, form, out, words, demo_data, tmp_path):
    root, out = demo_data / 'classes' if config == TINY_CLS_CONFIG else demo_data, demo_data / out
    with pytest.raises((ConfigError, DataError), match=words):
        copy_data(load_config(config, data_root=root), form, tmp_path / 'x' if out.name == 'x' else out)


def test_the_tool_writes_a_copy_over_its_own_files_only(demo_data, tmp_path):
    args = 'check_data.py', TINY_CONFIG, '--data-root', demo_data, '--out', tmp_path / 'out', '--to', 'coco'
    assert f'{tmp_path}/copy: train2017, val2017, 11 files' in run_tool(*args, tmp_path / 'copy').stdout
    (tmp_path / 'copy/val2017/000000000001.jpg').write_bytes(b'mine')
    assert '1 file in' in run_tool(*args, tmp_path / 'copy', check=False).stdout
