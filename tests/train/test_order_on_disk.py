"""The order of what a training does on the disk: power may fail between any two steps of it."""
import errno
import os
import re
from itertools import dropwhile

import pytest

from helpers.disk import Disk
from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import At, Metrics, make_config, train
from xcit_dense.errors import CheckpointError
from xcit_dense.train import build_runner, saving
from xcit_dense.train.work_dirs import move_old_checkpoints
from xcit_dense.train.writing import write_checkpoint
from xcit_dense.weights.work_dirs import Notes, checkpoints_in, read_notes, write_notes

NO_VALIDATION = dict(val_cfg=None, val_dataloader=None, val_evaluator=None)


def short_config(demo_data, work_dir, iterations=2, **checkpoint):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, work_dir, **NO_VALIDATION,
                      **{'default_hooks.checkpoint': dict(interval=1, **checkpoint)})
    cfg.train_cfg.update(max_iters=iterations, val_interval=100)
    return cfg


def steps_of(name, size):
    """A file is flushed whole, then takes its name, then the name is flushed."""
    return [('fsync', f'{name}.*.part', size), ('replace', f'{name}.*.part', name), ('fsync', '.')]


def test_note_then_checkpoint_then_pointer_then_the_old_one_goes(demo_data, tmp_path, monkeypatch):
    disk = Disk(tmp_path, monkeypatch)
    train(short_config(demo_data, tmp_path, 3, max_keep_ckpts=1))
    wanted, size = [], (tmp_path / 'iter_3.pth').stat().st_size
    for i in (1, 2, 3):
        # noted before it is there: what a killed run leaves is known to be its own
        wanted += steps_of('.checkpoints', None) + steps_of(f'iter_{i}.pth', None)
        wanted += steps_of('last_checkpoint', len(str(tmp_path / f'iter_{i}.pth')))
        wanted += [('unlink', f'iter_{i - 1}.pth')] if i > 1 else []
    calls = [call for call in disk.calls if re.match(r'iter|last_checkpoint|\.checkpoints|\.$', call[1])]
    calls = list(dropwhile(lambda call: call[1] == '.', calls))  # of the config
    sizes = [call[2] for call in calls if call[0] == 'fsync' and 'iter' in call[1]]
    assert sizes[-1] == size  # nothing is written after the flush
    assert [call[:2] + (None, ) if call[0] == 'fsync' and re.match(r'iter|\.checkpoints', call[1]) else call
            for call in calls] == wanted
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'iter_3.pth')


def test_all_old_ones_go_and_none_that_is_kept(demo_data, tmp_path, monkeypatch):
    """A resumed run that is to keep fewer."""
    train(short_config(demo_data, tmp_path, 3, max_keep_ckpts=-1))
    assert sorted(p.name for p in tmp_path.glob('*.pth')) == ['iter_1.pth', 'iter_2.pth', 'iter_3.pth']
    disk = Disk(tmp_path, monkeypatch)
    train(short_config(demo_data, tmp_path, 4, max_keep_ckpts=2), resume=True)
    assert sorted(p.name for p in tmp_path.glob('*.pth')) == ['iter_3.pth', 'iter_4.pth']
    gone = [call[1] for call in disk.calls if call[0] == 'unlink' and call[1].endswith('.pth')]
    assert sorted(gone) == ['iter_1.pth', 'iter_2.pth']
    first = disk.calls.index(('unlink', gone[0]))
    assert first > max(i for i, call in enumerate(disk.calls) if call[0] == 'replace')


@pytest.mark.parametrize('failing', ('iter_2.pth', 'last_checkpoint'))
@pytest.mark.parametrize('call', ('fsync', 'replace'))
def test_what_fails_leaves_the_checkpoint_before(failing, call, demo_data, tmp_path, monkeypatch):
    """Of the pair too that is written second: the new checkpoint may be there, the old one must be."""
    disk, kept = Disk(tmp_path, monkeypatch), []

    def break_disk(_):
        disk.failing[(call, f'{failing}.*.part')] = OSError(errno.EIO, 'broken')

    with pytest.raises(CheckpointError, match=f'cannot write {tmp_path / failing}: {os.strerror(errno.EIO)}'):
        train(short_config(demo_data, tmp_path, 3, max_keep_ckpts=1), At(2, break_disk))
    disk.failing.clear()
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'iter_1.pth')
    assert (tmp_path / 'iter_1.pth').is_file() and not list(tmp_path.glob('*.part'))
    assert (tmp_path / 'iter_2.pth').is_file() == (failing == 'last_checkpoint')
    # what a run that goes on takes to be there
    train(short_config(demo_data, tmp_path, 3, max_keep_ckpts=1), At(3, lambda _: kept.append(
        [path.name for path in tmp_path.glob('*.pth')]), where='before_train_iter'), resume=True)
    assert kept == [['iter_2.pth']]


