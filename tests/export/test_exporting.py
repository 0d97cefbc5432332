"""Export: metadata, the comparison with the checkpoint, errors before any work, and no file after a failure."""
import hashlib
import json
import logging
import re
import resource
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from export.exported_detectors import build, config_of
from mmengine.config import Config, ConfigDict
from mmengine.structures import InstanceData, PixelData

import xcit_dense
from helpers.models import randomise, relative_error
from helpers.onnx_files import write_backbone, write_detector, write_segmentor
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense import XCiT
from xcit_dense.config.loading import load_config
from xcit_dense.errors import CheckpointError, ConfigError, ExportError, OutputError, SetupError
from xcit_dense.export import exporting, finishing
from xcit_dense.export.exporting import graph_of, metadata_of, trace
from xcit_dense.export.finishing import compare_file
from xcit_dense.predict.models import open_exported, resize_rule
from xcit_dense.predict.predictor import build_predictor
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
    assert session.run(['labels'], dict(image=image, size=np.array([150, 101])))[0].shape == (3, 150, 101)
    assert not list(exported_segmentor.parent.glob('*.data'))  # one file, weights inside


def test_a_detector_says_what_it_is(trained):
    cfg, checkpoint = load_config(TINY_CONFIG, pretrained=False), best_checkpoint(trained[0])
    predictor = build_predictor(cfg, checkpoint, device='cpu', fuse=False)
    found = metadata_of(predictor, cfg, 'detection', 'maskrcnn_xcit_tiny', checkpoint)
    texts = {name: found.pop(name) for name in ('task', 'config', 'xcit_dense', 'checkpoint_sha256')}
    assert texts == dict(task='detection', config='maskrcnn_xcit_tiny', xcit_dense='1',
                         checkpoint_sha256=hashlib.sha256(checkpoint.read_bytes()).hexdigest())
    found = {name: json.loads(value) for name, value in found.items()}
    assert found['classes'] == ['disc', 'square', 'triangle', 'star', 'cross'] and found['numbers'] == [1, 2, 3, 4, 5]
    assert len(found['palette']) == 5 and found['versions']['onnx'] == onnx.__version__
    for name, value in dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375]).items():
        assert np.allclose(found[name], value)
    assert found['resize'] == dict(rule='keep_ratio', scale=[96, 96]) and found['turns'] is True
    assert (found['pad_divisor'], found['mask_threshold'], found['checkpoint']) == (32, 0.5, checkpoint.name)
    assert found['words']['model'] == 'MaskRCNN'
    for kind in ('fasterrcnn', 'retinanet'):  # which have no masks
        predictor.model = build(config_of(kind))
        assert json.loads(metadata_of(predictor, cfg, 'detection', kind, checkpoint)['mask_threshold']) is None


def test_the_backbone_alone_gives_levels():
    backbone = XCiT(dict(embed_dims=32, depth=2, num_heads=4, out_indices=(0, 1)), out_strides=(8, 16), in_channels=5)
    graph = graph_of(SimpleNamespace(backbone=randomise(backbone).eval()), 'backbone')
    (example, free), = graph.inputs.values()
    assert [*graph.inputs] == ['images'] and graph.outputs == ['level0', 'level1'] and not graph.translations
    assert example.shape[:2] == (2, 5) and {*free} == {0, 2, 3}
    images = torch.randn(1, 5, 97, 161)
    for level, wanted in zip(graph(images), backbone(images), strict=True):
        assert relative_error(level, wanted) < 1e-5
    with pytest.raises(ConfigError, match='only export an XCiT, but model.backbone is a Linear'):
        graph_of(SimpleNamespace(backbone=torch.nn.Linear(1, 1)), 'backbone')


