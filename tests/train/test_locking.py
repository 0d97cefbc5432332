"""Two trainings in one folder: kept apart by the file system, or where it cannot by a heartbeat."""
import errno
import fcntl
import json
import logging
import multiprocessing
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


def refused(who):
    return pytest.raises(ConfigError, match=rf'another training \({who}.*\) runs in \S+\. Stop it, or .*--work-dir')


ME = f'process {os.getpid()}'


def test_a_locked_folder(tmp_path):
    folder = tmp_path / 'run'
    folder.mkdir()
    for name in ('iter_1.pth', 'iter_2.pth.0a1b2c3d.part', 'last_checkpoint.0a1b2c3d.part', 'parts', 'film.mp4.part'):
        (folder / name).touch()
    lock = lock_work_dir(folder)
    assert sorted(p.name for p in folder.iterdir()) == ['.running', 'film.mp4.part', 'iter_1.pth', 'parts']
    assert (folder / '.running').read_text() == str(os.getpid())
    for _ in range(2):
        with refused(ME):
            lock_work_dir(folder)
    with refused(ME):
        check_work_dir(Config(dict(work_dir=str(folder))), overwrite=True)
    lock.close()
    lock_work_dir(folder).close()
    assert (folder / '.running').read_text() == str(os.getpid())  # not that of the one before too
    lock_work_dir(tmp_path / 'new/run').close()
    (tmp_path / 'file').touch()
    with pytest.raises(CheckpointError, match='cannot write .*file/run: Not a directory'):
        lock_work_dir(tmp_path / 'file/run')


def test_a_worker_that_outlives_its_run_locks_nobody_out(tmp_path):
    context = multiprocessing.get_context('fork')
    runs, ends = context.Event(), context.Event()
    with lock_work_dir(tmp_path):
        worker = context.Process(target=lambda: (runs.set(), ends.wait(60)))
        worker.start()
        assert runs.wait(20)
    lock_work_dir(tmp_path).close()
    ends.set()
    worker.join()


def test_without_locks_a_file_keeps_others_out(without_locks, tmp_path):
    """Also where it was deleted meanwhile."""
    path = tmp_path / '.running_by'
    with lock_work_dir(tmp_path) as lock:
        (said, level), = without_locks
        assert str(path) in said and level == logging.WARNING
        with refused(rf'{ME} on \S+'):
            lock_work_dir(tmp_path)
        path.unlink()
        lock.check()
        path.write_text('')
        lock.check()  # the heart is making it again
        path.unlink()
        lock.check()
        with refused(f'{ME} on '):
            lock_work_dir(tmp_path)
    lock.check()
    assert not path.exists()
    lock_work_dir(tmp_path).close()


@pytest.fixture
def other():
    """Another process that waits, and what it would write into its file."""
    process = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)
    yield process, dict(locking._process(), pid=process.pid, start=locking._start_of(process.pid))
    process.communicate()


def test_without_locks_a_killed_run_of_this_machine_keeps_nobody_out(without_locks, other, tmp_path, monkeypatch):
    path, (killed, mark) = tmp_path / '.running_by', other
    path.write_text(json.dumps(mark))
    with refused(f'process {killed.pid} on '):
        lock_work_dir(tmp_path)
    killed.kill()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # ended, and not asked how yet
    lock_work_dir(tmp_path).close()
    path.write_text(json.dumps(dict(mark, pid=os.getpid())))  # its number has been given to another
    with lock_work_dir(tmp_path):
        assert json.loads(path.read_text()) == locking._process()
    with monkeypatch.context() as patch:  # in another container, where numbers are those of other processes
        patch.setattr(os, 'readlink', lambda _: 'pid:[1]')
        path.write_text(json.dumps(dict(locking._process(), pid=killed.pid)))
    with pytest.raises(ConfigError, match=f'process {killed.pid} on .*last sign of life'):
        lock_work_dir(tmp_path)


