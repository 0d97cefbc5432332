"""A suggested config learns what the default does not, in the same number of images seen."""
import json

import pytest

from helpers.nuclei import make_nuclei
from helpers.paths import SMALL_CONFIG
from helpers.tools import run_process

pytestmark = pytest.mark.slow
#: Of the default 0.000 was measured, of the suggested 0.2 and more at this length, see docs/fitting.md.
BAR = 0.10


def best(work_dir):
    lines = [json.loads(line) for path in work_dir.rglob('scalars.json') for line in path.read_text().splitlines()]
    return max(line['coco/bbox_mAP'] for line in lines if 'coco/bbox_mAP' in line)


def test_nuclei(tmp_path):
    data = make_nuclei(tmp_path / 'data', 32, 6)
    config = tmp_path / 'suggested.py'
    run_process('train.py', SMALL_CONFIG, '--data-root', data, '--suggest', config)
    scores = {}
    for name, path in (('default', SMALL_CONFIG), ('suggested', config)):
        run_process('train.py', path, '--data-root', data, '--work-dir', tmp_path / name, '--cfg-options',
                    'train_cfg.max_epochs=4', 'train_cfg.val_interval=4', 'param_scheduler.0.end=7',
                    'param_scheduler.1.end=4', 'train_dataloader.num_workers=0', 'val_dataloader.num_workers=0',
                    'train_dataloader.persistent_workers=False', 'val_dataloader.persistent_workers=False',
                    'randomness.seed=0', env=dict(OMP_NUM_THREADS=1))
        scores[name] = best(tmp_path / name)
    assert scores['default'] < 0.01 and scores['suggested'] > BAR, scores