@pytest.mark.slow
def test_a_backbone_becomes_a_file(tmp_path):
    cfg, said = config_of('small', **{'model.backbone.out_strides': (16, 32)}), []
    cfg.dump(tmp_path / 'config.py')
    meta = dict(dataset_meta=dict(classes=list('abcdefg')))
    torch.save(dict(state_dict=randomise(build(cfg)).state_dict(), meta=meta), tmp_path / 'weights.pth')
    before = list(warnings.filters)
    made = xcit_dense.export_model(tmp_path / 'config.py', tmp_path / 'weights.pth', tmp_path / 'backbone.onnx',
                                   backbone=True, say=said.append)
    assert warnings.filters == before and not logging.root.manager.disable
    assert made.size == made.path.stat().st_size and made.seconds > 0 and said
    assert metadata_in(made.path)['task'] == 'backbone'
    session = onnxruntime.InferenceSession(made.path)
    for size, wanted in (((97, 161), ((7, 11), (3, 5))), ((9, 161), ((1, 11), (1, 5)))):  # a strip
        levels = session.run(None, dict(images=np.zeros((1, 3, *size), np.float32)))
        assert [level.shape for level in levels] == [(1, 32, *shape) for shape in wanted]


def test_what_torch_cannot_trace_is_one_sentence():
    class Graph(torch.nn.Module):
        inputs, outputs, translations = dict(x=(torch.ones(3), {0: torch.export.Dim.DYNAMIC})), ['y'], {}

        def forward(self, x):
            raise ValueError('a layer of numbers.\nIn detail')

    before = list(warnings.filters)
    with pytest.raises(ExportError, match='torch cannot export this model: .*layer.*The usual reason') as caught:
        trace(Graph())
    assert '\n' not in str(caught.value)
    assert warnings.filters == before and not logging.root.manager.disable


