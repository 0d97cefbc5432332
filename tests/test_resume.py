"""A run that stopped and went on ends where one without the stop ends, bit for bit; nothing is lost on the way."""
import copy
import os
import re
import resource
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

from xcit_dense.checkpoint import newest_checkpoint, read_checkpoint
from xcit_dense.checkpoint.files import damage
from xcit_dense.engine import DenseCheckpointHook, build_runner
from xcit_dense.engine.config import load_config
from xcit_dense.engine.data import take_classes
from xcit_dense.engine.saving import DenseVisBackend
from xcit_dense.errors import CheckpointError, ConfigError, DataError, LossError, Stopped

DROPPING = dict(drop_path_rate=0.3, attn_drop_rate=0.1)


class At(Hook):
    """Do something to a run once, at an iteration."""

    def __init__(self, iteration, action, where='after_train_iter'):
        self.iteration, self.action = iteration, action
        setattr(self, where, self._call)

    def _call(self, runner, *_, **__):
        if runner.iter + 1 == self.iteration:
            self.action(runner)


def terminate(_):
    os.kill(os.getpid(), signal.SIGTERM)


def die(_):
    raise RuntimeError('killed by the test')


def make_config(config, data_root, work_dir, workers=0, **changes):
    cfg = load_config(config, data_root=str(data_root), pretrained=False)
    take_classes(cfg)
    cfg.work_dir = str(work_dir)
    cfg.randomness = dict(seed=3)
    cfg.model.backbone.update(DROPPING)
    cfg.train_dataloader.update(num_workers=workers, persistent_workers=workers > 0)
    cfg.merge_from_dict(changes)
    return cfg


def train(cfg, *hooks, resume=False):
    """Train and return everything that a checkpoint holds at the end, but times."""
    cfg = copy.deepcopy(cfg)
    cfg.resume = resume
    runner = build_runner(cfg)
    for hook in hooks:
        runner.register_hook(hook)
    runner.train()
    return read_checkpoint(newest_checkpoint(cfg.work_dir))


def assert_same(got, wanted):
    for part in ('state_dict', 'optimizer', 'param_schedulers', 'ema_state_dict', 'training'):
        assert (part in got) == (part in wanted)
        _assert_same(got.get(part), wanted.get(part), part)
    assert got['meta']['iter'] == wanted['meta']['iter'] and got['meta']['epoch'] == wanted['meta']['epoch']


def _assert_same(got, wanted, where):
    assert type(got) is type(wanted), where
    if isinstance(wanted, dict):
        assert list(got) == list(wanted), where
        for key in wanted:
            _assert_same(got[key], wanted[key], f'{where}.{key}')
    elif isinstance(wanted, (list, tuple)):
        assert len(got) == len(wanted), where
        for i, pair in enumerate(zip(got, wanted, strict=True)):
            _assert_same(*pair, f'{where}[{i}]')
    elif isinstance(wanted, torch.Tensor):
        assert torch.equal(got, wanted), where
    else:
        assert got == wanted, where


CASES = dict(
    epochs=(TINY_CONFIG, 0, {}),
    epochs_workers=(TINY_CONFIG, 2, {}),
    epochs_ema=(TINY_CONFIG, 0, dict(custom_hooks=[dict(type='EMAHook')])),
    epochs_accumulation=(TINY_CONFIG, 0, {'optim_wrapper.accumulative_counts': 2}),
    iterations=(TINY_SEG_CONFIG, 0, {}),
    iterations_workers=(TINY_SEG_CONFIG, 2, {}),
    iterations_ema=(TINY_SEG_CONFIG, 0, dict(custom_hooks=[dict(type='EMAHook')])),
    iterations_finite_sampler=(TINY_SEG_CONFIG, 0, {'train_dataloader.sampler.type': 'DefaultSampler'}))
_WHOLE = {}


def whole_run(name, data_root, tmp_path_factory):
    """The end of the run that nothing stopped."""
    if name not in _WHOLE:
        config, workers, changes = CASES[name]
        cfg = make_config(config, data_root, tmp_path_factory.mktemp('whole'), workers, **changes)
        _WHOLE[name] = train(cfg)
    return _WHOLE[name]


