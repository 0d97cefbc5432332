"""What a step launches on a GPU, counted on one that computes nothing."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest

from helpers.paths import ROOT

#: Launches of a block, at most: lower a number when it falls, and think twice before you raise one.
MOST = {'bfloat16 training': 110, 'bfloat16 inference': 40, 'float16 training': 153, 'float16 inference': 49,
        'float32 training': 98, 'float32 inference': 35}
pytestmark = [pytest.mark.integration, pytest.mark.skipif(
    not shutil.which('gcc') or not shutil.which('nm') or not importlib.util.find_spec('triton'),
    reason='needs gcc, nm and a CUDA build of torch')]


def on_null_gpu(*words):
    """Return what a command prints on the GPU that computes nothing."""
    run = subprocess.run([sys.executable, 'benchmarks/nullgpu/run.py', *map(str, words)], cwd=ROOT, text=True,
                         capture_output=True, env=dict(os.environ, PYTHONPATH=str(ROOT)))
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


def test_launches_of_a_block():
    """No more than in the authors' form, and no step waits for the GPU; compiled blocks share one graph."""
    found = json.loads(on_null_gpu('benchmarks/nullgpu/counts.py').splitlines()[-1])
    for case, most in MOST.items():
        ours, plain = found[f'{case} ours'], found[f'{case} authors']
        assert ours['waits'] == plain['waits'] == 0
        assert plain['block'] > ours['block'] <= most, (case, ours, plain)
        assert ours['rest'] < plain['rest'] + 50, (case, ours, plain)  # stem, pyramid and positions
    assert found['waits where every pass is checked'] == 0
    graphs, count, waits = found['compiled']  # two blocks at three sizes of images
    assert (graphs, waits) == (1, 0)
    assert count < 2 * MOST['bfloat16 training'] + found['bfloat16 training ours']['rest']


def test_operators_in_the_place_of_mmcv():
    """Outputs and gradients stay on the GPU in their type; only what asks for sizes or for each RoI waits for it."""
    found = json.loads(on_null_gpu('benchmarks/nullgpu/operators.py').splitlines()[-1])
    assert len(found) == 30 and all(fits for fits, *_ in found.values()), found
    waits = {name: count for name, (_, _, count) in found.items() if count}
    assert {name.rpartition(' ')[0] for name in waits} == {
        'deformable attention', 'deformable RoI pooling', 'RoIAlign with the largest sample'}
    assert all(count == 2 for name, count in waits.items() if 'attention' in name), waits


def test_benchmark_on_paper(tmp_path):
    printed = on_null_gpu('benchmark', '--on-paper', '--patches', 16, '--images', '800x1280', '--out', tmp_path)
    assert '| launches |' in printed and printed.count('| small_12_p16 |') == 4
    for cell in json.loads((tmp_path / 'benchmark.json').read_text())['paper']:
        ours, plain = cell['rows']
        assert (ours['name'], plain['name']) == ('ours', 'authors')
        assert ours['times_ours'] == 1 and plain['times_ours'] < (0.8 if cell['mode'] == 'inference' else 0.7)
        assert ours['moved_bytes'] < 0.65 * plain['moved_bytes'] and ours['peak_bytes'] <= plain['peak_bytes']
        # products alone, where the Gram form needs fewer: 12 blocks of 8000 tokens, of which the FFN is the most
        assert 0.7 * plain['flops'] < ours['flops'] < plain['flops']


def test_graphs_of_the_backbone():
    """Of all sizes, types and options; whatever is changed in a model drops its graph."""
    found = json.loads(on_null_gpu('tests/helpers/null_graphs.py').splitlines()[-1])
    for name, (count, said, launches) in found['captured'].items():
        assert count == len(said) == 1 and launches <= 80, (name, count, said, launches)
    for name, (dropped, said) in found['touched'].items():
        assert dropped and len(said) == 1, (name, dropped, said)
    # about 4 ms, where the authors' form takes 24
    assert found['host']['ours'] < 0.25 * found['host']['authors'], found['host']
