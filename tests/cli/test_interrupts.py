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


@pytest.mark.parametrize('module, command', [
    *(('argparse', f'tools/{name}.py') for name in tool_names()), ('argparse', '-m xcit_dense train'),
    ('argparse', '-m xcit_dense --help'), ('torch', '-m xcit_dense train maskrcnn_xcit_tiny'),
    ('difflib', '-m xcit_dense train maskrcnn_xcit_tiny')])
def test_a_signal_while_a_module_is_imported(module, command, tmp_path):
    """Before the options are read, and while the frameworks load, also if other code catches KeyboardInterrupt."""
    (tmp_path / f'{module}.py').write_text('import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n')
    path = os.pathsep.join((str(tmp_path), environment()['PYTHONPATH']))
    # the tests may have been started in the background, where a shell has the signal ignored
    done = subprocess.run([sys.executable, *command.split()], cwd=ROOT, text=True, capture_output=True,
                          env=environment(PYTHONPATH=path),
                          preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL))
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, '', 'stopped\n')
