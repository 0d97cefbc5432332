"""The hooks that fuse, compile and average."""
import copy
import re
import sys

import pytest
import torch
from mmengine.hooks import EMAHook, Hook

from helpers.models import assert_equal
from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import make_config, stop_after, train, whole_run
from xcit_dense.config.loading import load_config
from xcit_dense.config.options import add_hook, check_compiler
from xcit_dense.predict.predictor import build_predictor
from xcit_dense.train import CompileHook, build_runner


@pytest.mark.parametrize('config, average', (
    (TINY_SEG_CONFIG, 'EMAHook'), (TINY_SEG_CONFIG, 'AverageHook'), (TINY_CLS_CONFIG, None)))
def test_a_test_fuses(config, average, demo_data, class_folders, tmp_path):
    """With an average of parameters to swap it must not; one beside the model may be missing in the weights."""
    if average is None:
        pytest.importorskip('mmpretrain')
    runner = build_runner(make_config(config, demo_data if average else class_folders, tmp_path, custom_hooks=[
        dict(type='FuseHook'), *([dict(type=average)] if average else [])]))
    assert any(isinstance(hook, EMAHook) for hook in runner.hooks) == bool(average)
    torch.save(dict(model=runner.model.state_dict()), tmp_path / 'weights.pth')
    runner.call_hook('before_run')
    if average != 'EMAHook':
        runner.load_checkpoint(str(tmp_path / 'weights.pth'))
    runner.call_hook('before_test')
    runner.call_hook('before_test_epoch')
    assert runner.model.backbone.is_fused == (average != 'EMAHook')


def test_the_average_changes_nothing_but_itself(demo_data, tmp_path, tmp_path_factory):
    """Decay 0.9; validation and checkpoints use the weights without the average."""
    seen, validated = [], []

    class Look(Hook):
        def after_train_iter(self, runner, *_, **__):
            seen.append(copy.deepcopy(runner.model.state_dict()))

        def before_val_iter(self, runner, *_, **__):
            validated.append(copy.deepcopy(runner.model.state_dict()))

    end = train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path, custom_hooks=[
        dict(type='AverageHook', momentum=0.1, update_buffers=True)]), Look())
    assert_equal(end['state_dict'], whole_run('iterations', demo_data, tmp_path_factory)['state_dict'])
    assert_equal(validated[0], seen[1])
    average = seen[0]
    for state in seen[1:]:
        average = {key: value.lerp(state[key], 0.1) if value.is_floating_point() else value
                   for key, value in average.items()}
    found = {key.removeprefix('module.'): value for key, value in end['ema_state_dict'].items() if key != 'steps'}
    assert_equal(found, average)


def test_an_average_may_begin_at_a_resume(demo_data, tmp_path, capfd):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    stop_after(2, cfg)
    cfg.custom_hooks = [dict(type='AverageHook')]
    assert train(cfg, resume=True)['ema_state_dict']['steps'] == 2
    assert re.search("differ from before.*\n.*custom_hooks.*AverageHook", ''.join(capfd.readouterr()))
    cfg.load_from, cfg.work_dir = str(tmp_path / 'iter_4.pth'), str(tmp_path / 'next')
    assert train(cfg)['ema_state_dict']['steps'] == 4  # a new run has an average of its own


def test_compile_hook(tmp_path, demo_data):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    add_hook(cfg, 'CompileHook')
    runner = build_runner(cfg)
    blocks, names = runner.model.backbone.blocks, list(runner.model.state_dict())
    assert not any(block._compiled_call_impl for block in blocks)
    next(hook for hook in runner.hooks if isinstance(hook, CompileHook)).before_train(runner)
    assert all(block._compiled_call_impl for block in blocks) and list(runner.model.state_dict()) == names


def test_compiling_without_a_compiler_names_it(call_tool, monkeypatch, demo_data):
    monkeypatch.setenv('CXX', 'no-such-compiler')
    code, message = call_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--compile')
    assert code == 1 and 'no-such-compiler' in message and '--compile' in message
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)  # it needs none
    check_compiler()
    monkeypatch.undo()
    monkeypatch.setenv('CXX', sys.executable)
    check_compiler()


def test_prediction_fuses(trained):
    cfg = load_config(TINY_CONFIG, pretrained=False)
    assert build_predictor(cfg, trained[0]).model.backbone.is_fused
