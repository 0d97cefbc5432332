"""`train --minutes`: what is measured, what is chosen, and that the training does not notice."""
import re
import signal
import time
from types import SimpleNamespace

import pytest
from mmengine.hooks import Hook

from helpers.models import assert_equal
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import (
    assert_same_run,
    choose_minutes,
    disturb,
    end_together,
    make_config,
    terminate,
    train,
    train_slowly,
)
from helpers.tools import run_tool
from xcit_dense.config.check import warm_up_of
from xcit_dense.config.length import set_length
from xcit_dense.errors import ConfigError, Stopped
from xcit_dense.report.curves import read_curves
from xcit_dense.train import minutes
from xcit_dense.train.resuming import random_state
from xcit_dense.train.work_dirs import lock_work_dir
from xcit_dense.weights import read_checkpoint

NOW = 1000.


@pytest.fixture
def costs(monkeypatch):
    """A function that sets what the measuring finds, which draws random numbers, and stops the clock; it gives the
    limits of all calls."""
    def put(*values, reserve=(0., 0.)):
        calls = []

        def measure(_, *limits):
            disturb()
            calls.append(limits)
            return minutes._Costs(*values)

        monkeypatch.setattr(minutes, '_costs', measure)
        monkeypatch.setattr(minutes, 'time', SimpleNamespace(monotonic=lambda: NOW))
        for name, value in zip(('_LEFT', '_END'), reserve, strict=True):
            monkeypatch.setattr(minutes, name, value)
        return calls
    return put


@pytest.mark.parametrize('seconds, unit, each, most, interval, wanted', (
    (100, 10, 0, 10, 1, (10, 1)), (100, 10, 1, 10, 5, (9, 5)), (109, 1, 1, 10, 1, (103, 18)), (-5, 1, 1, 10, 1, (0, 1)),
    (100, 1, 20, 10, 1, (80, 80)), (400, 1, 10, 7, 1, (380, 190)), (20, 30, 1, 10, 1, (0, 1))))
