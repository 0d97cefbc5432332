"""Fused models compute what the models compute; what users changed: `test_touched.py`."""
import copy

import pytest
import torch
from torch import nn

from helpers.models import assert_close, build, randomise
from xcit_dense.models.fast import ops
from xcit_dense.models.trunk import fuse_backbones

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


def test_fusing_takes_the_batch_norms_of_stem_and_pyramid_away():
    """From copies of their convolutions, which somebody else may use; LPI's stay, as its border is no convolution's."""
    model = randomise(build(16)).eval()
    theirs = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d))]
    before = copy.deepcopy([layer.state_dict() for layer in theirs])
    model.fuse()
    left = [name for name, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert left == [f'blocks.{i}.local_mp.bn' for i in range(4)]
    for layer, values in zip(theirs, before, strict=True):
        assert layer.state_dict().keys() == values.keys()
        assert all(torch.equal(value, values[name]) for name, value in layer.state_dict().items())
    again = copy.deepcopy(model.state_dict())
    model.fuse()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())


def test_a_fused_model_does_not_train():
    for options in ({}, dict(drop_path_rate=0.5, with_cp=True, frozen_stages=1, norm_eval=True)):
        whole = fuse_backbones(nn.ModuleDict(dict(backbone=build(16, **options).train(), head=nn.Linear(2, 2))))
        model = whole['backbone']
        assert not any(module.training for module in model.modules() if type(module) is not nn.Identity)
        assert not any(p.requires_grad for p in model.parameters())  # also of what nothing was folded into
        model.eval()
        with pytest.raises(ValueError, match='fused'):
            model.train()
