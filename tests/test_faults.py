"""A training among full disks, damaged files, second runs, bad losses and dead workers: it says so, nothing is lost."""
import os
import re
import resource
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from conftest import ROOT, TINY_SEG_CONFIG, run_tool
from mmengine.hooks import Hook
from runs import At, assert_same, assert_same_value, die, make_config, train, whole_run

from xcit_dense.errors import CheckpointError, ConfigError, DataError, LossError, OutOfMemory
from xcit_dense.train import DenseCheckpointHook, build_runner
from xcit_dense.train.saving import DenseVisBackend
from xcit_dense.weights import newest_checkpoint, read_checkpoint
from xcit_dense.weights.files import damage


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
            assert_same_value(read_checkpoint(copy_of)['state_dict'], wanted['state_dict'], place)
        else:
            found += 1
    assert found > 20
    for length in (0, 1, 100, len(data) // 2, len(data) - 1):
        copy_of.write_bytes(data[:length])
        assert damage(copy_of)


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


def test_a_run_that_cannot_write_at_its_start(demo_data, tmp_path):
    (tmp_path / 'file').write_text('')
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full/semfpn_xcit_tiny.py').symlink_to('/dev/full')  # the config is written there
    for place, reason in (('file/run', 'Not a directory'), ('full', 'No space left on device')):
        with pytest.raises(CheckpointError, match=f'cannot write into the work dir .*{place}: {reason}'):
            build_runner(make_config(TINY_SEG_CONFIG, demo_data, tmp_path / place))


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
    with pytest.raises(LossError, match=r'iteration 3: the loss is not finite\. .*loss_ce nan.*; images: .*\.\w+, '):
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
@pytest.mark.parametrize('folder', ('training', 'validation'))
def test_an_unreadable_image_is_named(folder, workers, demo_data, tmp_path):
    root = tmp_path / 'data'
    shutil.copytree(demo_data, root)
    cfg = make_config(TINY_SEG_CONFIG, root, tmp_path / 'run', workers, **{'val_dataloader.num_workers': workers})
    victim = sorted((root / 'images' / folder).iterdir())[2]
    whole = victim.read_bytes()
    victim.write_bytes(b'no image')
    with pytest.raises(DataError, match=f'^cannot read sample 2, .*{victim.name}') as error:
        train(cfg)
    if folder == 'training':  # what was trained is not lost
        assert re.search(r'Saved .*iter_\d.pth; once that is mended, --resume goes on', str(error.value))
        victim.write_bytes(whole)
        assert train(cfg, resume=True)['meta']['iter'] == 4
    if folder == 'validation':
        cfg.test_dataloader.num_workers = workers
        with pytest.raises(DataError, match=f'^cannot read sample 2, .*{victim.name}'):
            build_runner(cfg).test()


@pytest.mark.parametrize(('loader', 'delay'), (('train', 0), ('train', 0.5), ('val', 0)))
def test_a_dead_worker_names_its_file(loader, delay, demo_data, tmp_path):
    """Whatever the main process does meanwhile."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, workers=2, **{'val_dataloader.num_workers': 2})
    runner = build_runner(cfg)
    folder, last = ('training', 4) if loader == 'train' else ('validation', 1)

    class Killer(Hook):

        def before_train(self, runner):
            dataset = getattr(runner, f'{loader}_dataloader').dataset
            while hasattr(dataset, 'inner'):
                dataset = dataset.inner
            read = type(dataset).__getitem__

            def kill(self, index):
                if index == last:
                    time.sleep(delay)
                    os.kill(os.getpid(), signal.SIGKILL)
                return read(self, index)

            dataset.__class__ = type('Killing', (type(dataset), ), dict(__getitem__=kill))

    runner.register_hook(Killer())
    runner.register_hook(At(1, lambda _: time.sleep(1)))
    victim = sorted((demo_data / 'images' / folder).iterdir())[last].name
    with pytest.raises(DataError, match=f'a worker of the {loader}_dataloader died .*{victim}'):
        runner.train()


def test_a_loader_of_a_built_data_set(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    runner = build_runner(cfg)
    dataset = runner.val_dataloader.dataset.inner
    loader = runner.build_dataloader({**cfg.val_dataloader, 'dataset': dataset})
    assert len(list(loader.dataset)) == len(dataset) == 3


def test_overwrite_puts_the_earlier_checkpoints_aside(trained_segmentor, demo_data, tmp_path):
    """A new run that dies before its first checkpoint must not be resumed from the run before it."""
    work_dir = shutil.copytree(trained_segmentor[0], tmp_path / 'run')
    before = sorted(path.name for path in work_dir.glob('*.pth'))
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = '{TINY_SEG_CONFIG}'\n"
                      "custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmseg', 'rank_dump'])\n"
                      "custom_hooks = [dict(type='SignalHook', rank=0, iteration=1, number='SIGKILL')]\n")
    options = (config, '--data-root', demo_data, '--work-dir', work_dir, '--no-pretrained')
    env = dict(PYTHONPATH=str(ROOT / 'tests'))
    done = run_tool('train.py', *options, env=env, check=False)
    assert done.returncode == 1 and 'holds checkpoints of an earlier run' in done.stdout
    assert run_tool('train.py', *options, '--overwrite', env=env, check=False).returncode == -signal.SIGKILL
    aside, = work_dir.glob('before_*')
    assert sorted(path.name for path in aside.glob('*.pth')) == before and (aside / 'last_checkpoint').is_file()
    done = run_tool('train.py', *options, '--resume', env=env, check=False)
    assert done.returncode == 1 and 'nothing to resume: no checkpoint in' in done.stdout


@pytest.mark.parametrize(('iteration', 'where', 'said'), (
    (2, 'before_train_iter', 'out of memory with a batch of 2 images .*with_cp=True'),
    (3, 'before_val_iter', 'validation after iteration 2: .*memory.* a smaller val_dataloader.batch_size')))
def test_out_of_memory_says_what_helps(iteration, where, said, demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)

    def exhaust(_):
        torch.empty(2**50)

    with pytest.raises(OutOfMemory, match=said):
        train(cfg, At(iteration, exhaust, where=where))


def test_a_metric_that_is_not_there_is_named(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'default_hooks.checkpoint.save_best': 'mIou'})
    with pytest.raises(ConfigError, match='save_best: there is no metric mIou; there are aAcc, mIoU, mAcc'):
        train(cfg)


def test_wrong_options_are_named(demo_data, tmp_path):
    with pytest.raises(ConfigError, match='bad_loss'):
        train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'train_cfg.bad_loss': 'no'}))
    with pytest.raises(ConfigError, match='on_write_error'):
        DenseCheckpointHook(on_write_error='no')
    with pytest.raises(ConfigError, match='--work-dir DIR instead of out_dir'):
        DenseCheckpointHook(out_dir=str(tmp_path))
    with pytest.raises(ConfigError, match='published_keys'):
        DenseCheckpointHook(published_keys=['state_dict'])
