"""Run tools and code as users do: in this process if that is enough, otherwise in a separate one."""
import functools
import gc
import os
import random
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections import namedtuple
from contextlib import contextmanager, suppress
from importlib import import_module, metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import config
from mmengine.dataset import base_dataset
from mmengine.runner import loops, runner
from mmengine.utils import ManagerMixin
from yapf.yapflib import yapf_api

from helpers.paths import ROOT
from xcit_dense.compat import versions
from xcit_dense.report import ending

#: The result of a tool: its exit code, what it printed (with errors), and its last message.
Done = namedtuple('Done', 'returncode stdout message', defaults=('', ))


def forget_run():
    """Remove what mmengine keeps for the whole process: the log, curves and scope of the last run."""
    kinds = [ManagerMixin]
    for kind in kinds:
        kinds += kind.__subclasses__()
        for instance in getattr(kind, '_instance_dict', {}).values():
            for handler in getattr(instance, 'handlers', ()):
                handler.close()
        getattr(kind, '_instance_dict', {}).clear()


@contextmanager
def as_in_a_process_of_its_own():
    """Give a run the state of a fresh process, and restore the state afterwards."""
    kept = dict(os.environ), os.getcwd(), sys.argv, random.getstate(), np.random.get_state(), torch.get_rng_state()
    forget_run()
    try:
        yield
    finally:
        forget_run()
        os.environ.clear()
        os.environ.update(kept[0])
        os.chdir(kept[1])
        sys.argv = kept[2]
        random.setstate(kept[3])
        np.random.set_state(kept[4])
        torch.set_rng_state(kept[5])


@contextmanager
def without_waiting():
    """Leave out what takes most of the time of a tiny training and changes no result."""

    @functools.cache
    def version(name):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)

    def version_or_error(name):
        if version(name) is None:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    with pytest.MonkeyPatch.context() as patch:
        for module in (yapf_api, config):  # mmengine's fork uses the first, the original the second
            patch.setattr(module, 'FormatCode', lambda text, **style: (text, True), raising=False)
        patch.setattr(base_dataset, 'gc', SimpleNamespace(collect=int))  # of all imports, for each data set
        patch.setattr(runner, 'collect_env', functools.cache(runner.collect_env))
        patch.setattr(ending, 'plot_curves', lambda folder: Path(folder, 'curves.png'))
        patch.setattr(loops, 'time', SimpleNamespace(sleep=lambda seconds: None))  # 2 s before each pass over the data
        patch.setattr(versions, 'metadata', SimpleNamespace(  # searched for and read at each config
            version=version_or_error, PackageNotFoundError=metadata.PackageNotFoundError))
        gc.collect()
        gc.freeze()
        yield
        gc.unfreeze()


@contextmanager
def output_in(file):
    """Redirect all output of this process into a file, with that of C code."""
    streams = sys.stdout, sys.stderr
    with suppress(Exception):
        sys.stdout.flush(), sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    try:
        with open(1, 'w', 1, closefd=False) as sys.stdout, open(2, 'w', 1, closefd=False) as sys.stderr:
            yield
    finally:
        sys.stdout, sys.stderr = streams
        for number, copy in enumerate(kept, 1):
            os.dup2(copy, number)
            os.close(copy)


def run_tool(name, *args, cwd=None, check=True, env=None):
    """Run a tool in this process as `python -m xcit_dense` runs it in a new one."""
    message, code = '', 0
    with tempfile.TemporaryFile('w+') as file, as_in_a_process_of_its_own():
        os.environ.update(env or {})
        os.chdir(cwd or os.getcwd())
        sys.argv = [str(ROOT / 'tools' / name), *map(str, args)]
        with output_in(file):
            try:
                if name == 'model_table.py':
                    runpy.run_path(sys.argv[0], run_name='__main__')
                else:
                    import_module(f'xcit_dense.cli.{name.removesuffix(".py")}').main(sys.argv[1:])
            except SystemExit as end:
                message, code = (end.code, 1) if isinstance(end.code, str) else ('', end.code or 0)
                print(message, end='\n' if message else '')
            except Exception:
                code = 1
                traceback.print_exc()
        file.seek(0)
        done = Done(code, file.read(), message)
    assert not check or code == 0, done.stdout[-6000:]
    return done


def environment(**more):
    """Return the environment for a process that runs this checkout and not an installed package."""
    path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / 'tests'), os.environ.get('PYTHONPATH'))))
    return {**os.environ, 'PYTHONPATH': path, **{key: str(value) for key, value in more.items()}}


def run_process(name, *args, cwd=ROOT, check=True, env=None, python=()):
    command = [sys.executable, *python, str(ROOT / 'tools' / name), *map(str, args)]
    done = subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=environment(**(env or {})), timeout=1500)
    assert not check or done.returncode == 0, done.stdout[-6000:]
    return Done(done.returncode, done.stdout)


def python(code):
    """Run code in a new process and return its output."""
    done = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def peak_of_tool(*args, cwd):
    """Return the peak memory, in GiB, of a tool. A small process starts it: the peak begins with its parent's."""
    starter = ('import resource, subprocess, sys; '
               'done = subprocess.run([sys.executable, "-m", "xcit_dense", *sys.argv[1:]]); '
               'print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)')
    done = subprocess.run([sys.executable, '-c', starter, *args], cwd=cwd, env=environment(), text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    return int(re.search(r'peak (\d+)', done.stdout)[1]) / 2**20


def files_in(folder):
    """Return the content of every file in a folder by its path there."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob('*') if path.is_file()}
