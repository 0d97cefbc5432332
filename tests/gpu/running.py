"""Run the checks of a GPU as a user does, without a GPU."""
import json
import subprocess
import sys

from helpers.paths import ROOT
from helpers.tools import environment


def run_checks(out, *words, cwd=ROOT):
    """Run ``pytest -m gpu`` with a folder for the results.

    Returns:
        The exit code, the output, and the results by stage and name.
    """
    done = subprocess.run([sys.executable, '-m', 'pytest', '-m', 'gpu', *map(str, words), f'--gpu-out={out}'],
                          cwd=cwd, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    file = out / 'gpu_report.json'
    return done.returncode, done.stdout, json.loads(file.read_text())[0] if file.exists() else {}
