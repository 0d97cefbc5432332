"""Checkpoints among full disks, damaged files, second runs, and power that fails between two steps: nothing is lost."""
import errno
import os
import re
import resource
from itertools import dropwhile

import numpy as np
import pytest

from helpers.disk import Disk
from helpers.models import assert_equal
from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import At, Metrics, assert_same_run, die, make_config, short_config, train, whole_run
from xcit_dense.errors import CheckpointError, ConfigError
from xcit_dense.train import build_runner, saving
from xcit_dense.train.saving import DenseCheckpointHook
from xcit_dense.train.work_dirs import claim_work_dir
from xcit_dense.weights import newest_checkpoint, read_checkpoint
from xcit_dense.weights.files import Notes, checkpoints_in, damage, read_notes, write_notes


def names_in(folder, pattern='*.pth'):
    return sorted(path.name for path in folder.glob(pattern))


def break_at(iteration, disk, *calls):
    return At(iteration, lambda _: disk.failing.update(dict.fromkeys(calls, OSError(errno.EIO, 'broken'))))


def test_a_checkpoint_that_cannot_be_written(demo_data, tmp_path):
    """The system rejects files of more than 100 kB, as with a full disk."""
    kind, before = resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(CheckpointError, match='cannot write .*iter_2.pth: File too large'):
            train(short_config(demo_data, tmp_path, 4, max_keep_ckpts=1), At(2, lambda _: resource.setrlimit(
                kind, (100_000, before[1]))))
    finally:  # the limit would hold for the report of the tests too
        resource.setrlimit(kind, before)
    assert names_in(tmp_path, '*.p*t*') == ['iter_1.pth'] and damage(tmp_path / 'iter_1.pth') is None


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
    wanted, data, copy_of, found = read_checkpoint(path), path.read_bytes(), tmp_path / 'damaged.pth', 0
    for place in np.random.default_rng(0).integers(len(data), size=25).tolist():
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        copy_of.write_bytes(damaged)
        try:
            assert_equal(read_checkpoint(copy_of)['state_dict'], wanted['state_dict'], place)
        except CheckpointError as error:
            assert 'damaged.pth: the file is damaged' in str(error) and damage(copy_of)
            found += 1
    assert found > 12
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
    backend = saving.DenseVisBackend(save_dir=str(tmp_path))
    backend._init_env()
    backend._scalar_save_file = '/dev/full'
    backend.add_scalars(dict(loss=1.))
    assert 'cannot write the curves: [Errno 28]' in ''.join(capfd.readouterr())


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


def test_note_then_checkpoint_then_pointer_then_the_old_one_goes(demo_data, tmp_path, monkeypatch):
    disk, wanted = Disk(tmp_path, monkeypatch), []
    train(short_config(demo_data, tmp_path, 3, max_keep_ckpts=1))
    for i in (1, 2, 3):
        # noted before it is there: what a killed run leaves is known to be its own
        for name in ('.checkpoints', f'iter_{i}.pth', 'last_checkpoint'):  # flushed, takes its name, which is flushed
            wanted += [('fsync', f'{name}.*.part'), ('replace', f'{name}.*.part'), ('fsync', '.')]
        wanted += [('unlink', f'iter_{i - 1}.pth')] if i > 1 else []
    calls = [call for call in disk.calls if re.match(r'iter|last_checkpoint|\.checkpoints|\.$', call[1])]
    assert [call[:2] for call in dropwhile(lambda call: call[1] == '.', calls)] == wanted  # before it, of the config
    sizes = {call[1]: call[2] for call in calls if call[0] == 'fsync' and call[1] != '.'}
    for name in ('iter_3.pth', 'last_checkpoint'):  # nothing is written after the flush
        assert sizes[f'{name}.*.part'] == (tmp_path / name).stat().st_size
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'iter_3.pth')


