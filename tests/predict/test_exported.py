"""Exported files where checkpoints are taken: tiny ones, made by hand."""
import json
import sys

import cv2
import numpy as np
import pytest
import torch
from mmseg.structures import SegDataSample
from PIL import Image

import xcit_dense
from helpers.onnx_files import write_backbone, write_detector, write_segmentor
from helpers.paths import TINY_CONFIG
from helpers.tools import run_tool
from xcit_dense import runtime
from xcit_dense.errors import CheckpointError, ConfigError, SetupError
from xcit_dense.predict.models import ExportedModel
from xcit_dense.weights import read_checkpoint

pytest.importorskip('onnxruntime')
DETS = np.array([[0.25, 0.5, 0.75, 1, 0.9], [0, 0, 0.5, 0.5, 0.4], [0, 0, 1, 1, 0.1], [0, 0, 0, 0, 0]], np.float32)


@pytest.fixture
def detector(tmp_path):
    return write_detector(tmp_path / 'detector.onnx', DETS, np.array([2, 0, 1, -1]), np.ones((4, 28, 28), np.float32),
                          num=3, numbers=[7, 8, 9], resize=dict(rule='keep_ratio', scale=[96, 48]),
                          words=dict(names_from='a', numbers_from='b'))


@pytest.fixture
def image(tmp_path):
    """The only file of its folder: blue to the left, red to the right."""
    picture = np.zeros((40, 60, 3), np.uint8)
    picture[:, :30, 2] = picture[:, 30:, 0] = 200
    (tmp_path / 'images').mkdir()
    Image.fromarray(picture).save(tmp_path / 'images/5.png')
    return tmp_path / 'images/5.png'


@pytest.mark.parametrize('runtime', ('onnxruntime', 'openvino'))
def test_a_detector(runtime, detector, image, tmp_path):
    pytest.importorskip(runtime)
    done = run_tool('predict.py', detector, image.parent, '--out', tmp_path / 'out', '--runtime', runtime)
    assert '3 objects' in done.stdout and (tmp_path / 'out/5.jpg').is_file()
    records = json.loads((tmp_path / 'out/results.json').read_text())
    assert [(record['category_id'], record['category_name'], record['image_id']) for record in records] == [
        (9, 'blue', 5), (7, 'red', 5), (8, 'green', 5)]
    assert np.allclose(records[0]['bbox'], [15, 20, 30, 20]) and records[0]['segmentation']['size'] == [40, 60]
    assert json.loads((tmp_path / 'out/classes.json').read_text()) == dict(
        classes={'7': 'red', '8': 'green', '9': 'blue'}, names_from='a', numbers_from='b',
        image_ids='the numbers in the file names')


def test_from_python(detector, image, tmp_path):
    model = xcit_dense.load(detector)  # of its three objects one has a score below 0.3
    assert model.classes == ('red', 'green', 'blue')
    for given in (image, np.asarray(Image.open(image)), Image.open(image)):
        found = model(given)
        assert found.names == ('blue', 'red') and found.masks.shape == (2, 40, 60)
    assert repr(found) == '<2 objects with masks: 1 blue, 1 red>'
    assert len(model(image, threshold=0)) == 3 and len(model([image, image], batch_size=2)) == 2
    segmentor = write_segmentor(tmp_path / 'segmentor.onnx', resize=dict(rule='fixed', size=[30, 20]))
    model = xcit_dense.load(segmentor)
    found = model(image)
    drawn = found.draw().astype(int)  # the file's colours: blue to the left, red to the right
    assert (drawn[:, :25].argmax(-1) == 2).all() and (drawn[:, 35:].argmax(-1) == 0).all()
    assert repr(found) == '<labels of 40 x 60 pixels: 2 classes>'
    assert found.labels.dtype == np.int64 and found.scores.shape == (40, 60) and found.scores.max() > 0.5
    assert model(image, scores=False).scores is None
    assert model._predictor.read(image).data['inputs'].shape == (3, 20, 30)
    floats = torch.tensor([[[0., 0]], [[10.6, -5]], [[10.4, 3]]])  # of a pipeline of float32, BGR
    sample = SegDataSample(metainfo=dict(ori_shape=(1, 2)))
    found, = ExportedModel(segmentor).test_step(dict(inputs=[floats], data_samples=[sample]))
    assert found.pred_sem_seg.data.tolist() == [[[1, 0]]]


