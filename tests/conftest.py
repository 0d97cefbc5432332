"""Shared fixtures: the golden files, generated data, and runs trained on it."""
import os
import random
import shutil

import cv2
import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from helpers import suite
from helpers.paths import ROOT, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.suite import pytest_addoption, pytest_collection_modifyitems, pytest_runtest_call  # noqa: F401
from helpers.tools import as_in_a_process_of_its_own, run_tool, without_waiting
from helpers.two_processes import TwoProcesses
from xcit_dense._utils import machine
from xcit_dense._utils.processes import end_workers
from xcit_dense.config.check import trial
from xcit_dense.data.demo import make_demo_data


@pytest.fixture(autouse=True, scope='session')
def _cache(tmp_path_factory):
    os.environ['XDG_CACHE_HOME'] = str(tmp_path_factory.mktemp('cache'))  # for the data checks


def pytest_configure(config):
    """Share the cores between the processes that run the tests (pytest -n 2)."""
    suite.pytest_configure(config)
    workers = int(os.environ.get('PYTEST_XDIST_WORKER_COUNT', 1))
    torch.set_num_threads(max(torch.get_num_threads() // workers, 1))
    # runs with different numbers of threads differ in the last bits, also those that a test starts as processes
    os.environ['OMP_NUM_THREADS'] = str(torch.get_num_threads())


@pytest.fixture(autouse=True, scope='session')
def _without_waiting():
    """Tools in processes of their own (integration) do wait."""
    with without_waiting():
        yield


@pytest.fixture(autouse=True, scope='session')
def _whole_checks():
    """Fail a test in which the check of a config crashes: outside tests that is a warning, and the run starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, 'warn_of', lambda problem: pytest.fail(f'a check stopped: {problem}'))
        yield


@pytest.fixture(autouse=True)
def _fresh():
    """Isolate random numbers, environment, log and scope of a test from those of others. A test undoes by itself what
    it registers and what it sets in torch."""
    with as_in_a_process_of_its_own():
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        yield
        end_workers()


@pytest.fixture
def bfloat16(monkeypatch):
    """This machine has it; emulated, it gives the same."""
    monkeypatch.setattr(machine, 'has_bfloat16', lambda device: True)


@pytest.fixture(scope='session', params=(8, 16), ids=('p8', 'p16'))
def golden(request):
    """Patch size, and the tensors of the golden file by name."""
    path = ROOT / f'tests/golden/xcit_dim32_depth4_heads4_p{request.param}.safetensors'
    return request.param, load_file(path)


@pytest.fixture
def call_tool():
    """A function that runs a tool and returns its exit code, and its last message or else all output."""
    def call(name, *args):
        done = run_tool(name, *args, check=False)
        return done.returncode, done.message or done.stdout
    return call


@pytest.fixture(scope='session')
def two_processes():
    """The `TwoProcesses` that all tests share."""
    processes = TwoProcesses()
    processes.start()  # before a test changes the environment
    yield processes
    processes.stop()


@pytest.fixture(scope='session')
def once(tmp_path_factory):
    """A function that makes a folder, for reading only, once for all processes that run the tests (pytest -n 2)."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if 'PYTEST_XDIST_WORKER' in os.environ else root

    def make(name, function):
        folder = root / f'once_{name}'
        with FileLock(f'{folder}.lock'):
            if not folder.exists():
                try:
                    function(folder)
                except BaseException:
                    shutil.rmtree(folder, ignore_errors=True)
                    raise
        return folder
    return make


@pytest.fixture(scope='session')
def demo_data(once):
    """A small generated data set in the layouts of COCO and ADE20k."""
    return once('data', lambda folder: make_demo_data(folder, num_train=6, num_val=3, size=64))


@pytest.fixture
def offline_wandb(monkeypatch):
    """Weights & Biases without a server; its process ends with the test."""
    wandb = pytest.importorskip('wandb')
    monkeypatch.setenv('WANDB_MODE', 'offline')
    yield
    wandb.teardown()


@pytest.fixture(scope='session')
def class_folders(tmp_path_factory):
    """A small data set of three class folders, each with noise of one colour."""
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
    """A copy of the generated data that a test may break."""
    return shutil.copytree(demo_data, tmp_path / 'data')


def _train(once, config, data):
    """Train by tools/train.py; return the work dir and the output."""
    def train(folder):
        done = run_tool('train.py', config, '--data-root', data, '--work-dir', folder, '--cfg-options',
                        'randomness.seed=0')
        folder.with_suffix('.txt').write_text(done.stdout)

    folder = once(config.stem, train)
    return folder, folder.with_suffix('.txt').read_text()


@pytest.fixture(scope='session')
def trained(demo_data, once):
    """Work dir and output of a detector's training of two epochs."""
    return _train(once, TINY_CONFIG, demo_data)


@pytest.fixture(scope='session')
def trained_segmentor(demo_data, once):
    """Work dir and output of a segmentor's training of four iterations."""
    return _train(once, TINY_SEG_CONFIG, demo_data)


def _export(once, config, work_dir, *options):
    return once(f'{config.stem}_onnx', lambda folder: run_tool(
        'export.py', config, work_dir, folder / 'model.onnx', *options)) / 'model.onnx'


@pytest.fixture(scope='session')
def exported(trained, once):
    """The ONNX file of the detector of `trained`."""
    return _export(once, TINY_CONFIG, trained[0])


@pytest.fixture(scope='session')
def exported_segmentor(trained_segmentor, once):
    """The ONNX file of the segmentor of `trained_segmentor`; it outputs scores too."""
    return _export(once, TINY_SEG_CONFIG, trained_segmentor[0], '--scores')
