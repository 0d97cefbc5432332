"""Options of the command line that name nothing, and runs that continue despite findings."""
import logging

import pytest
from mmengine.config import Config

from helpers.paths import TINY_CONFIG
from xcit_dense.config.check import find_new_keys
from xcit_dense.config.check import keys as keys_module
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError


def test_options_that_cannot_have_an_effect():
    cfg = Config.fromfile(TINY_CONFIG)
    assert not find_new_keys(cfg, {
        'model.backbone.with_cp': True, 'randomness.seed': 1, 'optim_wrapper.optimizer.betas': (0, 1),
        'optim_wrapper.paramwise_cfg.custom_keys.norm1.lr_mult': 2, 'classes_from_data': False,
        'param_scheduler.0.end': 3, 'load_from._delete_': True, 'load_from.x': 1})
    assert not find_new_keys(cfg, None)
    # numbered names are two
    assert not find_new_keys(Config(dict(env_cfg=dict(mp_cfg=dict(stage_1=1)))), {'env_cfg.mp_cfg.stage_2': 2})
    for option, value, *words in (
            ('max_epochs', 5, 'max_epochs = 5: ', 'variable'), ('modle.backbone', 1, 'did you mean model?'),
            ('env_cfg.mp_cfg.opencv_num_thread', 1, 'did you mean opencv_num_threads?'),
            # mmengine ends with a traceback when it merges these
            ('param_scheduler.2.end', 3, 'param_scheduler.2.end = 3: param_scheduler is [{'),
            ('model.neck.in_channels.0', 8, 'model.neck.in_channels.0 = 8: model.neck.in_channels is [32, '),
            ('train_dataloader.batch_size.x', 3, 'train_dataloader.batch_size.x = 3: ',
             'train_dataloader.batch_size is 2')):
        line, = find_new_keys(cfg, {option: value}).values()
        assert all(word in line for word in words), line


def test_an_option_that_a_hook_of_ones_own_may_read_is_applied(hints, own):
    """And a key that the file has for it, unless the file uses it for something else."""
    path = own('my_threshold = 1\nmy_epochs = 3\ntrain_cfg = dict(max_epochs=my_epochs)')
    cfg = load_config(path, cfg_options={'my_key': 3, 'my_part.key': 4, 'my_threshold': 2}, check=True)
    assert (cfg.my_key, cfg.my_part.key, cfg.my_threshold) == (3, 4, 2)
    assert [line.partition(' = ')[0] for line in hints] == ['my_key', 'my_part.key', 'my_threshold']
    with pytest.raises(ConfigError, match='1 mistake .*\n.*my_epochs = 5.*variable'):
        load_config(path, cfg_options={'my_epochs': 5})


def test_findings_can_be_warnings(monkeypatch):
    said = []
    monkeypatch.setattr(keys_module, 'print_log', lambda text, **how: said.append((text, how)))
    options = {'modle.backbone': 1, 'param_scheduler.9.end': 3, 'model.neck.num_out': 4,
               'train_dataloader.batch_size': 0}
    with pytest.raises(ConfigError, match='4 mistakes'):
        load_config(TINY_CONFIG, cfg_options=options, check=True)
    cfg = load_config(TINY_CONFIG, cfg_options=options, check=True, findings='warn')
    (text, how), = said
    assert how['level'] == logging.WARNING and text.startswith('4 mistakes') and 'did you mean num_outs?' in text
    assert 'modle' not in cfg and cfg.model.neck.num_out == 4
