"""The processes of a distributed run: which is the first, what it does for all, and their end."""
import gc
import os

import torch
from mmengine.dist import broadcast_object_list, get_rank, is_distributed
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .errors import XCiTDenseError

#: Where each launcher says which process this is.
_RANKS = dict(pytorch='RANK', slurm='SLURM_PROCID', mpi='OMPI_COMM_WORLD_RANK')


def is_first_process(launcher: str = None) -> bool:
    """Whether this process does what one does for all.

    Args:
        launcher: That of the run (``cfg.launcher``), for as long as the processes do not know each other.
    """
    return (get_rank() if is_distributed() else int(os.environ.get(_RANKS.get(launcher, ''), 0))) == 0


def is_first_of_any_launcher() -> bool:
    """Whether this process is the first, whichever launcher started it: for before the config says which."""
    return all(map(is_first_process, _RANKS))


def is_first_of_machine() -> bool:
    """Whether this process does what one does for all on its machine, which may share no disk with others."""
    return int(os.environ.get('LOCAL_RANK', 0)) == 0  # the launcher's, known before the processes know each other


def run_on_first(function, *args):
    """Call a function on the first process; the others wait, get None, and share its `XCiTDenseError`."""
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


def leave_group():
    """End the group of processes and its threads, once nothing outside holds the model.

    A thread of gloo that lets go of a tensor while the interpreter ends aborts the process, after all was done. The
    group lives on in the model that it wrapped, and its threads with it, until the model is collected.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        end_workers()
        gc.collect()


def end_workers():
    """End the workers of all data loaders, also those that are stuck: a loader that is collected waits for each."""
    for thing in gc.get_objects():
        if type(thing) is _MultiProcessingDataLoaderIter and hasattr(thing, '_shutdown'):  # it was built whole
            thing._shutdown_workers()
            for worker in thing._workers:
                worker.kill()
