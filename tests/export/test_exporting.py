"""Export: the metadata of a file, errors before any work, and that a failure leaves no files."""
import hashlib
import json
import logging
import re
import resource
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from export.exported_detectors import build, config_of
from mmengine.config import Config

import xcit_dense
from helpers.models import randomise
from helpers.paths import TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.errors import CheckpointError, ConfigError, ExportError, OutputError, SetupError
from xcit_dense.export import exporting, finishing
from xcit_dense.export.exporting import metadata_of
from xcit_dense.predict.classes import Classes
from xcit_dense.predict.models import open_exported, resize_rule
from xcit_dense.weights import best_checkpoint

onnx = pytest.importorskip('onnx')
onnxruntime = pytest.importorskip('onnxruntime')


def metadata_in(path):
    return {prop.key: prop.value for prop in onnx.load(path, load_external_data=False).metadata_props}


def test_a_segmentor_takes_any_size_and_the_size_of_the_labels(exported_segmentor):
    session = onnxruntime.InferenceSession(exported_segmentor)
    image = finishing.images(3, 75, 53)
    labels, scores = session.run(['labels', 'scores'], dict(image=image))
    assert labels.shape == scores.shape == (3, 75, 53) and labels.dtype == np.uint8
    larger = session.run(['labels'], dict(image=image, size=np.array([150, 101])))[0]
    assert larger.shape == (3, 150, 101)


def test_a_detector_says_what_it_is(exported, trained):
    found = metadata_in(exported)
    checkpoint = best_checkpoint(trained[0])
    assert found['task'] == 'detection' and found['config'] == 'maskrcnn_xcit_tiny'
    assert json.loads(found['classes']) == ['disc', 'square', 'triangle', 'star', 'cross']
    assert len(json.loads(found['palette'])) == 5 and json.loads(found['numbers']) == [1, 2, 3, 4, 5]
    assert np.allclose(json.loads(found['mean']), [123.675, 116.28, 103.53])
    assert json.loads(found['resize']) == dict(rule='keep_ratio', scale=[96, 96])
    assert json.loads(found['pad_divisor']) == 32 and json.loads(found['mask_threshold']) == 0.5
    assert json.loads(found['checkpoint']) == checkpoint.name
    assert found['checkpoint_sha256'] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert json.loads(found['versions'])['onnx'] == onnx.__version__
    assert not list(exported.parent.glob('*.data'))  # one file, weights inside


@pytest.mark.parametrize('kind', ('fasterrcnn', 'retinanet'))
def test_models_without_masks_have_no_threshold_of_masks(kind, tmp_path):
    (tmp_path / 'model.pth').touch()
    cfg = config_of(kind)
    predictor = SimpleNamespace(model=build(cfg), classes=Classes(('a', ), (1, ), 'x', 'y'), palette=[(1, 2, 3)])
    found = metadata_of(predictor, cfg, 'detection', kind, tmp_path / 'model.pth')
    assert json.loads(found['mask_threshold']) is None


@pytest.fixture(scope='module')
def small(tmp_path_factory):
    """A config and weights of a detector of two blocks."""
    folder, cfg = tmp_path_factory.mktemp('small'), config_of('small')
    cfg.dump(folder / 'config.py')
    meta = dict(dataset_meta=dict(classes=list('abcdefg')))
    torch.save(dict(state_dict=randomise(build(cfg)).state_dict(), meta=meta), folder / 'weights.pth')
    return folder / 'config.py', folder / 'weights.pth'


@pytest.fixture(scope='module')
def backbone(small, tmp_path_factory):
    """What was made of the backbone alone, and what was said meanwhile."""
    said, out = [], tmp_path_factory.mktemp('onnx') / 'backbone.onnx'
    with warnings.catch_warnings():
        warnings.simplefilter('default')
        before = list(warnings.filters)
        made = xcit_dense.export_model(*small, out, backbone=True, say=said.append)
        assert warnings.filters == before and not logging.root.manager.disable
    return made, said


def test_the_backbone_alone_gives_levels(backbone):
    made, said = backbone
    assert made.size == made.path.stat().st_size and made.seconds > 0 and said
    assert metadata_in(made.path)['task'] == 'backbone'
    levels = onnxruntime.InferenceSession(made.path).run(None, dict(images=np.zeros((1, 3, 97, 161), np.float32)))
    assert [level.shape for level in levels] == [(1, 32, 14, 22), (1, 32, 7, 11)]


