"""The processes of a run: which is the first, what it does for all, their memory, and how they end."""
import ctypes
import gc
import os
import signal
import threading
from contextlib import suppress
from functools import cache
from weakref import WeakSet

import torch
from mmengine.dist import broadcast_object_list, get_rank, is_distributed

from ..errors import XCiTDenseError

#: By launcher, the environment variable that holds the rank of this process.
_RANKS = dict(pytorch='RANK', slurm='SLURM_PROCID', mpi='OMPI_COMM_WORLD_RANK')
#: Signals that stop a run once its iteration is done.
STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM}
#: The iterators of data loaders that started workers, and the workers, which may outlive them.
_STARTED, _WORKERS = WeakSet(), WeakSet()


def is_first_process(launcher: str = None) -> bool:
    """Whether this is the first process. Until the process group exists, ``cfg.launcher`` of the run is needed."""
    return (get_rank() if is_distributed() else int(os.environ.get(_RANKS.get(launcher, ''), 0))) == 0


def is_first_of_any_launcher() -> bool:
    """Whether this is the first process of any launcher, for use before the config is read."""
    return all(map(is_first_process, _RANKS))


def run_on_first(function, *args):
    """Call a function on the first process. The others wait and get None, or raise the same `XCiTDenseError`."""
    result, failed = None, [None]
    if is_first_process():
        try:
            result = function(*args)
        except XCiTDenseError as error:
            failed = [(type(error), str(error))]
    broadcast_object_list(failed)
    if failed[0]:
        kind, text = failed[0]
        raise kind(text)
    return result


def return_freed_memory():
    """Give memory that was freed back to the system, where the C library can.

    It keeps pages between objects that live on. Where small results of a metric lie between large label maps, that is
    most of the memory.
    """
    with suppress(AttributeError, OSError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def leave_group():
    """End the process group and its threads, once nothing outside holds the model.

    A gloo thread that releases a tensor while the interpreter exits aborts the process, after all work is done. The
    model that wraps the group keeps it and its threads alive until the model is garbage collected.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        end_workers()
        gc.collect()


def note_workers(iterator):
    """Note an iterator of a data loader, so that `end_workers` ends its workers; one without workers is ignored."""
    if hasattr(iterator, '_shutdown_workers'):
        _STARTED.add(iterator)
        _WORKERS.update(iterator._workers)


def end_workers():
    """End the workers of all data loaders, stuck ones too: garbage collection of a loader waits for each worker."""
    for iterator in _STARTED:
        iterator._shutdown_workers()
    for worker in _WORKERS:
        worker.kill()


def ignore_signal(number, _):
    """Ignore a signal in this process and its forks; programs that it starts would inherit ``SIG_IGN``."""


@cache
def release_children():
    """Let forked children end on SIGTERM, even if the package has a handler for it here, which they would inherit.

    Ctrl-C reaches them too: they leave it to the run, which may need their results to finish its iteration.
    """
    kept = threading.local()

    def before():  # a signal to a child that has just begun must wait: Python forgets those that came before the fork
        kept.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def after(actions=()):
        for number, action in actions:
            if str(getattr(signal.getsignal(number), '__module__', '')).startswith('xcit_dense'):
                signal.signal(number, action)
        signal.pthread_sigmask(signal.SIG_SETMASK, kept.mask)

    in_child = ((signal.SIGINT, ignore_signal), (signal.SIGTERM, signal.SIG_DFL))
    os.register_at_fork(before=before, after_in_parent=after, after_in_child=lambda: after(in_child))
