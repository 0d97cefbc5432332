"""Run what may have effects, such as constructors of other packages, in a process of its own."""
import gc
import logging
import multiprocessing
import os
import socket
import warnings

import torch

#: Seconds for a check; models are built in less than one.
_PATIENCE = 120


class NoNetwork(BaseException):
    """A constructor asked for the network; no error, which it could catch to try again and again."""


def in_child(function, *args) -> list:
    """Return what a function gives in a copy of this process: a list that can be pickled.

    Its effects, on random numbers, caches, registries or the log, end with the copy, which has no network.

    Returns:
        The list; an empty one where the copy died or took more than two minutes.
    """
    context = multiprocessing.get_context('fork')
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, function, args))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)  # of threads, which the copy does without
        process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(_PATIENCE) else []
    except EOFError:
        return []
    finally:
        process.kill()
        process.join()


def _run(sender, function, args):
    gc.disable()  # it would write to all that the copy shares with the process
    isolate()
    sender.send(function(*args))


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
