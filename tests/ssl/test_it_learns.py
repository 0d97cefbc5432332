"""A small DINO learns from the shapes of the demo without their labels."""
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

#: The small configs with a smaller model, which needs fewer minutes.
CONFIG = '''_base_ = '{}/configs/{}.py'
model = dict(backbone=dict(arch=dict(
    _delete_=True, embed_dims=64, depth=4, num_heads=4, patch_size=8, out_indices=(0, 1, 2, 3))))
'''


def test_features_tell_the_shapes_apart(tmp_path):
    """Without a label; and entropies of both models stay away from their bounds."""
    make_demo_data(tmp_path / 'data', 320, 80, grey=True)
    for name, base in (('pretext', 'xcit_n12_p16_dino_small'), ('classes', 'xcit_n12_p8_small')):
        (tmp_path / f'{name}.py').write_text(CONFIG.format(ROOT, base))
    run_tool('train.py', tmp_path / 'pretext.py', '--data-root', tmp_path / 'data/classes', '--work-dir',
             tmp_path / 'dino', '--epochs', 8, '--cfg-options', 'randomness.seed=0')

    def accuracy(weights):
        said = run_tool('test.py', tmp_path / 'classes.py', weights, '--data-root', tmp_path / 'data/classes',
                        '--work-dir', tmp_path / 'tested', '--knn').stdout
        return float(re.findall(r'accuracy/top1: ([\d.]+)', said)[-1])

    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    model = MODELS.build(load_config(tmp_path / 'classes.py').model)
    torch.save(model.backbone.state_dict(), tmp_path / 'random.pth')
    learned, random = accuracy(tmp_path / 'dino'), accuracy(tmp_path / 'random.pth')
    curves = read_curves(tmp_path / 'dino')
    print(f'\nk-NN top-1 {learned}, random weights {random}')
    assert learned > random + 15
    for name in ('teacher_entropy', 'student_entropy'):
        assert 0.05 < curves[name][-1][1] / curves['entropy_bound'][-1][1] < 0.95
