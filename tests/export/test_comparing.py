"""An exported file in the tool `test`: its table, and configs that are not like its own."""
import numpy as np
import pytest

from helpers.onnx_files import write_detector, write_segmentor
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool

pytest.importorskip('onnxruntime')
NAMES = ['disc', 'square', 'triangle', 'star', 'cross']
RESIZE = dict(rule='keep_ratio', scale=[192, 192])
#: A config that names its classes itself, as those of COCO do.
NAMED = ('--cfg-options', 'classes_from_data=False',
         f'test_dataloader.dataset.metainfo.classes="{NAMES}"'.replace(' ', ''))
DETS = np.array([[0.25, 0.5, 0.75, 1, 0.9], [0, 0, 1, 1, 0.1]], np.float32)


@pytest.fixture
def write(tmp_path):
    """A function that writes a file of a task."""

    def write(task, **metadata):
        path = tmp_path / f'{task}.onnx'
        if task == 'segmentation':
            return write_segmentor(path, **metadata)
        metadata = dict(dict(classes=NAMES, numbers=[1, 2, 3, 4, 5], resize=RESIZE), **metadata)
        return write_detector(path, DETS, np.array([2, 0]), np.ones((2, 28, 28), np.float32), **metadata)

    return write


def run(config, file, demo_data, tmp_path, *options, check=True):
    return run_tool('test.py', config, file, '--data-root', demo_data, '--work-dir', tmp_path / 'run', *options,
                    check=check)


@pytest.mark.parametrize('runtime', ('onnxruntime', 'openvino'))
def test_the_table_and_the_pictures(runtime, write, demo_data, tmp_path):
    pytest.importorskip(runtime)
    done = run(TINY_CONFIG, write('detection'), demo_data, tmp_path, '--show-dir', tmp_path / 'pictures', '--runtime',
               runtime, '--at-least', 'coco/segm_mAP=-1')
    assert done.stdout.count('Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all') == 2
    assert 'WARNING' not in done.stdout and len(list((tmp_path / 'pictures').glob('*.jpg'))) == 3


@pytest.mark.parametrize('metadata, options, words', (
    (dict(classes=[*NAMES[1:], 'disc']), NAMED, 'class names of the test data'), (dict(), NAMED, ''),
    (dict(resize=dict(rule='none')), (), 'resized by none'),
    (dict(resize=dict(rule='none')), ('--image-size', 96), ''), (dict(), ('--image-size', 96), '')))
def test_configs_that_differ_are_told_of(metadata, options, words, write, demo_data, tmp_path):
    done = run(TINY_CONFIG, write('detection', **metadata), demo_data, tmp_path, *options, check=False)
    warned = [line for line in done.stdout.splitlines() if 'WARNING' in line]
    assert words in done.stdout and len(warned) == bool(words), done.stdout[-2000:]


@pytest.mark.parametrize('config, task, metadata, options, words', (
    (TINY_CONFIG, 'detection', dict(classes=NAMES[:3], numbers=[1, 2, 3]), NAMED, '3 classes'),
    (TINY_CONFIG, 'detection', dict(classes=[*NAMES[1:], 'disc']), (), 'different order'),
    (TINY_CONFIG, 'segmentation', dict(), (), 'the config is for mmdet'),
    (TINY_SEG_CONFIG, 'detection', dict(), (), 'the config is for mmseg'),
    (TINY_CONFIG, 'detection', dict(), ('--dtype', 'bfloat16'), '--dtype'),
    (TINY_CONFIG, 'detection', dict(), ('--launcher', 'pytorch'), '--launcher')))
def test_files_that_the_config_is_not_for(config, task, metadata, options, words, write, demo_data, tmp_path):
    done = run(config, write(task, **metadata), demo_data, tmp_path, *options, check=False)
    assert done.returncode == 1 and done.message.startswith('error: ') and words in done.message, done.stdout[-3000:]
    assert len(done.message.splitlines()) == 1


def test_what_is_no_file(trained, demo_data, tmp_path):
    for name, options, words in (('gone.onnx', (), 'no file'), (trained[0], ('--runtime', 'openvino'), 'checkpoint')):
        done = run(TINY_CONFIG, name, demo_data, tmp_path, *options, check=False)
        assert done.returncode == 1 and words in done.message and len(done.message.splitlines()) == 1
