"""The memory of a long test does not grow by the label maps of its images."""
import pytest

from helpers.tools import python

#: What a metric of segmentation does: it keeps small tensors of every image, between label maps that are freed.
CODE = '''
import os
import torch
from xcit_dense.report.hook import ReportHook

def resident():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE') / 2**20

hook, kept = ReportHook(''), []
for place in range(300):
    maps = [torch.ones(480, 640, dtype=torch.long) for _ in range(3)]
    kept.append([torch.ones(150) for _ in range(4)])
    del maps
    hook.after_test_iter(None, place)
    if place == 99:
        before = resident()
print(resident() - before)
'''


@pytest.mark.integration
def test_memory_between_the_results_of_a_metric_is_returned():
    """Otherwise these 200 images need 480 to 1,400 MiB."""
    assert float(python(CODE).splitlines()[-1]) < 100
