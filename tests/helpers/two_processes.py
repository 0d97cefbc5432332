"""Two processes that are started once and run what the tests of distributed runs give them."""
import multiprocessing
import os
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from helpers.tools import run_tool
from xcit_dense.processes import is_first_process, run_on_first


class TwoProcesses:
    """Processes of a group, on CPUs, each with one thread."""

    def __init__(self):
        self._processes = []

    def run(self, function, *args, seconds=180):
        """Call a function with some arguments in both, as the processes of a group, and return both results.

        An error of one is raised here; where one does not come to an end in time both are killed.
        """
        if not self._processes:
            context = multiprocessing.get_context('spawn')
            for rank in (0, 1):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(rank, theirs), daemon=False)
                process.start()
                theirs.close()
                self._processes.append((process, ours))
            seconds += 120  # for the imports
        for _, pipe in self._processes:
            pipe.send((function, args))
        results, end = [], time.monotonic() + seconds
        for _, pipe in self._processes:
            if not pipe.poll(max(end - time.monotonic(), 0)):
                self.stop()
                raise TimeoutError(f'{function.__name__} did not end within {seconds} seconds')
            results.append(pipe.recv())
        for result in results:
            if isinstance(result, _Failed):
                raise AssertionError(result.text)
        return results

    def run_tool(self, name, *args, check=True):
        """Run a tool in both with `--launcher pytorch`; gives what came of each."""
        return self.run(_run_tool, name, (*args, '--launcher', 'pytorch'), check)

    def stop(self):
        for process, pipe in self._processes:
            pipe.close()
            process.kill()
            process.join()
        self._processes = []


class _Failed:
    def __init__(self, text):
        self.text = text


def _work(rank, pipe):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2')
    torch.set_num_threads(1)
    with suppress(EOFError):
        while True:
            function, args = pipe.recv()
            try:
                result = function(*args)
            except BaseException:
                result = _Failed(traceback.format_exc())
            pipe.send(result)


def in_group(function, folder, *args):
    """Call a function in a group of the two, which meet at a file in ``folder``; for `TwoProcesses.run`."""
    # the other process may fail
    dist.init_process_group('gloo', f'file://{folder}/meeting', timedelta(seconds=60), rank=int(os.environ['RANK']),
                            world_size=2)
    try:
        return function(*args)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def try_on_first(function, *args):
    """What `run_on_first` gives, and whether this is the first process; or the type and text of its error."""
    try:
        return run_on_first(function, *args), is_first_process()
    except Exception as error:
        return type(error), str(error)


def fail(kind, text):
    raise kind(text)


def _run_tool(name, args, check):
    work_dir = Path(args[args.index('--work-dir') + 1])
    work_dir.mkdir(parents=True, exist_ok=True)
    meeting = work_dir / 'meeting'
    done = in_group(lambda: run_tool(name, *args, check=False), work_dir)
    meeting.unlink(missing_ok=True)
    assert not check or done.returncode == 0, done.stdout[-6000:]
    return done
