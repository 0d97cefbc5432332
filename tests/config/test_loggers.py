"""Which loggers can be used, checked before anything else."""
import sys

import pytest
from mmengine.config import Config

from xcit_dense.config.loggers import LOGGERS, check_loggers, set_loggers
from xcit_dense.errors import SetupError


def test_a_missing_package_is_one_sentence(monkeypatch):
    for name in ('wandb', 'sqlalchemy'):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
    with pytest.raises(SetupError) as error:
        check_loggers(['wandb'])
    assert str(error.value) == '--log wandb needs a package that is not installed: pip install wandb'
    with pytest.raises(SetupError, match='--log wandb mlflow needs packages that .*: pip install wandb mlflow$'):
        check_loggers(['wandb', 'mlflow', 'wandb'])


def test_a_folder_of_that_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / 'mlruns').mkdir()
    monkeypatch.setitem(LOGGERS, 'mlruns', ('mlruns', ))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SetupError, match='pip install mlruns'):
        check_loggers(['mlruns'])


def test_a_server_of_mlflow_needs_no_database(monkeypatch):
    monkeypatch.setitem(sys.modules, 'sqlalchemy', None)
    monkeypatch.setitem(LOGGERS, 'mlflow', ('json', ))
    monkeypatch.setenv('MLFLOW_TRACKING_URI', 'http://127.0.0.1:9')
    check_loggers(['mlflow'])
    monkeypatch.delenv('MLFLOW_TRACKING_URI')
    with pytest.raises(SetupError):
        check_loggers(['mlflow'])


def test_the_hook_is_there_once():
    cfg = Config(dict(custom_hooks=[dict(type='Other'), dict(type='LoggersHook', loggers=['mlflow'])]))
    set_loggers(cfg, ['wandb', 'tensorboard', 'wandb'])
    assert cfg.custom_hooks == [dict(type='Other'), dict(type='LoggersHook', loggers=['wandb', 'tensorboard'])]