def test_without_locks_a_run_elsewhere_counts_as_long_as_its_heart_beats(without_locks, tmp_path):
    """Also what was cut off while it was written."""
    path = tmp_path / '.running_by'
    for text in ('', '[]', '{"pid": 1}', json.dumps(dict(host='far', pid=7, machine='x', start='1'))):
        path.write_text(text)
        who = 'process 7 on far' if 'far' in text else 'unknown'
        for silent in (0, locking._SILENCE / 2):  # some beats may be missed
            os.utime(path, (time.time() - silent, ) * 2)
            with pytest.raises(ConfigError, match=f'{who}, last sign of life .* or delete {path}'):
                lock_work_dir(tmp_path)
        os.utime(path, (time.time() - locking._SILENCE - 1, ) * 2)
        os.utime(tmp_path / '.running', (1, 1))  # as the last start left it: the time of now counts
        lock_work_dir(tmp_path).close()


def test_without_locks_the_heart_beats_until_the_run_ends_or_another_has_begun(without_locks, tmp_path, monkeypatch):
    is_held, path, begun = locking._is_held, tmp_path / '.running_by', threading.active_count()
    looks = threading.Event()

    def look_slowly(*mark):
        looks.set()
        time.sleep(0.1)
        return is_held(*mark)

    monkeypatch.setattr(locking, '_BEAT', 0.01)
    monkeypatch.setattr(locking, '_is_held', look_slowly)
    lock = lock_work_dir(tmp_path)
    os.utime(path, (1, 1))
    wait_for(lambda: path.stat().st_mtime > 1)
    looks.clear()
    assert looks.wait(20)
    monkeypatch.setattr(locking, '_BEAT', 20)
    lock.close()
    assert threading.active_count() == begun and not path.exists()  # it would make the file again
    monkeypatch.setattr(locking, '_BEAT', 0.01)
    with lock_work_dir(tmp_path):
        path.write_text('of another')  # deleted by hand and begun again
        wait_for(lambda: threading.active_count() == begun)
        assert 'another training has started' in without_locks[-1][0] and without_locks[-1][1] == logging.ERROR
    assert path.read_text() == 'of another'


def test_without_locks_the_first_of_two_starts_at_once_gets_in(without_locks, tmp_path, monkeypatch):
    """The other has made its file just before; or taken its own away, and the folder is free."""
    path, take_away = tmp_path / '.running_by', locking._take_away

    def take_away_and_be_late(*args):
        take_away(*args)
        path.write_text('of another')

    monkeypatch.setattr(locking, '_take_away', take_away_and_be_late)
    with refused('just started'):
        lock_work_dir(tmp_path)
    assert path.read_text() == 'of another'
    monkeypatch.setattr(locking, '_take_away', take_away)
    path.write_text('')
    read = locking._read

    def read_and_end(of):
        text = read(of)
        if of == path and text == '':
            path.unlink()
        return text

    monkeypatch.setattr(locking, '_read', read_and_end)
    lock_work_dir(tmp_path).close()


def test_without_locks_one_of_two_starts_over_a_dead_run_gets_in(without_locks, other, tmp_path, monkeypatch):
    """The second comes and goes in while the first has judged the file, and not yet taken it away."""
    path = tmp_path / '.running_by'
    path.write_text(json.dumps(dict(locking._process(), start='1')))
    check, (second, process), entered = locking._check_dead, other, []

    def check_and_wait(*args):
        check(*args)
        monkeypatch.setattr(locking, '_check_dead', check)
        with monkeypatch.context() as patch:
            patch.setattr(locking, '_process', lambda: process)
            entered.append(lock_work_dir(tmp_path))

    monkeypatch.setattr(locking, '_check_dead', check_and_wait)
    with refused(f'process {second.pid} on '):
        lock_work_dir(tmp_path)
    assert json.loads(path.read_text()) == process and not list(tmp_path.glob('.running_by.*'))
    entered[0].check()
    entered[0].close()
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
    with lock_work_dir(tmp_path), refused(ME):
        lock_work_dir(tmp_path)


def test_a_start_that_gives_up_takes_its_file_away_while_it_has_the_lock(tmp_path, monkeypatch):
    unlink, seen = Path.unlink, []

    def unlink_and_look(path, **options):
        if path.name == '.running':
            with refused(ME):
                lock_work_dir(path.parent)
            seen.append(path)
        unlink(path, **options)

    monkeypatch.setattr(Path, 'unlink', unlink_and_look)
    check_work_dir(Config(dict(work_dir=str(tmp_path / 'new/run'))))
    assert seen and not (tmp_path / 'new').exists()


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()