def test_what_a_file_says_is_followed(image, photograph, tmp_path):
    """Whether marks of cameras turn images, and whether there are masks and objects."""
    turned = photograph(tmp_path / '6.jpg', np.asarray(Image.open(image)))
    for turns, shape in ((True, (60, 40)), (False, (40, 60))):
        assert xcit_dense.load(write_segmentor(tmp_path / 'm.onnx', turns=turns))(turned).labels.shape == shape
    for num, names in ((0, ()), (1, ('red', ))):
        found = xcit_dense.load(write_detector(tmp_path / 'M.ONNX', DETS[:1], np.array([0]), num=num))(image)
        assert found.names == names and found.masks is None and found.draw().shape == (40, 60, 3)
        assert found.to_supervision().mask is None


def test_tiles(detector, image, tmp_path):
    """A segmentor's file keeps no scores of all classes: each pixel has the label of the nearer tile."""
    run_tool('predict.py', detector, image.parent, '--out', tmp_path / 'objects', '--tile', 30, '--overlap', 0)
    assert json.loads((tmp_path / 'objects/results.json').read_text())
    model = xcit_dense.load(write_segmentor(tmp_path / 'm.onnx'))
    found = model(image, tile=25)
    assert np.array_equal(found.labels, model(image).labels) and found.scores is None
    run_tool('predict.py', tmp_path / 'm.onnx', image.parent, '--out', tmp_path / 'out', '--tile', 25)
    written = cv2.imread(str(tmp_path / 'out/labels/5.png'), cv2.IMREAD_UNCHANGED)
    assert np.array_equal(written, found.labels + 1)  # the numbers that the file says


def test_files_that_cannot_be_run(image, tmp_path, call_tool):
    (tmp_path / 'broken.onnx').write_bytes(b'\x08\x0a')
    (tmp_path / 'folder.onnx').mkdir()
    write_backbone(tmp_path / 'backbone.onnx')
    for name, words in (('gone', 'no file'), ('broken', 'broken.onnx'), ('folder', 'folder.onnx'),
                        ('backbone', '--backbone')):
        code, message = call_tool('predict.py', tmp_path / f'{name}.onnx', image.parent, '--out', tmp_path / 'out')
        assert code == 1 and message.startswith('error: ') and words in message and len(message.splitlines()) == 1
    assert not (tmp_path / 'out').exists()


def test_options_that_are_of_checkpoints_and_a_runtime_that_is_missing(detector, monkeypatch):
    for options in (dict(dtype='bfloat16'), dict(device='cpu'), dict(cfg_options=dict(a=1))):
        with pytest.raises(ConfigError, match='only threshold and runtime'):
            xcit_dense.load(detector, **options)
    with pytest.raises(ConfigError, match='exported file.*load'):
        xcit_dense.load(TINY_CONFIG, detector)
    monkeypatch.setattr(runtime, 'openvino_core', runtime.openvino_core.__wrapped__)  # as if it had never been there
    monkeypatch.setitem(sys.modules, 'openvino', None)
    with pytest.raises(SetupError, match='pip install openvino'):
        xcit_dense.load(detector, runtime='openvino')


def test_where_weights_are_wanted(detector, image, tmp_path, call_tool):
    with pytest.raises(CheckpointError, match='ONNX.*exported from'):
        read_checkpoint(detector)
    code, message = call_tool('classify.py', detector, image.parent, '--out', tmp_path / 'c.json')
    assert code == 1 and 'ONNX' in message and len(message.splitlines()) == 1
