"""Run the tools of the package as users do: in processes of their own, with their output in files."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch

from helpers.paths import ROOT
from xcit_dense._utils.machine import has_bfloat16

#: Seconds before the limit of a check at which its tools are stopped, so that it can still say so.
MARGIN = 20
#: Options of a training that ends with the same bits each time.
DETERMINISTIC = ('--cfg-options', 'randomness.seed=0', 'randomness.deterministic=True')
_LAUNCHER = ('-m', 'torch.distributed.run', '--standalone', '--local-addr', 'localhost', '--nproc-per-node', '1')


class ToolError(RuntimeError):
    """A tool failed or did not end in time; the text is its last message."""


class Tools:
    """The tools of a check, which end before its time does; its folders and logs begin with a name."""

    def __init__(self, check, name: str):
        self.check, self.name, self._share = check, name, 1
        self._end = check.end - MARGIN
        runs = Path(check.out, 'runs')
        runs.mkdir(parents=True, exist_ok=True)
        #: A new folder for the work dirs of this check: nothing of an earlier run is replaced.
        self.folder = Path(tempfile.mkdtemp(prefix=f'{name}_', dir=runs))

    def run(self, name: str, tool: str, *args, grouped: bool = False, until: Callable | None = None):
        """Run a tool with its arguments and wait for it; its output is in ``logs/CHECK_NAME.txt``.

        With ``grouped`` torch's launcher starts it, as a group of one process. When ``until()`` is True, the tool gets
        a SIGTERM and must stop by it.
        """
        log = Path(self.check.out, 'logs', f'{self.name}_{name}.txt')
        log.parent.mkdir(exist_ok=True)
        command = [sys.executable, *(_LAUNCHER if grouped else ()), '-m', 'xcit_dense', tool, *map(str, args),
                   *(('--launcher', 'pytorch') if grouped else ())]
        environment = dict(os.environ, OMP_NUM_THREADS=str(max(torch.get_num_threads() // self._share, 1)),
                           PYTHONPATH=os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH')))))
        if DETERMINISTIC[-1] in args:
            environment['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'  # without it cuBLAS is refused
        with log.open('w') as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
            try:
                self._wait(process, until, name)
            finally:
                end_all(process)
        if until and process.returncode == 0:
            raise ToolError(f'{name}: the run was over before it could be stopped')
        if process.returncode != (128 + signal.SIGTERM if until else 0):
            said = complaint(log.read_text(errors='replace'))
            raise ToolError(f'{name}: {said or f"exit code {process.returncode}"}')

    def _wait(self, process, until, name):
        while True:
            try:
                process.wait(0.05 if until else max(min(self._end - time.monotonic(), 1e6), 0.05))
                return
            except subprocess.TimeoutExpired:
                if time.monotonic() > self._end:
                    raise ToolError(f'{name}: stopped, as the time of the check was over') from None
                if until and until():
                    process.send_signal(signal.SIGTERM)
                    until = None

    def together(self, jobs: dict) -> tuple[dict, list]:
        """Call functions at the same time, on a CPU two; return what they return by name, and texts of `ToolError`."""
        found, wrong = {}, []

        def call(name):
            try:
                found[name] = jobs[name]()
            except ToolError as error:
                wrong.append(str(error))

        self._share = min(len(jobs), 8 if self.check.is_cuda else 2)
        with ThreadPoolExecutor(self._share) as pool:
            list(pool.map(call, jobs))
        return found, wrong


def end_all(process):
    """End a process that still runs and all that it started; torch's launcher starts them in sessions of their own."""
    if process.poll() is None:
        started = _descendants(process.pid)
        process.kill()
        process.wait()
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _descendants(pid):
    """Return the numbers of the processes that a process started, and that these started. Linux only."""
    found = []
    for file in Path('/proc', str(pid), 'task').glob('*/children'):
        with suppress(OSError):  # it has ended
            for child in map(int, file.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def complaint(text: str) -> str:
    """Return the last error in the output of a tool, or its last line; '' if it printed nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # torch's launcher reports with ChildFailedError that its process failed
    errors = [line for line in lines if re.match(r'error: |(?!.*ChildFailed)[\w.]*(Error|Exception)\b', line)]
    return (errors or lines or [''])[-1][:400]


def amp_options(check) -> dict:
    """Return the options of a training for each kind of mixed precision that the device has, by its name."""
    if not check.is_cuda:
        return dict(amp=['--amp']) if has_bfloat16('cpu') else dict(float32=[])
    return {dtype: ['--amp', dtype] for dtype in ('float16', 'bfloat16')}
