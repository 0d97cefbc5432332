"""Each tool once in a separate process, as users start it; everything else of them is tested in this one."""
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from helpers.paths import ROOT, TINY_CONFIG
from helpers.tools import environment, run_process
from xcit_dense.weights import newest_checkpoint

pytestmark = pytest.mark.integration


@pytest.fixture(scope='module')
def work_dir(demo_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp('run')
    done = run_process('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', folder)
    assert re.search(r'Epoch\(train\) +\[2\]\[3/3\].*eta: .*loss: ', done.stdout)
    assert newest_checkpoint(folder).name == 'epoch_2.pth'
    return folder


@pytest.mark.parametrize('command, made', (
    ('predict CONFIG RUN DATA/val2017 --out out', 'out/000000000003.jpg'), ('plot_curves RUN', 'RUN/curves.png'),
    ('check_data CONFIG --data-root DATA --out found', 'found/findings.json'),
    ('measure CONFIG --data-root DATA --iterations 1 --images 1 --out measured.json', 'measured.json')),
    ids=lambda text: text.split()[0])
def test_what_a_tool_writes(command, made, work_dir, demo_data, tmp_path):
    for word, path in dict(CONFIG=TINY_CONFIG, RUN=work_dir, DATA=demo_data).items():
        command, made = command.replace(word, str(path)), made.replace(word, str(path))
    name, *args = command.split()
    run_process(f'{name}.py', *args, cwd=tmp_path)
    starts = {'.png': b'\x89PNG', '.jpg': b'\xff\xd8', '.json': (b'{', b'[')}
    assert (tmp_path / made).read_bytes().startswith(starts[(tmp_path / made).suffix])


def test_threads_that_wait_give_way_to_other_programs(tmp_path):
    (tmp_path / 'mine.py').write_text("raise ValueError(__import__('os').environ['GOMP_SPINCOUNT'])\n")
    command = [sys.executable, '-m', 'xcit_dense', 'train', tmp_path / 'mine.py']
    for given, found in (({}, '10000'), ({'GOMP_SPINCOUNT': '7'}, '7')):
        done = subprocess.run(list(map(str, command)), env=environment(**given), text=True, capture_output=True)
        assert done.stderr.rstrip().endswith(f'line 1: ValueError: {found}')


def test_a_stopped_export_leaves_nothing(work_dir, tmp_path):
    """Also where Ctrl-C is switched off, as in the background of a shell."""
    command = [sys.executable, '-m', 'xcit_dense', 'export', work_dir, tmp_path / 'm.onnx']
    process = subprocess.Popen(list(map(str, command)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env=environment(), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    with process:
        assert any('tracing' in line for line in process.stdout) and [*tmp_path.iterdir()]
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM and not [*tmp_path.iterdir()]


@pytest.mark.parametrize('number, when', ((signal.SIGINT, '(train)'), (signal.SIGTERM, '(val)')))
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
    assert any(when in line for line in process.stdout)
    start = time.monotonic()
    os.killpg(process.pid, number)
    said = process.communicate()[0]
    timer.cancel()
    assert process.returncode == 128 + number, said
    assert time.monotonic() - start < 50  # no worker is waited for
    assert re.search(rf'stopped by {number.name} after iteration \d+. Saved .*iter_\d+.pth; continue with --res', said)
    assert 'Traceback' not in said, said
