"""Run code that may have side effects, such as constructors of other packages, in a separate process."""
import gc
import logging
import multiprocessing
import os
import socket
import traceback
import warnings

import torch
from mmengine.logging import print_log

#: Seconds until a check is given up; models are built in less than one.
_PATIENCE = 120


class NoNetwork(BaseException):
    """A constructor used the network. Not an `Exception`, which the constructor could catch to try again."""


def in_child(function, *args) -> list:
    """Return what a function returns in a copy of this process: a list that can be pickled.

    Side effects, on random numbers, caches, registries or the log, end with the copy, which has no network.

    Returns:
        The list. If the function fails, or the copy dies or needs more than two minutes: an empty list, and a warning
        is logged.
    """
    context = multiprocessing.get_context('fork')
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, function, args))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)  # about threads, which the copy does not use
        process.start()
    sender.close()
    try:
        found = receiver.recv() if receiver.poll(_PATIENCE) else f'it took more than {_PATIENCE} s'
    except EOFError:
        found = 'its process died'
    finally:
        process.kill()
        process.join()
    if isinstance(found, str):
        warn_of(found)
        return []
    return found


def warn_of(problem):
    """Warn that a check failed for a reason of its own, which is no mistake in the config."""
    print_log(f'the config was checked only in part, as building it on trial failed: {problem}', logger='current',
              level=logging.WARNING)


def _run(sender, function, args):
    gc.disable()  # it would write to all memory that the copy shares with the process
    isolate()
    try:
        sender.send(function(*args))
    except BaseException as error:  # NoNetwork too
        place = traceback.extract_tb(error.__traceback__)[-1]
        sender.send(f'{type(error).__name__}: {error} ({place.filename}, line {place.lineno})')


def isolate():
    """Give up threads, output, log and network, in a process that is only there for the check."""
    torch.set_num_threads(1)  # other threads do not exist in a copy
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter('ignore')
    socket.getaddrinfo = _no_network


def _no_network(*args, **kwargs):
    raise NoNetwork
