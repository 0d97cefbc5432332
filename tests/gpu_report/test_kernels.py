"""Where the time goes: groups that cover all of it, and floors."""
from types import SimpleNamespace

import pytest
import torch

from xcit_dense.gpu_report import branches, kernels, operators
from xcit_dense.gpu_report.checks import Setting
from xcit_dense.gpu_report.operators import CONVOLUTIONS, FUSED, OTHER, PRODUCTS

CPU, CUDA = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA


@pytest.mark.parametrize('name, shapes, group', (
    ('aten::addmm', (), PRODUCTS), ('aten::baddbmm_', (), PRODUCTS),
    ('aten::convolution_backward', ([2, 64, 9, 9], [2, 64, 9, 9], [64, 1, 3, 3]), CONVOLUTIONS),
    ('aten::cudnn_convolution', ([2, 64, 9, 9], [64, 1, 3, 3]), CONVOLUTIONS),
    ('aten::cudnn_convolution', ([2, 64, 1, 1], [64, 64, 3, 3]), PRODUCTS),
    ('aten::cudnn_convolution_transpose', ([2, 64, 9, 9], [64, 64, 2, 2]), PRODUCTS),
    ('aten::_conv_depthwise2d', (), CONVOLUTIONS),
    ('aten::gelu_', (), 'GELU'), ('aten::gelu_backward', (), 'GELU'),
    ('aten::native_layer_norm_backward', (), 'norms'), ('aten::batch_norm_stats', (), 'norms'),
    ('aten::copy_', (), 'copies and conversions'), ('aten::_to_copy', (), 'copies and conversions'),
    ('aten::add_', (), 'elementwise and sums'), ('aten::_softmax_backward_data', (), 'elementwise and sums'),
    ('aten::sum', (), 'elementwise and sums'), ('aten::view', (), OTHER), ('_GramResidual', (), OTHER),
))
def test_groups(name, shapes, group):
    assert operators.group_of(name, shapes) == group and group in operators.GROUPS


def test_the_depthwise_convolutions_of_a_block_are_found():
    """By the shapes that the profiler records; others are products."""
    block = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1, groups=8), torch.nn.Conv2d(8, 8, 3, padding=1))
    images = torch.randn(2, 8, 12, 12)
    found = operators.profile(lambda: block(images).sum().backward(), 2, False)
    calls = {(o['name'], o['group']): o['calls'] for o in found if 'conv' in o['name']}
    assert calls['aten::convolution_backward', CONVOLUTIONS] == calls['aten::convolution_backward', PRODUCTS] == 1


def event(name, kernels=(), device=CPU, elapsed=0., mark=False):
    return SimpleNamespace(name=name, device_type=device, input_shapes=[], self_cpu_time_total=5., kernels=[
        SimpleNamespace(name=kernel, duration=duration) for kernel, duration in kernels], is_user_annotation=mark,
        time_range=SimpleNamespace(elapsed_us=lambda: elapsed))


def test_kernels_belong_to_the_operators_that_launched_them():
    """As CUDA's profiler links them; what it does not link is there too, and marks of ranges are not."""
    events = [event('aten::mm', [('gemm', 60.), ('split', 20.)]), event('aten::mm', [('gemm', 10.)]),
              event('_LPIResidual', [('triton_lpi', 40.)]), event('aten::view'),
              event('mark', device=CUDA, elapsed=900., mark=True)]
    events += [event('kernel', device=CUDA, elapsed=value) for value in (60., 20., 10., 40., 70.)]
    found = operators.operators_of(events, 10, True)
    assert [(o['name'], o['group'], o['calls'], o['kernel']) for o in found] == [
        ('aten::mm', PRODUCTS, 0.3, 'gemm'), ('of no operator', OTHER, 0.1, ''), ('_LPIResidual', FUSED, 0.1,
                                                                                 'triton_lpi')]
    assert [o['seconds'] for o in found] == pytest.approx([9e-6, 7e-6, 4e-6])
    events = [*events[:3], event('kernel', device=CUDA, elapsed=120.)]
    found = operators.operators_of(events, 10, True)
    assert sum(o['seconds'] for o in found) == pytest.approx(12e-6)
    assert (found[-1]['name'], found[-1]['seconds']) == ('counted more than once', pytest.approx(-1e-6))


