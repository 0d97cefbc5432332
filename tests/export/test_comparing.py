"""Exported files in the tools `test` and `predict`: compared with their checkpoints, and with configs unlike theirs."""
import json
import re

import cv2
import numpy as np
import pytest
from pycocotools import mask as mask_api

import xcit_dense
from helpers.onnx_files import write_detector, write_segmentor
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool

pytest.importorskip('onnxruntime')
pytestmark = [pytest.mark.filterwarnings('ignore')]
NAMES = ['disc', 'square', 'triangle', 'star', 'cross']
#: A config that names its classes itself, as those of COCO do.
NAMED = ('--cfg-options', 'classes_from_data=False',
         f'test_dataloader.dataset.metainfo.classes="{NAMES}"'.replace(' ', ''))
DETS = np.array([[0.25, 0.5, 0.75, 1, 0.9], [0, 0, 1, 1, 0.1]], np.float32)
CONFIGS = dict(detection=TINY_CONFIG, segmentation=TINY_SEG_CONFIG)


def pairs(detection, segmentation):
    """Parametrise a test with a runtime for each task. That of detectors is slow: their export takes half a minute."""
    return pytest.mark.parametrize('task, runtime', (
        pytest.param('detection', detection, marks=pytest.mark.slow), ('segmentation', segmentation)))


@pytest.fixture
def pair(request, task, runtime):
    """The work dir of a training, and the file that was exported from it."""
    pytest.importorskip(runtime)
    names = ('trained', 'exported') if task == 'detection' else ('trained_segmentor', 'exported_segmentor')
    (work_dir, _), file = map(request.getfixturevalue, names)
    return work_dir, file


@pairs('openvino', 'onnxruntime')
def test_a_file_writes_what_its_checkpoint_does(task, runtime, pair, demo_data, tmp_path):
    work_dir, file = pair
    images = demo_data / 'val2017'
    run_tool('predict.py', CONFIGS[task], work_dir, images, '--out', tmp_path / 'a')
    run_tool('predict.py', file, images, '--out', tmp_path / 'b', '--runtime', runtime)

    def read(path, flags=cv2.IMREAD_COLOR):
        return (cv2.imread(str(tmp_path / part / path), flags).astype(int) for part in 'ab')

    classes = [json.loads((tmp_path / part / 'classes.json').read_text()) for part in 'ab']
    assert classes[0] == classes[1]
    for path in (tmp_path / 'a').glob('*.jpg'):
        one, other = read(path.name)
        assert (np.abs(one - other).max(-1) > 60).mean() < 0.01
        if task == 'segmentation':
            one, other = read(f'labels/{path.stem}.png', cv2.IMREAD_UNCHANGED)
            assert one.shape == other.shape and (one != other).mean() < 1e-3
    if task == 'segmentation':
        return
    wanted, found = (json.loads((tmp_path / part / 'results.json').read_text()) for part in 'ab')
    assert len(wanted) == len(found) > 10
    for one in wanted:
        same = [other for other in found if all(
            one[key] == other[key] for key in ('image_id', 'file_name', 'category_id', 'category_name'))]
        other = min(same, key=lambda other: np.abs(np.subtract(one['bbox'], other['bbox'])).max())
        found.remove(other)
        assert abs(one['score'] - other['score']) < 1e-4 and np.allclose(one['bbox'], other['bbox'], atol=0.05)
        masks = [mask_api.decode(record['segmentation']) for record in (one, other)]
        assert (masks[0] != masks[1]).mean() < 1e-3


@pairs('onnxruntime', 'openvino')
def test_the_tables_are_the_same(task, runtime, pair, demo_data, tmp_path):
    """And there are pictures."""
    words = 'Average' if task == 'detection' else 'mIoU: +[0-9.]+'
    said = [run_tool('test.py', CONFIGS[task], source, '--data-root', demo_data, '--work-dir', tmp_path / 'run',
                     '--show-dir', tmp_path / 'pictures', *more).stdout
            for source, more in zip(pair, ((), ('--runtime', runtime)), strict=True)]
    tables = [re.findall(rf'.*{words}.*', re.sub(r'\S*time: \S+|^.* - ', '', text, flags=re.M)) for text in said]
    assert tables[0] == tables[1] and tables[0]
    assert len(list((tmp_path / 'pictures').glob('*.jpg'))) == 3


def test_scores_and_arrays_from_python(exported_segmentor, trained_segmentor, demo_data):
    path = demo_data / 'val2017/000000000001.jpg'
    wanted = xcit_dense.load(TINY_SEG_CONFIG, trained_segmentor[0])(path)
    found = xcit_dense.load(exported_segmentor)(path)
    same = found.labels == wanted.labels
    assert same.mean() > 0.999 and np.allclose(found.scores[same], wanted.scores[same], atol=1e-4)


@pytest.fixture
def tested(tmp_path, demo_data):
    """A function that tests a file of a task with a config."""

    def tested(config, task, metadata, *options):
        if task == 'segmentation':
            file = write_segmentor(tmp_path / 'model.onnx', **metadata)
        else:
            metadata = dict(dict(classes=NAMES, numbers=[1, 2, 3, 4, 5],
                                 resize=dict(rule='keep_ratio', scale=[96, 96])), **metadata)
            file = write_detector(tmp_path / 'model.onnx', DETS, np.array([2, 0]), np.ones((2, 28, 28), np.float32),
                                  **metadata)
        return run_tool('test.py', config, file, '--data-root', demo_data, '--work-dir', tmp_path / 'run', *options,
                        check=False)

    return tested


@pytest.mark.parametrize('metadata, options, words', (
    (dict(classes=[*NAMES[1:], 'disc']), NAMED, 'class names of the test data'), (dict(), NAMED, ''),
    (dict(resize=dict(rule='none')), (), 'resized by none'),
    (dict(resize=dict(rule='none')), ('--image-size', 96), ''), (dict(), ('--image-size', 96), '')))
def test_configs_that_differ_are_told_of(metadata, options, words, tested):
    done = tested(TINY_CONFIG, 'detection', metadata, *options)
    warned = [line for line in done.stdout.splitlines() if 'WARNING' in line]
    assert words in done.stdout and len(warned) == bool(words), done.stdout[-2000:]


@pytest.mark.parametrize('config, task, metadata, options, words', (
    (TINY_CONFIG, 'detection', dict(classes=NAMES[:3], numbers=[1, 2, 3]), NAMED, '3 classes'),
    (TINY_CONFIG, 'detection', dict(classes=[*NAMES[1:], 'disc']), (), 'different order'),
    (TINY_CONFIG, 'segmentation', dict(), (), 'the config is for detection'),
    (TINY_SEG_CONFIG, 'detection', dict(), (), 'the config is for segmentation'),
    (TINY_CONFIG, 'detection', dict(), ('--dtype', 'bfloat16'), '--dtype'),
    (TINY_CONFIG, 'detection', dict(), ('--launcher', 'pytorch'), '--launcher')))
def test_files_that_the_config_is_not_for(config, task, metadata, options, words, tested):
    done = tested(config, task, metadata, *options)
    assert done.returncode == 1 and done.message.startswith('error: ') and words in done.message, done.stdout[-3000:]
    assert len(done.message.splitlines()) == 1


def test_what_is_no_file(trained, call_tool):
    for name, options, words in (('gone.onnx', (), 'no file'), (trained[0], ('--runtime', 'openvino'), 'checkpoint')):
        code, message = call_tool('test.py', TINY_CONFIG, name, *options)
        assert code == 1 and words in message and len(message.splitlines()) == 1
