"""The memory of a report on thousands of images."""
import pytest

from helpers.tools import python

#: What a metric of segmentation does: it keeps small tensors of every image, between label maps that are freed.
CODE = '''
from pathlib import Path
import torch
from xcit_dense._utils.machine import kib
from xcit_dense.report.hooks import ReportHook

hook, kept, status = ReportHook(''), [], Path('/proc/self/status')
for place in range(300):
    maps = [torch.ones(480, 640, dtype=torch.long) for _ in range(3)]
    kept.append([torch.ones(150) for _ in range(4)])
    del maps
    hook.after_test_iter(None, place)
    if place == 99:
        before = kib(status, 'VmRSS')
print((kib(status, 'VmRSS') - before) / 2**20)
'''


@pytest.mark.integration
def test_memory_between_the_results_of_a_metric_is_returned():
    """Otherwise these 200 images need 480 to 1,400 MiB."""
    assert float(python(CODE).splitlines()[-1]) < 100
