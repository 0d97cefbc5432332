"""The Slurm script, with stand-ins for Slurm's commands that write down how they are called."""
import os
import signal
import subprocess
import time

import pytest

from helpers.paths import ROOT

SCRIPT = ROOT / 'tools/slurm_train.sh'
COMMAND = '''#!/usr/bin/env bash
(IFS=$'\\t'; echo "${0##*/}"$'\\t'"$*" >> "$CALLS")
'''
HOSTS = '''[ "$1" != show ] || for host in first second third; do echo $host || exit; sleep 0.1; done
'''
#: A training that saves until it may end; scancel sends the signal to it.
SAVING = '''trap 'until [ -e "$CALLS.go" ]; do sleep 0.05; done; echo saved >> "$CALLS"; exit 1' TERM
echo $$ > "$CALLS.pid"
for _ in {1..300}; do sleep 0.1; done'''


@pytest.fixture
def slurm(tmp_path):
    """A function that starts the script in a job of two nodes, and one that returns the calls so far."""
    for name, does in dict(srun='eval "${TRAINING:-}"\n', scontrol=HOSTS,
                           scancel='kill -TERM "$(cat "$CALLS.pid")"\nexit 1\n').items():
        path = tmp_path / 'bin' / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(COMMAND + does)
        path.chmod(0o755)
    calls = tmp_path / 'calls'
    calls.touch()

    def start(*args, **variables):
        variables = dict(
            PATH=f'{path.parent}:{os.environ["PATH"]}', CALLS=calls, WORK_DIR=tmp_path / 'my run', SLURM_NNODES=2,
            SLURM_GPUS_ON_NODE=8, SLURM_CPUS_PER_TASK=12, SLURM_JOB_ID=1234567, SLURM_JOB_NODELIST='node[1-2]',
            **variables)
        return subprocess.Popen(['bash', SCRIPT, *args], stderr=subprocess.PIPE, text=True,
                                env={key: str(value) for key, value in variables.items() if value != ''})
    return start, lambda: [line.split('\t') for line in calls.read_text().splitlines()]


def end(process):
    return process.communicate(timeout=60)[1], process.returncode


def test_usage():
    for args, work_dir in (((), 'runs/mine'), (('config', ), '')):
        process = subprocess.run(['bash', SCRIPT, *args], env={'PATH': os.environ['PATH'], 'WORK_DIR': work_dir},
                                 capture_output=True, text=True)
        assert process.returncode == 2 and process.stderr.startswith('usage: WORK_DIR=DIR sbatch')


def test_one_launcher_a_node_gets_the_whole_command(slurm, tmp_path):
    start, calls = slurm
    error, code = end(start('config', '--cfg-options', 'model.name=a b'))
    assert code == 0, error
    assert calls() == [['scontrol', 'show', 'hostnames', 'node[1-2]'], [
        'srun', '--cpus-per-task=12', 'python', '-m', 'torch.distributed.run', '--nnodes', '2', '--nproc_per_node', '8',
        '--rdzv_id', '1234567', '--rdzv_backend', 'c10d', '--rdzv_endpoint', 'first:24567', '-m', 'xcit_dense', 'train',
        'config', '--cfg-options', 'model.name=a b', '--launcher', 'pytorch', '--work-dir', str(tmp_path / 'my run')]]


@pytest.mark.parametrize('restarts, saved, resumed', ((1, True, True), (1, False, False), (0, True, False)))
def test_only_a_job_that_was_put_back_goes_on_from_what_it_saved(slurm, tmp_path, restarts, saved, resumed):
    """The exit code is the training's."""
    start, calls = slurm
    (tmp_path / 'my run').mkdir()
    if saved:
        (tmp_path / 'my run/last_checkpoint').touch()
    assert end(start('config', SLURM_RESTART_COUNT=restarts, TRAINING='exit 3')) == ('', 3)
    assert [call[0] for call in calls()] == ['scontrol', 'srun'] and ('--resume' in calls()[-1]) == resumed


@pytest.mark.parametrize('times', (1, 2))
def test_a_signal_lets_the_training_save_and_puts_the_job_back(slurm, tmp_path, times):
    """With any exit code of scancel, and however often the signal comes."""
    start, calls = slurm
    process = start('config', TRAINING=SAVING)
    for call in ('srun', 'scancel')[:times]:
        while not ((tmp_path / 'calls.pid').exists() and any(c[0] == call for c in calls())):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    (tmp_path / 'calls.go').touch()
    assert end(process)[1] == 0
    assert calls()[2:] == [['scancel', '--signal=TERM', '1234567'], ['saved'], ['scontrol', 'requeue', '1234567']]
