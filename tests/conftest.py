"""Fixtures that several rooms share: the golden files, generated data, and runs trained on it."""
import gc
import os
import random
import shutil

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import config
from safetensors.torch import load_file
from yapf.yapflib import yapf_api

from helpers.paths import ROOT, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import as_in_a_process_of_its_own, run_tool
from helpers.two_processes import TwoProcesses
from xcit_dense.config.check import trial
from xcit_dense.data.demo import make_demo_data
from xcit_dense.processes import end_workers


@pytest.fixture(autouse=True, scope='session')
def _cache(tmp_path_factory):
    os.environ['XDG_CACHE_HOME'] = str(tmp_path_factory.mktemp('cache'))  # of the data checks


def pytest_configure(config):
    """Share the cores where several processes run the tests (pytest -n 2)."""
    workers = int(os.environ.get('PYTEST_XDIST_WORKER_COUNT', 1))
    torch.set_num_threads(max(torch.get_num_threads() // workers, 1))


def pytest_collection_modifyitems(items):
    """Let one worker (--dist loadgroup) have all that need the pair of processes, which takes 10 s to start."""
    for item in items:
        if 'two_processes' in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group('two_processes'))


@pytest.fixture(autouse=True, scope='session')
def _without_waiting():
    """What takes most of the time of a tiny training: formatting one config anew, collecting what was imported."""
    format_code, known = yapf_api.FormatCode, {}

    def format_once(text, **style):
        key = text, repr(style)
        return known.get(key) or known.setdefault(key, format_code(text, **style))

    with pytest.MonkeyPatch.context() as patch:
        for module in (yapf_api, config):  # the fork of mmengine takes it from the first, the original from the second
            patch.setattr(module, 'FormatCode', format_once, raising=False)
        gc.collect()
        gc.freeze()
        yield
        gc.unfreeze()


@pytest.fixture(autouse=True, scope='session')
def _whole_checks():
    """A check of a config that fails says so and lets the run begin: no test of this process passes by that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, 'warn_of', lambda problem: pytest.fail(f'a check stopped: {problem}'))
        yield


@pytest.fixture(autouse=True)
def _fresh():
    """No test sees the random numbers, the environment, the log or the scope of another.

    What it registers and what it sets in torch it takes back by itself.
    """
    with as_in_a_process_of_its_own():
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        yield
        end_workers()


@pytest.fixture(scope='session', params=(8, 16), ids=('p8', 'p16'))
def golden(request):
    """Patch size, and the tensors of the golden file by name."""
    path = ROOT / f'tests/golden/xcit_dim32_depth4_heads4_p{request.param}.safetensors'
    return request.param, load_file(path)


@pytest.fixture
def call_tool():
    """A function that runs a tool and gives its exit code, and the words it ended with or all that it printed."""

    def call(name, *args):
        done = run_tool(name, *args, check=False)
        return done.returncode, done.message or done.stdout

    return call


@pytest.fixture(scope='session')
def two_processes():
    """The `TwoProcesses` of all tests."""
    processes = TwoProcesses()
    processes.start()  # here, where no test has changed the environment
    yield processes
    processes.stop()


@pytest.fixture(scope='session')
def demo_data(tmp_path_factory):
    """A small generated data set in COCO's and ADE20k's layout."""
    root = tmp_path_factory.mktemp('data')
    make_demo_data(root, num_train=6, num_val=3, size=64)
    return root


@pytest.fixture(scope='session')
def class_folders(tmp_path_factory):
    """A small data set of three classes in folders: noise of a colour for each."""
    root, noise = tmp_path_factory.mktemp('classes'), np.random.default_rng(0)
    for split, count in (('train', 4), ('val', 2)):
        for channel, name in enumerate(('blue', 'green', 'red')):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture = noise.integers(0, 128, (40, 48 + number, 3), dtype=np.uint8)
                picture[..., channel] += 100
                cv2.imwrite(str(folder / f'{number}.png'), picture)
    return root


@pytest.fixture
def root(demo_data, tmp_path):
    """A copy of the generated data, to break."""
    return shutil.copytree(demo_data, tmp_path / 'data')


@pytest.fixture(scope='session')
def trained(demo_data, tmp_path_factory):
    """Work dir and output of a run of two epochs through tools/train.py."""
    work_dir = tmp_path_factory.mktemp('run')
    done = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', work_dir)
    return work_dir, done.stdout


@pytest.fixture(scope='session')
def trained_segmentor(demo_data, tmp_path_factory):
    """Work dir and output of a run of four iterations of a segmentor through tools/train.py."""
    work_dir = tmp_path_factory.mktemp('run')
    done = run_tool('train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--work-dir', work_dir)
    return work_dir, done.stdout
