"""The test tool as a user runs it."""
import re

import cv2
from pycocotools.coco import COCO

from helpers.paths import SMALL_CONFIG, TINY_CONFIG
from helpers.tools import run_tool


def test_testing_prints_the_table_draws_and_checks(trained, demo_data, tmp_path):
    work_dir, _ = trained
    done = run_tool('test.py', TINY_CONFIG, work_dir, '--data-root', demo_data, '--work-dir', tmp_path, '--show-dir',
                    tmp_path / 'pictures', '--at-least', 'coco/bbox_mAP=-1')
    assert done.stdout.count('Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all') == 2
    log, = tmp_path.glob('*/*.log')  # tells all, the console what matters
    for text in ('FuseHook', 'System environment:', "type='XCiT'"):
        assert text in log.read_text() and text not in done.stdout
    pictures = sorted((tmp_path / 'pictures').glob('*.jpg'))
    assert len(pictures) == 3
    truth = COCO(str(demo_data / 'annotations/instances_val2017.json')).imgs[1]
    assert cv2.imread(str(pictures[0])).shape[:2] == (truth['height'], truth['width'] * 2)  # side by side
    done = run_tool('test.py', TINY_CONFIG, work_dir, '--data-root', demo_data, '--work-dir', tmp_path,
                    '--at-least', 'coco/bbox_mAP=1.1', check=False)
    assert done.returncode == 1 and 'below the required 1.1' in done.stdout


def test_checkpoint_of_another_model_is_refused(trained, demo_data, tmp_path):
    done = run_tool('test.py', SMALL_CONFIG, trained[0], '--data-root', demo_data, '--work-dir', tmp_path, check=False)
    assert done.returncode == 1
    assert re.search(r'error: .*epoch_2\.pth does not fit the model', done.stdout)
    assert 'Traceback' not in done.stdout


def test_a_test_judged_by_other_data_is_refused(demo_data, tmp_path):
    """Before the weights are read: its numbers would mean nothing."""
    done = run_tool('test.py', TINY_CONFIG, tmp_path / 'w.pth', '--data-root', demo_data, '--cfg-options',
                    f'test_evaluator.ann_file={demo_data}/annotations/instances_train2017.json', check=False)
    assert done.returncode == 1 and 'test_evaluator' in done.message and 'different data' in done.message
    assert 'Traceback' not in done.stdout
