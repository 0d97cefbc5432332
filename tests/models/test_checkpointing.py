"""Activation checkpointing changes nothing but memory."""
import copy
import threading
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode

from helpers.models import build, loss_of, randomise, relative_error
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


@pytest.mark.parametrize('options', (dict(drop_path_rate=0.5), dict(attn_drop_rate=0.5),
                                     dict(drop_path_rate=0.5, attn_drop_rate=0.5)), ids=str)
def test_random_numbers_are_the_same_whichever_form_runs(options):
    """Also where the Gram form gives up after it has drawn. The plain lines draw the same."""
    model = randomise(build(8, out_indices=(0, 1), out_strides=None, **options))
    ignore_where_tokens_vary_most(model.blocks[0])
    given_up = [fast.attend(block.eval(), torch.randn(2, 90, 32)) is None for block in model.blocks]
    assert given_up == [True, False]
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
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(outs[0], outs[2], strict=True))


def ignore_where_tokens_vary_most(block):
    """Let queries and keys of a block ignore a channel in which its tokens vary far more than in the others."""
    with torch.no_grad():
        block.norm1.weight[0] = 1e5
        block.attn.qkv.weight[:64, 0] = 0


def test_the_gram_form_does_not_give_up_in_a_repetition_if_it_did_not_at_first():
    """Rounding may move the tokens over the limit, for example with another number of threads."""
    block, x = build(8, out_strides=None).blocks[0], torch.randn(2, 90, 32)
    noted = fast.Routes()
    with noted.recorded():
        assert fast.attend(block, x) is not None
    ignore_where_tokens_vary_most(block)
    with noted.repeated():
        assert fast.attend(block, x) is not None
    assert fast.attend(block, x) is None


def test_what_a_checkpointed_block_notes_is_seen_by_no_other():
    """Neither by what runs after it, nor by another thread meanwhile, where the switch stays off."""
    model, x = randomise(build(8, with_cp=True, out_strides=None)).train(), torch.randn(2, 90, 32)
    seen, noted = [], fast.Routes()

    def look():
        seen.append((routes._now.routes, routes._now.repeated, fast.attend(model.blocks[0], x) is not None))

    with set_fast(False):
        loss = loss_of(model(torch.randn(2, 3, 72, 80)))
        look()
        loss.backward()
        look()
        for context in (noted.recorded, noted.repeated):
            with context():
                assert routes._now.routes is noted
                thread = threading.Thread(target=look)
                thread.start()
                thread.join()
    assert seen == [(None, None, False)] * 4


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


@contextmanager
def global_hook():
    handle = register_module_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize('watch', (lambda: FlopCounterMode(display=False), lambda: set_fast(False), global_hook))
def test_a_repetition_runs_as_at_first_whatever_watches_it(watch):
    """A counter of operations, a hook on all modules, or the switch, in the backward pass only."""
    model = randomise(build(8, with_cp=True, out_indices=(0, ), out_strides=None, drop_path_rate=0.3)).train()
    x, found = torch.randn(2, 3, 72, 80), []
    for context in (nullcontext, watch):
        model.zero_grad()
        torch.manual_seed(3)
        loss = loss_of(model(x))
        with context():
            loss.backward()
        found.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


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
