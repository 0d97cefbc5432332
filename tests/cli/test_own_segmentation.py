"""From a folder as a tool exported it to a trained, evaluated and predicting segmentor; the tools agree on the data."""
import json
import re

import cv2
import numpy as np
import pytest
from mmengine.config import Config

from helpers import exports_segmentation as exports
from helpers.paths import TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.weights import read_checkpoint


@pytest.fixture(scope='module')
def ignoring(tmp_path_factory):
    """CamVid-like data, and the run and output of a training that leaves the label 2 out, in the middle."""
    root = exports.camvid(tmp_path_factory.mktemp('camvid') / 'data')
    work_dir = tmp_path_factory.mktemp('run')
    done = run_tool('train.py', TINY_SEG_CONFIG, '--data-root', root, '--work-dir', work_dir, '--ignore-label', 2, 4)
    return root, work_dir, done.stdout


def test_training_says_what_it_found_and_evaluates_what_is_left(ignoring):
    root, work_dir, output = ignoring
    for words in ('4 images, trainannot.* images in train', '2 images, valannot.* images in val',
                  'ignored labels: 2, 4', 'classes +3: sky, road, car'):
        assert re.search(words, output), words
    meta = read_checkpoint(work_dir)['meta']['dataset_meta']
    assert tuple(meta['classes']) == ('sky', 'road', 'car')
    assert 'pole' not in output.split('Iter(val)')[0].split('mIoU')[-1]
    dumped = Config.fromfile(work_dir / TINY_SEG_CONFIG.name)
    assert dumped.train_dataloader.dataset.ignore_labels == [2, 4] and dumped.model.decode_head.num_classes == 3


def test_test_and_predict_agree_with_the_training(ignoring, tmp_path):
    root, work_dir, _ = ignoring
    said = [run_tool('test.py', config, work_dir, *options, '--work-dir', tmp_path, '--show-dir', tmp_path / 'pictures',
                     '--at-least', 'mIoU=0').stdout for config, options in (
                         (work_dir / TINY_SEG_CONFIG.name, ()),
                         (TINY_SEG_CONFIG, ('--data-root', root, '--ignore-label', 2, 4)))]
    by_options, by_config = (re.findall(r'(?:aAcc|mIoU|mAcc): ([\d.]+)', text) for text in said)
    assert by_options == by_config and len(by_config) == 3 and len(list((tmp_path / 'pictures').glob('*.png'))) == 2
    run_tool('predict.py', work_dir, root / 'val', '--out', tmp_path / 'out')
    written = json.loads((tmp_path / 'out/classes.json').read_text())['classes']
    assert written == {'0': 'sky', '1': 'road', '3': 'car'}  # their labels in the files
    for path in (tmp_path / 'out/labels').iterdir():
        assert set(np.unique(cv2.imread(str(path), cv2.IMREAD_UNCHANGED))) <= {0, 1, 3}


def change(root, *changes):
    """Name fewer classes, use another label in validation, ignore everything in an image, or remove a label map."""
    if 'classes' in changes:
        (root / 'classes.txt').write_text('sky\nroad')
    if 'other' in changes:
        (root / 'classes.txt').unlink()
        cv2.imwrite(str(root / 'valannot/val000.png'), np.full((40, 48), 9, np.uint8))
    if 'ignored' in changes:
        cv2.imwrite(str(root / 'trainannot/train000.png'), np.full((40, 48), 255, np.uint8))
    if 'missing' in changes:
        (root / 'trainannot/train000.png').unlink()


@pytest.mark.parametrize('changes, options, is_good', (
    (('classes', ), (), False), (('classes', ), ('--ignore-label', 2, 3, 4), True),
    (('other', 'ignored'), (), False),  # a warning of the check, and an error that only the classes show
    (('missing', ), (), False),
    ((), ('--cfg-options', 'train_dataloader.dataset.metainfo.classes=[a,b,c,d,e]'), False)))
def test_the_check_and_the_training_agree(changes, options, is_good, tmp_path):
    root = exports.camvid(tmp_path / 'data')
    change(root, *changes)
    checked = run_tool('check_data.py', TINY_SEG_CONFIG, '--data-root', root, *options, '--out', tmp_path / 'check',
                       check=False)
    trained = run_tool('train.py', TINY_SEG_CONFIG, '--data-root', root, '--work-dir', tmp_path / 'run', *options,
                       *([] if '--cfg-options' in options else ['--cfg-options']), 'train_cfg.max_iters=1', check=False)
    assert (checked.returncode == 0, trained.returncode == 0) == (is_good, is_good), checked.stdout + trained.stdout
    assert 'Traceback' not in trained.stdout