def test_a_flipped_bit_of_a_file_is_found(exported_segmentor, tmp_path):
    data = bytearray(exported_segmentor.read_bytes())
    data[len(data) // 2] ^= 1
    tmp_path.joinpath('model.onnx').write_bytes(data)
    with pytest.raises(CheckpointError, match=r'model.onnx is damaged .*checksum is wrong\)\. Copy it again'):
        open_exported(tmp_path / 'model.onnx')


def rule_of(steps, load='LoadImageFromFile', **options):
    pipeline = [dict(type=load, **options), *steps, dict(type='LoadAnnotations'), dict(type='PackDetInputs')]
    return resize_rule(Config(dict(test_dataloader=dict(dataset=dict(type='CocoDataset', pipeline=pipeline)),
                                   default_scope='mmdet')))


def test_resize_rules():
    assert rule_of([]) == dict(rule='none')
    assert rule_of([dict(type='Resize', scale=(1333, 800), keep_ratio=True)]) == dict(
        rule='keep_ratio', scale=[1333, 800])
    assert rule_of([dict(type='mmdet.Resize', scale=64)]) == dict(rule='fixed', size=[64, 64])
    for steps, load, word in (
            ([dict(type='CenterCrop', crop_size=32)], {}, 'CenterCrop'),
            ([dict(type='Resize', scale=(8, 8)), dict(type='Resize', scale=(9, 9))], {}, 'only one Resize'),
            ([dict(type='Resize', scale=(8, 8), interpolation='area')], {}, 'area'),
            ([dict(type='Resize', scale_factor=0.5)], {}, 'scale_factor'),
            ([], dict(color_type='grayscale'), 'three channels'),
            ([], dict(load='LoadImageChannels'), 'LoadImageChannels')):
        with pytest.raises(ConfigError, match=word):
            rule_of(steps, **load)


@pytest.mark.parametrize('config, options, error, word', (
    (TINY_CONFIG, dict(scores=True), ConfigError, '--scores'),
    (TINY_CONFIG, dict(out='model.pt'), ConfigError, '.onnx'),
    ('xcit_n12_p16_imagenet', {}, ConfigError, 'detectors and segmentors'),
    (TINY_CONFIG, dict(out='taken.onnx'), OutputError, 'overwrite'),
    (TINY_CONFIG, dict(missing='onnxscript'), SetupError, 'pip install onnxscript')))
def test_what_cannot_be_is_told_before_the_work(config, options, error, word, tmp_path, monkeypatch):
    (tmp_path / 'taken.onnx').write_text('mine')
    out = tmp_path / options.pop('out', 'model.onnx')
    if 'missing' in options:
        monkeypatch.setitem(sys.modules, options.pop('missing'), None)
    with pytest.raises(error, match=word):
        xcit_dense.export_model(config, tmp_path / 'gone.pth', out, **options)
    assert [path.read_text() for path in tmp_path.iterdir()] == ['mine']


@pytest.mark.parametrize('cause, error, word', (
    ('wrong', ExportError, 'does not compute'), ('full', OutputError, 'cannot write'),
    ('closed', OutputError, 'cannot write'), ('stopped', KeyboardInterrupt, None)))
def test_what_stops_an_export_leaves_nothing(cause, error, word, trained_segmentor, exported_segmentor, tmp_path,
                                             monkeypatch):
    traced, limits = onnx.load(exported_segmentor), resource.getrlimit(resource.RLIMIT_FSIZE)
    if cause == 'wrong':
        weight = next(tensor for tensor in traced.graph.initializer if len(tensor.dims) == 4)
        weight.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(weight), weight.name))

    def trace(graph):
        assert cause != 'closed'  # that is an error before the long work
        if cause == 'stopped':
            raise KeyboardInterrupt
        return traced

    monkeypatch.setattr(exporting, 'trace', trace)
    if cause == 'closed':
        monkeypatch.setattr(Path, 'touch', Mock(side_effect=PermissionError))
    if cause == 'full':
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(error, match=word):
            xcit_dense.export_model(TINY_SEG_CONFIG, trained_segmentor[0], tmp_path / 'new/model.onnx', scores=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('config, run, options, share', (
    (TINY_SEG_CONFIG, 'trained_segmentor', {}, 2e-3), (TINY_SEG_CONFIG, 'trained_segmentor', dict(backbone=True), 2e-4),
    (TINY_CONFIG, 'trained', {}, 0.03), (TINY_SEG_CONFIG, 'trained_segmentor', {}, float('nan'))))
def test_a_file_that_is_a_little_wrong_is_refused(config, run, options, share, request, exported_segmentor, tmp_path,
                                                  monkeypatch):
    monkeypatch.setattr(exporting, 'trace', lambda graph: onnx.load(exported_segmentor))
    monkeypatch.setattr(exporting, 'compare_file', lambda *_: (share, 'a little'))
    with pytest.raises(ExportError, match='a little. Nothing was written'):
        xcit_dense.export_model(config, request.getfixturevalue(run)[0], tmp_path / 'model.onnx', **options)


def test_the_tool_says_size_time_and_agreement(trained_segmentor, exported_segmentor, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, 'trace', lambda graph: onnx.load(exported_segmentor))
    done = run_tool('export.py', TINY_SEG_CONFIG, trained_segmentor[0], tmp_path / 'model.onnx', '--scores',
                    '--image-size', 48)
    assert json.loads(metadata_in(tmp_path / 'model.onnx')['resize'])['scale'] == [48, 48]
    assert 'MiB' in done.stdout and ' s. ' in done.stdout and 'was trained to be tested' not in done.stdout
    assert 'tracing the segmentation model' in done.stdout and 'comparing the file' in done.stdout
    different, pixels = re.search(r'(\d+) of ([\d,]+) pixels have a different label', done.stdout).groups()
    assert int(different) < 1e-4 * int(pixels.replace(',', ''))  # where two classes have nearly the same score


def with_backbone(forward):
    forward.in_channels = 3
    return SimpleNamespace(model=SimpleNamespace(backbone=forward))


@pytest.mark.parametrize('twice, mean, share', ((2, 1, 0), (2.002, 1, 1e-3), (2, -1, 2), (np.nan, 1, np.nan)))
def test_levels_are_compared_relative_to_their_largest_value(twice, mean, share, tmp_path):
    predictor = with_backbone(lambda images: (twice * images, mean * F.avg_pool2d(images, 2)))
    got, words = compare_file(write_backbone(tmp_path / 'model.onnx'), predictor, 'backbone')
    assert got == pytest.approx(share, rel=0.01, abs=1e-6, nan_ok=True) and f'by at most {got:.1g} of' in words


def test_pixels_with_another_label_are_counted(tmp_path, monkeypatch):
    def predictions(model, batch):
        labels = torch.from_numpy(batch.argmax(-1))
        labels[-1, 3:7, 5:15] += 1
        return [SimpleNamespace(pred_sem_seg=PixelData(data=each[None])) for each in labels]

    monkeypatch.setattr(finishing, 'predictions', predictions)
    found = compare_file(write_segmentor(tmp_path / 'model.onnx'), SimpleNamespace(model=None), 'segmentation')
    assert found == (80 / 107_893, '80 of 107,893 pixels have a different label')


@pytest.mark.parametrize('change, cfg, wanted', (
    ({}, {}, (0, 6)), (dict(bboxes=0.4, scores=5e-4), {}, (0, 6)), (dict(bboxes=0.6), {}, (12, 12)),
    (dict(scores=2e-3), {}, (12, 12)), (dict(labels=1), {}, (12, 12)),
    (dict(keep=1), {}, (3, 6)),  # the other has a score of 0.1
    (dict(keep=1), dict(score_thr=0.1005), (0, 6)),
    (dict(keep=0), dict(score_thr=0.1), (3, 6)),
    (dict(keep=1), dict(max_per_img=1), (3, 6)),  # the limit is reached: 0.9 decides
    (dict(scores=-5e-3, more=0.102), dict(max_per_img=3), (12, 15))))
def test_an_object_just_at_the_threshold_makes_no_file_wrong(change, cfg, wanted, tmp_path, monkeypatch):
    """Nor one at the limit; every other that has no partner counts. There are three images."""
    dets, labels = np.array([[0.25, 0.5, 0.75, 1, 0.9], [0, 0, 0.5, 1, 0.1]], np.float32), np.array([2, 0])
    file = write_detector(tmp_path / 'model.onnx', dets, labels)

    def predictions(model, batch):
        height, width = batch.shape[1:3]
        keep = slice(change.get('keep', 2))
        found = dict(bboxes=torch.tensor(dets[:, :4] * [width, height, width, height])[keep],
                     scores=torch.tensor(dets[:, 4])[keep], labels=torch.tensor(labels)[keep])
        for name in found:
            found[name] = found[name] + change.get(name, 0)
        if 'more' in change:
            found = {name: torch.cat([value, value[-1:]]) for name, value in found.items()}
            found['scores'][-1] = change['more']
        return [SimpleNamespace(pred_instances=InstanceData(**found)) for _ in batch]

    monkeypatch.setattr(finishing, 'predictions', predictions)
    head = SimpleNamespace(test_cfg=ConfigDict(max_per_img=100) | cfg)
    for part in ('roi_head', 'bbox_head'):
        share, words = compare_file(file, SimpleNamespace(model=SimpleNamespace(**{part: head})), 'detection')
        assert words == '{} of {} objects found by only one of them'.format(*wanted)
        assert share == wanted[0] / wanted[1]


def test_where_neither_finds_an_object_little_is_proved(tmp_path, monkeypatch):
    file = write_detector(tmp_path / 'model.onnx', np.zeros((1, 5), np.float32), np.array([-1]), num=0)
    none = InstanceData(bboxes=torch.zeros(0, 4), scores=torch.zeros(0), labels=torch.zeros(0, dtype=torch.int64))
    monkeypatch.setattr(finishing, 'predictions', lambda model, batch: [
        SimpleNamespace(pred_instances=none) for _ in batch])
    predictor = SimpleNamespace(model=SimpleNamespace(bbox_head=SimpleNamespace(test_cfg=ConfigDict(max_per_img=9))))
    share, words = compare_file(file, predictor, 'detection')
    assert share == 0 and words.startswith('neither finds an object')


def test_an_error_of_the_checkpoint_is_not_one_of_the_file(tmp_path):
    predictor = with_backbone(Mock(side_effect=RuntimeError('no memory')))
    with pytest.raises(RuntimeError, match='^no memory'):
        compare_file(write_backbone(tmp_path / 'model.onnx'), predictor, 'backbone')


def test_a_file_that_onnxruntime_does_not_run_is_one_sentence(tmp_path):
    (tmp_path / 'damaged.onnx').write_bytes(b'damaged')
    for path in (tmp_path / 'damaged.onnx', write_backbone(tmp_path / 'levels.onnx')):
        with pytest.raises(ExportError, match='^onnxruntime cannot run the exported file: ') as caught:
            compare_file(path, SimpleNamespace(model=None), 'segmentation')
        assert '\n' not in str(caught.value)
