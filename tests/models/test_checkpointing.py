"""Activation checkpointing changes nothing but memory."""
import copy
import threading

import pytest
import torch

from helpers.models import build, loss_of, randomise
from xcit_dense import set_fast
from xcit_dense.models import fast
from xcit_dense.models.fast import routes


@pytest.mark.parametrize('norm_cfg', (dict(type='BN'), dict(type='SyncBN')))
def test_checkpointing_changes_nothing_but_memory(norm_cfg):
    plain = randomise(build(drop_path_rate=0.3, norm_cfg=norm_cfg)).train()
    other = copy.deepcopy(plain)
    other.with_cp = True
    x = torch.randn(3, 3, 50, 66)
    saved = []
    for model in (plain, other):
        torch.manual_seed(7)
        total = 0

        def count(tensor):
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
            loss = loss_of(model(x))
        loss.backward()
        saved.append(total)
    assert saved[1] < saved[0] / 2  # stem and weights remain
    for (name, a), b in zip(plain.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name
    for (name, a), b in zip(plain.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(a, b), name  # running statistics are counted once


@pytest.mark.parametrize('norm_cfg', (dict(type='BN'), dict(type='BN', track_running_stats=False),
                                      dict(type='IN', affine=True, track_running_stats=True)))
def test_checkpointing_bears_several_backwards(norm_cfg):
    """Two losses of one graph, one after the other; statistics are counted once all the same."""
    plain = randomise(build(drop_path_rate=0.3, norm_cfg=norm_cfg)).train()
    other = copy.deepcopy(plain)
    other.with_cp = True
    x, results = torch.randn(3, 3, 50, 66), []
    for model in (plain, other):
        torch.manual_seed(7)
        first, *_, last = model(x)
        first.square().mean().backward(retain_graph=True)
        last.mean().backward()
        results.append([*(p.grad for p in model.parameters() if p.grad is not None), *model.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize('options', (
    dict(norm_cfg=dict(type='BN')),
    dict(norm_cfg=dict(type='SyncBN'), frozen_stages=1),
    dict(norm_cfg=dict(type='SyncBN'), norm_eval=True, frozen_stages=2),
    dict(norm_cfg=dict(type='BN', momentum=None)),
), ids=str)
@pytest.mark.parametrize('patch_size', (8, 16))
def test_two_forward_passes_before_a_backward_count_both(patch_size, options):
    """What the repetition of a block counts is undone, and the buffers stay the same objects."""
    x, results = torch.randn(2, 2, 3, 72, 56), []
    for with_cp in (True, False):
        torch.manual_seed(5)
        model = randomise(build(patch_size, with_cp=with_cp, drop_path_rate=0.3, **options)).train()
        held = dict(model.named_buffers())
        (loss_of(model(x[0])) + loss_of(model(x[1]))).backward()
        assert all(value is held[name] for name, value in model.named_buffers())
        results.append([*(p.grad for p in model.parameters() if p.requires_grad), *model.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_checkpointing_runs_again_what_ran():
    """With the switch as it was in the forward pass, and power iterations from where they were."""
    x, results = torch.randn(2, 3, 72, 80), []
    for with_cp in (True, False):
        torch.manual_seed(5)
        each = randomise(build(8, with_cp=with_cp, out_strides=None))
        for block in each.blocks:
            torch.nn.utils.spectral_norm(block.mlp.fc1)
        with set_fast(False):
            loss = loss_of(each.train()(x))
        loss.backward()
        results.append([*(p.grad for p in each.parameters()), *each.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_what_a_checkpointed_block_notes_is_seen_by_no_other():
    """Neither by what runs after it, nor by another thread meanwhile."""
    loss = loss_of(randomise(build(8, with_cp=True, out_strides=None)).train()(torch.randn(2, 3, 72, 80)))
    assert routes._now.routes is routes._now.repeated is None
    loss.backward()
    assert routes._now.routes is routes._now.repeated is None
    seen, noted = [], fast.Routes()
    for context in (noted.recorded, noted.repeated):
        with context():
            assert routes._now.routes is noted
            thread = threading.Thread(target=lambda: seen.append((routes._now.routes, routes._now.repeated)))
            thread.start()
            thread.join()
    assert seen == [(None, None)] * 2


@pytest.mark.parametrize('when', ('taken off', 'put on'))
def test_checkpointing_repeats_what_ran_whatever_hooks_did_since(when):
    x, results = torch.randn(2, 3, 72, 80), []
    for with_cp in (True, False):
        torch.manual_seed(5)
        model = randomise(build(8, with_cp=with_cp, out_strides=None, drop_path_rate=0.3)).train()

        def hook(model=model):
            return [block.mlp.fc1.register_forward_hook(lambda *args: None) for block in model.blocks]

        handles = hook() if when == 'taken off' else []
        loss = loss_of(model(x))
        for handle in handles:
            handle.remove()
        if when == 'put on':
            hook()
        loss.backward()
        results.append([*(p.grad for p in model.parameters()), *model.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