@pytest.mark.parametrize(('name', 'stop'), [
    ('epochs', 1), ('epochs', 3), ('epochs_workers', 2), ('epochs_ema', 2), ('epochs_accumulation', 1),
    ('iterations', 1), ('iterations', 2), ('iterations_workers', 3), ('iterations_ema', 3),
    ('iterations_finite_sampler', 3)])
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
            dataset = runner.train_dataloader.dataset.inner
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
    assert re.search(r'other settings than before:\n-.*max_iters=4.*\n\+.*max_iters=5', ''.join(capfd.readouterr()))


def test_best_checkpoints_are_not_resumed(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'default_hooks.checkpoint': dict(save_best='mIoU')})
    train(cfg)
    best, = tmp_path.glob('best_*.pth')
    cfg.load_from = str(best)
    with pytest.raises(CheckpointError, match='no state of a training run to resume'):
        train(cfg, resume=True)


@pytest.fixture
def small_files():
    """The system refuses to write files of more than 100 kB, as it does where a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(_=None):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize('on_write_error', ('stop', 'continue'))
def test_a_checkpoint_that_cannot_be_written(on_write_error, demo_data, tmp_path, small_files, capfd):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'default_hooks.checkpoint': dict(
        interval=1, max_keep_ckpts=1, on_write_error=on_write_error)})
    runner = build_runner(cfg)
    runner.register_hook(At(2, small_files))
    if on_write_error == 'stop':
        with pytest.raises(CheckpointError, match='cannot write .*iter_2.pth: File too large'):
            runner.train()
    else:
        runner.train()
        assert runner.iter == 4 and 'The training goes on' in ''.join(capfd.readouterr())
    assert [p.name for p in tmp_path.glob('*.p*t*')] == ['iter_1.pth']
    assert newest_checkpoint(tmp_path).name == 'iter_1.pth' and damage(tmp_path / 'iter_1.pth') is None


def test_damaged_checkpoints_are_named_and_left_out(demo_data, tmp_path, tmp_path_factory, capfd):
    wanted = whole_run('iterations', demo_data, tmp_path_factory)
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'default_hooks.checkpoint': dict(interval=1)})
    with pytest.raises(RuntimeError, match='killed by the test'):
        train(cfg, At(4, die))
    newest = tmp_path / 'iter_3.pth'
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    (tmp_path / 'last_checkpoint').unlink()  # as if power went before it was written
    cfg.default_hooks.checkpoint.interval = 2
    got = train(cfg, resume=True)
    assert_same(got, wanted)
    assert re.search('iter_3.pth is damaged and left out: the check sum of', ''.join(capfd.readouterr()))


def test_every_damage_is_found_or_harmless(trained, tmp_path):
    path = newest_checkpoint(trained[0])
    wanted, data = read_checkpoint(path), path.read_bytes()
    copy_of = tmp_path / 'damaged.pth'
    found = 0
    for place in np.random.default_rng(0).integers(len(data), size=40).tolist():
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        copy_of.write_bytes(damaged)
        if damage(copy_of) is None:
            _assert_same(read_checkpoint(copy_of)['state_dict'], wanted['state_dict'], place)
        else:
            found += 1
    assert found > 20
    for length in (0, 1, 100, len(data) // 2, len(data) - 1):
        copy_of.write_bytes(data[:length])
        assert damage(copy_of)


def test_resume_never_starts_from_scratch(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(CheckpointError, match='nothing to resume'):
        train(cfg, resume=True)
    (tmp_path / 'iter_2.pth').write_bytes(b'PK\3\4 cut off')
    with pytest.raises(CheckpointError, match='nothing to resume: no whole checkpoint'):
        train(cfg, resume=True)


def test_two_trainings_in_one_work_dir(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    refused = []

    def second(_):
        with pytest.raises(ConfigError, match=f'another training .process {os.getpid()}. runs in .*--work-dir'):
            train(cfg)
        refused.append(True)

    train(cfg, At(1, second))
    assert refused
    train(cfg)  # the first is over


def test_a_disk_that_fills_up_costs_curves_and_not_the_run(demo_data, tmp_path, capfd):
    build_runner(make_config(TINY_SEG_CONFIG, demo_data, tmp_path))  # for its log
    backend = DenseVisBackend(save_dir=str(tmp_path))
    backend._init_env()
    backend._scalar_save_file = '/dev/full'
    backend.add_scalars(dict(loss=1.))
    assert 'cannot write the curves: [Errno 28]' in ''.join(capfd.readouterr())


class Poison(At):
    """Make the loss of one iteration infinite."""

    def __init__(self, iteration):
        super().__init__(iteration, self.poison, where='before_train_iter')

    def poison(self, runner):
        self.parameter = runner.model.backbone.patch_embed.proj[0][0].weight  # before every norm
        self.kept = self.parameter.detach().clone()
        self.parameter.data.fill_(float('nan'))

    def after_train_iter(self, runner, *_, **__):
        if runner.iter + 1 == self.iteration:
            self.parameter.data.copy_(self.kept)


def test_a_loss_that_is_no_number_stops_the_run(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(LossError, match=r'iteration 3: the loss is not finite \(.*loss_ce nan.*Images: .*\.\w+, '):
        train(cfg, Poison(3))
    state = read_checkpoint(newest_checkpoint(tmp_path))['state_dict']
    assert all(value.isfinite().all() for value in state.values())


def test_such_batches_can_be_skipped(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'train_cfg.bad_loss': 'skip'})
    got = train(cfg, Poison(3))
    assert got['training']['loops'][0]['skipped'] == 1 and got['meta']['iter'] == 4
    steps = {int(state['step']) for state in got['optimizer']['state'].values()}
    assert steps == {3}
    assert all(value.isfinite().all() for value in got['state_dict'].values())


@pytest.mark.parametrize('workers', (0, 2))
def test_an_unreadable_image_is_named(workers, demo_data, tmp_path):
    root = tmp_path / 'data'
    subprocess.run(['cp', '-r', demo_data, root], check=True)
    cfg = make_config(TINY_SEG_CONFIG, root, tmp_path / 'run', workers)
    victim = sorted((root / 'images/training').iterdir())[2]
    victim.write_bytes(b'no image')
    with pytest.raises(DataError, match=f'cannot read sample 2 of the training data, .*{victim.name}'):
        train(cfg)


@pytest.mark.parametrize('delay', (0, 0.5))
def test_a_dead_worker_names_its_file(delay, demo_data, tmp_path):
    """Whatever the main process does meanwhile."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, workers=2)
    runner = build_runner(cfg)

    class Killer(Hook):

        def before_train(self, runner):
            dataset = runner.train_dataloader.dataset.inner
            read = type(dataset).__getitem__

            def kill(self, index):
                if index == 4:
                    time.sleep(delay)
                    os.kill(os.getpid(), signal.SIGKILL)
                return read(self, index)

            dataset.__class__ = type('Killing', (type(dataset), ), dict(__getitem__=kill))

    runner.register_hook(Killer())
    runner.register_hook(At(1, lambda _: time.sleep(1)))
    victim = sorted((demo_data / 'images/training').iterdir())[4].name
    with pytest.raises(DataError, match=f'a worker of the data loader died .*{victim}'):
        runner.train()


def test_out_of_memory_says_what_helps(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)

    def exhaust(_):
        torch.empty(2**50)

    with pytest.raises(RuntimeError, match='out of memory with a batch of 2 images .*with_cp=True'):
        train(cfg, At(2, exhaust, where='before_train_iter'))


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


def test_wrong_options_are_named(demo_data, tmp_path):
    with pytest.raises(ConfigError, match='bad_loss'):
        train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'train_cfg.bad_loss': 'no'}))
    with pytest.raises(ConfigError, match='on_write_error'):
        DenseCheckpointHook(on_write_error='no')
