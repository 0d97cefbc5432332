"""Validation losses and loggers that come or go at a resume: told by their options, and the training is the same."""
import pytest
from mmengine.config import Config

from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import At, assert_same_run, make_config, terminate, train, whole_run
from helpers.tools import as_in_a_process_of_its_own
from xcit_dense.config.loggers import LOGGERS, set_loggers
from xcit_dense.config.options import add_hook
from xcit_dense.config.val_loss import set_val_loss
from xcit_dense.errors import Stopped
from xcit_dense.report.loggers_hook import close_loggers
from xcit_dense.train.resuming import changed_settings

KINDS = {'--compile': ('CompileHook', {}), '--val-loss': ('ValLossHook', {}),
         '--log': ('LoggersHook', dict(loggers=['tensorboard']))}


def config_with(options):
    cfg = Config(dict(custom_hooks=[dict(type='Own', x=1)], seed=3))
    for option in options:
        kind, arguments = KINDS[option]
        add_hook(cfg, kind, **arguments)
    return cfg


@pytest.mark.parametrize('option', KINDS)
def test_an_option_that_was_left_out_is_named(option):
    others = [other for other in KINDS if other != option]
    told = changed_settings(config_with(others), config_with(KINDS).pretty_text, None)
    *lines, again = told.splitlines()
    kind, arguments = KINDS[option]
    assert f"  custom_hooks.{kind}.type: '{kind}' -> not set" in lines and len(lines) == 1 + len(arguments)
    assert again == f' if the previous run had {option}, give it again'


@pytest.mark.parametrize('option', KINDS)
def test_an_option_that_was_added_is_not_asked_for_again(option):
    told = changed_settings(config_with([option]), config_with([]).pretty_text, None)
    kind, arguments = KINDS[option]
    assert f"  custom_hooks.{kind}.type: not set -> '{kind}'" in told.splitlines()
    assert len(told.splitlines()) == 1 + len(arguments)


@pytest.mark.parametrize(('first', 'then'), (
    pytest.param('both', 'both', marks=pytest.mark.slow), ('both', ''),
    pytest.param('', 'both', marks=pytest.mark.slow)))
def test_they_come_and_go_and_the_training_is_the_same(first, then, demo_data, tmp_path, tmp_path_factory, mlflow_store,
                                                       offline_wandb, monkeypatch, capfd):
    pytest.importorskip('tensorboard')
    monkeypatch.setenv('MLFLOW_TRACKING_URI', mlflow_store[0])

    def run(on, *hooks, resume=False):
        cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
        if on:
            set_val_loss(cfg)
            set_loggers(cfg, LOGGERS)
        with as_in_a_process_of_its_own():
            return train(cfg, *hooks, resume=resume)

    stopped = []
    with pytest.raises(Stopped):
        run(first, At(3, lambda runner: (terminate(runner), stopped.append(runner))))
    close_loggers(*stopped)
    got = run(then, resume=True)
    said = ''.join(capfd.readouterr())
    assert_same_run(got, whole_run('iterations', demo_data, tmp_path_factory))
    assert 'failed' not in said and ('custom_hooks.ValLossHook' in said) == (first != then)
    assert (' if the previous run had --log, --val-loss, give it again' in said) == (first == 'both' and not then)
