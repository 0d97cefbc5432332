"""Two trainings in one folder: kept apart by the file system, or where it cannot by a heartbeat."""
import errno
import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from mmengine.config import Config

from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import At, make_config, train
from xcit_dense.errors import CheckpointError, ConfigError
from xcit_dense.train import locking
from xcit_dense.train.locking import lock_work_dir
from xcit_dense.train.work_dirs import check_work_dir


@pytest.fixture
def without_locks(monkeypatch):
    """A file system without flock, as some in a network; gives the warnings."""
    said = []
    monkeypatch.setattr(fcntl, 'flock', lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, 'no locks')))
    monkeypatch.setattr(locking, 'print_log', lambda text, level, **_: said.append((text, level)))
    return said


def test_a_locked_folder(tmp_path):
    folder = tmp_path / 'run'
    folder.mkdir()
    for name in ('iter_1.pth', 'iter_2.pth.0a1b2c3d.part', 'last_checkpoint.0a1b2c3d.part', 'parts', 'film.mp4.part'):
        (folder / name).touch()
    lock = lock_work_dir(folder)
    assert sorted(p.name for p in folder.iterdir()) == ['.running', 'film.mp4.part', 'iter_1.pth', 'parts']
    assert (folder / '.running').read_text() == str(os.getpid())
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf'process {os.getpid()}. runs in {folder}\.'):
            lock_work_dir(folder)
    lock.close()
    lock_work_dir(folder).close()
    assert (folder / '.running').read_text() == str(os.getpid())  # not that of the one before too
    lock_work_dir(tmp_path / 'new/run').close()


def test_a_worker_that_outlives_its_run_locks_nobody_out(tmp_path):
    (runs, started), (ends, end) = os.pipe(), os.pipe()
    with lock_work_dir(tmp_path):
        worker = os.fork()
        if not worker:
            os.close(end)
            os.write(started, b'.')
            os.read(ends, 1)
            os._exit(0)
        assert os.read(runs, 1)
    try:
        lock_work_dir(tmp_path).close()
    finally:
        for descriptor in (runs, started, ends, end):
            os.close(descriptor)
        os.waitpid(worker, 0)


def test_a_run_that_was_told_to_wait_is_told_again_by_the_check(tmp_path):
    with lock_work_dir(tmp_path), pytest.raises(ConfigError, match='another training'):
        check_work_dir(Config(dict(work_dir=str(tmp_path))), overwrite=True)


def test_without_locks_a_file_keeps_others_out(without_locks, tmp_path):
    with lock_work_dir(tmp_path):
        assert len(without_locks) == 1 and str(tmp_path / '.running_by') in without_locks[0][0]
        assert without_locks[0][1] == logging.WARNING
        with pytest.raises(ConfigError, match=rf'process {os.getpid()} on \S+ runs in {tmp_path}.*--work-dir'):
            lock_work_dir(tmp_path)
    assert not (tmp_path / '.running_by').exists()
    lock_work_dir(tmp_path).close()


def test_without_locks_a_killed_run_of_this_machine_keeps_nobody_out(without_locks, tmp_path, monkeypatch):
    path = tmp_path / '.running_by'
    killed = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)
    other = dict(locking._process(), pid=killed.pid, start=locking._start_of(killed.pid))
    path.write_text(json.dumps(other))
    with pytest.raises(ConfigError, match=f'process {killed.pid} on '):
        lock_work_dir(tmp_path)
    killed.kill()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # ended, and not asked how yet
    lock_work_dir(tmp_path).close()
    killed.communicate()
    path.write_text(json.dumps(dict(other, pid=os.getpid())))  # its number has been given to another
    with lock_work_dir(tmp_path):
        assert json.loads(path.read_text()) == locking._process()
    with monkeypatch.context() as patch:  # in another container, where numbers are those of other processes
        patch.setattr(os, 'readlink', lambda _: 'pid:[1]')
        path.write_text(json.dumps(dict(locking._process(), pid=killed.pid)))
    with pytest.raises(ConfigError, match=f'process {killed.pid} on .*last sign of life'):
        lock_work_dir(tmp_path)


