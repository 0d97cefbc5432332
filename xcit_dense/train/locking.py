"""Never two trainings in one work dir: a lock of the file system, or if it has no locks, a file with a heartbeat."""
import fcntl
import json
import logging
import os
import re
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

from mmengine.logging import print_log

from ..errors import ConfigError
from .writing import named_errors

#: Seconds between two signs of life of a run whose file system has no locks.
_BEAT = 30
#: Seconds without one after which a run on another machine counts as dead.
_SILENCE = 5 * _BEAT
#: How often to try to lock a file that is removed meanwhile.
_TRIES = 10


class Lock(ExitStack):
    """Keeps other trainings out of a folder until it is closed."""

    #: If the file system has no locks, ``.running_by`` and what this process wrote there.
    mark = None

    def check(self):
        """Raise `ConfigError` if another training has started in the folder, as a mere file cannot prevent that."""
        if self.mark and not _is_held(*self.mark):
            raise _taken(self.mark[0].parent, 'started since', '. This run writes nothing more here; what was saved '
                         'is kept')


def lock_work_dir(work_dir) -> Lock:
    """Keep other trainings out of a folder until the returned lock is closed.

    The system frees the folder when the process ends. If the file system has no locks (``flock``), the folder has the
    file ``.running_by`` until then, with machine, process and a heartbeat. The file of a killed run is removed if its
    process has ended, or, seen from another machine, once there was no heartbeat for a while. Call `Lock.check` before
    you replace anything in the folder.

    Half-written files of killed trainings are removed too.

    Raises:
        CheckpointError: The folder cannot be written to.
        ConfigError: A training runs there.
    """
    folder = Path(work_dir)
    with named_errors(folder), Lock() as stack:
        file, error = _open_locked(folder)
        stack.enter_context(file)
        os.register_at_fork(after_in_child=file.close)  # workers may outlive the process by seconds
        mark = None
        if error:
            print_log(f'{file.name} cannot be locked on this file system ({error}). Instead, '
                      f'{folder / ".running_by"} keeps other trainings out, with a heartbeat every {_BEAT} seconds',
                      logger='current', level=logging.WARNING)
            mark, end, beat = _enter(folder)
            stack.callback(_leave, mark, end, beat)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        for part in folder.glob('*.part'):  # of killed trainings
            if re.search(r'\.[0-9a-f]{8}\.part$', part.name):  # not a user's download
                part.unlink(missing_ok=True)
        lock = stack.pop_all()
        lock.mark = mark
        lock.callback(setattr, lock, 'mark', None)
        return lock


def _open_locked(folder):
    """Open and lock a folder's file; return it, and the error of a file system without locks, or None."""
    for left in reversed(range(_TRIES)):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with ExitStack() as stack:
                file = stack.enter_context(open(folder / '.running', 'a+'))
                error = _lock(folder, file)
                # others will lock the file of this name; some file systems give a file a new number each time
                if os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)) or not left:
                    stack.pop_all()
                    return file, error
        except FileNotFoundError:  # another start that gave up removed it, or the folder
            if not left:
                raise


def _lock(folder, file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        raise _taken(folder, f'process {file.read().strip() or "unknown"}') from None
    except OSError as error:
        return error
    return None


def _taken(folder, who, more=''):
    return ConfigError(f'another training ({who}) runs in {folder.absolute()}. Stop it, or give another '
                       f'--work-dir{more}')


def _enter(folder):
    """Write the file of this process into a folder and start its heartbeat; return the arguments of `_leave`."""
    path, mine = folder / '.running_by', json.dumps(_process())
    _check_dead(folder, path)
    _take_away(folder, path)
    try:
        _make(path, mine)
    except FileExistsError:
        raise _taken(folder, 'just started') from None
    end = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, mine, end), daemon=True)
    beat.start()
    return (path, mine), end, beat


def _take_away(folder, path):
    """Remove the file of a dead process; since the check, another start may have written its own."""
    taken = path.with_name(f'{path.name}.{uuid4().hex[:8]}.part')  # the next start removes it if this one is killed
    with suppress(FileNotFoundError):
        os.rename(path, taken)  # if two try at once, only one succeeds
        try:
            _check_dead(folder, taken)
        except ConfigError:
            os.rename(taken, path)
            raise
        taken.unlink()


def _make(path, mine):
    with open(path, 'x') as file:  # if two try at once, only one succeeds
        file.write(mine)


def _is_held(path, mine):
    """Whether no other process has replaced the file of this one; a missing file is written again."""
    with suppress(OSError):  # a file system that does not answer now may do so later
        if not path.exists():
            _make(path, mine)
    return _read(path) in (mine, None, '')  # '': it is being written


def _leave(mark, end, beat):
    path, mine = mark
    end.set()
    beat.join(_BEAT)  # otherwise it may write the file again
    if _read(path) == mine:
        path.unlink(missing_ok=True)


def _beat(path, mine, end):
    while not end.wait(_BEAT):
        if not _is_held(path, mine):
            print_log(f'another training has started in {path.parent}: stop one of the two', logger='current',
                      level=logging.ERROR)
            return
        with suppress(OSError):
            os.utime(path)


def _check_dead(folder, path):
    """Raise `ConfigError` unless there is no file, or its process is dead as far as can be seen."""
    text = _read(path)
    if text is None:
        return
    try:
        other = json.loads(text)
        who = f'process {other["pid"]} on {other["host"]}'
    except (KeyError, TypeError, ValueError):  # it is being written, or the power failed before it was
        other, who = {}, 'unknown'
    if other.get('machine') == _process()['machine']:
        if other.get('start') in (_start_of(other['pid']), None):
            raise _taken(folder, who)
        return
    (folder / '.running').touch()  # the clock of the file system
    try:
        silent = (folder / '.running').stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:  # its process has just ended
        return
    if silent < _SILENCE:
        raise _taken(folder, f'{who}, last sign of life {max(silent, 0):.0f} s ago',
                     f'. If it was killed, wait until its last sign of life is {_SILENCE} s old, or delete '
                     f'{folder / ".running_by"}')


def _read(path):
    try:
        return path.read_text()
    except OSError:
        return None


def _process():
    """Return what identifies this process among those of all machines, containers and times."""
    machine = Path('/proc/sys/kernel/random/boot_id').read_text().strip() + os.readlink('/proc/self/ns/pid')
    return dict(host=os.uname().nodename, pid=os.getpid(), machine=machine, start=_start_of(os.getpid()))


def _start_of(pid):
    """Return when a process of this machine started, or None if no process with this number runs."""
    state, *numbers = (_read(Path(f'/proc/{pid}/stat')) or 'Z').rpartition(')')[2].split()
    return None if state == 'Z' else numbers[18]  # Z: a zombie, which has ended
