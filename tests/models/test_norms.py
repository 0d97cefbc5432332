"""Norms: of any kind, frozen, in evaluation, changed after they were built."""
import copy

import pytest
import torch
from torch import nn

from helpers.models import TINY, build, loss_of, randomise, relative_error
from xcit_dense import XCiT, set_fast
from xcit_dense.models.fast import norms

TOLERANCE = 5e-6


@pytest.mark.parametrize('norm_cfg, kind', (
    (dict(type='BN'), nn.BatchNorm2d),
    (dict(type='SyncBN'), nn.SyncBatchNorm),
    (dict(type='GN', num_groups=2), nn.GroupNorm),
))
@pytest.mark.parametrize('patch_size', (8, 16))
def test_norm_cfg_reaches_every_batch_norm(norm_cfg, kind, patch_size):
    model = build(patch_size, norm_cfg=norm_cfg)
    norms = [m for m in model.modules() if isinstance(m, (nn.modules.batchnorm._BatchNorm, nn.GroupNorm))]
    stem, pyramid = (3, 0) if patch_size == 8 else (4, 1)
    assert len(norms) == stem + TINY['depth'] + pyramid
    assert all(isinstance(m, kind) for m in norms)
    model(torch.randn(2, 3, 64, 64))


def test_default_norm_is_a_plain_batch_norm_on_one_cpu():
    plain, default = build(), XCiT(dict(TINY, patch_size=16))
    assert isinstance(default.blocks[0].local_mp.bn, nn.SyncBatchNorm)
    default.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 48, 48)
    for a, b in zip(plain(x), default(x), strict=True):
        assert torch.equal(a, b)


def test_requires_grad_of_norm_cfg_is_heeded():
    model = build(norm_cfg=dict(type='BN', requires_grad=False))
    assert not model.patch_embed.proj[0][1].weight.requires_grad
    assert model.blocks[0].norm1.weight.requires_grad


def test_an_evaluation_and_a_training_in_one_backward():
    """The statistics that the first needs for its gradient are not those that the second counts on.

    (In torch's own batch norm they are: its gradients are wrong then.)
    """
    results = []
    for together in (True, False):
        torch.manual_seed(5)
        model, x = randomise(build(16)), torch.randn(2, 3, 144, 160)
        loss = loss_of(model.eval()(x))
        if together:
            loss = loss + loss_of(model.train()(x))
        loss.backward()
        if not together:
            loss_of(model.train()(x)).backward()
        results.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert relative_error(*results) < TOLERANCE


def test_batch_norms_whose_attributes_were_changed(monkeypatch):
    """After the model was built, to what torch's own takes."""
    for change in (dict(running_mean=None, running_var=None), dict(num_batches_tracked=None), dict(momentum=None),
                   dict(momentum=None, num_batches_tracked=None), dict(track_running_stats=False), dict(momentum=0.5)):
        results = []
        for is_fast in (True, False):
            torch.manual_seed(5)
            model = randomise(build(8)).train()
            for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
                for name, value in change.items():
                    setattr(norm, name, value)
            with set_fast(is_fast):
                outs = [*model(torch.randn(2, 3, 72, 80)), *model.eval()(torch.ones(2, 3, 72, 80))]
            results.append([*outs, *model.buffers()])
        for a, b in zip(*results, strict=True):
            assert relative_error(a.float(), b.float()) < TOLERANCE, change


@pytest.mark.parametrize('batch', (1, 2))
def test_instance_norm_has_right_gradients(batch):
    """Against one in ordinary operations; torch's own errs for a batch of one with a channels-last gradient."""

    class Plain(nn.Module):

        def __init__(self, norm):
            super().__init__()
            self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

        def forward(self, x):
            variance, mean = torch.var_mean(x, (2, 3), correction=0, keepdim=True)
            return (x - mean) / (variance + self.eps).sqrt() * self.weight.view(-1, 1, 1) + self.bias.view(-1, 1, 1)

    model = randomise(build(16, norm_cfg=dict(type='IN', affine=True))).double().train()
    other = copy.deepcopy(model)
    for name, norm in list(other.named_modules()):
        if isinstance(norm, nn.InstanceNorm2d):
            owner, _, last = name.rpartition('.')
            setattr(other.get_submodule(owner), last, Plain(norm))
    x = torch.randn(batch, 3, 100, 120).double()
    for each in (model, other):
        loss_of(each(x)).backward()
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (a.grad - b.grad).norm() < 1e-9 * b.grad.norm().clamp_min(1), name


@pytest.mark.parametrize('frozen_stages', (-1, 0, 2))
def test_frozen_stages_neither_learn_nor_count(frozen_stages):
    model = build(frozen_stages=frozen_stages, drop_path_rate=0.5).train()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.)
    loss_of(model(torch.randn(2, 3, 64, 64))).backward()
    optimizer.step()
    frozen = () if frozen_stages < 0 else ('patch_embed', 'pos_embeder',
                                           *(f'blocks.{i}.' for i in range(frozen_stages)))
    for name, value in model.state_dict().items():
        if name.startswith(frozen) and frozen:
            assert torch.equal(value, before[name]), name
    moved = {name.split('.')[0] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert 'blocks' in moved and ('patch_embed' in moved) == (frozen_stages < 0)


def test_norm_eval_keeps_statistics():
    model = build(norm_eval=True).train()
    before = copy.deepcopy(dict(model.named_buffers()))
    model(torch.randn(2, 3, 64, 64))
    assert all(torch.equal(v, before[n]) for n, v in model.named_buffers())
    assert model.blocks[0].training


@pytest.mark.parametrize('dtype', (torch.bfloat16, torch.float16))
def test_sums_of_half_types_are_float32(dtype):
    """The gradients of weight and bias, over more places than a half type counts to."""
    x = torch.randn(2, 8, 50, 60).to(dtype)
    grad = (torch.randn(2, 8, 50, 60) + 1).to(dtype)
    weight, (mean, rstd, count) = torch.rand(8), norms.batch_statistics(x, 1e-5)
    _, *got = norms.normalise_backward(grad, x, mean, rstd, weight, count)
    exact = x.double()
    deviation = (exact.var((0, 2, 3), unbiased=False, keepdim=True) + 1e-5).sqrt()
    exact = (exact - exact.mean((0, 2, 3), keepdim=True)) / deviation
    for value, wanted in zip(got, ((grad * exact).sum((0, 2, 3)), grad.double().sum((0, 2, 3))), strict=True):
        assert value.dtype == torch.float32 and relative_error(value, wanted) < 1e-5