def test_all_old_ones_go_and_none_that_is_kept(demo_data, tmp_path, monkeypatch):
    """A resumed run that is to keep fewer."""
    train(short_config(demo_data, tmp_path, 3, max_keep_ckpts=-1))
    assert names_in(tmp_path) == ['iter_1.pth', 'iter_2.pth', 'iter_3.pth']
    disk = Disk(tmp_path, monkeypatch)
    train(short_config(demo_data, tmp_path, 4, max_keep_ckpts=2), resume=True)
    assert names_in(tmp_path) == ['iter_3.pth', 'iter_4.pth']
    gone = [call[1] for call in disk.calls if call[0] == 'unlink' and call[1].endswith('.pth')]
    assert sorted(gone) == ['iter_1.pth', 'iter_2.pth']
    first = disk.calls.index(('unlink', gone[0]))
    assert first > max(i for i, call in enumerate(disk.calls) if call[0] == 'replace')


@pytest.mark.parametrize('failing, call', (('iter_2.pth', 'fsync'), ('last_checkpoint', 'replace')))
def test_what_fails_leaves_the_checkpoint_before(failing, call, demo_data, tmp_path, monkeypatch):
    """Of the pair too that is written second: the new checkpoint may be there, the old one must be."""
    disk, kept = Disk(tmp_path, monkeypatch), []
    with pytest.raises(CheckpointError, match=f'cannot write {tmp_path / failing}: {os.strerror(errno.EIO)}'):
        train(short_config(demo_data, tmp_path, 3, max_keep_ckpts=1), break_at(2, disk, (call, f'{failing}.*.part')))
    disk.failing.clear()
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'iter_1.pth')
    assert (tmp_path / 'iter_1.pth').is_file() and not list(tmp_path.glob('*.part'))
    assert (tmp_path / 'iter_2.pth').is_file() == (failing == 'last_checkpoint')
    # what a run that goes on takes to be there
    train(short_config(demo_data, tmp_path, 3, max_keep_ckpts=1), At(
        3, lambda _: kept.extend(names_in(tmp_path)), where='before_train_iter'), resume=True)
    assert kept == ['iter_2.pth']


def test_a_failure_that_the_run_survives_takes_back_what_it_noted(demo_data, tmp_path, monkeypatch, capfd):
    """Else the next checkpoint would delete the last good one for a file that never was."""
    disk, noted = Disk(tmp_path, monkeypatch), []

    def look(runner):
        noted.append(runner.message_hub.get_info('last_ckpt'))
        noted.extend(hook.last_ckpt for hook in runner.hooks if isinstance(hook, DenseCheckpointHook))

    got = train(short_config(demo_data, tmp_path, 4, max_keep_ckpts=2, on_write_error='continue'),
                break_at(2, disk, ('replace', 'iter_2.pth.*.part')), At(3, look, where='before_train_iter'))
    assert 'The training continues' in ''.join(capfd.readouterr())
    assert noted == [str(tmp_path / 'iter_1.pth')] * 2 and names_in(tmp_path) == ['iter_3.pth', 'iter_4.pth']
    assert read_notes(tmp_path).checkpoints[-2:] == ['iter_3.pth', 'iter_4.pth']
    assert got['message_hub']['runtime_info']['run_id'] == read_notes(tmp_path).run


def best_config(demo_data, work_dir, iterations, **checkpoint):
    """Return the config of a segmentor that validates every iteration and saves only the best."""
    return make_config(TINY_SEG_CONFIG, demo_data, work_dir, **{
        'train_cfg.val_interval': 1, 'train_cfg.max_iters': iterations, 'default_hooks.checkpoint': dict(
            interval=10, save_last=False, save_best='mIoU', rule='greater', **checkpoint)})