@pytest.mark.parametrize('text', ('', '[]', '{"pid": 1}', json.dumps(dict(host='far', pid=7, machine='x', start='1'))))
def test_without_locks_a_run_elsewhere_counts_as_long_as_its_heart_beats(text, without_locks, tmp_path):
    """Also what was cut off while it was written."""
    path = tmp_path / '.running_by'
    path.write_text(text)
    who = 'process 7 on far' if 'far' in text else 'unknown'
    for silent in (0, locking._SILENCE / 2):  # some beats may be missed
        os.utime(path, (time.time() - silent, ) * 2)
        with pytest.raises(ConfigError, match=f'{who}, last sign of life .* or delete {path}'):
            lock_work_dir(tmp_path)
    os.utime(path, (time.time() - locking._SILENCE - 1, ) * 2)
    os.utime(tmp_path / '.running', (1, 1))  # as the last start left it: the time of now counts
    lock_work_dir(tmp_path).close()


def test_without_locks_the_heart_beats_until_another_run_has_begun(without_locks, tmp_path, monkeypatch):
    monkeypatch.setattr(locking, '_BEAT', 0.01)
    path, begun = tmp_path / '.running_by', threads()
    with lock_work_dir(tmp_path):
        os.utime(path, (1, 1))
        wait_for(lambda: path.stat().st_mtime > 1)
        path.write_text('of another')  # deleted by hand and begun again
        wait_for(lambda: threads() == begun)
        assert 'another training has started' in without_locks[-1][0] and without_locks[-1][1] == logging.ERROR
    assert path.read_text() == 'of another'


def test_without_locks_a_heart_that_beats_while_the_run_ends_leaves_no_file(without_locks, tmp_path, monkeypatch):
    monkeypatch.setattr(locking, '_BEAT', 0.01)
    is_held, begun, beats, ends = locking._is_held, threads(), threading.Event(), threading.Event()

    def beat_slowly(*mark):
        beats.set()
        ends.wait(0.2)  # longer if the file goes before the heart has stopped
        return is_held(*mark)

    monkeypatch.setattr(locking, '_is_held', beat_slowly)
    lock = lock_work_dir(tmp_path)
    assert beats.wait(20)
    monkeypatch.setattr(locking, '_BEAT', 20)
    lock.close()
    ends.set()
    wait_for(lambda: threads() == begun)
    assert not (tmp_path / '.running_by').exists()


def test_without_locks_the_first_of_two_starts_at_once_gets_in(without_locks, tmp_path, monkeypatch):
    """The other has made its file just before."""
    path, take_away = tmp_path / '.running_by', locking._take_away

    def take_away_and_be_late(*args):
        take_away(*args)
        path.write_text('of another')

    monkeypatch.setattr(locking, '_take_away', take_away_and_be_late)
    with pytest.raises(ConfigError, match='another training .just started. runs in'):
        lock_work_dir(tmp_path)
    assert path.read_text() == 'of another'


def test_without_locks_one_of_two_starts_over_a_dead_run_gets_in(without_locks, tmp_path, monkeypatch):
    """The second comes and goes in while the first has judged the file, and not yet taken it away."""
    path = tmp_path / '.running_by'
    path.write_text(json.dumps(dict(locking._process(), start='1')))
    check, second = locking._check_dead, subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)
    process = dict(locking._process(), pid=second.pid, start=locking._start_of(second.pid))
    entered = []

    def check_and_wait(*args):
        check(*args)
        monkeypatch.setattr(locking, '_check_dead', check)
        with monkeypatch.context() as patch:
            patch.setattr(locking, '_process', lambda: process)
            entered.append(lock_work_dir(tmp_path))

    monkeypatch.setattr(locking, '_check_dead', check_and_wait)
    with pytest.raises(ConfigError, match=f'process {second.pid} on '):
        lock_work_dir(tmp_path)
    assert json.loads(path.read_text()) == process and not list(tmp_path.glob('.running_by.*'))
    entered[0].check()
    entered[0].close()
    second.communicate()
    lock_work_dir(tmp_path).close()


