"""Memory of this process and of the machine, as the system tells it."""
import mmap
from pathlib import Path

import numpy as np
import pytest

from helpers.tools import python
from xcit_dense._utils import machine


def test_kib_of_the_system_are_bytes(tmp_path):
    file = tmp_path / 'status'
    file.write_text('VmHWM:\t    9000 kB\nVmRSS:\t    1728 kB\nVmRSSomething: 1 kB\n')
    assert machine.kib(file, 'VmRSS') == 1728 * 1024 and machine.kib(file, 'VmHWM') == 9000 * 1024


def test_the_peak_stays_when_memory_is_returned():
    def own_memory():
        return machine.kib(Path('/proc/self/status'), 'VmRSS')

    before = own_memory()
    much = mmap.mmap(-1, 2**27)  # 128 MiB of the system: an allocator may have some left
    for place in range(0, len(much), mmap.PAGESIZE):
        much[place] = 1
    assert own_memory() - before > 120 * 2**20
    held = own_memory()
    much.close()
    assert own_memory() < held - 120 * 2**20
    assert machine.own_peak_memory() > held - 2**24  # Linux counts pages in batches
    assert machine.forget_peak_memory() and machine.own_peak_memory() < held - 120 * 2**20


@pytest.mark.integration
def test_the_peak_of_a_process_is_not_that_of_the_one_which_started_it():
    """A tool that is started by a large program must not report that program's memory."""
    much = np.ones(2**27)  # 1 GiB
    code = ('import resource; from xcit_dense._utils.machine import own_peak_memory; '
            'print(own_peak_memory(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)')
    own, inherited = map(int, python(code).splitlines()[-1].split())
    assert own < much.nbytes < inherited
