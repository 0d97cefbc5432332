"""What the tools' options do to a config."""
import ast
import sys

import pytest
import torch

from helpers.paths import MAIN_CONFIG, TINY_CONFIG
from xcit_dense.config import loading, options
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError


def test_options_and_config_are_told_of_at_once(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(f"_base_ = '{TINY_CONFIG}'\nmodel = dict(backbone=dict(with_pc=True))\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, check=True, cfg_options={'modle.x': 1, 'val_dataloader.batch_size': 0})
    title, *lines = str(caught.value).splitlines()
    assert title.startswith('3 things') and [line.split()[0] for line in lines] == [
        'modle.x', 'val_dataloader.batch_size', 'model.backbone.with_pc']
    with pytest.raises(ConfigError, match='2 things'):  # the tools that do not train
        load_config(path, cfg_options={'modle.x': 1, 'val_dataloader.batch_size': 0})


@pytest.mark.parametrize('item, words', (
    ('foo', "--cfg-options takes KEY=VALUE, such as train_cfg.val_interval=2, got 'foo'"),
    ('=3', "got '=3'"),
    ('train_cfg.x=[1,2', 'the brackets do not match; a list is written "train_cfg.x=[1,2]"'),
    ('custom_hooks=[dict(type="EMAHook")]', f"""  _base_ = '{TINY_CONFIG}'\n  custom_hooks = [dict(type="EMAHook")]"""),
    ("model.backbone.init_cfg={'type': 'x'}", "  model = dict(backbone=dict(init_cfg={'type': 'x'}))"),
))
def test_options_that_cannot_be_read(item, words, call_tool):
    code, message = call_tool('train.py', TINY_CONFIG, '--cfg-options', 'train_cfg.val_begin=2', item)
    assert code == 1 and message.startswith('error: --cfg-options') and message.endswith(words)


def test_options_with_braces_that_are_no_dicts(call_tool, monkeypatch):
    monkeypatch.setattr(loading, 'load_config', lambda config, cfg_options, **_: sys.exit(str(cfg_options)))
    _, message = call_tool('train.py', 'x', '--cfg-options', 'a.b={}.pth', 'c=iter_{}.pth', '--cfg-options',
                           'd=[1,(2,3)]', 'e=k=v')
    assert ast.literal_eval(message) == {'a.b': '{}.pth', 'c': 'iter_{}.pth', 'd': [1, (2, 3)], 'e': 'k=v'}


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_amp_without_a_gpu_is_refused():
    with pytest.raises(ConfigError, match='--amp needs a GPU'):
        options.set_amp(load_config(MAIN_CONFIG))


def test_auto_scale_lr_needs_a_base():
    cfg = load_config(MAIN_CONFIG)
    options.set_auto_scale_lr(cfg)
    assert cfg.auto_scale_lr.enable
    cfg._cfg_dict.pop('auto_scale_lr')
    with pytest.raises(ConfigError, match='base_batch_size'):
        options.set_auto_scale_lr(cfg)