def test_floors_by_hand():
    """nano 12 patch 16 at 160x320: 200 tokens of 128 channels, 2 images, forward and backward, bytes in bfloat16."""
    found = kernels.floors('nano_12_p16', (160, 320), dict(matrix=1e9, copy=1e9))
    N, C = 200, 128
    assert found['FFN']['multiply_adds'] == 2 * 3 * 2 * N * C * 4 * C
    assert found['FFN']['bytes'] == 2 * 2 * 3 * (3 + 8) * N * C
    assert found['FFN']['seconds'] == found['FFN']['multiply_adds'] / 1e9  # the products take longer
    assert found['LPI']['multiply_adds'] == 2 * 3 * 2 * 9 * N * C
    assert found['LPI']['bytes'] == 2 * 2 * 3 * 5 * N * C
    slow = kernels.floors('nano_12_p16', (160, 320), dict(matrix=1e9, copy=1e6))
    assert slow['LPI']['seconds'] == found['LPI']['bytes'] / 1e6  # now the memory does
    step = slow[kernels.STEP]
    assert step['groups'][CONVOLUTIONS] == pytest.approx(12 * slow['LPI']['seconds'])
    assert step['seconds'] == sum(step['groups'].values())
    block = sum(found[name]['multiply_adds'] for name in ('XCA', 'LPI', 'FFN'))
    assert found[kernels.STEP]['multiply_adds'] > 12 * block
    products = found[kernels.STEP]['multiply_adds'] - 12 * found['LPI']['multiply_adds']
    assert found[kernels.STEP]['groups'][PRODUCTS] == pytest.approx(products / 1e9)


def step_of(**groups):
    return dict(groups=groups, wall=0.2, least=dict(seconds=0.02, groups={CONVOLUTIONS: 0.005, PRODUCTS: 0.015}))


@pytest.mark.parametrize('groups, words', (
    ({PRODUCTS: 0.06, CONVOLUTIONS: 0.04}, '40% of it, more than a third; the most above its least, 45 ms, is in: '
     'products'),
    ({PRODUCTS: 0.07, 'GELU': 0.03}, '30% of it, not more'),
    ({PRODUCTS: 0.02, CONVOLUTIONS: 0.01, 'norms': 0.009}, '9 ms, is in: norms'),
    ({PRODUCTS: 0.02, FUSED: 0.008}, '5 ms, is in: products'),  # they do the convolutions, so their floor is theirs
))
def test_what_to_fuse_next(groups, words):
    assert words in kernels.advice(step_of(**groups))


@pytest.mark.slow
@pytest.mark.parametrize('check', kernels.CHECKS[2:], ids=lambda check: check.name)
def test_tiny_profiles(check, tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, 'rates', lambda: dict(matrix=1e11, copy=1e10))
    if check == kernels.CHECKS[2]:
        monkeypatch.setattr(kernels, 'time_call', lambda step: 0.25)
    found = check.run(Setting('cpu', True, tmp_path))
    assert found.passed is None and f'nano_12_{check.name[6:]}' in found.text
    assert list(found.facts['parts']) == ['XCA', 'LPI', 'FFN', kernels.STEP]
    for name, part in found.facts['parts'].items():
        rows = [row for row in found.rows if row['part'] == name]
        assert float(rows[0]['share'].rstrip('%')) == 100
        assert sum(float(row['share'].rstrip('%')) for row in rows[1:]) == pytest.approx(100, abs=1)
        assert 1000 * sum(part['groups'].values()) == pytest.approx(float(rows[0]['ms']), rel=0.01)
        assert (CONVOLUTIONS in part['groups']) == (name in ('LPI', kernels.STEP))
        assert ('GELU' in part['groups']) == (name != 'XCA')


def test_a_branch_that_is_not_fast_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, 'rates', lambda: dict(matrix=1e11, copy=1e10))
    from xcit_dense import set_fast
    with set_fast(False), pytest.raises(RuntimeError, match='fast form of XCA'):
        kernels.find_time(Setting('cpu', True, tmp_path), 16)


def test_branches_in_both_forms(tmp_path, monkeypatch):
    """A fast form that is slower than the plain line fails, except in the tiny form."""
    tiny = Setting('cpu', True, tmp_path)
    found = branches.compare_forms(tiny)
    assert found.passed is None and [(row['mode'], row['branch']) for row in found.rows] == [
        (mode, name) for mode in ('training', 'inference') for name in ('XCA', 'LPI', 'FFN')]
    assert all(float(row[name]) > 0 for row in found.rows for name in ('fast, ms', 'plain, ms', 'host of fast'))
    assert 'not possible' in branches.time_products(tiny).text
    monkeypatch.setattr(branches, '_CELLS', (('nano_12_p16', (256, 256), 1), ))
    monkeypatch.setattr(branches, 'time_interleaved', lambda steps, *_: dict(fast=[0.3], plain=[0.2]))
    found = branches.compare_forms(Setting('cpu', False, tmp_path))
    assert found.passed is False and 'XCA of nano_12_p16 at 256x256 in training (0.67)' in found.text
