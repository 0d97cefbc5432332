"""`train --minutes`: what is measured, what is chosen, and that the training does not notice."""
import time

import pytest
from mmengine.hooks import Hook
from mmengine.runner import Runner

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import assert_same_run, choose_minutes, make_config, terminate
from helpers.tools import run_tool
from xcit_dense.config.check import warm_up_of
from xcit_dense.config.length import set_length
from xcit_dense.errors import ConfigError, Stopped
from xcit_dense.report.curves import read_curves
from xcit_dense.train import minutes
from xcit_dense.train.work_dirs import lock_work_dir
from xcit_dense.weights import read_checkpoint


@pytest.mark.parametrize('seconds, unit, each, most, interval, wanted', (
    (100, 10, 0, 10, 1, (10, 1)), (100, 10, 1, 10, 1, (9, 1)), (100, 10, 1, 10, 5, (9, 5)),
    (109, 1, 1, 10, 1, (99, 10)), (100, 1, 20, 10, 1, (80, 80)), (200, 1, 10, 10, 1, (180, 90)),
    (20, 30, 1, 10, 1, (0, 1)), (-5, 1, 1, 10, 1, (0, 1))))
def test_the_longest_run_that_fits(seconds, unit, each, most, interval, wanted):
    length, spacing = minutes.longest(seconds, unit, each, most, interval)
    assert (length, spacing) == wanted
    assert not length or length * unit + -(-length // spacing) * each <= seconds


@pytest.mark.slow
def test_it_is_the_training_of_that_length(demo_data, tmp_path, monkeypatch):
    """Also with a seed that is drawn, and where it continues without being told of the minutes."""
    monkeypatch.setattr(minutes, '_FEWEST', 3)
    monkeypatch.setattr(minutes, '_ITERATIONS', 1)
    monkeypatch.setattr(minutes, 'longest', lambda *_: (6, 3))
    command = 'train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--no-fit', '--work-dir'
    done = run_tool(*command, tmp_path / 'minutes', '--minutes', 5)
    assert done.stdout.count('6 iterations\n') == 3  # when it is chosen, in the block, and at the end
    assert 's an iteration' in done.stdout and 'mIoU' in done.stdout and not [*tmp_path.glob('minutes/.measured*')]
    assert len(read_curves(tmp_path / 'minutes')['loss']) == 6
    run_tool(*command, tmp_path / 'iterations', '--iterations', 6)
    got, wanted = map(read_checkpoint, (tmp_path / 'minutes', tmp_path / 'iterations'))
    assert got['meta']['seed'] == wanted['meta']['seed']
    assert_same_run(got, wanted)
    done = run_tool(*command, tmp_path / 'minutes', '--resume', tmp_path / 'minutes/iter_3.pth', '--overwrite')
    assert 'Iter(train) [6/6]' in done.stdout and 'differ from before' not in done.stdout
    assert_same_run(read_checkpoint(tmp_path / 'minutes'), wanted)


def test_what_is_too_short_or_said_twice(demo_data, tmp_path, monkeypatch):
    monkeypatch.setattr(minutes, '_FEWEST', 3)
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
    with pytest.raises(ConfigError, match=r'0\.01 is too short: .* s a save, .* 20 iterations .* --minutes \d+\.\d'):
        minutes.set_minutes(cfg, 0.01, time.monotonic())
    assert 'timed' not in cfg and cfg.train_cfg.max_epochs == 2 and [*tmp_path.iterdir()] == [tmp_path / '.running']
    with pytest.raises(ConfigError, match='train_cfg.max_epochs: set by --cfg-options and by --minutes 5'):
        minutes.set_minutes(cfg, 5, 0., ['train_cfg.max_epochs'])
    del cfg.train_cfg.max_epochs
    with pytest.raises(ConfigError, match='--minutes: .* neither max_epochs nor max_iters'):
        minutes.set_minutes(cfg, 5, 0.)


@pytest.mark.parametrize('seconds, iterations, epochs, end', (
    (0.1875, 319, 4, 3.19), (0.1995, 300, 3, 3), (2.9, 20, 1, 0.2)))
def test_a_run_ends_within_its_last_epoch(seconds, iterations, epochs, end, demo_data, tmp_path, monkeypatch):
    """Unless little is left of it: 100 iterations an epoch, and a minute."""
    monkeypatch.setattr(minutes, '_costs', lambda *_: minutes._Costs(0., seconds, 0., 0., 100))
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
    cfg.param_scheduler[0].end = 100
    cfg.param_scheduler[1].update(dict(
        type='CosineAnnealingLR', begin=0, end=2, T_max=2, by_epoch=True, convert_to_iter_based=True))
    minutes.set_minutes(cfg, 1, time.monotonic())
    assert cfg.train_cfg.max_epochs == epochs and cfg.train_cfg.get('max_iters', epochs * 100) == iterations
    assert cfg.param_scheduler[1].end == pytest.approx(end) and cfg.param_scheduler[1].T_max == pytest.approx(end)
    assert warm_up_of(cfg, 100)[3] == iterations
    cfg.param_scheduler[1].begin = 1
    minutes.set_minutes(cfg, 6, time.monotonic())
    assert 'max_iters' not in cfg.train_cfg
    for whole in (epochs, 7):
        set_length(cfg, whole, 'epochs')
        assert 'max_iters' not in cfg.train_cfg and cfg.param_scheduler[1].end == whole


@pytest.mark.parametrize('start, validation, save, best, wanted', (
    (4.5, 4., 1., 'auto', (46, 46)), (4.5, 4., 1., None, (47, 47)), (14.5, 1., 0., None, (38, 10)),
    (14.5, 0., 1., 'auto', (38, 19)), (0.5, 0., 0., None, (56, 6))))
def test_every_part_of_a_run_takes_its_time(start, validation, save, best, wanted, demo_data, tmp_path, monkeypatch):
    """Of 60 seconds, 3 are gone; an iteration takes one. A best checkpoint is saved besides the last."""
    monkeypatch.setattr(minutes, '_costs', lambda *_: minutes._Costs(start, 1., validation, save, 1))
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    cfg.train_cfg.update(max_iters=1000, val_interval=100)
    cfg.default_hooks.checkpoint.save_best = best
    minutes.set_minutes(cfg, 1, time.monotonic() - 3)
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval) == wanted


