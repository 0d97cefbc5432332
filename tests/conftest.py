"""What the tests share: a tiny arch, the golden files, generated data, and a run trained on it."""
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from xcit_dense.data.demo import make_demo_data

ROOT = Path(__file__).parents[1]
#: Real samples that lie beside a developer's checkout; tests that use them are skipped elsewhere.
SAMPLES = ROOT.parent / 'shared' / 'data'
SMALL_CONFIG = ROOT / 'configs/maskrcnn_xcit_n12_p16_small.py'
MAIN_CONFIG = ROOT / 'configs/maskrcnn_xcit_s12_p8_coco.py'

TINY_CONFIG = ROOT / 'tests/maskrcnn_xcit_tiny.py'
TINY_SEG_CONFIG = ROOT / 'tests/semfpn_xcit_tiny.py'

#: The arch of the golden files, made by the authors' release with randomised parameters.
TINY = dict(embed_dims=32, depth=4, num_heads=4, out_indices=(0, 1, 2, 3))


@pytest.fixture(autouse=True, scope='session')
def _cache(tmp_path_factory):
    os.environ['XDG_CACHE_HOME'] = str(tmp_path_factory.mktemp('cache'))  # of the data checks


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope='session', params=(8, 16), ids=('p8', 'p16'))
def golden(request):
    """Patch size, and the tensors of the golden file by name."""
    path = ROOT / f'tests/golden/xcit_dim32_depth4_heads4_p{request.param}.safetensors'
    return request.param, load_file(path)


def run_tool(name, *args, cwd=ROOT, check=True, env=None, python=()):
    """Run a tool as a user does and return what `subprocess.run` gives; output and errors in ``stdout``."""
    command = [sys.executable, *python, str(ROOT / 'tools' / name), *map(str, args)]
    done = subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, **(env or {})}, timeout=1500)
    assert not check or done.returncode == 0, done.stdout[-6000:]
    return done


def python(code):
    """Run code in a fresh process and return what it prints."""
    done = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def call_tool(monkeypatch, capsys):
    """A function that runs a tool in this process, for calls that end before any work: code and output."""

    def call(name, *args):
        path = str(ROOT / 'tools' / name)
        monkeypatch.setattr(sys, 'argv', [path, *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_path(path, run_name='__main__')
        message = stopped.value.code
        return (1, message) if isinstance(message, str) else (message, ''.join(capsys.readouterr()))

    return call


@pytest.fixture(scope='session')
def demo_data(tmp_path_factory):
    """A small generated data set in COCO's and ADE20k's layout."""
    root = tmp_path_factory.mktemp('data')
    make_demo_data(root, num_train=6, num_val=3, size=64)
    return root


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
