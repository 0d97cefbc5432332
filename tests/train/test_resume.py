"""A run that stopped and went on ends where one without the stop ends, bit for bit; nothing is lost on the way."""
import copy
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook

from helpers.paths import ROOT, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import CASES, DROPPING, At, assert_same_run, die, make_config, terminate, train, whole_run
from helpers.tools import environment
from xcit_dense.errors import CheckpointError, ConfigError, DataError, Stopped
from xcit_dense.weights import newest_checkpoint, read_checkpoint


@pytest.mark.parametrize(('name', 'stop'), [
    ('epochs', 4), ('epochs_workers', 2), ('epochs_ema', 2), ('epochs_average', 2),
    ('iterations_workers', 3), ('iterations_ema', 3), ('iterations_finite_sampler', 3),
    ('iterations_early_stopping', 3),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ('epochs', 3), ('iterations', 2), ('epochs_accumulation', 1)))])
def test_stopped_and_resumed_is_the_same_to_the_last_bit(name, stop, demo_data, tmp_path, tmp_path_factory):
    wanted = whole_run(name, demo_data, tmp_path_factory)
    config, workers, changes = CASES[name]
    cfg = make_config(config, demo_data, tmp_path, workers, **changes)
    validated = []

    class Note(Hook):

        def before_val(self, runner):
            validated.append(runner.iter)

        def after_train_iter(self, runner, batch_idx, *_, **__):
            assert batch_idx == (runner.iter % 3 if config == TINY_CONFIG else runner.iter)

    with pytest.raises(Stopped, match=f'SIGTERM after iteration {stop}. Saved .*iter_{stop}.pth'):
        train(cfg, At(stop, terminate), Note())
    cfg.randomness = dict(seed=None)  # it is the checkpoint's
    assert_same_run(train(cfg, Note(), resume=True), wanted)
    assert validated == ([3, 6] if config == TINY_CONFIG else [2, 4])


@pytest.mark.parametrize('name', ('epochs', 'iterations'))
def test_resumed_after_a_sudden_death_is_the_same(name, demo_data, tmp_path, tmp_path_factory):
    config, _, changes = CASES[name]
    cfg = make_config(config, demo_data, tmp_path, **changes)
    with pytest.raises(RuntimeError, match='killed by the test'):
        train(cfg, At(4, die))
    assert_same_run(train(cfg, resume=True), whole_run(name, demo_data, tmp_path_factory))


def test_a_checkpoint_of_mmengine_goes_on_with_the_next_pass(demo_data, tmp_path, tmp_path_factory):
    """It has no position in the data, but its epoch."""
    state = dict(whole_run('epochs', demo_data, tmp_path_factory))
    del state['training']
    torch.save(state, tmp_path / 'epoch_2.pth')
    passes = []

    def look(runner):
        passes.append(runner.train_loop.dataloader.passes)
        die(runner)

    with pytest.raises(RuntimeError, match='killed by the test'):
        train(make_config(TINY_CONFIG, demo_data, tmp_path, **{'train_cfg.max_epochs': 3}),
              At(7, look, where='before_train'), resume=True)
    assert passes == [2]


@pytest.mark.parametrize('ema', ([], [dict(type='EMAHook')]))
def test_stopped_during_a_validation_and_after_it(ema, demo_data, tmp_path):
    config = TINY_SEG_CONFIG
    wanted = train(make_config(config, demo_data, tmp_path / 'whole', custom_hooks=ema))
    cfg = make_config(config, demo_data, tmp_path / 'stopped', custom_hooks=ema)
    calls = []

    class StopInValidation(Hook):

        def after_val_iter(self, runner, *_, **__):
            calls.append(runner.iter)
            if len(calls) == 2:
                terminate(runner)

        def after_val_epoch(self, runner, *_, **__):
            if len(calls) == 5:
                terminate(runner)

    with pytest.raises(Stopped, match='iteration 2'):
        train(cfg, StopInValidation())
    assert calls == [2, 2]
    with pytest.raises(Stopped, match='iteration 2'):
        train(cfg, StopInValidation(), resume=True)
    assert calls[2:] == [2, 2, 2]  # the validation that was cut off, again
    assert_same_run(train(cfg, StopInValidation(), resume=True), wanted)
    assert calls[5:] == [4, 4, 4]  # a whole one is not repeated


@pytest.mark.parametrize('number', (signal.SIGINT, signal.SIGTERM))
def test_a_signal_saves_where_the_run_stands(number, demo_data, tmp_path, capfd):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(Stopped, match=f'{number.name} after iteration 1. Saved'):
        train(cfg, At(1, partial(terminate, number=number)))
    assert newest_checkpoint(tmp_path).name == 'iter_1.pth'
    # what the second one does is said to whom it concerns
    assert ('Ctrl-C again' in capfd.readouterr().err) == (number == signal.SIGINT)


def test_the_second_ctrl_c_stops_at_once(demo_data, tmp_path):

    def twice(_):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path), At(1, twice))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_launchers_may_repeat_themselves(demo_data, tmp_path):
    """torch's launcher sends SIGTERM to processes that had one already, while they save too."""

    class Again(Hook):

        def before_save_checkpoint(self, runner, checkpoint):
            terminate(runner)

    def twice(runner):
        terminate(runner)
        terminate(runner)

    with pytest.raises(Stopped, match='Saved .*iter_1.pth'):
        train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path), At(1, twice), Again())
    assert newest_checkpoint(tmp_path).name == 'iter_1.pth'


