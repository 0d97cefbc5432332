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
MOST = {'bfloat16 training': 120, 'bfloat16 inference': 39, 'float16 training': 156, 'float16 inference': 39,
        'float32 training': 105, 'float32 inference': 35}


@pytest.mark.integration
@pytest.mark.skipif(not shutil.which('gcc') or not shutil.which('nm') or not importlib.util.find_spec('triton'),
                    reason='needs gcc, nm and a CUDA build of torch')
def test_launches_of_a_block():
    """No more than in the authors' form, and no step waits for the GPU."""
    folder = 'tests/benchmark/nullgpu'
    run = subprocess.run([sys.executable, f'{folder}/run.py', f'{folder}/counts.py'], cwd=ROOT, text=True,
                         capture_output=True, env=dict(os.environ, PYTHONPATH=str(ROOT)))
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    for case, most in MOST.items():
        ours, plain = found[f'{case} ours'], found[f'{case} plain']
        assert ours['waits'] == plain['waits'] == 0
        assert plain['block'] > ours['block'] <= most, (case, ours, plain)
        assert ours['rest'] < plain['rest'] + 50, (case, ours, plain)  # stem, pyramid and positions
