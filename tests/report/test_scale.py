"""Evaluation and report of thousands of images: time, memory, and nothing missing."""
import csv
import json
import subprocess
import sys

import pytest
from report.large_tests import CLASSES, IMAGES

from helpers.tools import environment, python

#: What the evaluation and the report of 5,000 images may take on two cores, beyond the prediction itself.
SECONDS, MIB = 600, 3584


@pytest.mark.slow
@pytest.mark.integration
def test_thousands_of_images(tmp_path):
    """Measured, on one core with data and imports: 81 s and 3.0 GiB."""
    run = subprocess.run([sys.executable, '-m', 'report.large_tests', tmp_path], capture_output=True, text=True,
                         env=environment())
    assert run.returncode == 0, run.stderr[-3000:]
    done, page = json.loads(run.stdout.splitlines()[-1]), (tmp_path / 'report/report.html').read_text()
    assert done['evaluation'] + done['report'] < SECONDS and done['peak'] < MIB
    assert done['report'] < SECONDS / 4
    with open(tmp_path / 'report/per_class.csv', newline='') as file:
        rows = list(csv.DictReader(file))
    assert len({row['class'] for row in rows}) == CLASSES
    assert all(f'>{number}.png<' in page for number in range(1, IMAGES + 1))
    mean = sum(float(row['bbox_AP']) for row in rows) / CLASSES
    assert round(mean, 3) == done['metrics']['coco/bbox_mAP'] and str(round(mean, 3)) in page


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
