"""The test tool as a user runs it."""
import re
import shutil

import cv2

from helpers.paths import SMALL_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool


def assert_side_by_side(folder, images):
    """Assert that there is a picture of each image that is as high and twice as wide."""
    for image in images:
        height, width, _ = cv2.imread(str(image)).shape
        assert cv2.imread(str(folder / image.name)).shape == (height, width * 2, 3)
    assert len(images) == len(list(folder.glob('*.jpg'))) == 3


def test_testing_prints_the_table_draws_and_checks(trained, demo_data, tmp_path):
    arguments = (TINY_CONFIG, trained[0], '--data-root', demo_data, '--work-dir', tmp_path)
    done = run_tool('test.py', *arguments, '--show-dir', tmp_path / 'pictures', '--at-least', 'coco/bbox_mAP=-1')
    assert done.stdout.count('Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all') == 2
    log, = tmp_path.glob('*/*.log')  # tells all, the console what matters
    for text in ('FuseHook', 'System environment:', "type='XCiT'"):
        assert text in log.read_text() and text not in done.stdout
    assert_side_by_side(tmp_path / 'pictures', list((demo_data / 'val2017').iterdir()))
    done = run_tool('test.py', *arguments, '--at-least', 'coco/segm_mAP=-1', 'coco/bbox_mAP=1.1', check=False)
    assert done.returncode == 1 and 'coco/bbox_mAP' in done.message and 'below the required 1.1' in done.message


def test_testing_of_a_segmentor(trained_segmentor, demo_data, tmp_path):
    """Pictures of sub-folders do not overwrite each other."""
    for part in ('images', 'annotations'):
        for scene in ('x', 'y'):
            shutil.copytree(demo_data / part / 'validation', tmp_path / part / 'validation' / scene)
    shutil.copy(demo_data / 'classes.txt', tmp_path)
    done = run_tool('test.py', TINY_SEG_CONFIG, trained_segmentor[0], '--data-root', tmp_path, '--work-dir',
                    tmp_path / 'run', '--show-dir', tmp_path / 'pictures', '--at-least', 'mIoU=0')
    assert re.search(r'Iter\(test\).*mIoU: ', done.stdout)
    for scene in ('x', 'y'):
        assert_side_by_side(tmp_path / 'pictures' / scene, list((demo_data / 'images/validation').iterdir()))


def test_checkpoint_of_another_model_is_refused(trained, demo_data, tmp_path):
    done = run_tool('test.py', SMALL_CONFIG, trained[0], '--data-root', demo_data, '--work-dir', tmp_path, check=False)
    assert done.returncode == 1 and 'Traceback' not in done.stdout
    assert re.search(r'error: .*best_\w+\.pth does not fit the model', done.stdout)
    assert 'was trained to be tested at' in done.stdout and 'which is used here too' in done.stdout


def test_a_test_judged_by_other_data_is_refused(demo_data, tmp_path):
    """Before the weights are read: its numbers would mean nothing."""
    done = run_tool('test.py', TINY_CONFIG, tmp_path / 'w.pth', '--data-root', demo_data, '--cfg-options',
                    f'test_evaluator.ann_file={demo_data}/annotations/instances_train2017.json', check=False)
    assert done.returncode == 1 and 'test_evaluator' in done.message and 'different data' in done.message
    assert 'Traceback' not in done.stdout
