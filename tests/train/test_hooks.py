"""The hooks that fuse and compile."""
import copy

import pytest
import torch
from mmengine.hooks import EMAHook, Hook

from helpers.models import assert_equal
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import At, make_config, terminate, train
from xcit_dense.config.loading import load_config
from xcit_dense.config.options import add_hook
from xcit_dense.data.classes import take_classes
from xcit_dense.errors import Stopped
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


def test_an_average_beside_the_model_does_not_keep_it_from_being_fused(demo_data, tmp_path):
    """Nor does it need the average, in weights that have none and no name for the model's own."""
    cfg = load_config(TINY_CONFIG, data_root=str(demo_data), pretrained=False)
    cfg.work_dir, cfg.custom_hooks = str(tmp_path), [dict(type='FuseHook'), dict(type='AverageHook')]
    runner = build_runner(cfg)
    torch.save(dict(model=runner.model.state_dict()), tmp_path / 'weights.pth')
    runner.call_hook('before_run')
    runner.load_checkpoint(str(tmp_path / 'weights.pth'))
    runner.call_hook('before_test')
    runner.call_hook('before_test_epoch')
    assert runner.model.backbone.is_fused


def test_the_average_changes_nothing_but_itself(demo_data, tmp_path):
    """Decay 0.9; validation and checkpoints use the weights without the average."""
    seen, validated = [], []

    class Look(Hook):

        def after_train_iter(self, runner, *_, **__):
            seen.append(copy.deepcopy(runner.model.state_dict()))

        def before_val_iter(self, runner, *_, **__):
            validated.append(copy.deepcopy(runner.model.state_dict()))

    end = train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path / 'a', custom_hooks=[
        dict(type='AverageHook', momentum=0.1, update_buffers=True)]), Look())
    plain = train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path / 'b', custom_hooks=[]))
    assert_equal(end['state_dict'], plain['state_dict'])
    assert_equal(validated[0], seen[1])
    average = seen[0]
    for state in seen[1:]:
        average = {key: value.lerp(state[key], 0.1) if value.is_floating_point() else value
                   for key, value in average.items()}
    found = {key.removeprefix('module.'): value for key, value in end['ema_state_dict'].items() if key != 'steps'}
    assert_equal(found, average)


def test_an_average_that_begins_at_a_resume_is_told(demo_data, tmp_path, capfd):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(Stopped):
        train(cfg, At(2, terminate))
    cfg.custom_hooks = [dict(type='AverageHook')]
    assert train(cfg, resume=True)['ema_state_dict']['steps'] == 2
    assert 'no average' in ''.join(capfd.readouterr())


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
