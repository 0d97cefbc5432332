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

import numpy as np
import pytest
import torch
from conftest import ROOT, TINY_CONFIG, TINY_SEG_CONFIG
from mmengine.hooks import Hook
from runs import CASES, DROPPING, At, assert_same, die, make_config, terminate, train, whole_run

from xcit_dense.config.differences import differences
from xcit_dense.errors import CheckpointError, ConfigError, DataError, Stopped
from xcit_dense.train import build_runner
from xcit_dense.weights import newest_checkpoint, read_checkpoint


@pytest.mark.parametrize(('name', 'stop'), [
    ('epochs', 1), ('epochs', 3), ('epochs_workers', 2), ('epochs_ema', 2), ('epochs_accumulation', 1),
    ('iterations', 1), ('iterations', 2), ('iterations_workers', 3), ('iterations_ema', 3),
    ('iterations_finite_sampler', 3),
    ('iterations_early_stopping', 3)])
def test_stopped_and_resumed_is_the_same_to_the_last_bit(name, stop, demo_data, tmp_path, tmp_path_factory):
    wanted = whole_run(name, demo_data, tmp_path_factory)
    config, workers, changes = CASES[name]
    cfg = make_config(config, demo_data, tmp_path, workers, **changes)
    with pytest.raises(Stopped, match=f'SIGTERM after iteration {stop}. Saved .*iter_{stop}.pth'):
        train(cfg, At(stop, terminate))
    cfg.randomness = dict(seed=None)  # it is the checkpoint's
    assert_same(train(cfg, resume=True), wanted)


@pytest.mark.parametrize('name', ('epochs', 'iterations'))
def test_resumed_after_a_sudden_death_is_the_same(name, demo_data, tmp_path, tmp_path_factory):
    config, _, changes = CASES[name]
    cfg = make_config(config, demo_data, tmp_path, **changes)
    with pytest.raises(RuntimeError, match='killed by the test'):
        train(cfg, At(4, die))
    assert_same(train(cfg, resume=True), whole_run(name, demo_data, tmp_path_factory))


@pytest.mark.parametrize('ema', ([], [dict(type='EMAHook')]))
def test_stopped_during_validation(ema, demo_data, tmp_path):
    config = TINY_SEG_CONFIG
    wanted = train(make_config(config, demo_data, tmp_path / 'whole', custom_hooks=ema))
    cfg = make_config(config, demo_data, tmp_path / 'stopped', custom_hooks=ema)
    calls = []

    class StopInValidation(Hook):

        def after_val_iter(self, runner, *_, **__):
            calls.append(runner.iter)
            if len(calls) == 2:
                terminate(runner)

    with pytest.raises(Stopped, match='iteration 2'):
        train(cfg, StopInValidation())
    assert calls == [2, 2]
    got = train(cfg, StopInValidation(), resume=True)
    assert calls[2:5] == [2, 2, 2]  # the validation that was cut off, again
    assert_same(got, wanted)


def test_ctrl_c_saves_where_it_stands(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(Stopped, match='SIGINT after iteration 1. Saved'):
        train(cfg, At(1, lambda _: os.kill(os.getpid(), signal.SIGINT)))
    assert newest_checkpoint(tmp_path).name == 'iter_1.pth'


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


def test_hooks_reach_the_data_set_through_the_loader(demo_data, tmp_path):
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
    loader = build_runner(cfg).build_train_loop(cfg.train_cfg).dataloader
    loader.dataset.pipeline = lambda data: 'switched'
    assert loader.dataset.inner.pipeline(None) == loader.dataset.pipeline(None) == 'switched'


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


@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG))
def test_batches_do_not_depend_on_the_number_of_workers(config, demo_data, tmp_path):
    seen = []
    for workers in (0, 2, 3):
        cfg = make_config(config, demo_data, tmp_path / str(workers), workers)
        loader = iter(build_runner(cfg).build_train_loop(cfg.train_cfg).dataloader)
        seen.append([next(loader) for _ in range(3)])
    for other in seen[1:]:
        for got, wanted in zip(other, seen[0], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(got['inputs'], wanted['inputs'], strict=True))
    first, second = seen[0][:2]
    assert not torch.equal(first['inputs'][0], second['inputs'][0])


def test_passes_differ_in_order_and_augmentation(demo_data, tmp_path):
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
    loader = build_runner(cfg).build_train_loop(cfg.train_cfg).dataloader
    passes = [[(s.img_path, s.flip) for batch in loader for s in batch['data_samples']] for _ in range(4)]
    assert len({tuple(p) for p in passes}) == 4
    assert len({frozenset(name for name, _ in p) for p in passes}) == 1


def test_old_checkpoints_go_after_the_new_one_is_there(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'default_hooks.checkpoint': dict(
        interval=1, max_keep_ckpts=2)})
    there = []

    class Watch(Hook):
        priority = 'LOWEST'

        def before_save_checkpoint(self, runner, checkpoint):
            there.append(sorted(p.name for p in tmp_path.glob('*.pth')))

    train(cfg, Watch())
    assert there[2] == ['iter_1.pth', 'iter_2.pth']  # nothing is gone while the third is written
    assert sorted(p.name for p in tmp_path.glob('*.pth')) == ['iter_3.pth', 'iter_4.pth']
    assert not list(tmp_path.glob('*.part'))


