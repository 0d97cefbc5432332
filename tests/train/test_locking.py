"""Two trainings in one folder are kept apart by the file system."""
import errno
import fcntl
import logging
import multiprocessing
import os

import pytest
from mmengine.config import Config

from xcit_dense.errors import CheckpointError, ConfigError
from xcit_dense.train import work_dirs
from xcit_dense.train.work_dirs import check_work_dir, lock_work_dir


def test_a_locked_folder(tmp_path):
    folder = tmp_path / 'run'
    folder.mkdir()
    for name in ('iter_1.pth', 'iter_2.pth.0a1b2c3d.part', 'last_checkpoint.0a1b2c3d.part', 'parts', 'film.mp4.part'):
        (folder / name).touch()
    lock = lock_work_dir(folder)
    assert sorted(p.name for p in folder.iterdir()) == ['.running', 'film.mp4.part', 'iter_1.pth', 'parts']
    assert (folder / '.running').read_text() == str(os.getpid())
    for refuse in (lock_work_dir, lock_work_dir, lambda path: check_work_dir(Config(dict(work_dir=str(path))), True)):
        with pytest.raises(ConfigError, match=rf'another training \(process {os.getpid()}.*\) runs in .*--work-dir'):
            refuse(folder)
    lock.close()
    lock_work_dir(folder).close()
    assert (folder / '.running').read_text() == str(os.getpid())  # not that of the one before too
    lock_work_dir(tmp_path / 'new/run').close()
    (tmp_path / 'file').touch()
    for refuse in (lock_work_dir, lambda path: check_work_dir(Config(dict(work_dir=str(path))))):
        with pytest.raises(CheckpointError, match='cannot write .*file/run: Not a directory'):
            refuse(tmp_path / 'file/run')


def test_what_a_killed_measurement_left_goes_at_the_next_start(tmp_path):
    for name in ('.measured_5bq8ev6y/.running', '.measured_5bq8ev6y/measured.pth', '.measured_my_notes/a.txt'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / '.running').touch()
    with open(tmp_path / '.running') as other:  # of a process that measures
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match='another training'):
            check_work_dir(Config(dict(work_dir=str(tmp_path))))
        assert (tmp_path / '.measured_5bq8ev6y').exists()
    check_work_dir(Config(dict(work_dir=str(tmp_path))))
    assert {path.name for path in tmp_path.iterdir()} == {'.running', '.measured_my_notes'}


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


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    """As some in a network."""
    said = []
    monkeypatch.setattr(fcntl, 'flock', lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, 'no locks')))
    monkeypatch.setattr(work_dirs, 'print_log', lambda text, level, **_: said.append((text, level)))
    with lock_work_dir(tmp_path):
        (text, level), = said
    assert str(tmp_path / '.running') in text and level == logging.WARNING
