"""Never two trainings in one work dir: a lock of the file system, or where it has none a file with a heartbeat."""
import fcntl
import json
import logging
import os
import re
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

from mmengine.logging import print_log

from ..errors import ConfigError
from .writing import named_errors

#: Seconds between two signs of life of a run whose file system has no locks.
_BEAT = 30
#: Seconds without one after which a run that cannot be asked otherwise counts as dead.
_SILENCE = 5 * _BEAT


def lock_work_dir(work_dir) -> ExitStack:
    """Keep other trainings out of a folder until what is returned is closed.

    The system frees the folder with the process. Where the file system has no locks (``flock``), the file
    ``.running_by`` stands there until then, with machine, process and a heartbeat: what a killed run left is
    taken away if that process is no more, or, seen from another machine, once the heart has been silent.

    What killed trainings left half written is taken away too.

    Raises:
        CheckpointError: The folder cannot be written to.
        ConfigError: A training runs there.
    """
    folder = Path(work_dir)
    with named_errors(folder), ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        file = stack.enter_context(open(folder / '.running', 'a+'))
        os.register_at_fork(after_in_child=file.close)  # workers may outlive the process by seconds
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise _taken(folder, f'process {file.read().strip() or "unknown"}') from None
        except OSError as error:
            print_log(f'{file.name} cannot be locked on this file system ({error}): other trainings are kept out by '
                      f'{folder / ".running_by"}, a heartbeat every {_BEAT} seconds', logger='current',
                      level=logging.WARNING)
            stack.callback(_leave, *_enter(folder))
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        for part in folder.glob('*.part'):  # of killed trainings
            if re.search(r'\.[0-9a-f]{8}\.part$', part.name):  # and not of somebody's download
                part.unlink(missing_ok=True)
        return stack.pop_all()


def _taken(folder, who, more=''):
    return ConfigError(f'another training ({who}) runs in {folder.absolute()}: stop it, or name another '
                       f'--work-dir{more}')


def _enter(folder):
    """Write the file of this process into a folder and keep its heart beating; return what `_leave` takes."""
    path, mine = folder / '.running_by', json.dumps(_process())
    _check_dead(folder, path)
    path.unlink(missing_ok=True)
    try:
        with open(path, 'x') as file:  # of two that come at once, one alone makes it
            file.write(mine)
    except FileExistsError:
        raise _taken(folder, 'just started') from None
    end = threading.Event()
    threading.Thread(target=_beat, args=(path, mine, end), daemon=True).start()
    return path, mine, end


def _leave(path, mine, end):
    end.set()
    if _read(path) == mine:
        path.unlink(missing_ok=True)


def _beat(path, mine, end):
    while not end.wait(_BEAT):
        if _read(path) not in (mine, None):  # None: what does not answer now may do so later
            print_log(f'another training has begun in {path.parent}: stop one of the two', logger='current',
                      level=logging.ERROR)
            return
        with suppress(OSError):
            os.utime(path)


def _check_dead(folder, path):
    """Raise `ConfigError` unless the process that left a file is dead, as far as can be told; or there is none."""
    text = _read(path)
    if text is None:
        return
    try:
        other = json.loads(text)
        who = f'process {other["pid"]} on {other["host"]}'
    except (KeyError, TypeError, ValueError):  # it is just being written, or power failed before it was
        other, who = {}, 'unknown'
    if other.get('machine') == _process()['machine']:
        if other.get('start') in (_start_of(other['pid']), None):
            raise _taken(folder, who)
        return
    os.utime(folder / '.running')  # the clock of the file system
    silent = (folder / '.running').stat().st_mtime - path.stat().st_mtime
    if silent < _SILENCE:
        raise _taken(folder, f'{who}, last sign of life {max(silent, 0):.0f} s ago',
                     f'. If it was killed: wait until that was {_SILENCE} s ago, or delete {path}')


def _read(path):
    try:
        return path.read_text()
    except OSError:
        return None


def _process():
    """What tells this process from all others: of other machines, containers and times too."""
    machine = Path('/proc/sys/kernel/random/boot_id').read_text().strip() + os.readlink('/proc/self/ns/pid')
    return dict(host=os.uname().nodename, pid=os.getpid(), machine=machine, start=_start_of(os.getpid()))


def _start_of(pid):
    """When a process of this machine started, or None where none with this number runs."""
    state, *numbers = (_read(Path(f'/proc/{pid}/stat')) or 'Z').rpartition(')')[2].split()
    return None if state == 'Z' else numbers[18]  # Z: it has ended, and nobody asked how
