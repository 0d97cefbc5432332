"""The hooks that fuse and compile."""
import pytest
from mmengine.hooks import EMAHook

from helpers.paths import TINY_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.config.options import add_hook
from xcit_dense.data.classes import take_classes
from xcit_dense.predict.predictor import build_predictor
from xcit_dense.train import CompileHook, build_runner


@pytest.mark.parametrize('ema', (False, True))
def test_the_test_tool_fuses(demo_data, tmp_path, ema):
    """Through the hook, as tools/test.py sets it; with an average of parameters to swap it must not."""
    cfg = load_config(TINY_CONFIG, data_root=str(demo_data), pretrained=False)
    cfg.work_dir = str(tmp_path)
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
