"""The package among the frameworks: what it imports, where it is found, how it is installed."""
import shutil
import subprocess
import sys

import pytest

from helpers.paths import ROOT
from helpers.tools import python, run_tool


@pytest.mark.integration
def test_package_imports_without_mmdet_and_mmseg():
    out = python('import sys; sys.modules["mmdet"] = sys.modules["mmseg"] = None\n'
                 'import torch, xcit_dense\n'
                 'print([name for name in ("torchvision", "torch._dynamo", "matplotlib") if name in sys.modules])\n'
                 'print([tuple(x.shape) for x in xcit_dense.XCiT("nano_12_p16").eval()(torch.zeros(1, 3, 64, 96))])')
    # what takes a second to import is not needed for the import
    assert out.split('\n')[:2] == ['[]', '[(1, 128, 16, 24), (1, 128, 8, 12), (1, 128, 4, 6), (1, 128, 2, 3)]']


@pytest.mark.integration
@pytest.mark.parametrize('scope', ('mmdet', 'mmseg'))
def test_backbone_is_found_from_other_scopes_by_custom_imports_alone(scope):
    out = python(f'''
from mmengine.config import Config
Config.fromstring("custom_imports = dict(imports=['xcit_dense'], allow_failed_imports=False)", '.py')
from mmengine.registry import init_default_scope
init_default_scope('{scope}')
from {scope}.registry import MODELS
print(type(MODELS.build(dict(type='XCiT', arch='nano_12_p8'))).__module__)
''')
    assert out.strip().endswith('xcit_dense.models.backbone')


@pytest.mark.integration
def test_backbone_trains_a_model_of_a_plain_mmdet_config():
    """Someone else's project: their detector, our backbone by name, nothing else of ours."""
    out = python('''
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
cfg = Config.fromstring("""
custom_imports = dict(imports=['xcit_dense'], allow_failed_imports=False)
model = dict(
    type='RetinaNet', data_preprocessor=dict(type='DetDataPreprocessor'),
    backbone=dict(type='XCiT', arch='nano_12_p16', out_indices=(5, 7, 11), out_strides=(8, 16, 32)),
    neck=dict(type='FPN', in_channels=[128] * 3, out_channels=32, add_extra_convs='on_input', num_outs=5),
    bbox_head=dict(type='RetinaHead', num_classes=3, in_channels=32, feat_channels=32, stacked_convs=1,
                   anchor_generator=dict(type='AnchorGenerator', octave_base_scale=4, scales_per_octave=3,
                                         ratios=[0.5, 1.0, 2.0], strides=[8, 16, 32, 64, 128]),
                   bbox_coder=dict(type='DeltaXYWHBBoxCoder')),
    train_cfg=dict(assigner=dict(type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.4, min_pos_iou=0,
                                 ignore_iof_thr=-1), sampler=dict(type='PseudoSampler'), allowed_border=-1,
                   pos_weight=-1),
    test_cfg=dict(nms_pre=10, score_thr=0.05, nms=dict(type='nms', iou_threshold=0.5), max_per_img=10))
""", '.py')
init_default_scope('mmdet')
from mmdet.registry import MODELS
from mmdet.testing import demo_mm_inputs
model = MODELS.build(cfg.model)
data = model.data_preprocessor(demo_mm_inputs(2, [[3, 128, 160]] * 2, num_classes=3), True)
losses = model.loss(data['inputs'], data['data_samples'])
sum(sum(v) for v in losses.values()).backward()
found = model.predict(data['inputs'], data['data_samples'])
print(all(p.grad is not None for p in model.backbone.parameters()), len(found))
''')
    assert out.strip().endswith('True 2')


@pytest.mark.skipif(not shutil.which('make'), reason='there is no make')
def test_asking_make_what_it_would_do_changes_nothing(tmp_path):
    for name in ('Makefile', 'requirements.txt', 'requirements-onedl.txt', 'setup.py'):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ('tests', '.venv', '.venv-onedl'):
        (tmp_path / folder).mkdir()  # damaged: no Python in it
    before = sorted(tmp_path.rglob('*'))

    def make(*args):
        return subprocess.run(['make', '-n', *args, f'PYTHON={sys.executable}'], cwd=tmp_path, text=True,
                              capture_output=True)

    done = make('test', 'test-onedl')
    assert done.returncode == 0, done.stderr
    assert 'requirements-onedl.txt' in done.stdout
    done = make('test', 'TESTS=tests tests/modls::test_a')
    assert done.returncode == 2 and 'there is no tests/modls::test_a' in done.stderr
    assert sorted(tmp_path.rglob('*')) == before


@pytest.mark.slow
def test_model_table_and_metafiles_are_up_to_date():
    pytest.importorskip('mmpretrain', reason='it has no fork')
    done = run_tool('model_table.py', '--check', check=False)
    assert done.returncode == 0, done.stdout