def test_costs_are_measured_where_they_arise(demo_data, tmp_path, monkeypatch):
    """The first iterations belong to the start; of a validation some batches are measured, and its metrics."""
    waits = dict(before_run=0.5, after_train_iter=0.04, after_val_iter=0.2, before_save=0.25)
    hook = type('Slow', (Hook, ), {name: lambda self, *_, wait=wait, **__: time.sleep(wait)
                                   for name, wait in waits.items()})
    hook.before_save_checkpoint = hook.before_save
    monkeypatch.setattr(minutes, '_FEWEST', 3)
    monkeypatch.setattr(minutes, '_BATCHES', 1)
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
    cfg.custom_hooks = [dict(type=hook, priority='VERY_LOW')]
    cfg.val_dataloader.batch_size = 1
    endless = minutes._endless(cfg, 'max_epochs', str(tmp_path))
    start, iteration, validation, save, epoch = minutes._costs(endless, 0., 0.)
    batches = len(Runner.build_dataloader(cfg.val_dataloader))
    assert epoch == 3 and batches == 3
    for seconds, least in ((start, 0.5), (iteration, 0.04), (validation, 0.2 * batches), (save, 0.25)):
        assert least <= seconds < least + 2, least


def test_what_the_user_gives_stays(demo_data, tmp_path, monkeypatch):
    monkeypatch.setattr(minutes, '_costs', lambda *_: minutes._Costs(0., 1., 0., 0., 3))
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
    cfg.fitted, cfg.param_scheduler[0].end, other = [], 40, cfg.param_scheduler[1].end
    minutes.set_minutes(cfg, 1, time.monotonic(), ['param_scheduler.0.end'])
    assert cfg.param_scheduler[0].end == 40 and cfg.param_scheduler[1].end != other
    changed = {change['key'] for change in cfg.timed}
    assert 'param_scheduler.0.end' not in changed and {'param_scheduler.1.end', 'train_cfg.max_epochs'} <= changed


def test_what_takes_long_is_measured_less():
    """From a fifth of the minutes on, one iteration after the first ones is enough."""
    slow, quick = (minutes._Watch(99, time.monotonic() + seconds) for seconds in (-1, 99))
    for watch in (slow, quick):
        for _ in range(minutes._FIRST):
            watch.after_train_iter(None, 0)
    quick.after_train_iter(None, 0)
    with pytest.raises(minutes._Enough):
        slow.after_train_iter(None, 0)


def test_a_signal_while_it_is_measured(demo_data, tmp_path, monkeypatch):
    def stop(self, runner, *_, **__):
        with pytest.raises(ConfigError, match='another training'):  # it would delete what is measured
            lock_work_dir(tmp_path)
        terminate(runner)

    monkeypatch.setattr(minutes._Watch, 'after_train_iter', stop)
    with pytest.raises(Stopped, match='before the training began.*nothing was saved'):
        minutes.set_minutes(make_config(TINY_SEG_CONFIG, demo_data, tmp_path), 5, time.monotonic())


def test_two_processes_agree(two_processes, demo_data, tmp_path):
    """Also if one of them began long before the other."""
    (timed, epochs), other = two_processes.in_group(choose_minutes, TINY_CONFIG, demo_data, tmp_path, 200)
    assert other == (timed, epochs) and epochs > 2
