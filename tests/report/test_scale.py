"""Evaluation and report of thousands of images: time, memory, and nothing missing."""
import csv
import json
import os
import subprocess
import sys

import pytest

from helpers import large_tests
from helpers.paths import ROOT

#: What the evaluation and the report of 5,000 images may take on two cores, beyond the prediction itself.
SECONDS, MIB = 600, 4096


def run(task, folder):
    """Evaluate generated predictions in a process of their own; return what it measured and the page."""
    path = os.pathsep.join([str(ROOT), str(ROOT / 'tests')])
    done = subprocess.run([sys.executable, '-m', 'helpers.large_tests', task, folder], capture_output=True, text=True,
                          env={**os.environ, 'PYTHONPATH': path})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), (folder / 'report/report.html').read_text()


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize('task, images, classes', (
    ('detection', large_tests.IMAGES, large_tests.CLASSES),
    ('segmentation', large_tests.MAPS, large_tests.MAP_CLASSES)))
def test_thousands_of_images(task, images, classes, tmp_path):
    """Measured, in seconds of one core with data and imports: detection 94 and 3.5 GiB, segmentation 38 and 1.1 GiB."""
    done, page = run(task, tmp_path)
    print(done)
    assert done['evaluation'] + done['report'] < SECONDS and done['peak'] < MIB
    assert done['report'] < SECONDS / 4
    with open(tmp_path / 'report/per_class.csv', newline='') as file:
        rows = list(csv.DictReader(file))
    assert len({row['class'] for row in rows}) == classes
    assert all(page.count(f'{number:06}.jpg') >= 1 for number in range(1, images + 1))
    for name, value in done['metrics'].items():
        assert name in page and (f'{value:.3f}' in page if task == 'detection' else f'{value:g}' in page)
    if task == 'detection':
        assert sum(int(row['objects']) for row in rows) == large_tests.OBJECTS
        for key in ('bbox_AP', 'segm_AP'):
            mean = sum(float(row[key]) for row in rows) / classes
            assert round(mean, 3) == done['metrics'][f'coco/{key.replace("_AP", "_mAP")}']
