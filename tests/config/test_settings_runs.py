"""Runs with settings: they resume exactly with the same ones, and tests use the settings."""
import shutil

import pytest

from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import At, assert_same_run, make_config, terminate, train
from helpers.tools import forget_run, run_tool
from xcit_dense.config.settings import Settings, apply_settings
from xcit_dense.errors import ConfigError, Stopped


def test_a_run_goes_on_with_the_settings_and_not_without(demo_data, tmp_path, capsys):
    """Another learning rate is an error, other data a warning that names the options."""
    settings = dict(image_size=64, batch_size=3, lr=1e-3, iterations=3, augment='strong')

    def run(name, *hooks, resume=False, **changes):
        forget_run()
        cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path / name)
        apply_settings(cfg, Settings(**{**settings, **changes}))
        return train(cfg, *hooks, resume=resume)

    wanted = run('whole')
    with pytest.raises(Stopped):
        run('run', At(1, terminate))
    with pytest.raises(ConfigError, match=r'(?s)optimizer.lr: 0.001 -> 0.002.*--lr'):
        run('run', resume=True, lr=None, batch_size=None)
    shutil.copytree(tmp_path / 'run', tmp_path / 'other')
    capsys.readouterr()
    run('other', resume=True, image_size=None, augment=None)
    told = ''.join(capsys.readouterr()).partition('settings that differ')[2]
    assert all(word in told for word in ('data_preprocessor.size', '--image-size', 'pipeline', '--augment'))
    assert_same_run(run('run', resume=True), wanted)


def test_test_needs_nothing_with_the_dumped_config_and_warns_with_another(demo_data, tmp_path):
    """From the tool: trained at another size, tested with the run's own config and with the one that is shipped."""
    run_tool('train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path / 'run', '--image-size', 64,
             '--iterations', 1, '--workers', 0)
    args = (tmp_path / 'run', '--data-root', demo_data, '--work-dir', tmp_path / 'test')
    own = run_tool('test.py', tmp_path / 'run' / TINY_SEG_CONFIG.name, *args)
    other = run_tool('test.py', TINY_SEG_CONFIG, *args)
    fixed = run_tool('test.py', TINY_SEG_CONFIG, *args, '--image-size', 64)
    assert 'Use --image-size 64' in other.stdout
    assert 'Use --image-size' not in own.stdout + fixed.stdout
