"""What a run's checkpoint or a config tells of a model and its images, where no framework is needed."""
import sys

import numpy as np
import pytest
import torch
from mmengine.config import Config

from helpers.models import prefixed, randomise
from helpers.paths import TINY_CLS_CONFIG
from xcit_dense import XCiT, XCiTClassifier
from xcit_dense.config.loading import read_config
from xcit_dense.errors import CheckpointError, ConfigError
from xcit_dense.predict.attention import Attention
from xcit_dense.predict.classifying import Classifier
from xcit_dense.predict.opening import open_model

INPUTS = dict(mean=[1., 2., 3.], std=[4., 5., 6.], bgr_to_rgb=True)
SMALL = dict(embed_dims=32, depth=2, num_heads=4, patch_size=16, tokens_norm=False)
PIPELINE = [dict(type='ResizeEdge', scale=80), dict(type='CenterCrop', crop_size=(64, 64))]


def save(path, model, cfg, prefix='backbone.', **meta):
    """Write what a run writes: weights, and its config as text."""
    text = cfg if isinstance(cfg, str) else Config(cfg).pretty_text
    torch.save(dict(meta=dict(cfg=text, mmengine_version='0.10.7', **meta),
                    state_dict=prefixed(randomise(model).state_dict(), prefix)), path)
    return path


def config_of(backbone, inputs=INPUTS, pipeline=PIPELINE, **more):
    return dict(model=dict(backbone=backbone, data_preprocessor=inputs),
                test_dataloader=dict(dataset=dict(type='CustomDataset', pipeline=pipeline)), **more)


def classifier(**options):
    return XCiTClassifier(SMALL, num_classes=3, norm_cfg=dict(type='BN'), **options)


@pytest.fixture
def picture():
    return np.random.default_rng(3).integers(0, 256, (61, 97, 3), dtype=np.uint8)


def test_a_classifier_is_that_of_its_run(picture, tmp_path):
    """Of no published size, and with the weights of two models: norm over every token or one."""
    cfg, logits = read_config(TINY_CLS_CONFIG), []
    for tokens_norm in (False, True):
        cfg.model.backbone.arch.tokens_norm = tokens_norm
        torch.manual_seed(0)
        model = XCiTClassifier(cfg.model.backbone.arch, num_classes=3, norm_cfg=dict(type='BN'))
        found = Classifier(save(tmp_path / 'a.pth', model, cfg.pretty_text))
        assert (found.size, found.crop_ratio) == (32, 1.) and found.model.arch.tokens_norm is tokens_norm
        logits.append(found.logits(picture))
    assert not torch.allclose(*logits)


def test_size_and_normalisation_are_those_of_the_run(picture, tmp_path):
    backbone = dict(type='XCiTClassifier', arch=SMALL, num_classes=3, drop_path_rate=0.1, with_cp=True)
    path = save(tmp_path / 'xcit_384_dist.pth', classifier(), config_of(backbone))
    found, same = Classifier(path), Classifier(path, 32, 0.5)
    assert (found.size, found.crop_ratio, same.size, same.crop_ratio) == (64, 0.8, 32, 0.5)
    opened = open_model(path)
    assert (opened.mean, opened.std) == ((1, 2, 3), (4, 5, 6))
    (tmp_path / 'other.py').write_text(Config(config_of(
        backbone, dict(INPUTS, mean=[7., 8., 9.]), [PIPELINE[0], dict(PIPELINE[1], crop_size=48)])).pretty_text)
    other = Classifier(path, config=tmp_path / 'other.py')  # goes before it
    assert other.size == 48 and not torch.allclose(other.logits(picture), found.logits(picture))


@pytest.mark.parametrize('options', (
    dict(out_indices=(2, 5, 8, 11)), dict(norm_cfg=dict(type='GN', num_groups=2)), dict(out_strides=(8, 16)),
    dict(norm_cfg=dict(type='SyncBN', eps=0.1))))
@pytest.mark.parametrize('scope', ('', 'mmdet.', 'xcit_dense.models.backbone.'))
def test_a_dense_model_is_that_of_its_run(options, scope, tmp_path):
    if 'out_strides' in options:
        options = dict(options, out_indices=(5, 11))
    model = XCiT('nano_12_p16', **dict(dict(norm_cfg=dict(type='BN')), **options))
    cfg = config_of(dict(type=f'{scope}XCiT', arch='nano_12_p16', **options))
    found = open_model(save(tmp_path / 'a.pth', model, cfg)).model
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        for level, wanted in zip(found(images), model.eval()(images), strict=True):
            assert torch.equal(level, wanted)


def test_levels_are_those_of_the_run(tmp_path):
    options = dict(arch='nano_12_p16', out_indices=(2, 5, 8, 11))
    path = save(tmp_path / 'a.pth', XCiT(**options), config_of(dict(options, type='XCiT')))
    assert Attention(path).blocks == (3, 6, 9, 12)


