"""Each tool once in a separate process, as users start it; everything else of them is tested in this one."""
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from helpers.models import dense_state, save
from helpers.paths import ROOT, TINY_CONFIG
from helpers.tools import environment, run_process
from xcit_dense.weights import newest_checkpoint, read_checkpoint

pytestmark = pytest.mark.integration


@pytest.fixture(scope='module')
def work_dir(demo_data, tmp_path_factory):
    """The work dir of a training in a separate process."""
    folder = tmp_path_factory.mktemp('run')
    done = run_process('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', folder)
    assert re.search(r'Epoch\(train\) +\[2\]\[3/3\].*eta: .*loss: ', done.stdout)
    assert newest_checkpoint(folder).name == 'epoch_2.pth'
    return folder


def test_test(work_dir, demo_data, tmp_path):
    args = (TINY_CONFIG, work_dir, '--data-root', demo_data, '--work-dir', tmp_path, '--at-least', 'coco/bbox_mAP=1.1')
    done = run_process('test.py', *args, cwd=tmp_path, check=False)
    assert done.returncode == 1 and 'Traceback' not in done.stdout
    assert re.match(r'error: coco/bbox_mAP is -?\d\.\d+, below the required 1\.1', done.stdout.splitlines()[-1])


def test_predict(work_dir, demo_data, tmp_path):
    done = run_process('predict.py', TINY_CONFIG, work_dir, demo_data / 'val2017', '--out', 'out', cwd=tmp_path)
    assert '3 pictures' in done.stdout
    assert len(list((tmp_path / 'out').glob('*.jpg'))) == 3


def test_plot_curves(work_dir):
    run_process('plot_curves.py', work_dir)
    assert (work_dir / 'curves.png').read_bytes().startswith(b'\x89PNG')


def test_check_data(demo_data, tmp_path):
    run_process('check_data.py', TINY_CONFIG, '--data-root', demo_data, '--out', 'found', cwd=tmp_path)
    assert json.loads((tmp_path / 'found/findings.json').read_text()) == []


def test_convert_checkpoint(tmp_path):
    path = save(tmp_path / 'a.pth', dense_state())
    run_process('convert_checkpoint.py', path, tmp_path / 'b.safetensors', '--to', 'timm')
    assert 'blocks.0.attn.temperature' in read_checkpoint(tmp_path / 'b.safetensors')


def test_make_demo_data(tmp_path):
    run_process('make_demo_data.py', 'data', '--train', 1, '--val', 1, '--size', 48, cwd=tmp_path)
    assert (tmp_path / 'data/annotations/instances_val2017.json').is_file()


def test_measure(demo_data, tmp_path):
    run_process('measure.py', TINY_CONFIG, '--data-root', demo_data, '--iterations', 1, '--images', 1, '--out',
                'measured.json', cwd=tmp_path)
    assert len(json.loads((tmp_path / 'measured.json').read_text())['training']['losses']) == 1


def test_benchmark_stops_at_what_it_does_not_know(tmp_path):
    """Its whole run is among the slow tests."""
    done = run_process('benchmark.py', '--rivals', 'resnet51', cwd=tmp_path, check=False)
    assert done.returncode == 1 and 'did you mean resnet50' in done.stdout


@pytest.mark.parametrize('number, when', ((signal.SIGINT, '(train)'), (signal.SIGTERM, '(train)'),
                                          (signal.SIGTERM, '(val)')))
def test_a_signal_to_all_processes_saves_and_ends_at_once(number, when, demo_data, tmp_path):
    """It reaches the workers of the loaders too, which must not end before what they work for."""
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = '{TINY_CONFIG}'\ncustom_imports = dict(imports=['xcit_dense', 'helpers.rank_dump'])\n"
                      f'train_cfg = dict(max_epochs=1000, val_interval={1 if when == "(val)" else 1000})\n'
                      'train_dataloader = dict(num_workers=2, persistent_workers=True)\n'
                      'val_dataloader = dict(num_workers=2)\ndefault_hooks = dict(logger=dict(interval=1))\n')
    command = [sys.executable, ROOT / 'tools/train.py', config, '--data-root', demo_data, '--work-dir', tmp_path]
    process = subprocess.Popen(list(map(str, command)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env=environment(LONG_WAITS=1), start_new_session=True)
    timer = threading.Timer(300, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    try:
        assert any(when in line for line in process.stdout)
        start = time.monotonic()
        os.killpg(process.pid, number)
        said = process.communicate()[0]
    finally:
        timer.cancel()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 128 + number, said
    assert time.monotonic() - start < 50  # no worker is waited for
    assert re.search(rf'stopped by {number.name} after iteration \d+. Saved .*iter_\d+.pth; continue with --res', said)
    assert 'Traceback' not in said, said