def test_a_run_in_a_thread_trains(demo_data, tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path))))
    thread.start()
    thread.join()
    assert found[0]['meta']['iter'] == 4


def test_nothing_is_read_that_was_trained(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(Stopped):
        train(cfg, At(3, terminate))
    reads = []

    class Count(Hook):

        def before_train(self, runner):
            dataset = runner.train_dataloader.dataset.inner.inner
            read = type(dataset).__getitem__
            dataset.__class__ = type('Counted', (type(dataset), ), dict(
                __getitem__=lambda self, i: reads.append(i) or read(self, i)))

    train(cfg, Count(), resume=True)
    assert len(reads) == 2  # one batch of two


def test_resume_with_other_classes_or_options_is_said(demo_data, tmp_path, capfd):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(Stopped):
        train(cfg, At(3, terminate))
    other = copy.deepcopy(cfg)
    classes = other.train_dataloader.dataset.metainfo['classes']
    other.train_dataloader.dataset.metainfo['classes'] = (classes[1], classes[0], *classes[2:])
    with pytest.raises(DataError, match='has the classes .* this run'):
        train(other, resume=True)
    capfd.readouterr()
    train(cfg, resume=True)
    assert 'settings that differ' not in ''.join(capfd.readouterr())
    cfg.train_cfg.max_iters = 5
    train(cfg, resume=True)
    assert 'settings that differ from before:\n  train_cfg.max_iters: 4 -> 5\n' in ''.join(capfd.readouterr())
    # the checkpoint has its own
    cfg.optim_wrapper.optimizer.lr, cfg.param_scheduler[1].end = 0.5, 9
    with pytest.raises(ConfigError, match=r'have no effect:\n  optim_wrapper.optimizer.lr: 0.002 -> 0.5\n'
                                          r'  param_scheduler.1.end: \d+ -> 9\n.*load_from=.*iter_5.pth'):
        train(cfg, resume=True)


def test_best_checkpoints_are_not_resumed(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'default_hooks.checkpoint': dict(save_best='mIoU')})
    train(cfg)
    best, = tmp_path.glob('best_*.pth')
    cfg.load_from = str(best)
    with pytest.raises(CheckpointError, match='no state .*resume'):
        train(cfg, resume=True)


@pytest.mark.parametrize('count', (1, 2))
def test_resuming_with_another_number_of_processes_is_said(count, trained_segmentor, demo_data, tmp_path, capfd):
    state = read_checkpoint(trained_segmentor[0] / 'iter_4.pth')
    state['training']['loops'] *= count
    torch.save(state, tmp_path / 'iter_4.pth')
    train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'train_cfg.max_iters': 5}), resume=True)
    said = ''.join(capfd.readouterr())
    assert bool(re.search('2 processes, this run has 1', said)) == ('not exactly' in said) == (count == 2)


def test_resume_of_a_run_that_is_over_says_so(trained_segmentor, demo_data, tmp_path, capfd):
    work_dir = shutil.copytree(trained_segmentor[0], tmp_path / 'run')
    train(make_config(TINY_SEG_CONFIG, demo_data, work_dir), resume=True)
    assert re.search('iter_4.pth .* 4 iterations.* nothing', ''.join(capfd.readouterr()))


def test_resume_never_starts_from_scratch(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(CheckpointError, match='nothing to resume'):
        train(cfg, resume=True)
    (tmp_path / 'iter_2.pth').write_bytes(b'PK\3\4 cut off')
    with pytest.raises(CheckpointError, match='no intact checkpoint'):
        train(cfg, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG))
def test_killed_at_random_points_and_resumed(config, demo_data, tmp_path, tmp_path_factory):
    """kill -9 from outside, again and again, until the run ends."""
    changes = {'train_cfg.max_epochs': 4} if config == TINY_CONFIG else {'train_cfg.max_iters': 16}
    wanted = train(make_config(config, demo_data, tmp_path_factory.mktemp('whole'), **changes))
    options = [f'{key}={value}' for key, value in changes.items()] + [
        'randomness.seed=3', 'train_dataloader.num_workers=2', 'train_dataloader.persistent_workers=True',
        *(f'model.backbone.{key}={value}' for key, value in DROPPING.items())]
    command = [sys.executable, str(ROOT / 'tools/train.py'), str(config), '--data-root', str(demo_data), '--work-dir',
               str(tmp_path), '--no-pretrained', '--cfg-options', *options]
    rng, kills = np.random.default_rng(0), 0
    for _ in range(12):
        resume = ['--resume'] if list(tmp_path.glob('*.pth')) else []
        process = subprocess.Popen([*command[:3], *resume, *command[3:]], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, env=environment())
        for line in process.stdout:
            if re.search(r'\(train\)', line) and kills < 4:
                time.sleep(rng.uniform(0, 0.3))
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
        process.communicate(timeout=100)  # workers that stay would keep the pipe open
        if process.wait() == 0:
            break
    assert kills and process.returncode == 0
    assert_same_run(read_checkpoint(newest_checkpoint(tmp_path)), wanted)
