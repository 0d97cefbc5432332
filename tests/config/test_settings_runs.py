"""Runs with settings: the same as with a config changed by hand; they resume exactly, and tests use the settings."""
import pytest

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import At, assert_same_run, make_config, terminate, train
from helpers.tools import forget_run, run_tool
from xcit_dense.config.settings import Settings, apply_settings
from xcit_dense.errors import ConfigError, Stopped

#: Settings of the tiny segmentor, and what they stand for.
SETTINGS = dict(image_size=96, iterations=3, batch_size=3, workers=0)
BY_HAND = {
    'train_dataloader.dataset.pipeline.2.scale': (96, 96), 'train_dataloader.dataset.pipeline.3.crop_size': (64, 64),
    'model.data_preprocessor.size': (64, 64), 'val_dataloader.dataset.pipeline.1.scale': (96, 96),
    'train_dataloader.batch_size': 3, 'optim_wrapper.optimizer.lr': 2e-3 * 1.5, 'train_cfg.max_iters': 3,
    'train_cfg.val_interval': 1, 'default_hooks.checkpoint.interval': 1, 'param_scheduler': [
        dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=2),
        dict(type='CosineAnnealingLR', by_epoch=False, begin=0, end=525, eta_min=1e-6 * 1.5)]}


@pytest.fixture
def segmentor(demo_data, tmp_path):
    """A function that returns the config of a run with settings or with values by key, in a folder of its name."""

    def make(name, changes=None, **settings):
        cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path / name, **(changes or {}))
        apply_settings(cfg, Settings(**settings))
        return cfg

    return make


def test_a_run_is_that_of_a_config_changed_by_hand(segmentor):
    wanted = train(segmentor('hand', BY_HAND))
    forget_run()
    got = train(segmentor('settings', **SETTINGS))
    assert got['meta']['iter'] == 3 and got['optimizer']['param_groups'][0]['lr'] > 2e-3  # the warm-up is over
    assert_same_run(got, wanted)


def test_a_run_goes_on_with_the_settings_and_not_without(segmentor):
    settings = dict(image_size=64, batch_size=3, lr=1e-3, iterations=3)
    wanted = train(segmentor('whole', **settings))
    forget_run()
    with pytest.raises(Stopped):
        train(segmentor('run', **settings), At(1, terminate))
    forget_run()
    with pytest.raises(ConfigError, match=r'(?s)optimizer.lr: 0.001 -> 0.002.*--lr'):
        train(segmentor('run', **{**settings, 'lr': None, 'batch_size': None}), resume=True)
    forget_run()
    assert_same_run(train(segmentor('run', **settings), resume=True), wanted)


@pytest.mark.parametrize('left_out, key', ((dict(image_size=None), 'data_preprocessor.size'),
                                           (dict(augment=None), 'pipeline')))
def test_a_setting_that_is_left_out_is_told(left_out, key, segmentor, capsys):
    settings = dict(image_size=64, augment='strong')
    with pytest.raises(Stopped):
        train(segmentor('run', **settings), At(1, terminate))
    forget_run()
    train(segmentor('run', **{**settings, **left_out}), resume=True)
    said = capsys.readouterr()
    told = (said.out + said.err).partition('settings that differ')[2]
    assert key in told and f'--{next(iter(left_out)).replace("_", "-")}' in told


def test_test_needs_nothing_with_the_dumped_config_and_warns_with_another(demo_data, tmp_path):
    """From the tool: trained at another size, tested with the run's own config and with the one that is shipped."""
    run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path / 'run', '--image-size', 64,
             '--epochs', 1, '--workers', 0)
    args = ('--data-root', demo_data, '--work-dir', tmp_path / 'test')
    own = run_tool('test.py', tmp_path / 'run' / TINY_CONFIG.name, tmp_path / 'run', *args)
    other = run_tool('test.py', TINY_CONFIG, tmp_path / 'run', *args)
    fixed = run_tool('test.py', TINY_CONFIG, tmp_path / 'run', *args, '--image-size', 64)
    assert 'Use --image-size 64' in other.stdout
    assert 'Use --image-size' not in own.stdout + fixed.stdout
