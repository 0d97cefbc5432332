"""XCiT and its plain form against the authors' release."""
import json

import pytest
import torch

from helpers.models import TINY, build_golden, loss_of, relative_error
from helpers.paths import ROOT
from xcit_dense import ReferenceXCiT, XCiT, arch_names, get_arch, set_fast

ARCHITECTURES = json.loads((ROOT / 'tests/golden/architectures.json').read_text())['archs']
TOLERANCE = 5e-6


@pytest.mark.parametrize('name', arch_names())
def test_parameter_and_key_counts_are_the_authors(name):
    with torch.device('meta'):
        model = XCiT(name)
    size, patch = name.rsplit('_', 1)
    assert sum(p.numel() for p in model.parameters()) == ARCHITECTURES[size]['dense_params'][patch]
    assert len(model.state_dict()) == ARCHITECTURES[size]['dense_state_keys'][patch]


@pytest.mark.parametrize('size', ARCHITECTURES)
def test_table_of_sizes_is_the_authors(size):
    arch, wanted = get_arch(f'{size}_p8'), ARCHITECTURES[size]
    for field in ('embed_dims', 'depth', 'num_heads', 'eta', 'tokens_norm', 'mlp_ratio', 'qkv_bias'):
        assert getattr(arch, field) == wanted[field]
    assert list(arch.out_indices) == wanted['out_indices']


@pytest.mark.parametrize('is_fast', (True, False))
def test_evaluation_equals_the_release_block_by_block(golden, is_fast):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors).eval()
    blocks = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, out: blocks.append(out))
    with torch.no_grad(), set_fast(is_fast):
        levels = model(tensors['input'])
    for i, out in enumerate(blocks):
        assert relative_error(out, tensors[f'eval/block{i}']) < TOLERANCE
    for i, out in enumerate(levels, start=1):
        assert out.shape == tensors[f'eval/level{i}'].shape
        assert relative_error(out, tensors[f'eval/level{i}']) < TOLERANCE


@pytest.mark.parametrize('kind, is_fast, with_cp', (
    (XCiT, True, False), (XCiT, True, True), (XCiT, False, False), (XCiT, False, True), (ReferenceXCiT, True, False)))
def test_training_equals_the_release_to_every_gradient(golden, kind, is_fast, with_cp):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors, kind, with_cp=with_cp).train()
    with set_fast(is_fast):
        levels = model(tensors['input'])
    for i, out in enumerate(levels, start=1):
        assert relative_error(out, tensors[f'train/level{i}']) < TOLERANCE
    loss = loss_of(levels)
    assert relative_error(loss, tensors['train/loss'][0]) < TOLERANCE
    loss.backward()
    # By layer, its weight and bias as one vector: a bias before a batch norm has the gradient 0, and float32
    # leaves 1e-9 of rounding. norm3 counts with the LPI that it feeds: most of its gradient cancels in the batch
    # norm there, and the order of summation, which changes with the threads, decides what is left. Tensor by
    # tensor in float64 below.
    layers = {}
    for name, parameter in model.named_parameters():
        layer = name.rpartition('.')[0].replace('norm3', 'local_mp.conv1')
        layers.setdefault(layer, []).append((parameter.grad.flatten(), tensors[f'grad/{name}'].flatten()))
    for name, gradients in layers.items():
        got, wanted = (torch.cat(parts) for parts in zip(*gradients, strict=True))
        assert relative_error(got, wanted) < TOLERANCE, name


@pytest.mark.parametrize('is_fast', (True, False))
def test_float64_equals_the_release_tensor_by_tensor(golden, is_fast):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors).double().train()
    with set_fast(is_fast):
        loss_of(model(tensors['input'].double())).backward()
    for name, parameter in model.named_parameters():
        wanted = tensors[f'grad/{name}']
        if wanted.norm() < 1e-12:  # exactly 0 but for rounding: the bias between two layers under a batch norm
            assert name == 'fpn1.0.bias' and parameter.grad.norm() < 1e-12
        else:
            assert relative_error(parameter.grad, wanted) < 5e-7, name


def test_reference_equals_the_release_in_evaluation(golden):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors, ReferenceXCiT).eval()
    with torch.no_grad():
        for i, out in enumerate(model(tensors['input']), start=1):
            assert relative_error(out, tensors[f'eval/level{i}']) < TOLERANCE
    model.with_cp = True
    with pytest.raises(ValueError, match='with_cp'):
        model(tensors['input'])


BN = dict(norm_cfg=dict(type='BN'))
ARCH = get_arch(dict(TINY, depth=4, patch_size=16))


def golden_plain(golden):
    patch_size, tensors = golden
    model = ReferenceXCiT(dict(TINY, patch_size=patch_size), **BN)
    model.load_state_dict({n.removeprefix('state/'): v for n, v in tensors.items() if n.startswith('state/')})
    return model, tensors


def test_plain_training_equals_the_release_tensor_by_tensor(golden):
    model, tensors = golden_plain(golden)
    levels = model.double().train()(tensors['input'].double())
    loss = 0
    for i, level in enumerate(levels, start=1):
        assert relative_error(level, tensors[f'train/level{i}']) < 5e-7
        loss = loss + (level * torch.linspace(-1, 1, level.numel(), dtype=level.dtype).view_as(level)).mean()
    loss.backward()
    for name, parameter in model.named_parameters():
        wanted = tensors[f'grad/{name}']
        if wanted.norm() < 1e-12:  # the bias between two layers under a batch norm
            assert parameter.grad.norm() < 1e-12
        else:
            assert relative_error(parameter.grad, wanted) < 5e-7, name


def test_plain_skips_branches_of_single_samples_and_makes_up_for_them():
    model = ReferenceXCiT(ARCH, drop_path_rate=0.5, out_strides=None, norm_eval=True, **BN)
    image = torch.randn(1, 3, 40, 40).expand(256, -1, -1, -1)
    with torch.no_grad():
        never, often = model.eval()(image)[0], model.train()(image)[0]
    kinds = torch.unique(often.flatten(1).mul(1e4).round(), dim=0)
    assert 6 <= len(kinds) <= 8  # every subset of three branches
    assert not torch.allclose(often, never)
    assert relative_error(often.mean(0), never[0]) < 0.2
