"""Export: the metadata of a file, errors before any work, and that a failure leaves no files."""
import hashlib
import json
import re
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

import xcit_dense
from helpers.exported_detectors import build, config_of
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.errors import CheckpointError, ConfigError, ExportError, OutputError, SetupError
from xcit_dense.export import exporting, verify
from xcit_dense.export.metadata import metadata_of, resize_rule
from xcit_dense.predict.classes import Classes
from xcit_dense.predict.exported import open_exported

onnx = pytest.importorskip('onnx')
onnxruntime = pytest.importorskip('onnxruntime')


def metadata_in(path):
    return {prop.key: prop.value for prop in onnx.load(path, load_external_data=False).metadata_props}


def test_a_detector_says_what_it_is(exported, trained):
    found = metadata_in(exported)
    checkpoint = trained[0] / 'epoch_2.pth'
    assert found['task'] == 'detection' and found['precision'] == 'float32' and found['config'] == 'maskrcnn_xcit_tiny'
    assert json.loads(found['classes']) == ['disc', 'square', 'triangle', 'star', 'cross']
    assert len(json.loads(found['palette'])) == 5 and json.loads(found['numbers']) == [1, 2, 3, 4, 5]
    assert np.allclose(json.loads(found['mean']), [123.675, 116.28, 103.53])
    assert json.loads(found['resize']) == dict(rule='keep_ratio', scale=[192, 192])
    assert json.loads(found['pad_divisor']) == 32 and json.loads(found['mask_threshold']) == 0.5
    assert json.loads(found['checkpoint']) == checkpoint.name
    assert found['checkpoint_sha256'] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert json.loads(found['versions'])['onnx'] == onnx.__version__
    assert not list(exported.parent.glob('*.data'))  # one file, weights inside


@pytest.mark.parametrize('kind, threshold', (('fasterrcnn', None), ('maskrcnn', 0.5), ('retinanet', None)))
def test_the_threshold_of_masks_is_that_of_models_with_masks(kind, threshold, tmp_path):
    (tmp_path / 'model.pth').touch()
    cfg = config_of(kind)
    predictor = SimpleNamespace(model=build(cfg), classes=Classes(('a', ), (1, ), 'x', 'y'), palette=[(1, 2, 3)])
    found = metadata_of(predictor, cfg, 'detection', kind, tmp_path / 'model.pth')
    assert json.loads(found['mask_threshold']) == threshold


def test_a_segmentor_takes_any_size_and_the_size_of_the_labels(exported_segmentor):
    session = onnxruntime.InferenceSession(exported_segmentor)
    image = verify.images(3, 75, 53)
    labels, scores = session.run(['labels', 'scores'], dict(image=image))
    assert labels.shape == scores.shape == (3, 75, 53) and labels.dtype == np.uint8
    larger = session.run(['labels'], dict(image=image, size=np.array([150, 101])))[0]
    assert larger.shape == (3, 150, 101)


@pytest.fixture(scope='module')
def backbone(trained, tmp_path_factory):
    """What was made of the backbone alone, and what was said meanwhile."""
    said = []
    out = tmp_path_factory.mktemp('onnx') / 'backbone.onnx'
    return xcit_dense.export_model(TINY_CONFIG, trained[0], out, backbone=True, say=said.append), said


def test_the_backbone_alone_gives_levels(backbone):
    made, said = backbone
    assert made.size == made.path.stat().st_size and made.seconds > 0 and said
    assert metadata_in(made.path)['task'] == 'backbone'
    levels = onnxruntime.InferenceSession(made.path).run(None, dict(images=np.zeros((1, 3, 97, 161), np.float32)))
    assert [level.shape for level in levels] == [(1, 32, 28, 44), (1, 32, 14, 22), (1, 32, 7, 11), (1, 32, 3, 5)]


