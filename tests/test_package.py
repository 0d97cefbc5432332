"""The package among the frameworks: what it imports, where it is found, and what it says of wrong versions."""
import re
import subprocess
import sys
from importlib import metadata

import pytest
from conftest import ROOT

from xcit_dense.compat import versions
from xcit_dense.compat.versions import check_versions
from xcit_dense.errors import SetupError


def python(code):
    done = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_package_imports_without_mmdet_and_mmseg():
    out = python('import sys; sys.modules["mmdet"] = sys.modules["mmseg"] = None\n'
                 'import torch, xcit_dense\n'
                 'print([tuple(x.shape) for x in xcit_dense.XCiT("nano_12_p16").eval()(torch.zeros(1, 3, 64, 96))])')
    assert out.strip() == '[(1, 128, 16, 24), (1, 128, 8, 12), (1, 128, 4, 6), (1, 128, 2, 3)]'


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
    assert out.strip().endswith('xcit_dense.backbone')


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


INSTALLED = {'torch': '2.14.1', 'torchvision': '0.29.2', 'mmengine': '0.10.7', 'mmcv-lite': '2.1.0',
             'mmdet': '3.3.0', 'mmsegmentation': '1.2.2'}
FORKS = {'torch': '2.14.1', 'torchvision': '0.29.2', 'onedl-mmengine': '0.10.12', 'onedl-mmcv': '2.3.6',
         'onedl-mmdetection': '3.5.1', 'onedl-mmsegmentation': '1.4.2'}


@pytest.fixture
def installed(monkeypatch):
    """Pretend that these distributions are installed; what the check reads is their metadata alone."""

    def pretend(packages):

        def version(name):
            if name not in packages:
                raise metadata.PackageNotFoundError(name)
            return packages[name]

        monkeypatch.setattr(versions.metadata, 'version', version)

    return pretend


@pytest.mark.parametrize('packages', (INSTALLED, FORKS, {**INSTALLED, 'torch': '2.15.0+cu132'}))
def test_versions_that_work(installed, packages):
    installed(packages)
    check_versions('mmdet', 'mmseg')


@pytest.mark.parametrize('change, needed, words', (
    ({'mmcv-lite': None}, (), ('mmcv is not installed', 'pip install mmcv-lite==2.1.0')),
    ({'mmengine': None}, (), ('mmengine is not installed', "'mmengine>=0.10.4,<1'")),
    ({'mmdet': None}, ('mmdet', ), ('mmdet is not installed', 'pip install mmdet==3.3.0')),
    ({'mmcv-lite': '1.7.2'}, (), ('mmcv-lite 1.7.2', '>=2.0.1', 'pip install mmcv-lite==2.1.0')),
    ({'mmcv-lite': None, 'mmcv': '2.2.0'}, (), ('mmdet 3.3.0 needs mmcv <2.2', 'pip install mmcv==2.1.0')),
    ({'mmdet': '2.28.2'}, (), ('mmdet 2.28.2', 'pip install mmdet==3.3.0')),
    ({'torch': '2.5.1'}, (), ('torch 2.5.1', '>=2.6', 'torch torchvision')),
    ({'mmcv-lite': None, 'mmdet': '2.28.2'}, (), ('mmcv is not', 'mmdet 2.28.2', 'mmcv-lite==2.1.0 mmdet==3.3.0')),
))
def test_versions_that_do_not_work_are_one_error_with_the_mend(installed, change, needed, words):
    installed({k: v for k, v in {**INSTALLED, **change}.items() if v})
    with pytest.raises(SetupError) as caught:
        check_versions(*needed)
    assert all(word in str(caught.value) for word in words), caught.value


def test_mmdet_is_not_needed_unless_asked_for(installed):
    installed({k: v for k, v in INSTALLED.items() if not k.startswith(('mmdet', 'mmseg'))})
    check_versions()


@pytest.mark.parametrize('entry, framework, mend', (
    ('import xcit_dense', 'torch', 'torch torchvision'),
    ('import xcit_dense', 'mmengine', "'mmengine>=0.10.4,<1'"),
    ('import xcit_dense', 'mmcv', 'mmcv-lite==2.1.0'),
    ('tool', 'torch', 'torch torchvision'),
    ('tool', 'mmengine', "'mmengine>=0.10.4,<1'"),
    ('config', 'mmcv', 'mmcv-lite==2.1.0'),
))
def test_missing_framework_is_the_one_thing_said(entry, framework, mend):
    """Really without it: gone for the metadata and for imports, in a fresh process."""
    code = {
        'tool': f'import runpy; runpy.run_path({str(ROOT / "tools/train.py")!r}, run_name="__main__")',
        'config': 'from mmengine.config import Config\n'
                  'Config.fromstring("custom_imports = dict(imports=[\'xcit_dense\'])", ".py")',
    }.get(entry, entry)
    done = subprocess.run([sys.executable, '-c', f'''
import sys
from importlib import metadata
real = metadata.version
def version(name):
    if name.startswith({framework!r}) and name != 'torchvision': raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
sys.modules[{framework!r}] = None
{code}
'''], text=True, capture_output=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f'{framework} is not installed' in last and f'pip install {mend}' in last, done.stderr


def test_compiled_ops_built_for_another_torch_are_named(tmp_path):
    """A broken mmcv._ext in front of the real package."""
    broken = tmp_path / 'broken.so'
    broken.write_bytes(b'no library')
    done = subprocess.run([sys.executable, '-c', f'''
import importlib.util, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == 'mmcv._ext':
            return importlib.util.spec_from_file_location(name, {str(broken)!r})
sys.meta_path.insert(0, Finder())
import xcit_dense
'''], text=True, capture_output=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "mmcv's compiled ops do not load" in last and 'pip uninstall -y mmcv && pip install mmcv-lite' in last


def test_pins_lie_in_the_ranges_that_the_package_accepts():
    pins = dict(re.findall(r'^([\w-]+)==([\w.]+)', (ROOT / 'requirements.txt').read_text(), re.M))
    for distributions, accepted, _ in versions._FRAMEWORKS.values():
        pinned = [pins[name] for name in distributions if name in pins]
        assert len(pinned) == 1 and versions.SpecifierSet(accepted).contains(pinned[0])


def test_no_framework_is_a_requirement():
    required = [r for r in metadata.requires('xcit_dense') if 'extra ==' not in r]
    assert not [r for r in required if re.match('(onedl-)?(torch|mm)', r)]
