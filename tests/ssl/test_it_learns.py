"""A small DINO learns from the shapes of the demo without their labels, and a segmentor gains from it."""
import re

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from helpers.paths import ROOT
from helpers.tools import run_tool
from xcit_dense.config.loading import load_config
from xcit_dense.data.demo import make_demo_data
from xcit_dense.report.curves import read_curves

pytest.importorskip('mmpretrain')
pytestmark = pytest.mark.slow

ARCH = 'arch=dict(_delete_=True, embed_dims=64, depth=4, num_heads=4, patch_size=8, out_indices=(0, 1, 2, 3))'
#: The small configs with a smaller model, which needs fewer minutes.
CONFIGS = dict(
    dino=('xcit_n12_p16_dino_small', f'model = dict(backbone=dict({ARCH}))'),
    classes=('xcit_n12_p8_small', f'model = dict(backbone=dict({ARCH}))'),
    segments=('semfpn_xcit_n12_p16_small', f'model = dict(backbone=dict({ARCH}), neck=dict(in_channels=[64] * 4))'))


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    """A folder with data, configs and the DINO run ``dino``."""
    root = tmp_path_factory.mktemp('learns')
    make_demo_data(root / 'data', 320, 80, grey=True)
    for name, (base, model) in CONFIGS.items():
        (root / f'{name}.py').write_text(f"_base_ = '{ROOT}/configs/{base}.py'\n{model}\n")
    run_tool('train.py', root / 'dino.py', '--data-root', root / 'data/classes', '--work-dir', root / 'dino',
             '--epochs', 8, '--cfg-options', 'randomness.seed=0')
    return root


def accuracy(root, weights, *options):
    said = run_tool('test.py', root / 'classes.py', weights, '--data-root', root / 'data/classes', '--work-dir',
                    root / 'tested', *options).stdout
    return float(re.findall(r'accuracy/top1: ([\d.]+)', said)[-1])


def test_features_tell_the_shapes_apart(work):
    """Without a label; and entropies of both models stay away from their bounds."""
    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    model = MODELS.build(load_config(work / 'classes.py').model)
    torch.save(model.backbone.state_dict(), work / 'random.pth')
    learned, random = (accuracy(work, weights, '--knn') for weights in (work / 'dino', work / 'random.pth'))
    curves = read_curves(work / 'dino')
    print(f'\nk-NN top-1 {learned}, random weights {random}')
    assert learned > random + 15
    for name in ('teacher_entropy', 'student_entropy'):
        assert 0.05 < curves[name][-1][1] / curves['entropy_bound'][-1][1] < 0.95


def test_a_segmentor_starts_better_from_it(work):
    """At equal training, with one seed; docs/self_supervision.md has three, of the small configs as they are."""
    def miou(name, *options):
        said = run_tool('train.py', work / 'segments.py', '--data-root', work / 'data', '--work-dir', work / name,
                        '--iterations', 200, *options, '--cfg-options', 'randomness.seed=0').stdout
        return float(re.findall(r'mIoU: ([\d.]+)', said)[-1])

    started, random = miou('from_dino', '--init-from', work / 'dino'), miou('from_random')
    print(f'\nmIoU after 200 iterations {started}, from random weights {random}')
    assert started > random + 3
