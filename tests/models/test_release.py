"""XCiT and its plain form against the authors' release."""
import json

import pytest
import torch
from models.forms import assert_gradients

from helpers.models import TINY, assert_close, build_golden, loss_of, relative_error
from helpers.paths import ROOT
from xcit_dense import ReferenceXCiT, XCiT, arch_names, get_arch, set_fast

ARCHITECTURES = json.loads((ROOT / 'tests/golden/architectures.json').read_text())['archs']
TOLERANCE = 5e-6


@pytest.mark.parametrize('name', arch_names())
def test_sizes_and_counts_are_the_authors(name):
    size, patch = name.rsplit('_', 1)
    arch, wanted = get_arch(name), ARCHITECTURES[size]
    for field in ('embed_dims', 'depth', 'num_heads', 'eta', 'tokens_norm', 'mlp_ratio', 'qkv_bias'):
        assert getattr(arch, field) == wanted[field]
    assert list(arch.out_indices) == wanted['out_indices']
    with torch.device('meta'):
        model = XCiT(name)
    assert sum(p.numel() for p in model.parameters()) == wanted['dense_params'][patch]
    assert len(model.state_dict()) == wanted['dense_state_keys'][patch]


def levels_of(tensors, mode):
    return [tensors[f'{mode}/level{i}'] for i in range(1, 5)]


@pytest.mark.parametrize('kind, is_fast', ((XCiT, True), (XCiT, False), (ReferenceXCiT, True)))
def test_evaluation_equals_the_release_block_by_block(golden, kind, is_fast):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors, kind).eval()
    blocks = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, out: blocks.append(out))
    with torch.no_grad(), set_fast(is_fast):
        levels = model(tensors['input'])
    if kind is XCiT:
        assert_close(blocks, [tensors[f'eval/block{i}'] for i in range(4)], TOLERANCE)
    assert_close(levels, levels_of(tensors, 'eval'), TOLERANCE)


@pytest.mark.parametrize('kind, is_fast, with_cp', (
    (XCiT, True, False), (XCiT, True, True), (XCiT, False, False), (ReferenceXCiT, True, False)))
def test_training_equals_the_release_to_every_gradient(golden, kind, is_fast, with_cp):
    patch_size, tensors = golden
    for dtype, tolerance in ((torch.float32, TOLERANCE), (torch.float64, 5e-7)):
        model = build_golden(patch_size, tensors, kind, with_cp=with_cp).to(dtype).train()
        with set_fast(is_fast):
            levels = model(tensors['input'].to(dtype))
        assert_close(levels, levels_of(tensors, 'train'), tolerance)
        loss = loss_of(levels)
        assert relative_error(loss, tensors['train/loss'][0]) < tolerance
        loss.backward()
        assert_gradients(model, tensors, tolerance, by_layer=dtype == torch.float32)


def test_plain_skips_branches_of_single_samples_and_makes_up_for_them():
    model = ReferenceXCiT(dict(TINY, patch_size=16), drop_path_rate=0.5, out_strides=None, norm_eval=True,
                          norm_cfg=dict(type='BN'))
    image = torch.randn(1, 3, 40, 40).expand(256, -1, -1, -1)
    with torch.no_grad():
        never, often = model.eval()(image)[0], model.train()(image)[0]
    assert 6 <= len(torch.unique(often.flatten(1).mul(1e4).round(), dim=0)) <= 8  # every subset of three branches
    assert not torch.allclose(often, never)
    assert relative_error(often.mean(0), never[0]) < 0.2
    model.with_cp = True
    with pytest.raises(ValueError, match='with_cp'):
        model(image)
