"""From three exports, as tools write them, to a trained model: train, test and predict as users run them.

The measured results are in docs/own_data.md.
"""
import json

import pytest
from annotations import exports, exports_segmentation

from helpers.tools import run_process

pytestmark = pytest.mark.slow
_MASKS, _BOXES, _MAPS = (f'{name}_xcit_n12_p16_small' for name in ('maskrcnn', 'fasterrcnn', 'semfpn'))
#: By the data: what makes it, config and options of the training, the metric, and what it reaches at least. Measured
#: were 0.42, 0.21 (after 8 of the epochs) and 79.
CASES = dict(
    yolo=(lambda root: exports.yolo(root, counts=(96, 24)), _BOXES, ('--no-fit', ), 'coco/bbox_mAP', 0.2),
    roboflow=(lambda root: exports.roboflow(root, 48, 12, 0, radius=(0.017, 0.021), size=320, objects=12), _MASKS,
              ('--epochs', '12'), 'coco/bbox_mAP', 0.1),
    camvid=(lambda root: exports_segmentation.camvid(root, 24, 8), _MAPS, ('--no-fit', '--iterations', '120'), 'mIoU',
            50))
IGNORED = dict(camvid=('--ignore-label', '4'))


def last_score(run, metric):
    lines = [json.loads(line) for path in run.rglob('scalars.json') for line in path.read_text().splitlines()]
    return next(line[metric] for line in reversed(lines) if metric in line)


@pytest.mark.parametrize('name', CASES)
def test_it_learns(name, tmp_path):
    make, config, options, metric, bar = CASES[name]
    root, run, env = make(tmp_path / 'data'), tmp_path / 'run', dict(OMP_NUM_THREADS=1)
    data = '--data-root', root, *IGNORED.get(name, ())
    run_process('train.py', config, *data, *options, '--work-dir', run, '--cfg-options', 'randomness.seed=0', env=env)
    score = last_score(run, metric)
    print(f'{name}: {metric} {score}')
    assert score > bar
    run_process('test.py', config, run, *data, '--work-dir', tmp_path / 'tested', '--at-least', f'{metric}={bar}',
                env=env)
    image = min(path for path in root.rglob('*') if path.suffix in ('.jpg', '.png'))
    run_process('predict.py', config, run, image, '--out', tmp_path / 'out', env=env)
    assert any((tmp_path / 'out').rglob('*.json'))
