"""Runs of several processes that end suddenly, anywhere, and go on with as many or others: nothing is lost."""
import re
import shutil

import pytest

from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import assert_same_run
from helpers.tools import run_process, run_tool
from xcit_dense.weights import newest_checkpoint, read_checkpoint
from xcit_dense.weights.files import damage


@pytest.fixture
def config(tmp_path):
    """A function that writes a config with a hook, and gives its path and the options that all runs have."""

    def write(name, hook=''):
        path = tmp_path / f'{name}.py'
        path.write_text(f"_base_ = '{TINY_SEG_CONFIG}'\nrandomness = dict(seed=1)\n"
                        "custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmseg', 'helpers.rank_dump'])\n"
                        f'custom_hooks = [{hook}]\noptim_wrapper = dict(accumulative_counts=2)\n')
        return path

    return write


def checkpoints(folder):
    """Return the names of the checkpoints, which must all be complete, and of half-written files next to them."""
    files = sorted(folder.glob('*.pth'))
    assert not any(map(damage, files)) and read_checkpoint(newest_checkpoint(folder))
    return [path.name for path in files], len(list(folder.glob('*.part')))


def test_other_numbers_of_processes(two_processes, config, demo_data, tmp_path):
    """One stopped and gone on with by two, and these by one, between two iterations whose gradients are added."""

    def stopping(iteration):
        return config(f'stop{iteration}', f"dict(type='SignalHook', rank=0, iteration={iteration}, number='SIGTERM')")

    args = ['--data-root', demo_data, '--work-dir', tmp_path / 'run', '--no-pretrained']
    assert run_tool('train.py', stopping(1), *args, check=False).returncode == 143
    both = two_processes.run_tool('train.py', stopping(3), *args, '--resume', check=False)
    assert [done.returncode for done in both] == [143, 143]
    assert re.search('random states of 1 process, this run has 2', both[0].stdout)
    assert checkpoints(tmp_path / 'run') == (['iter_2.pth', 'iter_3.pth'], 0)  # the last two stay
    done = run_tool('train.py', config('plain'), *args, '--resume')
    assert re.search('random states of 2 processes, this run has 1', done.stdout)
    assert checkpoints(tmp_path / 'run') == (['iter_3.pth', 'iter_4.pth'], 0)
    state = read_checkpoint(tmp_path / 'run/iter_4.pth')
    assert len(state['training']['loops']) == 1
    assert {int(each['step']) for each in state['optimizer']['state'].values()} == {2}


@pytest.mark.integration
def test_killed_while_saving_while_starting_and_in_a_validation(two_processes, config, demo_data, tmp_path):
    """With kill -9, one process alone; in the end the run is that which nothing stopped, to the last bit."""
    folder, kill = tmp_path / 'run', "dict(type='SignalHook', rank=1, number='SIGKILL', "
    options = ['--data-root', demo_data, '--no-pretrained', '--work-dir']
    for name, hook, resume, wanted in (
            ('saving', "dict(type='KillInWritingHook', iteration=4)", [], (['iter_2.pth'], 1)),
            ('starting', f"{kill}iteration=3, where='before_train')", ['--resume'], (['iter_2.pth'], 0)),
            ('validation', f"{kill}iteration=5, where='after_val_iter')", ['--resume'],
             (['iter_2.pth', 'iter_4.pth'], 0))):
        done = run_process('train.py', config(name, hook), *options, folder, '--launcher', 'pytorch', *resume,
                           check=False, env=dict(OMP_NUM_THREADS=1), python=(
                               '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2'))
        assert done.returncode and 'SIGKILL' in done.stdout, done.stdout[-3000:]
        assert checkpoints(folder) == wanted, name
    plain, alone = config('plain'), shutil.copytree(folder, tmp_path / 'alone')
    two_processes.run_tool('train.py', plain, *options, tmp_path / 'whole')
    done, _ = two_processes.run_tool('train.py', plain, *options, folder, '--resume')
    assert 'Iter(val)' in done.stdout  # the validation that was cut off
    assert_same_run(*(read_checkpoint(newest_checkpoint(each)) for each in (folder, tmp_path / 'whole')))
    assert 'Iter(val)' in run_tool('train.py', plain, *options, alone, '--resume').stdout
    assert checkpoints(folder) == checkpoints(alone) == (['iter_2.pth', 'iter_4.pth'], 0)
