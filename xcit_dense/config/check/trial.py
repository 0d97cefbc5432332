"""Run what may have effects, such as constructors of other packages, in a process of its own."""
import gc
import logging
import multiprocessing
import os
import socket
import traceback
import warnings

import torch
from mmengine.logging import print_log

#: Seconds for a check; models are built in less than one.
_PATIENCE = 120


class NoNetwork(BaseException):
    """A constructor asked for the network; no error, which it could catch to try again and again."""


def in_child(function, *args) -> list:
    """Return what a function gives in a copy of this process: a list that can be pickled.

    Its effects, on random numbers, caches, registries or the log, end with the copy, which has no network.

    Returns:
        The list; an empty one, and a warning, where the function fails or the copy dies or takes two minutes.
    """
    context = multiprocessing.get_context('fork')
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, function, args))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)  # of threads, which the copy does without
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
    """Say that a check ended without findings for a fault of its own, which is no reason to refuse a config."""
    print_log(f'the config is checked in part only; what builds it on trial stopped: {problem}', logger='current',
              level=logging.WARNING)


def _run(sender, function, args):
    gc.disable()  # it would write to all that the copy shares with the process
    isolate()
    try:
        sender.send(function(*args))
    except BaseException as error:  # NoNetwork too
        place = traceback.extract_tb(error.__traceback__)[-1]
        sender.send(f'{type(error).__name__}: {error} ({place.filename}, line {place.lineno})')


def isolate():
    """Give up, in a process that is there for the check alone, threads, output, log and network."""
    torch.set_num_threads(1)  # others do not live on in a copy
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter('ignore')
    socket.getaddrinfo = _refuse


def _refuse(*args, **kwargs):
    raise NoNetwork
