"""The demo of fine-tuning: training on three classes helps with two others that have few images."""
import re

import pytest

from helpers.paths import SMALL_CONFIG
from helpers.tools import run_tool
from xcit_dense.data.demo import make_demo_data


@pytest.mark.slow
def test_two_new_classes_are_learnt_from_few_images(tmp_path):
    """As `make demo-finetune` does; box AP50 of the fine-tuned is to be above that from random weights by 0.25."""
    make_demo_data(tmp_path / 'three', 160, 20, 128, classes=('disc', 'square', 'triangle'))
    make_demo_data(tmp_path / 'two', 24, 40, 128, seed=1, classes=('star', 'cross'))

    def train(data, name, epochs, warm_up, *options):
        said = run_tool('train.py', SMALL_CONFIG, '--data-root', tmp_path / data, '--work-dir', tmp_path / name,
                        *options, '--no-fit', '--cfg-options', 'randomness.seed=0', f'train_cfg.max_epochs={epochs}',
                        f'train_cfg.val_interval={epochs}', f'param_scheduler.0.end={warm_up}',
                        f'param_scheduler.1.end={epochs}').stdout
        return float(re.findall(r'coco/bbox_mAP_50: ([\d.-]+)', said)[-1])

    before = train('three', 'before', 4, 20)
    tuned = train('two', 'tuned', 10, 5, '--init-from', tmp_path / 'before')
    from_random = train('two', 'from_random', 10, 5)
    print(f'\nbox AP50 of three classes {before}; of two new ones {tuned}, from random weights {from_random}')
    assert tuned > from_random + 0.25
