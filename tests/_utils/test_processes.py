"""Which process is the first, and what it does for all."""
import pytest

from helpers.two_processes import fail, try_on_first
from xcit_dense._utils import processes
from xcit_dense._utils.processes import is_first_process, run_on_first
from xcit_dense.errors import CheckpointError, ConfigError

VARIABLES = dict(pytorch='RANK', slurm='SLURM_PROCID', mpi='OMPI_COMM_WORLD_RANK')


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in (*VARIABLES.values(), 'LOCAL_RANK'):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize('launcher', VARIABLES)
def test_each_launcher_sets_its_own_variable(launcher, monkeypatch):
    for other in VARIABLES.values():
        monkeypatch.setenv(other, '0' if other == VARIABLES[launcher] else '1')
    assert is_first_process(launcher) and is_first_process() and is_first_process('none')
    for number in ('1', '7'):
        monkeypatch.setenv(VARIABLES[launcher], number)
        assert not is_first_process(launcher) and is_first_process('none')
    monkeypatch.delenv(VARIABLES[launcher])
    assert is_first_process(launcher)


def test_the_first_of_two_does_it_and_both_learn_of_its_error(two_processes, tmp_path):
    with pytest.raises(ZeroDivisionError):  # without others it is just called
        run_on_first(divmod, 7, 0)
    # twice would fail
    assert two_processes.in_group(try_on_first, (tmp_path / 'made').mkdir) == [(None, True), (None, False)]
    assert two_processes.in_group(try_on_first, divmod, 7, 2) == [((3, 1), True), (None, False)]
    for kind in (ConfigError, CheckpointError):
        assert two_processes.in_group(try_on_first, fail, kind, 'mend it') == [(kind, 'mend it')] * 2


def test_leaving_a_group_waits_for_the_others_and_ends_the_workers(monkeypatch):
    done, group = [], processes.torch.distributed
    for module, name in ((group, 'barrier'), (group, 'destroy_process_group'), (processes, 'end_workers'),
                         (processes.gc, 'collect')):
        monkeypatch.setattr(module, name, lambda name=name: done.append(name))
    processes.leave_group()
    assert not done  # without a group there is nothing to leave
    monkeypatch.setattr(group, 'is_initialized', lambda: True)
    processes.leave_group()
    assert done == ['barrier', 'destroy_process_group', 'end_workers', 'collect']
