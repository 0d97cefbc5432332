"""Activation checkpointing changes nothing but memory."""
import copy
import threading
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import CheckpointError

from helpers.models import assert_close, build, loss_of, randomise
from xcit_dense import set_fast
from xcit_dense.models import fast


def assert_the_same(run, patch_size=8, **options):
    """Let ``run(model)`` train with checkpointing and without: gradients and statistics are the same to the bit."""
    results = []
    for with_cp in (True, False):
        torch.manual_seed(5)
        model = randomise(build(patch_size, with_cp=with_cp, drop_path_rate=0.3, **options)).train()
        held = dict(model.named_buffers())
        run(model)
        assert all(value is held[name] for name, value in model.named_buffers() if name in held)
        results.append({**{name: p.grad for name, p in model.named_parameters()}, **dict(model.named_buffers())})
    for name, value in results[0].items():
        wanted = results[1][name]
        assert value is wanted is None or torch.equal(value, wanted), name
    return results[0]


def test_checkpointing_saves_memory():
    saved = []

    def run(model):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            loss = loss_of(model(torch.randn(3, 3, 50, 66)))
        loss.backward()
        saved.append(sum(sizes))

    assert_the_same(run, 16)
    assert saved[0] < saved[1] / 2  # stem and weights remain


def two_losses(model):
    first, *_, last = model(torch.randn(3, 3, 50, 66))
    first.square().mean().backward(retain_graph=True)
    last.mean().backward()


def two_passes(model):
    (loss_of(model(torch.randn(2, 3, 72, 56))) + loss_of(model(torch.randn(2, 3, 72, 56)))).backward()


def power_iterations(model):
    for block in model.blocks:
        torch.nn.utils.spectral_norm(block.mlp.fc1)
    loss_of(model(torch.randn(2, 3, 72, 80))).backward()


def switched(model, is_fast=True):
    """The repetition is as fast as the first run."""
    with set_fast(is_fast):
        loss = loss_of(model(torch.randn(2, 3, 72, 80)))
    with set_fast(not is_fast):
        loss.backward()


@pytest.mark.parametrize('run, patch_size, options', (
    (two_losses, 16, {}), (two_losses, 16, dict(norm_cfg=dict(type='BN', track_running_stats=False))),
    (two_losses, 16, dict(norm_cfg=dict(type='IN', affine=True, track_running_stats=True))), (two_passes, 8, {}),
    (two_passes, 16, dict(norm_cfg=dict(type='SyncBN'), frozen_stages=1)),
    (two_passes, 8, dict(norm_cfg=dict(type='SyncBN'), norm_eval=True, frozen_stages=2)),
    (two_passes, 16, dict(norm_cfg=dict(type='BN', momentum=None))), (power_iterations, 8, dict(out_strides=None)),
    (switched, 8, dict(out_strides=None)), (partial(switched, is_fast=False), 8, dict(out_strides=None))))
def test_checkpointing_changes_no_bit(run, patch_size, options):
    """What the repetition of a block counts is undone, and the buffers stay the same objects."""
    assert_the_same(run, patch_size, **options)


def test_a_layer_that_was_hooked_in_between_is_an_error():
    model = randomise(build(8, with_cp=True, out_strides=None)).train()
    loss = loss_of(model(torch.randn(2, 3, 72, 80)))
    model.blocks[0].mlp.fc1.register_forward_hook(lambda *_: None)
    with pytest.raises(CheckpointError, match='Recomputed values'):
        loss.backward()


@pytest.mark.parametrize('options', (dict(drop_path_rate=0.5), dict(attn_drop_rate=0.5),
                                     dict(drop_path_rate=0.5, attn_drop_rate=0.5)), ids=str)
def test_random_numbers_are_the_same_whichever_form_runs(options):
    """Also where the Gram form gives up after it has drawn. The plain lines draw the same."""
    model = randomise(build(8, out_indices=(0, 1), out_strides=None, **options))
    with torch.no_grad():  # its queries and keys ignore a channel in which tokens vary far more than in the others
        model.blocks[0].norm1.weight[0] = 1e5
        model.blocks[0].attn.qkv.weight[:64, 0] = 0
    assert [fast.attend(block.eval(), torch.randn(2, 90, 32)) is None for block in model.blocks] == [True, False]
    x, outs, states, gradients = torch.randn(2, 3, 72, 80), [], [], []
    for with_cp, is_fast in ((False, True), (True, True), (False, False)):
        each = copy.deepcopy(model).train()
        each.with_cp = with_cp
        torch.manual_seed(7)
        with set_fast(is_fast):
            outs.append(each(x))
        states.append(torch.get_rng_state())
        loss_of(outs[-1]).backward()
        gradients.append([p.grad for p in each.parameters() if p.grad is not None])
    assert torch.equal(states[0], states[1]) and torch.equal(states[0], states[2])
    assert all(torch.equal(a, b) for a, b in zip(*gradients[:2], strict=True))
    assert_close(outs[0], outs[2], 1e-5)


def test_threads_that_train_one_model_count_every_batch():
    """A forward pass waits while another thread repeats the block, whose buffers are others then."""
    model = randomise(build(8, with_cp=True, out_indices=(0, ), out_strides=None)).train()
    x = torch.randn(2, 3, 72, 80)
    held = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    other = threading.Thread(target=lambda: loss_of(model(x)).backward())

    def start_other(*_):  # called in the repetition
        handle.remove()
        other.start()
        other.join(0.2)  # it is through in a tenth of it if it does not wait

    loss = loss_of(model(x))
    handle = model.blocks[0].register_forward_pre_hook(start_other)
    loss.backward()
    other.join()
    for name, buffer in model.named_buffers():
        assert buffer is held[name][0], name
        assert not name.endswith('tracked') or buffer == held[name][1] + 2, name
