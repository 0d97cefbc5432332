"""A suggested config learns what the default does not, from as many images."""
import json

import pytest

from helpers.nuclei import make_nuclei
from helpers.paths import SMALL_CONFIG
from helpers.tools import run_process

pytestmark = pytest.mark.slow
#: Box AP; on this data 0.000 was measured of the default, also after 18 epochs, and 0.39 to 0.51 of suggestions after 5
#: to 7, see docs/fitting.md.
BAR = 0.25


def best(work_dir):
    lines = [json.loads(line) for path in work_dir.rglob('scalars.json') for line in path.read_text().splitlines()]
    return max(line['coco/bbox_mAP'] for line in lines if 'coco/bbox_mAP' in line)


def test_nuclei(tmp_path):
    data = make_nuclei(tmp_path / 'data', 48, 12)
    config = tmp_path / 'suggested.py'
    run_process('train.py', SMALL_CONFIG, '--data-root', data, '--suggest', config)
    scores = {}
    for name, path in (('default', SMALL_CONFIG), ('suggested', config)):
        run_process('train.py', path, '--data-root', data, '--work-dir', tmp_path / name, '--cfg-options',
                    'train_cfg.max_epochs=5', 'train_cfg.val_interval=5', 'param_scheduler.0.end=12',
                    'param_scheduler.1.end=5', 'train_dataloader.num_workers=0', 'val_dataloader.num_workers=0',
                    'train_dataloader.persistent_workers=False', 'val_dataloader.persistent_workers=False',
                    'randomness.seed=0', env=dict(OMP_NUM_THREADS=1))
        scores[name] = best(tmp_path / name)
    assert scores['default'] < 0.01 and scores['suggested'] > BAR, scores