def test_the_best_score_is_not_that_of_a_file_that_could_not_be_written(demo_data, tmp_path, monkeypatch):
    """Neither the first one, without which there is none, nor a later one."""
    disk, found = Disk(tmp_path, monkeypatch), []
    calls = [('replace', f'best_mIoU_iter_{number}.pth.*.part') for number in (1, 3)]
    looks = [At(number, lambda runner: found.append((runner.message_hub.runtime_info.get('best_score'), names_in(
        tmp_path, 'best_*'))), where='before_train_iter') for number in (2, 4, 5, 6)]
    train(best_config(demo_data, tmp_path, 6, on_write_error='continue'), Metrics(5., 1., 4., 0.5, 2., 1.),
          break_at(1, disk, *calls), *looks)
    second = 1., ['best_mIoU_iter_2.pth']
    assert found == [(None, []), second, second, (2., ['best_mIoU_iter_5.pth'])]


def test_the_best_checkpoint_goes_after_the_better_one_is_there(demo_data, tmp_path, monkeypatch):
    disk = Disk(tmp_path, monkeypatch)
    train(best_config(demo_data, tmp_path, 3), Metrics(1., 1., 2.))
    first, second = (f'best_mIoU_iter_{i}.pth' for i in (1, 3))  # as good is no better
    calls = [call[:2] for call in disk.calls if 'best' in call[1] or call == ('fsync', '.')]
    calls = list(dropwhile(lambda call: call[1] == '.', calls))  # of the config
    # the last is that of the note
    written = [[('fsync', f'{best}.*.part'), ('replace', f'{best}.*.part'), ('fsync', '.'), ('fsync', '.')]
               for best in (first, second)]
    assert calls == [*written[0], ('fsync', '.'), *written[1], ('unlink', first)]  # each validation is noted


def test_where_nothing_was_learned_the_last_is_the_best(demo_data, tmp_path, capsys):
    train(best_config(demo_data, tmp_path, 3), Metrics(0., 0., 0.))
    assert names_in(tmp_path, 'best_*') == ['best_mIoU_iter_3.pth']
    assert 'best     mIoU 0 at iteration 3: best_mIoU_iter_3.pth' in capsys.readouterr().out
    assert DenseCheckpointHook(save_best='mIoU', rule='less').is_better_than['mIoU'](0., 0.) is False
    # where nothing was found it stays: mmdet then returns no metric for COCO
    DenseCheckpointHook(save_best='coco/bbox_mAP').save_best_of(None, {'val/loss': 1.})
    with pytest.raises(ConfigError, match='save_best: there is no metric coco/bbox_map. Metrics: coco/bbox_mAP'):
        DenseCheckpointHook(save_best='coco/bbox_map', rule='greater').save_best_of(None, {'coco/bbox_mAP': 1.})


@pytest.mark.parametrize('cut_off', (None, 'last_checkpoint', 'ep2.pt', 'ep3.pt', '.checkpoints'))
def test_the_pointer_moves_before_what_it_points_to_and_the_notes_at_last(cut_off, tmp_path, monkeypatch):
    """Cut off in between, nothing may point at a checkpoint that is gone, and none that is left may be unknown."""
    names = ('ep2.pt', 'ep3.pt')
    for name in (*names, 'config.py', 'last_checkpoint'):
        (tmp_path / name).write_text(f'{tmp_path}/ep3.pt')
    write_notes(tmp_path, Notes('a', list(names)))
    disk = Disk(tmp_path, monkeypatch)
    if cut_off:
        disk.failing[('rename', cut_off)] = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            claim_work_dir(tmp_path)
        assert [path.name for path in checkpoints_in(tmp_path)] == [
            name for name in names if (tmp_path / name).exists()]
        assert cut_off == 'last_checkpoint' or not (tmp_path / 'last_checkpoint').exists()
        return
    claim_work_dir(tmp_path)
    aside, = tmp_path.glob('before_*')
    assert disk.calls == [('rename', name, f'{aside.name}/{name}')
                          for name in ('last_checkpoint', *names, '.checkpoints')]
    assert sorted(p.name for p in tmp_path.iterdir()) == [aside.name, 'config.py']
    claim_work_dir(tmp_path)  # nothing is left to move
    assert [p.name for p in tmp_path.glob('before_*')] == [aside.name]
