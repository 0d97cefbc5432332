"""Checkpoints among full disks, damaged files and second runs: nothing is lost."""
import os
import re
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.hooks import Hook

from helpers.models import assert_equal
from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import (
    At,
    Metrics,
    assert_same_run,
    die,
    make_config,
    train,
    whole_run,
)
from helpers.tools import run_tool
from xcit_dense.errors import CheckpointError, ConfigError
from xcit_dense.train import build_runner
from xcit_dense.train.saving import DenseVisBackend
from xcit_dense.weights import newest_checkpoint, read_checkpoint
from xcit_dense.weights.files import damage


def small_files(_):
    """Let the system reject files of more than 100 kB, as with a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextmanager
def limits_back():
    """The limit goes with what is in here: it would hold for the report of the tests too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize('on_write_error', ('stop', 'continue'))
def test_a_checkpoint_that_cannot_be_written(on_write_error, demo_data, tmp_path, capfd):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'default_hooks.checkpoint': dict(
        interval=1, max_keep_ckpts=1, on_write_error=on_write_error)})
    runner = build_runner(cfg)
    runner.register_hook(At(2, small_files))
    if on_write_error == 'stop':
        with limits_back(), pytest.raises(CheckpointError, match='cannot write .*iter_2.pth: File too large'):
            runner.train()
    else:
        with limits_back():
            runner.train()
        assert runner.iter == 4 and 'The training continues' in ''.join(capfd.readouterr())
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
    assert_same_run(got, wanted)
    assert re.search('iter_3.pth is damaged.* checksum', ''.join(capfd.readouterr()))


def test_every_damage_is_found_or_harmless(trained, tmp_path):
    path = newest_checkpoint(trained[0])
    wanted, data = read_checkpoint(path), path.read_bytes()
    copy_of = tmp_path / 'damaged.pth'
    found = 0
    for place in np.random.default_rng(0).integers(len(data), size=40).tolist():
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        copy_of.write_bytes(damaged)
        try:
            assert_equal(read_checkpoint(copy_of)['state_dict'], wanted['state_dict'], place)
        except CheckpointError as error:
            assert 'damaged.pth: the file is damaged' in str(error) and damage(copy_of)
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


def test_a_run_that_cannot_write_at_its_start(demo_data, tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')

    def dump(cfg, path):
        Path('/dev/full').write_text('the config')

    monkeypatch.setattr(Config, 'dump', dump)
    for place, reason in (('file/run', 'Not a directory'), ('full', 'No space left on device')):
        with pytest.raises(CheckpointError, match=f'cannot write to the work dir .*{place}: {reason}'):
            build_runner(make_config(TINY_SEG_CONFIG, demo_data, tmp_path / place))


def test_overwrite_puts_the_earlier_checkpoints_aside(trained_segmentor, demo_data, tmp_path):
    """A new run that dies before its first checkpoint must not be resumed from the run before it."""
    work_dir = shutil.copytree(trained_segmentor[0], tmp_path / 'run')
    before = sorted(path.name for path in work_dir.glob('*.pth'))
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = '{TINY_SEG_CONFIG}'\n"
                      "custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmseg', 'helpers.rank_dump'])\n"
                      "custom_hooks = [dict(type='DieHook', iteration=1)]\n")
    options = (config, '--data-root', demo_data, '--work-dir', work_dir, '--no-pretrained')
    done = run_tool('train.py', *options, check=False)
    assert done.returncode == 1 and 'earlier run' in done.stdout
    assert 'killed by the test' in run_tool('train.py', *options, '--overwrite', check=False).stdout
    aside, = work_dir.glob('before_*')
    assert sorted(path.name for path in aside.glob('*.pth')) == before and (aside / 'last_checkpoint').is_file()
    done = run_tool('train.py', *options, '--resume', check=False)
    assert done.returncode == 1 and 'nothing to resume' in done.stdout


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


def test_a_hook_of_a_users_own_saves_where_the_run_stands(demo_data, tmp_path):
    """Within an iteration or epoch that is not counted yet, as mmengine's hooks do."""
    folder = tmp_path / 'own'

    def save(runner):
        for by_epoch in (False, True):
            runner.save_checkpoint(folder, f'{by_epoch}.pth', by_epoch=by_epoch)
        runner.save_checkpoint(folder, 'given.pth', meta=dict(epoch=7, iter=8))

    train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'train_cfg.max_iters': 2}), At(2, save))
    places = {path.stem: read_checkpoint(path)['meta'] for path in folder.iterdir()}
    assert {name: (meta['epoch'], meta['iter']) for name, meta in places.items()} == {
        'False': (0, 2), 'True': (1, 1), 'given': (7, 8)}