def test_the_longest_run_that_fits(seconds, unit, each, most, interval, wanted):
    length, spacing = minutes.longest(seconds, unit, each, most, interval)
    assert (length, spacing) == wanted and (not length or length * unit + -(-length // spacing) * each <= seconds)


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


def test_what_is_said_twice(demo_data, tmp_path):
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
    for key in ('train_cfg.max_epochs', 'train_cfg.val_interval', 'default_hooks.checkpoint.interval'):
        with pytest.raises(ConfigError, match=f'{key}: set by --cfg-options and by --minutes 5'):
            minutes.set_minutes(cfg, 5, 0., ['seed', key])
    del cfg.train_cfg.max_epochs
    with pytest.raises(ConfigError, match='--minutes: .* neither max_epochs nor max_iters'):
        minutes.set_minutes(cfg, 5, 0.)


@pytest.mark.parametrize('config, whole, least', ((TINY_SEG_CONFIG, False, 20), (TINY_CONFIG, True, 30)))
def test_minutes_that_are_too_few_name_those_that_are_enough(config, whole, least, costs, demo_data, tmp_path):
    """20 iterations, or an epoch where only whole ones can be trained; nothing changes in the config or the folder."""
    costs(3., 1., 11., 5., 30)
    cfg = make_config(config, demo_data, tmp_path)
    if whole:
        cfg.train_cfg.type = 'EpochBasedTrainLoop'
    before = cfg.pretty_text
    with pytest.raises(ConfigError, match=rf'0\.01 is too short: .* {least} iterations .* --minutes \d+\.\d') as error:
        minutes.set_minutes(cfg, 0.01, NOW)
    assert cfg.pretty_text == before and [*tmp_path.iterdir()] == [tmp_path / '.running']
    enough = float(str(error.value).partition(' need --minutes ')[2].partition(',')[0])
    with pytest.raises(ConfigError, match='too short'):
        minutes.set_minutes(cfg, enough - 0.11, NOW)
    minutes.set_minutes(cfg, enough, NOW)
    assert cfg.train_cfg.get('max_iters', 30) >= least


@pytest.mark.parametrize('seconds, iterations, epochs, end', (
    (0.1875, 319, 4, 3.19), (0.1995, 300, 3, 3), (2.9, 20, 1, 0.2)))
def test_a_run_ends_within_its_last_epoch(seconds, iterations, epochs, end, costs, demo_data, tmp_path):
    """Unless little is left of it: 100 iterations an epoch, and a minute. It validates within its length."""
    costs(0., seconds, 0., 0., 100)
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
    cfg.train_cfg.val_interval, cfg.param_scheduler[0].end = 5, 100
    cfg.param_scheduler[1].update(dict(
        type='CosineAnnealingLR', begin=0, end=2, T_max=2, by_epoch=True, convert_to_iter_based=True))
    minutes.set_minutes(cfg, 1, NOW - 0.1)
    assert cfg.train_cfg.max_epochs == epochs and cfg.train_cfg.get('max_iters', epochs * 100) == iterations
    assert cfg.param_scheduler[1].end == pytest.approx(end) and cfg.param_scheduler[1].T_max == pytest.approx(end)
    assert cfg.train_cfg.val_interval == epochs and warm_up_of(cfg, 100)[3] == iterations
    cfg.param_scheduler[1].begin = 1
    del cfg.param_scheduler[1]['by_epoch']  # mmengine counts epochs
    minutes.set_minutes(cfg, 6, NOW - 0.1)
    assert 'max_iters' not in cfg.train_cfg and cfg.train_cfg.max_epochs == int(3.6 / seconds)
    for whole in (epochs, 7):
        set_length(cfg, whole, 'epochs')
        assert 'max_iters' not in cfg.train_cfg and cfg.param_scheduler[1].end == whole


@pytest.mark.parametrize('start, validation, save, best, interval, wanted', (
    (4.5, 4., 1., 'auto', 100, (45, 45)), (4.5, 4., 1., None, 100, (46, 46)), (14.5, 1., 0., None, 80, (40, 20)),
    (14.5, 0., 1., 'auto', 100, (40, 40)), (0.5, 0., 0., None, 400, (56, 28)), (0.5, 0., 0., None, 2000, (56, 56))))
def test_every_part_of_a_run_takes_its_time(start, validation, save, best, interval, wanted, costs, demo_data,
                                            tmp_path):
    """Of 60 seconds, 3 are gone; an iteration takes one. A best checkpoint is saved besides the last. There are as many
    validations as in the config, if there is time for them; a single one may take longer than it was measured.
    Measuring leaves the random numbers."""
    calls, state = costs(start, 1., validation, save, 1), random_state()
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    cfg.train_cfg.update(max_iters=1000, val_interval=interval)
    cfg.default_hooks.checkpoint.save_best = best
    began = NOW - 3
    minutes.set_minutes(cfg, 1, began)
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval) == wanted
    assert calls == [pytest.approx((0.9, began + 12))]
    assert_equal(random_state(), state)


def test_something_is_left_for_the_end(costs, demo_data, tmp_path):
    """Of 120 seconds 1.2, and 5; also where the training is slower than it was planned."""
    costs(0., 1., 0., 0., 1, reserve=(minutes._LEFT, minutes._END))
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    hook = minutes.set_minutes(cfg, 2, NOW)
    assert cfg.train_cfg.max_iters == 113 and hook._deadline == pytest.approx(NOW + 113.8)


@pytest.mark.slow
def test_the_tool_ends_a_run_that_was_planned_too_long(demo_data, tmp_path, monkeypatch):
    monkeypatch.setattr(minutes, 'longest', lambda *_: (10**5, 10**5))
    done = run_tool('train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--minutes', 0.3)
    assert re.search(r'--minutes 0.3: the training ends [\d,]+ iterations early', done.stdout)
    assert 'mIoU' in done.stdout and 12 < len(read_curves(tmp_path)['loss']) < 10**5


@pytest.mark.parametrize('config, iteration, validation, seconds, share, iterations, validations', (
    pytest.param(TINY_SEG_CONFIG, 1., 2., 24, 0., 12, 4, marks=pytest.mark.slow),
    (TINY_CONFIG, 1., 7., 24, 0., 10, 2), (TINY_SEG_CONFIG, 2., 2., 24, 0., 11, 1),
    (TINY_SEG_CONFIG, 2., 2., 24, 0.1, 9, 3),
    pytest.param(TINY_SEG_CONFIG, 9., 2., 12, 0.1, 1, 1, marks=pytest.mark.slow)))
def test_it_ends_in_time(config, iteration, validation, seconds, share, iterations, validations, demo_data, tmp_path,
                         monkeypatch):
    """Planned are 12 iterations of one second, and four validations of two. First validations are left out that take
    more than their share, then iterations; the last validation is there, and the run can go on."""
    monkeypatch.setattr(minutes, '_FEWEST', 1)
    monkeypatch.setattr(minutes, '_SHARE', share)
    cfg = make_config(config, demo_data, tmp_path)
    if config == TINY_SEG_CONFIG:
        cfg.train_cfg.update(max_iters=12, val_interval=3)
    else:
        cfg.train_cfg.update(max_epochs=4, val_interval=1)  # of three iterations
        cfg.param_scheduler.append(dict(type='ConstantLR', by_epoch=True))
    got, now, ended = train_slowly(cfg, seconds, iteration, validation)
    assert (got['meta']['iter'], len(ended)) == (iterations, validations)
    assert now == ended[-1] <= 100 + seconds
    if iterations < 12:
        end = train(cfg, resume=True)
        assert end['meta']['iter'] == 12
        if config == TINY_CONFIG:  # epochs that ended early are one for the rates
            assert [part['param_schedulers'][-1]['_global_step'] for part in (got, end)] == [iterations // 3, 4]


@pytest.mark.parametrize('limit, iterations, validation', ((0.9, (4, 4, 8), 9.), (7., (4, 4, 8, 16, 16, 32), 12.)))
def test_costs_are_measured_where_they_arise(limit, iterations, validation, demo_data, tmp_path, monkeypatch):
    """The first iterations belong to the start; where a validation takes long, two batches stand for all. The clock
    stands still but for what the hook takes."""
    now, taken = [100.], []

    class Slow(Hook):
        def before_run(self, runner, checkpoint=None):
            now[0] += 3

        before_save_checkpoint = before_run

        def after_val_iter(self, runner, batch_idx, *_, **__):
            now[0] += 2 + 2 * batch_idx

        def after_train_iter(self, runner, *_, **__):
            taken.append(10. if runner.iter < minutes._FIRST else iterations[runner.iter - minutes._FIRST] / 8)
            now[0] += taken[-1]

    monkeypatch.setattr(minutes, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(minutes, '_FEWEST', 3)
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
    cfg.custom_hooks = [dict(type='StartupHook'), dict(type=Slow, priority='VERY_LOW'), dict(type='LoggersHook')]
    cfg.default_hooks = dict(timer=dict(type='IterTimerHook'), startup=dict(type='StartupHook'))
    cfg.val_dataloader.batch_size = 1
    endless = minutes._endless(cfg, 'max_epochs', str(tmp_path))
    assert [hook.type for hook in endless.custom_hooks] == [Slow]
    assert endless.default_hooks == dict(timer=dict(type='IterTimerHook'), checkpoint=None)
    mean = sum(iterations) / 8 / len(iterations)
    assert minutes._costs(endless, limit, 1e9) == pytest.approx((3 + 6 * (10 - mean), mean, validation, 3., 3))
    assert len(taken) == 6 + len(iterations)


def test_what_the_user_gives_stays(costs, demo_data, tmp_path):
    costs(0., 1., 0., 0., 3)
    for given, end in ((['param_scheduler.0.end'], 40), ([], 5)):
        cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
        cfg.fitted, cfg.param_scheduler[0].end, other = [], 40, cfg.param_scheduler[1].end
        minutes.set_minutes(cfg, 1, NOW - 0.1, given)
        assert cfg.param_scheduler[0].end == end and cfg.param_scheduler[1].end != other
        changed = {change['key'] for change in cfg.timed}
        assert changed >= {'param_scheduler.1.end', 'train_cfg.max_epochs'}
        assert ('param_scheduler.0.end' in changed) == (not given)


def test_what_takes_long_is_measured_less():
    """From a fifth of the minutes on, one iteration after the first ones is enough; in any case sixty are."""
    slow, quick = (minutes._Watch(99, time.monotonic() + seconds) for seconds in (-1, 99))
    for _ in range(minutes._FIRST):
        slow.after_train_iter(None, 0)
    for _ in range(minutes._FIRST + minutes._MOST - 1):
        quick.after_train_iter(None, 0)
    for watch in (slow, quick):
        with pytest.raises(minutes._Enough):
            watch.after_train_iter(None, 0)


def test_a_signal_while_it_is_measured(demo_data, tmp_path, monkeypatch):
    def stop(self, runner, *_, **__):
        with pytest.raises(ConfigError, match='another training'):  # it would delete what is measured
            lock_work_dir(tmp_path)
        terminate(runner)

    monkeypatch.setattr(minutes._Watch, 'after_train_iter', stop)
    with pytest.raises(Stopped, match='before the training began.*nothing was saved') as stopped:
        minutes.set_minutes(make_config(TINY_SEG_CONFIG, demo_data, tmp_path), 5, time.monotonic())
    assert stopped.value.number == signal.SIGTERM


def test_two_processes_agree(two_processes, demo_data, tmp_path):
    """Also if one of them began long before the other."""
    (timed, epochs), other = two_processes.in_group(choose_minutes, TINY_CONFIG, demo_data, tmp_path, 200)
    assert other == (timed, epochs) and epochs > 2


@pytest.mark.slow
def test_two_processes_end_together(two_processes, demo_data, tmp_path):
    """At the pace of the slower one, with as many validations."""
    first, second = two_processes.in_group(end_together, TINY_SEG_CONFIG, demo_data, tmp_path)
    assert first == second == (9, 3)
