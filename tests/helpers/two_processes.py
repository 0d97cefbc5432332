"""Two processes that are started once and run the functions of the tests of distributed runs."""
import multiprocessing
import os
import tempfile
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler

import torch
import torch.distributed as dist

from helpers import suite
from helpers.tools import run_tool, without_waiting
from xcit_dense._utils.processes import is_first_process, run_on_first


class TwoProcesses:
    """Processes of a group, on CPUs, each with one thread."""

    def __init__(self):
        self._processes = []

    def start(self):
        """Start both if they do not run."""
        context = multiprocessing.get_context('forkserver')  # both are forks of a process that has imported these
        context.set_forkserver_preload([__name__, 'xcit_dense.for_mmdet', 'xcit_dense.for_mmseg'])
        for rank in (0, 1) if not self._processes else ():
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(rank, theirs))
            process.start()
            theirs.close()
            self._processes.append((process, ours))

    def run(self, function, *args, seconds=300):
        """Return the results of a function in both, or raise an error of one; where one ends or is late, both go."""
        self.start()
        results, end = [], time.monotonic() + seconds
        try:
            for _, pipe in self._processes:
                pipe.send((function, args))
            for _, pipe in self._processes:
                if not pipe.poll(max(end - time.monotonic(), 0)):
                    raise TimeoutError(f'{function.__name__} did not end within {seconds} seconds')
                results.append(pipe.recv())
        except (EOFError, OSError):  # TimeoutError is an OSError
            self.stop()
            raise
        suite.elsewhere += [seconds for *_, seconds in results]
        for is_done, result, _ in results:
            if not is_done:
                raise AssertionError(result)
        return [result for _, result, _ in results]

    def in_group(self, function, *args):
        """Like `run`, with both in a process group."""
        with tempfile.TemporaryDirectory() as folder:
            return self.run(_in_group, folder, function, *args)

    def run_tool(self, name, *args, check=True):
        """Run a tool in both with `--launcher pytorch`; return both results."""
        both = self.in_group(_run_tool, name, (*args, '--launcher', 'pytorch'))
        for done in both if check else ():
            assert done.returncode == 0, done.stdout[-6000:]
        return both

    def stop(self):
        for process, pipe in self._processes:
            pipe.close()
            process.kill()
            process.join()
        self._processes = []


def _work(rank, pipe):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2')
    torch.set_num_threads(1)
    with suppress(EOFError), without_waiting():
        while True:
            function, args = pipe.recv()
            start = _spent()
            try:
                result = ForkingPickler.dumps((True, function(*args), _spent() - start))
            except BaseException:
                result = ForkingPickler.dumps((False, traceback.format_exc(), _spent() - start))
            pipe.send_bytes(result)


def _spent():
    return sum(os.times()[:4])


def _in_group(folder, function, *args):
    # 60 seconds: if one process ends, the other stops waiting for it
    dist.init_process_group('gloo', f'file://{folder}/meeting', timedelta(seconds=60), rank=int(os.environ['RANK']),
                            world_size=2)
    try:
        return function(*args)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def try_on_first(function, *args):
    """Return the result of `run_on_first`, or type and text of its error; and whether this is the first process."""
    try:
        return run_on_first(function, *args), is_first_process()
    except Exception as error:
        return type(error), str(error)


def fail(kind, text):
    raise kind(text)


def _run_tool(name, args):
    return run_tool(name, *args, check=False)
