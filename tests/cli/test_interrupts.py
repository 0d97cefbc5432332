"""Ctrl-C while a tool loads what it needs: one line, from its first import on."""
import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from helpers.paths import ROOT
from helpers.tools import environment
from xcit_dense.cli import tool_names


@pytest.fixture
def run_interrupted(tmp_path):
    """A function that runs a command which gets the signal when it imports a module."""

    def run(module, *command):
        (tmp_path / f'{module}.py').write_text('import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n')
        path = os.pathsep.join((str(tmp_path), environment()['PYTHONPATH']))
        # the tests may have been started in the background, where a shell has the signal ignored
        return subprocess.run([sys.executable, *command], cwd=ROOT, text=True, capture_output=True,
                              env=environment(PYTHONPATH=path),
                              preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL))

    return run


@pytest.mark.parametrize('command', [
    *([f'tools/{name}.py'] for name in tool_names()), ['-m', 'xcit_dense', 'train'], ['-m', 'xcit_dense', '--help']],
                         ids=' '.join)
def test_before_the_options_are_read(command, run_interrupted):
    done = run_interrupted('argparse', *command)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, '', 'stopped\n')


@pytest.mark.parametrize('module', ('torch', 'difflib', pytest.param('mmengine', marks=pytest.mark.slow)))
def test_while_the_frameworks_load(module, run_interrupted):
    """Also if other code catches KeyboardInterrupt, or reports that it ignores it."""
    done = run_interrupted(module, '-m', 'xcit_dense', 'train', 'maskrcnn_xcit_tiny')
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, '', 'stopped\n')