@pytest.mark.parametrize('cfg, words', (
    (config_of(dict(type='MyXCiT', arch=SMALL)), "MyXCiT.*--config"),
    (config_of(dict(type='mine.XCiTClassifier', arch=SMALL)), 'mine.XCiTClassifier.*--config'),
    (config_of(dict(type='XCiTClassifier', arch=SMALL, norm_cfg=dict(type='mine.Norm'))), 'mine.Norm.*--config'),
    (config_of(dict(type='XCiTClassifier', arch=SMALL, norm_cfg=dict(type='Conv2d'))), 'Conv2d.*--config'),
    (config_of(dict(type='XCiTClassifier', arch=SMALL, norm_cfg=3)), 'norm_cfg.*--config'),
    (config_of(dict(type='XCiTClassifier', arch=dict(SMALL, depth='x'))), 'arch.depth.*--config'),
    (config_of(dict(type='XCiTClassifier', arch=dict(SMALL, width=1))), 'width.*--config'),
    (config_of(dict(type='XCiT', arch=SMALL)), 'does not fit the XCiT of the config in it.*--config')))
def test_models_that_need_the_config(cfg, words, tmp_path, monkeypatch):
    (tmp_path / 'mine.py').write_text('raise SystemExit("what a file names was imported")')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CheckpointError, match=f'(?s)a.pth.*{words}'):
        open_model(save(tmp_path / 'a.pth', classifier(), cfg))


@pytest.mark.parametrize('inputs, words', (
    (dict(mean=[1, 2, 3]), 'BGR'), (dict(INPUTS, mean='abc'), 'abc'), (dict(INPUTS, std=[1, 2]), 'three')))
def test_images_that_cannot_be_read_for_it(inputs, words, tmp_path):
    with pytest.raises(ConfigError, match=f'a.pth.*{words}'):
        open_model(save(tmp_path / 'a.pth', classifier(), config_of(dict(type='XCiTClassifier', arch=SMALL), inputs)))


@pytest.mark.parametrize('text, says', (
    ('no config', True), ('model = 3\ndata_preprocessor = [4]\ntest_dataloader = "x"', True), ('x = 1', True),
    ('model = dict(backbone=[])\ntest_dataloader = dict(dataset=dict(dataset=None))', True),
    ('test_dataloader = dict(dataset=dict(type="X", pipeline=[dict(type="ResizeEdge", scale="x")]))', True),
    ('data_preprocessor = dict(to_rgb=True)', False)))
def test_what_tells_nothing_is_taken_for_a_published_model(text, says, tmp_path, capsys):
    model = XCiTClassifier('nano_12_p16', num_classes=3, norm_cfg=dict(type='BN'))
    found = Classifier(save(tmp_path / 'a.pth', model, text))
    assert (found.size, found.crop_ratio) == (224, 1.)
    assert ('WARNING' in (output := capsys.readouterr().out) and '--config' in output) is says


def test_mmpretrains_own_model_is_told_by_its_tensors(tmp_path):
    """It has the name of the dense model, and other arguments."""
    from xcit_dense.weights.convert import convert
    model = XCiTClassifier('nano_12_p16', num_classes=3, norm_cfg=dict(type='BN'))
    torch.save(model.state_dict(), tmp_path / 'plain.pth')
    convert(tmp_path / 'plain.pth', tmp_path / 'mmpretrain.pth', 'mmpretrain')
    state = torch.load(tmp_path / 'mmpretrain.pth', weights_only=True)['state_dict']
    text = Config(config_of(dict(type='XCiT', patch_size=16, embed_dims=128))).pretty_text
    torch.save(dict(meta=dict(cfg=text), state_dict=state), tmp_path / 'run.pth')
    found = Classifier(tmp_path / 'run.pth')
    assert found.size == 64 and torch.equal(found.model.cls_token.cpu(), model.cls_token)


def test_a_config_needs_no_framework(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmpretrain', None)
    monkeypatch.setitem(sys.modules, 'xcit_dense.for_mmpretrain', None)
    path = tmp_path / 'a.pth'
    torch.save(XCiTClassifier(read_config(TINY_CLS_CONFIG).model.backbone.arch, num_classes=3).state_dict(), path)
    assert Classifier(path, config=TINY_CLS_CONFIG).size == 32
    assert Attention(path, config=TINY_CLS_CONFIG).model.arch.patch_size == 8


def test_a_model_of_ones_own_is_imported_by_the_config(tmp_path, monkeypatch):
    (tmp_path / 'module_of_a_model.py').write_text(
        'from mmengine.registry import MODELS\nfrom xcit_dense import XCiTClassifier\n'
        '@MODELS.register_module(force=True)\nclass ToldXCiT(XCiTClassifier):\n    pass\n')
    monkeypatch.syspath_prepend(tmp_path)
    cfg = config_of(dict(type='ToldXCiT', arch=SMALL), custom_imports=dict(imports=['module_of_a_model']))
    (tmp_path / 'config.py').write_text(Config(cfg).pretty_text)
    found = open_model(save(tmp_path / 'a.pth', classifier(), cfg), tmp_path / 'config.py').model
    assert type(found).__name__ == 'ToldXCiT'


@pytest.mark.parametrize('text, words', (
    ('model = dict(\n', 'line 1'), ('model = dict(backbone=dict(type="ResNet"))', 'ResNet'), ('x = 1', 'None'),
    (Config(config_of(dict(type='XCiTClassifier', width=3))).pretty_text, 'width')))
def test_a_config_that_does_not_do_is_named(text, words, tmp_path):
    (tmp_path / 'config.py').write_text(text)
    with pytest.raises(ConfigError, match=f'config.py.*{words}'):
        open_model(save(tmp_path / 'a.pth', classifier(), 'x = 1'), tmp_path / 'config.py')