def test_a_flipped_bit_of_a_file_is_found(backbone, tmp_path):
    data = bytearray(backbone[0].path.read_bytes())
    data[len(data) // 2] ^= 1
    tmp_path.joinpath('model.onnx').write_bytes(data)
    with pytest.raises(CheckpointError, match=r'model.onnx is damaged .*checksum is wrong\)\. Copy it again'):
        open_exported(tmp_path / 'model.onnx')


@pytest.mark.parametrize('pipeline, word', (
    ([dict(type='LoadImageFromFile'), dict(type='CenterCrop', crop_size=32)], 'CenterCrop'),
    ([dict(type='LoadImageFromFile'), dict(type='Resize', scale=(8, 8)), dict(type='Resize', scale=(9, 9))],
     'only one Resize'),
    ([dict(type='LoadImageFromFile'), dict(type='Resize', scale=(8, 8), interpolation='area')], 'area'),
    ([dict(type='LoadImageFromFile'), dict(type='Resize', scale_factor=0.5)], 'scale_factor'),
    ([dict(type='LoadImageFromFile', color_type='grayscale')], 'three channels'),
    ([dict(type='LoadImageChannels')], 'LoadImageChannels')))
def test_steps_that_no_file_knows_are_named(pipeline, word):
    cfg = Config(dict(test_dataloader=dict(dataset=dict(type='CocoDataset', pipeline=pipeline)),
                      default_scope='mmdet'))
    with pytest.raises(ConfigError, match=word):
        resize_rule(cfg)


@pytest.mark.parametrize('steps, rule', (
    ([], dict(rule='none')),
    ([dict(type='Resize', scale=(1333, 800), keep_ratio=True)], dict(rule='keep_ratio', scale=[1333, 800])),
    ([dict(type='mmdet.Resize', scale=64)], dict(rule='fixed', size=[64, 64]))))
def test_resize_rules(steps, rule):
    pipeline = [dict(type='LoadImageFromFile'), *steps, dict(type='LoadAnnotations'), dict(type='PackDetInputs')]
    cfg = Config(dict(test_dataloader=dict(dataset=dict(type='CocoDataset', pipeline=pipeline)),
                      default_scope='mmdet'))
    assert resize_rule(cfg) == rule


@pytest.mark.parametrize('options, error, word', (
    (dict(scores=True), ConfigError, '--scores'), (dict(out='model.pt'), ConfigError, '.onnx'),
    (dict(config='xcit_n12_p16_imagenet'), ConfigError, 'detectors and segmentors')))
def test_what_cannot_be_is_told_before_the_work(options, error, word, trained, tmp_path):
    out = tmp_path / options.pop('out', 'model.onnx')
    config = options.pop('config', TINY_CONFIG)
    with pytest.raises(error, match=word):
        xcit_dense.export_model(config, trained[0], out, **options)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_with_its_command(monkeypatch, trained, tmp_path):
    monkeypatch.setitem(sys.modules, 'onnxscript', None)
    with pytest.raises(SetupError, match='pip install onnxscript'):
        xcit_dense.export_model(TINY_CONFIG, trained[0], tmp_path / 'model.onnx')


def test_a_file_of_somebody_else_stays(trained, tmp_path):
    path = tmp_path / 'model.onnx'
    path.write_text('mine')
    with pytest.raises(OutputError, match='overwrite'):
        xcit_dense.export_model(TINY_CONFIG, trained[0], path)
    assert path.read_text() == 'mine'


def test_a_wrong_file_is_not_written(backbone, trained, tmp_path, monkeypatch):
    wrong = onnx.load(backbone[0].path)
    weight = next(tensor for tensor in wrong.graph.initializer if len(tensor.dims) == 4)
    weight.CopyFrom(onnx.numpy_helper.from_array(1.01 * onnx.numpy_helper.to_array(weight), weight.name))
    monkeypatch.setattr(exporting.Graph, 'trace', lambda graph: wrong)
    with pytest.raises(ExportError, match='does not compute'):
        xcit_dense.export_model(TINY_CONFIG, trained[0], tmp_path / 'new/model.onnx', backbone=True)
    assert not list(tmp_path.iterdir())


def test_calibration_images_are_spread_over_the_folder_and_read_as_the_file_gets_them(
        backbone, trained, tmp_path, monkeypatch):
    seen, folder = [], tmp_path / 'images'
    folder.mkdir()
    for number in range(5):
        picture = Image.new('RGB', (60, 20), (50 * number, 7, 9))
        picture.paste((200, 7, 9), (30, 0, 60, 20))  # the right half
        picture.save(folder / f'{number}.png')

    def stop(source, target, images):
        seen.extend(images)
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting.Graph, 'trace', lambda graph: onnx.load(backbone[0].path))
    monkeypatch.setattr(exporting, 'quantise', stop)
    monkeypatch.setattr(exporting, '_CALIBRATED', 2)
    with pytest.raises(KeyboardInterrupt):
        xcit_dense.export_model(TINY_CONFIG, trained[0], tmp_path / 'model.onnx', backbone=True, calibration=folder)
    assert [(image.shape, image[0, 0].tolist(), image[-1, -1].tolist()) for image in seen] == [
        ((64, 192, 3), [red, 7, 9], [200, 7, 9]) for red in (0, 150)]


@pytest.fixture
def small_disk():
    """Files cannot become larger than 100,000 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_told_and_nothing_stays(backbone, trained, tmp_path, monkeypatch, small_disk):
    monkeypatch.setattr(exporting.Graph, 'trace', lambda graph: onnx.load(backbone[0].path))
    with pytest.raises(OutputError, match='cannot write'):
        xcit_dense.export_model(TINY_CONFIG, trained[0], tmp_path / 'new/model.onnx', backbone=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('error', (KeyboardInterrupt, PermissionError))
def test_what_stops_an_export_leaves_nothing(error, trained, tmp_path, monkeypatch):
    """A folder that cannot be written to is an error before the long work."""

    def stop(*args):
        raise error

    monkeypatch.setattr(*(exporting.Graph, 'trace') if error is KeyboardInterrupt else (Path, 'touch'), stop)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else OutputError):
        xcit_dense.export_model(TINY_CONFIG, trained[0], tmp_path / 'new/model.onnx')
    assert not list(tmp_path.iterdir())


def test_the_tool_says_size_time_and_agreement(trained_segmentor, tmp_path):
    done = run_tool('export.py', TINY_SEG_CONFIG, trained_segmentor[0], tmp_path / 'model.onnx')
    assert 'MiB' in done.stdout and ' s. ' in done.stdout
    different, pixels = re.search(r'(\d+) of ([\d,]+) pixels have a different label', done.stdout).groups()
    assert int(different) < 1e-4 * int(pixels.replace(',', ''))  # where two classes have nearly the same score


@pytest.mark.slow
def test_int8_by_the_tool(trained_segmentor, exported_segmentor, demo_data, tmp_path):
    path = tmp_path / 'model.onnx'
    done = run_tool('export.py', TINY_SEG_CONFIG, trained_segmentor[0], path, '--scores', '--int8', '--calibration',
                    demo_data / 'images/training')
    assert 'after quantisation to int8' in done.stdout and metadata_in(path)['precision'] == 'int8'
    assert path.stat().st_size < 0.7 * exported_segmentor.stat().st_size
    image = verify.images(1, 96, 80)
    labels, plain = (onnxruntime.InferenceSession(file).run(['labels'], dict(image=image))[0]
                     for file in (path, exported_segmentor))
    assert (labels == plain).mean() > 0.9
    assert [file.name for file in tmp_path.iterdir() if not file.name.startswith('.')] == ['model.onnx']