class Metrics(Hook):
    """Give the validations of a run these results, and note the best checkpoints that are there at each saving."""

    priority = 'HIGHEST'

    def __init__(self, folder, *values):
        self.folder, self.values, self.there = folder, list(values), []

    def after_val_epoch(self, runner, metrics):
        metrics.clear()
        metrics['mIoU'] = self.values.pop(0)

    def before_save_checkpoint(self, runner, checkpoint):
        self.there.append([p.name for p in self.folder.glob('best_*.pth')])


@pytest.mark.parametrize('save_best', ('mIoU', 'auto'))
def test_the_best_checkpoint_is_replaced_after_it_was_written(save_best, demo_data, tmp_path):
    """Also by a resumed run, which leaves that of the run before alone where it lies elsewhere."""
    changes = {'default_hooks.checkpoint': dict(save_best=save_best, rule='greater'), 'train_cfg.val_interval': 1}
    first = tmp_path / 'first'
    metrics = Metrics(first, 1., 3., 2., 2.)
    train(make_config(TINY_SEG_CONFIG, demo_data, first, **changes), metrics)
    assert [p.name for p in first.glob('best_*.pth')] == ['best_mIoU_iter_2.pth']
    assert ['best_mIoU_iter_1.pth'] in metrics.there  # while the second is written
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path / 'second', **changes, **{'train_cfg.max_iters': 6})
    cfg.load_from = str(first / 'iter_4.pth')
    train(cfg, Metrics(tmp_path, 2., 2., 4., 4.), resume=True)
    assert [p.name for p in first.glob('best_*.pth')] == ['best_mIoU_iter_2.pth']
    assert [p.name for p in (tmp_path / 'second').glob('best_*.pth')] == ['best_mIoU_iter_6.pth']


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
    assert 'other settings' not in ''.join(capfd.readouterr())
    cfg.train_cfg.max_iters = 5
    train(cfg, resume=True)
    assert 'other settings than before:\n  train_cfg.max_iters: 4 -> 5\n' in ''.join(capfd.readouterr())
    # the checkpoint has its own
    cfg.optim_wrapper.optimizer.lr, cfg.param_scheduler[1].end = 0.5, 9
    with pytest.raises(ConfigError, match=r'change nothing:\n  optim_wrapper.optimizer.lr: 0.002 -> 0.5\n'
                                          r'  param_scheduler.1.end: \d+ -> 9\n.*load_from=.*iter_5.pth'):
        train(cfg, resume=True)


def test_differences_of_settings_by_key():
    before = "a = dict(b=[dict(c=1, d='x'), dict(c=2)], e={'f.g': 3}, h=[1, 2])\nk = dict()\n"
    after = "a = dict(b=[dict(c=1, d='y')], e={'f.g': 4}, h=[1, 2])\nk = dict(l=None)\n"
    assert differences(before, before.replace("'", '"')) == {}
    assert differences(before, after) == {
        'a.b.0.d': ("'x'", "'y'"), 'a.b.1.c': ('2', 'not set'), 'a.e.f.g': ('3', '4'), 'k': ('dict()', 'not set'),
        'k.l': ('not set', 'None')}
    for text in ('a = (', 'a = ' + '(' * 10000, 'import os\nos.abort()\n', 'a.b = 1', 'a = {**c}'):
        assert differences(text, after) == {}


@pytest.mark.parametrize('size', (1, 3, 4))
def test_another_batch_size_leaves_out_no_image(size, demo_data, tmp_path):
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)

    def loader_of(size):
        cfg.train_dataloader.update(batch_size=size, sampler=dict(type='DefaultSampler', shuffle=True),
                                    batch_sampler=None)
        return build_runner(cfg).build_train_loop(cfg.train_cfg).dataloader

    def images(batches):
        return [sample.img_id for batch in batches for sample in batch['data_samples']]

    first, second = loader_of(2), loader_of(size)
    batches = iter(first)
    seen = images(next(batches) for _ in range(2))
    second.load_state_dict(first.state_dict())
    rest = images(second)
    assert sorted({*seen, *rest}) == sorted(images(loader_of(2))) and len(seen) + len(rest) < 6 + size




def test_best_checkpoints_are_not_resumed(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'default_hooks.checkpoint': dict(save_best='mIoU')})
    train(cfg)
    best, = tmp_path.glob('best_*.pth')
    cfg.load_from = str(best)
    with pytest.raises(CheckpointError, match='no state of a training run to resume'):
        train(cfg, resume=True)


def test_resume_of_a_run_that_is_over_says_so(trained_segmentor, demo_data, tmp_path, capfd):
    work_dir = shutil.copytree(trained_segmentor[0], tmp_path / 'run')
    train(make_config(TINY_SEG_CONFIG, demo_data, work_dir), resume=True)
    assert 'iter_4.pth is the end of a run of 4 iterations: there is nothing left' in ''.join(capfd.readouterr())


def test_resume_never_starts_from_scratch(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(CheckpointError, match='nothing to resume'):
        train(cfg, resume=True)
    (tmp_path / 'iter_2.pth').write_bytes(b'PK\3\4 cut off')
    with pytest.raises(CheckpointError, match='nothing to resume: no whole checkpoint'):
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
                                   stderr=subprocess.STDOUT, text=True)
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
    assert_same(read_checkpoint(newest_checkpoint(tmp_path)), wanted)
