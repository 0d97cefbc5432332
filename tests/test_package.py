"""The package among the frameworks: what it imports, where it is found, how it is installed."""
import pytest

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
import torch
model = MODELS.build(dict(type='XCiT', arch='nano_12_p16', out_indices=(5, 11), out_strides=(8, 16)))
sum(level.sum() for level in model(torch.randn(2, 3, 64, 96))).backward()
print(type(model).__module__, all(p.grad is not None for p in model.parameters()))
''')
    assert out.strip().endswith('xcit_dense.models.backbone True')


@pytest.mark.slow
def test_model_table_and_metafiles_are_up_to_date():
    pytest.importorskip('mmpretrain', reason='it has no fork')
    done = run_tool('model_table.py', '--check', check=False)
    assert done.returncode == 0, done.stdout
