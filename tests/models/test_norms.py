"""Norms of any kind, and what learns and counts: frozen_stages and norm_eval, alone and with other options."""
import copy

import pytest
import torch
from mmengine.registry import MODELS
from models.forms import Branch, assert_same, lpi_step, lpi_steps
from models.touches import OwnBatchNorm
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from helpers.models import TINY, assert_close, build, loss_of, randomise, relative_error
from xcit_dense import XCiT, set_fast
from xcit_dense.models.fast import norms
from xcit_dense.models.lpi import LPI
from xcit_dense.models.norms import make_norm_factory

TOLERANCE = 5e-6
BLOCKS = [f'blocks.{i}' for i in range(TINY['depth'])]


@pytest.mark.parametrize('kind, norm_cfg, patch_size', (
    (nn.BatchNorm2d, dict(type='BN'), 16), (nn.SyncBatchNorm, None, 8),
    (nn.GroupNorm, dict(type='GN', num_groups=2), 16), (OwnBatchNorm, dict(type='Own'), 8)))
def test_norm_cfg_reaches_every_batch_norm(patch_size, kind, norm_cfg, monkeypatch):
    monkeypatch.setitem(MODELS.module_dict, 'Own', OwnBatchNorm)
    options = dict(norm_cfg=norm_cfg) if norm_cfg else {}  # the default is synchronised
    model, x = XCiT(dict(TINY, patch_size=patch_size), **options), torch.randn(2, 3, 64, 64)
    every = [type(m) for m in model.modules() if isinstance(m, (_BatchNorm, nn.GroupNorm))]
    stem, pyramid = (3, 0) if patch_size == 8 else (4, 1)
    assert every == [kind] * (stem + TINY['depth'] + pyramid)
    found = model(x)
    with set_fast(False):
        assert_close(found, model(x), TOLERANCE)


def part_of(name):
    """``blocks.2`` of ``blocks.2.attn.qkv.weight``, ``fpn1`` of ``fpn1.0.bias``."""
    return '.'.join(name.split('.')[:2 if name.startswith('blocks.') else 1])


def learning_parts(frozen_stages, pyramid):
    """Written for each value, so that the rule is not tested against itself."""
    blocks = {-1: BLOCKS, 0: BLOCKS, 1: BLOCKS[1:], 2: BLOCKS[2:], 3: BLOCKS[3:], 4: []}[frozen_stages]
    return {*blocks, *pyramid, *(('patch_embed', 'pos_embeder') if frozen_stages < 0 else ())}


@pytest.mark.parametrize('patch_size, with_cp, half, norm', (
    (8, False, False, 'SyncBN'), (8, True, True, 'BN'), (16, True, False, 'SyncBN'), (16, False, True, 'BN')))
@pytest.mark.parametrize('frozen_stages, norm_eval, levels', (
    (-1, False, True), (-1, True, False), (0, True, True), (0, False, False), (1, False, False), (2, False, True),
    (2, True, True), (3, True, False), (4, False, True), (4, True, False)))
def test_frozen_stages_and_norm_eval_in_pairs(frozen_stages, norm_eval, levels, patch_size, with_cp, half, norm):
    model = randomise(build(patch_size, frozen_stages=frozen_stages, norm_eval=norm_eval, with_cp=with_cp,
                            norm_cfg=dict(type=norm), drop_path_rate=0.3, **{} if levels else dict(out_strides=None)))
    pyramid = {8: {'fpn1'}, 16: {'fpn1', 'fpn2'}}[patch_size] if levels else set()
    every, learning = (learning_parts(stages, pyramid) for stages in (-1, frozen_stages))
    assert every == {part_of(name) for name, _ in model.named_parameters()}

    def trains(name, module):
        return part_of(name) not in every - learning and not (norm_eval and isinstance(module, _BatchNorm))

    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    for switches in ((True, ), (True, True), (False, True)):  # a loop calls train() at every epoch
        for mode in switches:
            model.train(mode)
        for name, module in model.named_modules():
            assert module.training == trains(name, module), name
    before = copy.deepcopy(dict(model.named_buffers()))
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=half):
        loss = loss_of([level.float() for level in model(torch.randn(3, 3, 88, 104))])
    assert loss.requires_grad == bool(learning)
    if learning:
        loss.backward()
    for name, p in model.named_parameters():
        assert (p.grad is not None) == p.requires_grad == (part_of(name) in learning), name
    for name, module in norms.items():
        is_counted = trains(name, module)
        assert module.num_batches_tracked == before[f'{name}.num_batches_tracked'] + is_counted, name
        for statistic in ('running_mean', 'running_var'):
            same = torch.equal(getattr(module, statistic), before[f'{name}.{statistic}'])
            assert same == (not is_counted), (name, statistic)
    assert not any(module.training for module in model.eval().modules())


def test_an_evaluation_and_a_training_in_one_backward():
    """The statistics for the first's gradient are not those that the second counts on, as in torch's own norm."""
    results = []
    for together in (True, False):
        torch.manual_seed(5)
        model, x = randomise(build(16)), torch.randn(2, 3, 144, 160)
        if together:
            (loss_of(model.eval()(x)) + loss_of(model.train()(x))).backward()
        else:
            loss_of(model.eval()(x)).backward()
            loss_of(model.train()(x)).backward()
        results.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert relative_error(*results) < TOLERANCE


def test_batch_norms_whose_attributes_were_changed():
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
        assert_close(*results, TOLERANCE, change)


@pytest.mark.parametrize('batch', (1, 2))
def test_instance_norm_has_right_gradients(batch):
    """Torch's own errs for a batch of one with a channels-last gradient."""
    norm = randomise(make_norm_factory(dict(type='IN', affine=True))(6)).double()
    x = torch.randn(batch, 6, 5, 7).double().requires_grad_()
    variance, mean = torch.var_mean(x, (2, 3), correction=0, keepdim=True)
    wanted = (x - mean) / (variance + norm.eps).sqrt() * norm.weight.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)
    grad = torch.randn(batch, 5, 7, 6).double().permute(0, 3, 1, 2)
    assert_close(*(torch.autograd.grad(out, (x, *norm.parameters()), grad) for out in (norm(x), wanted)), 1e-9)


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


def test_statistics_over_processes_are_those_of_the_whole_batch(two_processes, tmp_path):
    """Half a batch in each of two processes, one sample and three, one value in one process, one in each."""
    branch = Branch(LPI, 8, norm=nn.SyncBatchNorm).double().train()
    batches = [([torch.randn(count, grid[0] * grid[1], 8).double() + 3 * rank for rank, count in enumerate(samples)],
                grid) for samples, grid in (((2, 2), (5, 3)), ((1, 3), (5, 3)), ((1, 3), (1, 1)), ((1, 1), (1, 1)))]
    torch.save((branch, batches), tmp_path / 'branch.pt')
    for (parts, grid), *both in zip(batches, *two_processes.in_group(lpi_steps, tmp_path), strict=True):
        tokens, grads, buffers = lpi_step(copy.deepcopy(branch), torch.cat(parts), grid)
        assert_same({name: torch.cat([of[0][name] for of in both]) for name in tokens}, tokens)
        assert_same({name: sum(of[1][name] for of in both) for name in grads}, grads)
        for of in both:
            assert_same(of[2], buffers)