def test_without_locks_a_file_that_goes_while_it_is_judged_is_free(without_locks, tmp_path, monkeypatch):
    path, read = tmp_path / '.running_by', locking._read
    path.write_text('')

    def read_and_end(of):
        text = read(of)
        if of == path and text == '':
            path.unlink()
        return text

    monkeypatch.setattr(locking, '_read', read_and_end)
    lock_work_dir(tmp_path).close()


@pytest.mark.parametrize('options', ({}, dict(interval=9, save_last=False, save_best='mIoU')))
def test_without_locks_a_run_saves_nothing_where_another_has_begun(options, without_locks, demo_data, tmp_path):
    """What the other wrote stays as it is, its notes and its best checkpoint too."""
    theirs = {name: f'{name} of another' for name in (
        '.running_by', '.checkpoints', 'iter_2.pth', 'best_mIoU_iter_2.pth', 'last_checkpoint')}
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{
        'default_hooks.checkpoint': dict(interval=1) | options, 'train_cfg.max_iters': 2})

    def begin(_):
        for name, text in theirs.items():
            (tmp_path / name).write_text(text)

    with pytest.raises(ConfigError, match='another training .*started since.* runs in'):
        train(cfg, At(2, begin, where='before_train_iter'))
    assert {name: (tmp_path / name).read_text() for name in theirs} == theirs
    assert (tmp_path / 'iter_1.pth').is_file() != bool(options)


def test_without_locks_a_file_that_was_deleted_is_made_again(without_locks, tmp_path):
    with lock_work_dir(tmp_path) as lock:
        (tmp_path / '.running_by').unlink()
        lock.check()
        (tmp_path / '.running_by').write_text('')
        lock.check()  # the heart is making it again
        (tmp_path / '.running_by').unlink()
        lock.check()
        with pytest.raises(ConfigError, match=f'process {os.getpid()} on '):
            lock_work_dir(tmp_path)
    lock.check()
    assert not (tmp_path / '.running_by').exists()


@pytest.mark.parametrize('is_replaced', (False, True))
def test_a_lock_on_a_file_that_has_just_gone_is_none(is_replaced, tmp_path, monkeypatch):
    """Taken away by a start that gave up, between opening and locking; the next start may have made its own."""
    flock = fcntl.flock

    def go_and_lock(*args):
        monkeypatch.setattr(fcntl, 'flock', flock)
        (tmp_path / '.running').unlink()
        if is_replaced:
            (tmp_path / '.running').touch()
        flock(*args)

    monkeypatch.setattr(fcntl, 'flock', go_and_lock)
    with lock_work_dir(tmp_path), pytest.raises(ConfigError, match='another training'):
        lock_work_dir(tmp_path)


def test_a_start_that_gives_up_takes_its_file_away_while_it_has_the_lock(tmp_path, monkeypatch):
    unlink, refused = Path.unlink, []

    def unlink_and_look(path, **options):
        if path.name == '.running':
            with pytest.raises(ConfigError, match='another training'):
                lock_work_dir(path.parent)
            refused.append(path)
        unlink(path, **options)

    monkeypatch.setattr(Path, 'unlink', unlink_and_look)
    check_work_dir(Config(dict(work_dir=str(tmp_path / 'new/run'))))
    assert refused and not (tmp_path / 'new').exists()


def test_a_folder_that_cannot_be_written(without_locks, tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')
    with pytest.raises(CheckpointError, match='cannot write .*file/run: Not a directory'):
        lock_work_dir(tmp_path / 'file/run')


def threads():
    return threading.active_count()


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()