def test_a_failure_that_the_run_survives_takes_back_what_it_noted(demo_data, tmp_path, monkeypatch):
    """Else the next checkpoint would delete the last good one for a file that never was."""
    disk, noted = Disk(tmp_path, monkeypatch), {}

    def break_disk(_):
        disk.failing[('replace', 'iter_2.pth.*.part')] = OSError(errno.EIO, 'broken')

    def look(runner):
        noted['last_ckpt'] = runner.message_hub.get_info('last_ckpt')
        hook = next(hook for hook in runner.hooks if isinstance(hook, saving.DenseCheckpointHook))
        noted['hook'] = hook.last_ckpt

    got = train(short_config(demo_data, tmp_path, 4, max_keep_ckpts=2, on_write_error='continue'),
                At(2, break_disk), At(3, look, where='before_train_iter'))
    first = str(tmp_path / 'iter_1.pth')
    assert noted == dict(last_ckpt=first, hook=first)
    assert sorted(p.name for p in tmp_path.glob('*.pth')) == ['iter_3.pth', 'iter_4.pth']
    assert read_notes(tmp_path).checkpoints[-2:] == ['iter_3.pth', 'iter_4.pth']
    assert got['message_hub']['runtime_info']['run_id'] == read_notes(tmp_path).run


def test_a_checkpoint_without_its_pointer_is_among_those_that_go(demo_data, tmp_path, monkeypatch):
    disk, there = Disk(tmp_path, monkeypatch), []
    broken = {('replace', 'last_checkpoint.*.part'): OSError(errno.EIO, 'broken')}
    hooks = [At(2, lambda _: disk.failing.update(broken)),
             At(3, lambda _: (disk.failing.clear(), there.extend(p.name for p in tmp_path.glob('*.pth'))),
                where='before_train_iter')]
    train(short_config(demo_data, tmp_path, 3, max_keep_ckpts=1, on_write_error='continue'), *hooks)
    assert sorted(there) == ['iter_1.pth', 'iter_2.pth']
    assert [p.name for p in tmp_path.glob('*.pth')] == ['iter_3.pth']


def test_the_best_score_is_not_that_of_a_file_that_could_not_be_written(demo_data, tmp_path, monkeypatch):
    """Neither the first one, without which there is none, nor a later one."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{
        'train_cfg.val_interval': 1, 'train_cfg.max_iters': 5, 'default_hooks.checkpoint': dict(
            interval=10, save_last=False, save_best='mIoU', rule='greater', on_write_error='continue')})
    disk = Disk(tmp_path, monkeypatch)
    for number in (1, 3):
        disk.failing[('replace', f'best_mIoU_iter_{number}.pth.*.part')] = OSError(errno.EIO, 'broken')
    runner = build_runner(cfg)
    found = []
    for hook in (Metrics(tmp_path, 5., 1., 4., 2., 1.), At(2, lambda runner: found.append(
            set(runner.message_hub.runtime_info)), where='before_train_iter')):
        runner.register_hook(hook)
    runner.train()
    assert not any(name.startswith('best_') for name in found[0])
    assert [path.name for path in tmp_path.glob('best_*')] == ['best_mIoU_iter_4.pth']
    assert runner.message_hub.get_info('best_score') == 2.


def test_the_best_checkpoint_goes_after_the_better_one_is_there(demo_data, tmp_path, monkeypatch):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{
        'train_cfg.val_interval': 1, 'train_cfg.max_iters': 3,
        'default_hooks.checkpoint': dict(interval=10, save_last=False, save_best='mIoU', rule='greater')})
    disk = Disk(tmp_path, monkeypatch)
    train(cfg, Metrics(tmp_path, 1., 1., 2.))
    first, second = (f'best_mIoU_iter_{i}.pth' for i in (1, 3))  # as good is no better
    calls = [call[:2] for call in disk.calls if 'best' in call[1] or call == ('fsync', '.')]
    calls = list(dropwhile(lambda call: call[1] == '.', calls))  # of the config
    assert calls == [(call, name) for best in (first, second) for call, name in (
        ('fsync', f'{best}.*.part'), ('replace', f'{best}.*.part'), ('fsync', '.'), ('fsync', '.'))  # and the note
        ] + [('unlink', first)]


def test_errors_of_writing_name_the_file_and_others_stay(tmp_path):

    def save(error):
        def fail(checkpoint, file):
            file.write(b'hal')
            raise error
        return fail

    path = tmp_path / 'a.pth'
    for number in (errno.ENOSPC, errno.EROFS):
        with pytest.raises(CheckpointError, match=f'cannot write {path}: {os.strerror(number)}'):
            write_checkpoint({}, path, save(OSError(number, 'x')))
    with pytest.raises(RuntimeError, match='a mistake') as found:
        write_checkpoint({}, path, save(RuntimeError('a mistake')))
    assert not isinstance(found.value, CheckpointError) and not list(tmp_path.iterdir())


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
            move_old_checkpoints(tmp_path)
        assert [path.name for path in checkpoints_in(tmp_path)] == [
            name for name in names if (tmp_path / name).exists()]
        assert cut_off == 'last_checkpoint' or not (tmp_path / 'last_checkpoint').exists()
        return
    move_old_checkpoints(tmp_path)
    aside, = tmp_path.glob('before_*')
    assert disk.calls == [('rename', name, f'{aside.name}/{name}')
                          for name in ('last_checkpoint', *names, '.checkpoints')]
    assert sorted(p.name for p in tmp_path.iterdir()) == [aside.name, 'config.py']
    move_old_checkpoints(tmp_path)  # nothing is left to move
    assert [p.name for p in tmp_path.glob('before_*')] == [aside.name]
