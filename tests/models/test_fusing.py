"""Fused models compute what the models compute; what users changed: `test_touched.py`."""
import copy

import pytest
import torch
from torch import nn

from helpers.forms import assert_close
from helpers.models import TINY, build, randomise, relative_error
from helpers.touches import SIZES, touched
from xcit_dense import XCiT
from xcit_dense.models.block import XCABlock
from xcit_dense.models.fast import ops
from xcit_dense.train import fuse_backbones

EXACT = 1e-5


@pytest.mark.parametrize('patch_size', (8, 16))
@pytest.mark.parametrize('norm_cfg, floats', (
    (dict(type='BN'), 500), (dict(type='BN'), 10**6), (dict(type='SyncBN'), 10**6),
    (dict(type='GN', num_groups=2), 10**6), (dict(type='BN', track_running_stats=False), 500)))
def test_fused_equals_unfused_to_the_border(monkeypatch, patch_size, norm_cfg, floats):
    monkeypatch.setattr(ops, 'CHUNK_FLOATS', floats)
    model = randomise(build(patch_size, norm_cfg=norm_cfg)).eval()
    fused, x = copy.deepcopy(model).fuse(), torch.randn(2, 3, 133, 203)
    with torch.no_grad():
        for got, wanted in zip(fused(x), model(x), strict=True):
            edge = torch.ones_like(got)
            edge[..., 1:-1, 1:-1] = 0
            assert_close([got, got * edge], [wanted, wanted * edge], EXACT)
    assert_close(fused(x), model(x), EXACT)  # with gradients enabled, as for CAMs


@pytest.mark.parametrize('dtype', (torch.bfloat16, torch.float16))
@pytest.mark.parametrize('eta', (1., 1e-5))
@pytest.mark.parametrize('patch_size', (8, 16))
def test_fused_under_autocast_is_as_exact_as_unfused(patch_size, eta, dtype):
    """Block by block; also of deep models, whose LayerScale of 1e-5 leaves a millionth of the tokens to lose."""
    model = XCiT(dict(TINY, patch_size=patch_size, eta=eta), out_strides=None, norm_cfg=dict(type='BN')).eval()
    fused, exact = copy.deepcopy(model).fuse(), copy.deepcopy(model).double()
    x = torch.randn(2, 99, 32)
    with torch.no_grad():
        for blocks in zip(fused.blocks, model.blocks, exact.blocks, strict=True):
            with torch.autocast('cpu', dtype=dtype):
                got, theirs = (block(x, 9, 11) for block in blocks[:2])
            wanted = blocks[2](x.double(), 9, 11)
            assert relative_error(got, wanted) < 1.5 * relative_error(theirs, wanted) + 1e-6
            assert 0 < relative_error(got, x) < 1


@pytest.mark.parametrize('patch_size', (8, 16))
def test_fusing_a_model_with_the_options_of_training(patch_size):
    """From training mode, with everything that a recipe sets; in inference none of it matters."""
    options = dict(drop_path_rate=0.5, attn_drop_rate=0.5, frozen_stages=1, norm_eval=True, with_cp=True,
                   norm_cfg=dict(type='SyncBN'))
    model = randomise(build(patch_size, **options)).train()
    plain = build(patch_size).eval()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 70, 90)
    got = model.fuse()(x)
    assert_close(got, plain(x), EXACT)
    assert not any(level.requires_grad for level in got)


def test_fusing_takes_norms_and_layer_scale_away():
    """Except the norms around LPI's first convolution, which cannot be folded."""
    model = randomise(build(16)).eval()
    fused = copy.deepcopy(model).fuse()
    left = [name for name, module in fused.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) or getattr(module, 'weight', None) is not None
            and isinstance(module, nn.LayerNorm)]
    assert sorted(left) == sorted(f'blocks.{i}.{name}' for i in range(4) for name in ('norm3', 'local_mp.bn'))
    assert not any('gamma' in name for name in fused.state_dict())
    # what is left of a layer norm divides as before
    assert {block.norm1.eps for block in fused.blocks} == {block.norm2.eps for block in fused.blocks} == {1e-6}
    again = copy.deepcopy(fused.state_dict())
    fused.fuse()
    assert all(torch.equal(value, again[name]) for name, value in fused.state_dict().items())


def test_a_fused_model_does_not_train():
    model = build(16).fuse()
    assert not any(module.training for module in model.modules() if type(module) is not nn.Identity)
    assert not any(p.requires_grad for p in model.parameters())  # also of what nothing was folded into
    model.eval()
    with pytest.raises(ValueError, match='fused'):
        model.train()


def test_backbones_inside_detectors_are_found():
    model = nn.ModuleDict(dict(backbone=build(16), head=nn.Linear(2, 2)))
    assert fuse_backbones(model).backbone.is_fused


def test_fusing_leaves_blocks_whose_class_has_another_forward(monkeypatch):
    """A forward of the user may read what fusing would remove."""
    model, x = build(8, out_indices=(0, 1), out_strides=None).eval(), torch.randn(1, 3, *SIZES[0])
    monkeypatch.setattr(XCABlock, 'forward', lambda self, x, height, width: x * self.gamma1 + self.norm2.weight)
    with torch.no_grad():
        assert_close(copy.deepcopy(model).fuse()(x), model(x), EXACT)


def shares(*names):
    """What two blocks share, by its name in the second; a norm of the first is shared within it too."""

    def touch(model):
        first, second = model.blocks
        for name in names:
            owner, _, last = name.rpartition('.')
            setattr(second.get_submodule(owner), last, getattr(first.get_submodule(owner), last))
        if 'norm1' in names:
            first.norm2 = first.norm1

    return touch


def share_block(model):
    model.blocks[1] = model.blocks[0]


@pytest.mark.parametrize('share', (share_block, shares('norm1'), shares('attn'), shares('mlp.fc1', 'local_mp.conv2'),
                                   shares('gamma1', 'attn.proj.weight')))
def test_fusing_what_two_places_share(share):
    x, outside = torch.randn(1, 3, *SIZES[1]), nn.Module()
    with torch.no_grad():
        wanted = touched(share, False)(x)
        model = touched(share, False)
        outside.proj = model.blocks[0].attn.proj  # somebody else's, who must not see it change
        before = outside.proj.weight.clone()
        assert_close(model.fuse()(x), wanted, EXACT)
    assert torch.equal(outside.proj.weight, before) and not any('gamma' in name for name in model.state_dict())
