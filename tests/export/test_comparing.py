"""Exported files in the tools `test` and `predict`: compared with their checkpoints, and with configs unlike theirs."""
import re

import cv2
import numpy as np
import pytest

from helpers.onnx_files import write_detector
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool

pytest.importorskip('onnxruntime')
pytestmark = [pytest.mark.filterwarnings('ignore')]
NAMES = ['disc', 'square', 'triangle', 'star', 'cross']
#: A config that names its classes itself, as those of COCO do.
NAMED = ('--cfg-options', 'classes_from_data=False',
         f'test_dataloader.dataset.metainfo.classes="{NAMES}"'.replace(' ', ''))
DETS = np.array([[0.25, 0.5, 0.75, 1, 0.9], [0, 0, 1, 1, 0.1]], np.float32)


@pytest.mark.parametrize('runtime', ('onnxruntime', pytest.param('openvino', marks=pytest.mark.slow)))
def test_a_file_writes_what_its_checkpoint_does(runtime, trained_segmentor, exported_segmentor, demo_data, tmp_path):
    pytest.importorskip(runtime)
    images = demo_data / 'val2017'
    run_tool('predict.py', TINY_SEG_CONFIG, trained_segmentor[0], images, '--out', tmp_path / 'a')
    run_tool('predict.py', exported_segmentor, images, '--out', tmp_path / 'b', '--runtime', runtime)
    classes, *pictures = [[(tmp_path / part / name).read_text() if name.endswith('json') else cv2.imread(
        str(tmp_path / part / name), cv2.IMREAD_UNCHANGED).astype(int) for part in 'ab'] for name in (
            'classes.json', '000000000001.jpg', 'labels/000000000001.png', 'labels/000000000003.png')]
    assert classes[0] == classes[1]
    assert (np.abs(pictures[0][0] - pictures[0][1]).max(-1) > 60).mean() < 0.01
    for one, other in pictures[1:]:
        assert one.shape == other.shape and (one != other).mean() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize('config, words, part', (
    (TINY_CONFIG, 'Average', ''), (TINY_SEG_CONFIG, 'mIoU: +[0-9.]+', '_segmentor')))
def test_the_tables_are_the_same(config, words, part, request, demo_data, tmp_path):
    pytest.importorskip('openvino')
    (work_dir, _), file = map(request.getfixturevalue, (f'trained{part}', f'exported{part}'))
    said = [run_tool('test.py', config, source, '--data-root', demo_data, '--work-dir', tmp_path / 'run',
                     '--show-dir', tmp_path / 'pictures', *more).stdout
            for source, more in ((work_dir, ()), (file, ('--runtime', 'openvino')))]
    tables = [re.findall(rf'.*{words}.*', re.sub(r'\S*time: \S+|^.* - ', '', text, flags=re.M)) for text in said]
    assert tables[0] == tables[1] and tables[0]
    assert len(list((tmp_path / 'pictures').glob('*.jpg'))) == 3


@pytest.fixture
def tested(tmp_path, demo_data):
    """A function that tests a file of a detector with a config."""

    def tested(config, metadata, *options):
        own = dict(classes=NAMES, numbers=[1, 2, 3, 4, 5], resize=dict(rule='keep_ratio', scale=[96, 96]))
        file = write_detector(tmp_path / 'model.onnx', DETS, np.array([2, 0]), np.ones((2, 28, 28), np.float32),
                              **own | metadata)
        return run_tool('test.py', config, file, '--data-root', demo_data, '--work-dir', tmp_path / 'run', *options,
                        check=False)

    return tested


@pytest.mark.parametrize('metadata, options, words', (
    (dict(classes=[*NAMES[1:], 'disc']), NAMED, 'class names of the test data'), (dict(), NAMED, ''),
    (dict(resize=dict(rule='none')), (), 'resized by none'),
    (dict(resize=dict(rule='none')), ('--image-size', 96), '')))
def test_configs_that_differ_are_told_of(metadata, options, words, tested):
    done = tested(TINY_CONFIG, metadata, *options)
    warned = [line for line in done.stdout.splitlines() if 'WARNING' in line]
    assert words in done.stdout and len(warned) == bool(words), done.stdout[-2000:]


@pytest.mark.parametrize('config, metadata, options, words', (
    (TINY_CONFIG, dict(classes=NAMES[:3], numbers=[1, 2, 3]), NAMED, '3 classes'),
    (TINY_CONFIG, dict(classes=[*NAMES[1:], 'disc']), (), 'different order'),
    (TINY_SEG_CONFIG, dict(), (), 'the config is for segmentation')))
def test_files_that_the_config_is_not_for(config, metadata, options, words, tested):
    done = tested(config, metadata, *options)
    assert done.returncode == 1 and done.message.startswith('error: ') and words in done.message, done.stdout[-3000:]
    assert len(done.message.splitlines()) == 1


def test_a_file_that_is_gone(call_tool):
    code, message = call_tool('test.py', TINY_CONFIG, 'gone.onnx')
    assert code == 1 and 'no file' in message and len(message.splitlines()) == 1
