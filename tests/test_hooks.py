"""Fused models give what the models give, in the tools too."""
import copy

import pytest
import torch
from conftest import TINY_CONFIG
from mmengine.hooks import EMAHook
from test_backbone import error
from torch import nn
from weight_files import build, randomise

from xcit_dense import XCiT
from xcit_dense.config.loading import load_config
from xcit_dense.config.options import add_hook
from xcit_dense.data.classes import take_classes
from xcit_dense.models.fast import ops
from xcit_dense.predict.predictor import build_predictor
from xcit_dense.train import CompileHook, build_runner, fuse_backbones

EXACT = 1e-5


@pytest.mark.parametrize('patch_size', (8, 16))
@pytest.mark.parametrize('norm_cfg', (dict(type='BN'), dict(type='SyncBN'), dict(type='GN', num_groups=2),
                                      dict(type='BN', track_running_stats=False)))
@pytest.mark.parametrize('floats', (500, 10**6))
def test_fused_equals_unfused_to_the_border(monkeypatch, patch_size, norm_cfg, floats):
    monkeypatch.setattr(ops, 'CHUNK_FLOATS', floats)
    model = randomise(build(patch_size, norm_cfg=norm_cfg)).eval()
    fused = copy.deepcopy(model).fuse()
    x = torch.randn(2, 3, 133, 203)
    with torch.no_grad():
        for got, wanted in zip(fused(x), model(x), strict=True):
            assert error(got, wanted) < EXACT
            edge, inner = torch.ones_like(got), (..., slice(1, -1), slice(1, -1))
            edge[inner] = 0
            assert error(got * edge, wanted * edge) < EXACT
    wanted = sum(x.square().mean() for x in model(x))
    assert error(sum(x.square().mean() for x in fused(x)), wanted) < EXACT  # with gradients enabled, as for CAMs


def test_fusing_takes_norms_and_layer_scale_away():
    """But for the norms around LPI's first convolution, which cannot take them."""
    model = randomise(build(16)).eval()
    fused = copy.deepcopy(model).fuse()
    left = [name for name, module in fused.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) or getattr(module, 'weight', None) is not None
            and isinstance(module, nn.LayerNorm)]
    assert sorted(left) == sorted(f'blocks.{i}.{name}' for i in range(4) for name in ('norm3', 'local_mp.bn'))
    assert not any('gamma' in name for name in fused.state_dict())
    again = copy.deepcopy(fused.state_dict())
    fused.fuse()
    assert all(torch.equal(value, again[name]) for name, value in fused.state_dict().items())


def test_qkv_without_bias_gets_one():
    arch = dict(embed_dims=32, depth=2, num_heads=4, qkv_bias=False)
    model = randomise(XCiT(arch, out_strides=None, norm_cfg=dict(type='BN'))).eval()
    x = torch.randn(1, 3, 70, 90)
    with torch.no_grad():
        wanted = model(x)
        for got, level in zip(model.fuse()(x), wanted, strict=True):
            assert error(got, level) < EXACT


def test_a_fused_model_does_not_train():
    model = build(16).fuse()
    assert not model.training
    model.eval()
    with pytest.raises(ValueError, match='fused'):
        model.train()


def test_export_of_a_fused_model_with_dynamic_sizes():
    model = randomise(build(8)).eval()
    fused = copy.deepcopy(model).fuse()
    sizes = {2: torch.export.Dim('height', min=64, max=2048), 3: torch.export.Dim('width', min=64, max=2048)}
    program = torch.export.export(fused, (torch.randn(1, 3, 128, 160), ), dynamic_shapes={'x': sizes})
    x = torch.randn(1, 3, 100, 171)
    with torch.no_grad():
        for got, wanted in zip(program.module()(x), model(x), strict=True):
            assert error(got, wanted) < EXACT


def test_backbones_inside_detectors_are_found():
    model = nn.ModuleDict(dict(backbone=build(16), head=nn.Linear(2, 2)))
    assert fuse_backbones(model).backbone.is_fused


@pytest.mark.parametrize('ema', (False, True))
def test_the_test_tool_fuses(trained, demo_data, monkeypatch, ema):
    """Through the hook, as tools/test.py sets it; with an average of parameters to swap it must not."""
    cfg = load_config(TINY_CONFIG, data_root=str(demo_data), pretrained=False)
    cfg.work_dir = str(trained[0] / 'fused')
    cfg.custom_hooks = [dict(type='FuseHook'), *([dict(type='EMAHook')] if ema else [])]
    runner = build_runner(cfg)
    assert any(isinstance(hook, EMAHook) for hook in runner.hooks) == ema
    runner.call_hook('before_test')
    assert runner.model.backbone.is_fused != ema


def test_compile_hook(tmp_path, demo_data):
    cfg = load_config(TINY_CONFIG, data_root=str(demo_data), pretrained=False)
    add_hook(cfg, 'CompileHook')
    take_classes(cfg)
    cfg.work_dir = str(tmp_path)
    runner = build_runner(cfg)
    backbone, names = runner.model.backbone, list(runner.model.state_dict())
    assert backbone._compiled_call_impl is None
    next(hook for hook in runner.hooks if isinstance(hook, CompileHook)).before_train(runner)
    assert backbone._compiled_call_impl is not None and list(runner.model.state_dict()) == names


def test_compiling_without_a_compiler_names_it(call_tool, monkeypatch, demo_data):
    monkeypatch.setenv('CXX', 'no-such-compiler')
    code, message = call_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--compile')
    assert code == 1 and 'no-such-compiler' in message and '--compile' in message


def test_prediction_fuses(trained):
    cfg = load_config(TINY_CONFIG, pretrained=False)
    assert build_predictor(cfg, trained[0]).model.backbone.is_fused