def test_a_flipped_bit_of_a_file_is_found(backbone, tmp_path):
    data = bytearray(backbone[0].path.read_bytes())
    data[len(data) // 2] ^= 1
    tmp_path.joinpath('model.onnx').write_bytes(data)
    with pytest.raises(CheckpointError, match=r'model.onnx is damaged .*checksum is wrong\)\. Copy it again'):
        open_exported(tmp_path / 'model.onnx')


def rule_of(steps, load='LoadImageFromFile', **options):
    pipeline = [dict(type=load, **options), *steps, dict(type='LoadAnnotations'), dict(type='PackDetInputs')]
    return resize_rule(Config(dict(test_dataloader=dict(dataset=dict(type='CocoDataset', pipeline=pipeline)),
                                   default_scope='mmdet')))


@pytest.mark.parametrize('steps, load, word', (
    ([dict(type='CenterCrop', crop_size=32)], {}, 'CenterCrop'),
    ([dict(type='Resize', scale=(8, 8)), dict(type='Resize', scale=(9, 9))], {}, 'only one Resize'),
    ([dict(type='Resize', scale=(8, 8), interpolation='area')], {}, 'area'),
    ([dict(type='Resize', scale_factor=0.5)], {}, 'scale_factor'),
    ([], dict(color_type='grayscale'), 'three channels'), ([], dict(load='LoadImageChannels'), 'LoadImageChannels')))
def test_steps_that_no_file_knows_are_named(steps, load, word):
    with pytest.raises(ConfigError, match=word):
        rule_of(steps, **load)


def test_resize_rules():
    assert rule_of([]) == dict(rule='none')
    assert rule_of([dict(type='Resize', scale=(1333, 800), keep_ratio=True)]) == dict(
        rule='keep_ratio', scale=[1333, 800])
    assert rule_of([dict(type='mmdet.Resize', scale=64)]) == dict(rule='fixed', size=[64, 64])


@pytest.mark.parametrize('options, error, word', (
    (dict(scores=True), ConfigError, '--scores'), (dict(out='model.pt'), ConfigError, '.onnx'),
    (dict(config='xcit_n12_p16_imagenet'), ConfigError, 'detectors and segmentors'),
    (dict(out='taken.onnx'), OutputError, 'overwrite'), (dict(missing='onnxscript'), SetupError,
                                                         'pip install onnxscript')))
def test_what_cannot_be_is_told_before_the_work(options, error, word, small, tmp_path, monkeypatch):
    (tmp_path / 'taken.onnx').write_text('mine')
    out, config = tmp_path / options.pop('out', 'model.onnx'), options.pop('config', small[0])
    if 'missing' in options:
        monkeypatch.setitem(sys.modules, options.pop('missing'), None)
    with pytest.raises(error, match=word):
        xcit_dense.export_model(config, small[1], out, **options)
    assert [path.read_text() for path in tmp_path.iterdir()] == ['mine']


@pytest.mark.parametrize('cause, error, word', (
    ('wrong', ExportError, 'does not compute'), ('full', OutputError, 'cannot write'),
    ('closed', OutputError, 'cannot write'), ('stopped', KeyboardInterrupt, None)))
def test_what_stops_an_export_leaves_nothing(cause, error, word, backbone, small, tmp_path, monkeypatch):
    """A file that computes something else, a full disk, a folder that cannot be written to, and Ctrl-C."""
    traced, limits = onnx.load(backbone[0].path), resource.getrlimit(resource.RLIMIT_FSIZE)
    if cause == 'wrong':
        weight = next(tensor for tensor in traced.graph.initializer if len(tensor.dims) == 4)
        weight.CopyFrom(onnx.numpy_helper.from_array(1.01 * onnx.numpy_helper.to_array(weight), weight.name))

    def trace(graph):
        assert cause != 'closed'  # that is an error before the long work
        if cause == 'stopped':
            raise KeyboardInterrupt
        return traced

    def touch(path):
        raise PermissionError

    monkeypatch.setattr(exporting, 'trace', trace)
    if cause == 'closed':
        monkeypatch.setattr(Path, 'touch', touch)
    if cause == 'full':
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(error, match=word):
            xcit_dense.export_model(*small, tmp_path / 'new/model.onnx', backbone=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_the_tool_says_size_time_and_agreement(trained_segmentor, exported_segmentor, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, 'trace', lambda graph: onnx.load(exported_segmentor))
    done = run_tool('export.py', TINY_SEG_CONFIG, trained_segmentor[0], tmp_path / 'model.onnx', '--scores',
                    '--image-size', 48)
    assert json.loads(metadata_in(tmp_path / 'model.onnx')['resize'])['scale'] == [48, 48]
    assert 'MiB' in done.stdout and ' s. ' in done.stdout
    different, pixels = re.search(r'(\d+) of ([\d,]+) pixels have a different label', done.stdout).groups()
    assert int(different) < 1e-4 * int(pixels.replace(',', ''))  # where two classes have nearly the same score
