"""Segmentation through the tools."""
import json
import re
import shutil

import cv2
import numpy as np
import pytest

from helpers.paths import ROOT, SAMPLES, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.data.demo import CLASSES
from xcit_dense.report.curves import read_curves
from xcit_dense.weights import read_checkpoint

NAMES = ('background', *CLASSES)


def test_training_evaluates_and_saves(trained_segmentor):
    work_dir, output = trained_segmentor
    assert re.search(r'Iter\(train\) +\[4/4\].*eta: .*loss: ', output)
    assert re.search(r'Iter\(val\).*aAcc: .*mIoU: ', output)
    assert all(re.search(rf'\| +{name} +\|', output) for name in NAMES)  # IoU per class
    checkpoint = read_checkpoint(work_dir)
    assert tuple(checkpoint['meta']['dataset_meta']['classes']) == NAMES
    assert checkpoint['state_dict']['decode_head.conv_seg.weight'].shape[0] == len(NAMES)
    curves = read_curves(work_dir)
    assert [step for step, _ in curves['loss']] == [1, 2, 3, 4]
    assert [step for step, _ in curves['val/mIoU']] == [2, 4]


def test_resume_goes_on_where_it_stopped(trained_segmentor, demo_data, tmp_path):
    done = run_tool('train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--resume',
                    trained_segmentor[0] / 'iter_2.pth')
    assert 'resumed epoch: 0, iter: 2' in done.stdout
    assert [step for step, _ in read_curves(tmp_path)['loss']] == [3, 4]


def test_testing_draws_ground_truth_beside_predictions(trained_segmentor, demo_data, tmp_path):
    done = run_tool('test.py', TINY_SEG_CONFIG, trained_segmentor[0], '--data-root', demo_data, '--work-dir', tmp_path,
                    '--show-dir', tmp_path / 'pictures', '--at-least', 'mIoU=0')
    assert re.search(r'Iter\(test\).*mIoU: ', done.stdout)
    pictures = sorted((tmp_path / 'pictures').glob('*.jpg'))
    truth = sorted((demo_data / 'images/validation').iterdir())
    assert [p.name for p in pictures] == [p.name for p in truth]
    for picture, image in zip(pictures, truth, strict=True):
        height, width, _ = cv2.imread(str(image)).shape
        assert cv2.imread(str(picture)).shape == (height, width * 2, 3)


def test_pictures_of_sub_folders_do_not_overwrite_each_other(trained_segmentor, demo_data, tmp_path):
    for part in ('images', 'annotations'):
        for scene in ('x', 'y'):
            shutil.copytree(demo_data / part / 'validation', tmp_path / part / 'validation' / scene)
    shutil.copy(demo_data / 'classes.txt', tmp_path)
    run_tool('test.py', TINY_SEG_CONFIG, trained_segmentor[0], '--data-root', tmp_path, '--work-dir', tmp_path / 'run',
             '--show-dir', tmp_path / 'pictures')
    assert len(list((tmp_path / 'pictures').glob('[xy]/*.jpg'))) == 6


def test_prediction_writes_pictures_and_label_maps(trained_segmentor, demo_data, tmp_path):
    done = run_tool('predict.py', TINY_SEG_CONFIG, trained_segmentor[0], demo_data / 'images/validation', '--out',
                    tmp_path / 'out', cwd=tmp_path)
    assert '3 pictures and 3 label maps' in done.stdout
    for image in (demo_data / 'images/validation').iterdir():
        labels = cv2.imread(str(tmp_path / f'out/labels/{image.stem}.png'), cv2.IMREAD_UNCHANGED)
        picture = cv2.imread(str(tmp_path / f'out/{image.name}'))
        assert labels.shape == picture.shape[:2] == cv2.imread(str(image)).shape[:2]
        assert labels.dtype == np.uint8 and labels.max() < len(NAMES)
    names = json.loads((tmp_path / 'out/classes.json').read_text())['classes']
    assert names == {str(i): name for i, name in enumerate(NAMES)}


def test_predicted_label_maps_are_numbered_as_the_data(trained_segmentor, demo_data, tmp_path):
    """The evaluation of the tool and one by hand from the written label maps agree."""
    args = [TINY_SEG_CONFIG, trained_segmentor[0]]
    run_tool('predict.py', *args, demo_data / 'images/validation', '--out', tmp_path)
    done = run_tool('test.py', *args, '--data-root', demo_data, '--work-dir', tmp_path / 'test')
    right = total = 0
    for path in (tmp_path / 'labels').iterdir():
        truth = cv2.imread(str(demo_data / 'annotations/validation' / path.name), cv2.IMREAD_UNCHANGED)
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        right, total = right + (labels == truth).sum(), total + truth.size
    accuracy = float(re.search(r'Iter\(test\).*aAcc: ([\d.]+)', done.stdout)[1])
    assert accuracy == pytest.approx(100 * right / total, abs=0.011)  # the log rounds


@pytest.mark.slow
@pytest.mark.skipif(not (SAMPLES / 'ade20k_sample').is_dir(), reason='no ADE20k sample beside the checkout')
def test_small_config_learns_from_real_images(tmp_path):
    """The small config on 20 images of ADE20k: the classes out of the maps, and a loss that clearly falls."""
    done = run_tool('train.py', ROOT / 'configs/semfpn_xcit_n12_p16_small.py', '--data-root',
                    SAMPLES / 'ade20k_sample/ADEChallengeData2016', '--work-dir', tmp_path, '--cfg-options',
                    'train_cfg.max_iters=80', 'train_cfg.val_interval=80')
    assert re.search(r'the classes are the labels 0 to 1\d\d in ', done.stdout)
    losses = [value for _, value in read_curves(tmp_path)['loss']]
    assert losses[-1] < 0.75 * losses[0], losses


@pytest.mark.slow
@pytest.mark.skipif(not (SAMPLES / 'ade20k_sample').is_dir(), reason='no ADE20k sample beside the checkout')
@pytest.mark.parametrize('name', ('semfpn_xcit_s12_p16_ade20k', 'upernet_xcit_s12_p16_ade20k'))
def test_full_configs_train_and_evaluate_real_images(name, tmp_path):
    done = run_tool('measure.py', name, '--data-root', SAMPLES / 'ade20k_sample/ADEChallengeData2016',
                    '--iterations', 2, '--images', 2, '--out', tmp_path / 'out.json')
    result = json.loads((tmp_path / 'out.json').read_text())['training']
    assert len(result['losses']) == 2 and {'mIoU', 'aAcc', 'mAcc'} <= set(result['metrics'])
    assert re.search(r'\| +wall +\|', done.stdout)
