"""XCiT as it runs against the authors' form, in float64: every option, every gradient."""
import copy
import pickle
from functools import partial
from itertools import cycle

import pytest
import torch
from models.forms import CUTTINGS, assert_same, choose_form, cut_as, papers_code

from helpers.models import TINY, randomise
from xcit_dense import ReferenceXCiT, XCiT
from xcit_dense.models import fast, reference
from xcit_dense.models.drop_path import DropPath

#: Grids of patch 8: 9 x 7 tokens take the Gram form.
IMAGE = (70, 50)


@pytest.fixture(autouse=True)
def _code_in_float64(monkeypatch):
    """The release computes its position code in float32, which would hide smaller differences."""

    def code(self, height, width):
        return papers_code(height, width)[None].to(self.pos_embeder.token_projection.weight.dtype)

    monkeypatch.setattr(ReferenceXCiT, '_code', code)


def build_pair(patch_size=8, out_strides=(4, 16), **options):
    """The model as it runs and as it is released, with two blocks and the same random parameters."""
    options = dict(out_indices=(0, 1), out_strides=out_strides, norm_cfg=dict(type='BN')) | options
    arch = dict(TINY, patch_size=patch_size)
    fast = XCiT(arch, **options).double()
    slow = ReferenceXCiT(arch, **{name: value for name, value in options.items() if name != 'with_cp'}).double()
    slow.load_state_dict(randomise(fast).state_dict())
    return fast, slow


def step(model, x):
    """Outputs and all gradients of one training step; the loss weights every value differently."""
    x = x.clone().requires_grad_()
    outs = model(x)
    generator = torch.Generator().manual_seed(3)
    loss = sum((out * torch.randn(out.shape, generator=generator)).sum() for out in outs)
    loss.backward()
    return outs, dict(image=x.grad, **{name: p.grad for name, p in model.named_parameters()})


def assert_same_step(fast, slow, x, tolerance=1e-10):
    (outs, grads), (wanted_outs, wanted_grads) = step(fast, x), step(slow, x)
    assert_same(dict(enumerate(outs)), dict(enumerate(wanted_outs)), tolerance)
    assert_same(grads, wanted_grads, tolerance)
    assert_same(dict(fast.named_buffers()), dict(slow.named_buffers()), tolerance)


@pytest.mark.parametrize('cutting', CUTTINGS)
@pytest.mark.parametrize('options', (
    {}, dict(patch_size=16), dict(norm_eval=True), dict(with_cp=True), dict(with_cp=True, norm_eval=True),
    dict(frozen_stages=0), dict(frozen_stages=1), dict(norm_cfg=dict(type='SyncBN')),
    dict(norm_cfg=dict(type='GN', num_groups=2)),
    *(dict(norm_cfg=dict(type='BN', **options)) for options in (
        dict(momentum=None), dict(momentum=0.3, eps=0.1), dict(affine=False), dict(requires_grad=False),
        dict(track_running_stats=False)))), ids=str)
def test_training_is_the_released_form(options, cutting, monkeypatch):
    cut_as(cutting, monkeypatch)
    fast, slow = (model.train() for model in build_pair(**options))
    x = torch.randn(2, 3, *(side * fast.arch.patch_size // 8 for side in IMAGE)).double()
    for _ in range(2):  # the second counts into statistics that the first has changed
        assert_same_step(fast, slow, x)
    assert_same_step(fast.eval(), slow.eval(), x)  # gradients with the running statistics
    with torch.no_grad():
        assert_same(dict(enumerate(fast(x))), dict(enumerate(slow(x))))
    fixed = [name for name, p in fast.named_parameters() if not p.requires_grad]
    assert bool(fixed) == ('frozen_stages' in options or 'requires_grad' in options.get('norm_cfg', {}))


@pytest.mark.parametrize('dtype', (torch.bfloat16, torch.float16))
def test_autocast_keeps_the_types_of_the_released_form(dtype):
    """The tokens that the blocks add to stay in float32 behind the first, at every size."""
    fast, slow = (model.float() for model in build_pair(out_strides=None))
    for size in (IMAGE, (40, 50)):  # Gram form and token form
        x = torch.randn(2, 3, *size)
        with torch.autocast('cpu', dtype=dtype):
            outs, wanted = fast(x), slow(x)
        assert [out.dtype for out in outs] == [out.dtype for out in wanted] == [torch.float32] * 2


@pytest.mark.parametrize('cutting, patch_size, gram', (
    ('chunks', 8, True), ('whole', 8, True), ('chunks', 16, False), ('chunks', 16, True)))
@pytest.mark.parametrize('options', (
    {}, dict(with_cp=True, norm_cfg=dict(type='GN', num_groups=2)), dict(with_cp=True, norm_eval=True, frozen_stages=1),
    dict(with_cp=True, frozen_stages=0, out_strides=None), dict(norm_eval=True, norm_cfg=dict(type='BN')),
    dict(with_cp=True, norm_eval=True, norm_cfg=dict(type='BN', requires_grad=False))), ids=str)
def test_options_of_recipes_together_are_the_released_form(options, patch_size, gram, cutting, monkeypatch):
    cut_as(cutting, monkeypatch)
    choose_form(monkeypatch, gram)
    options = dict(norm_cfg=dict(type='SyncBN'), drop_path_rate=0.2) | options
    fast, slow = (model.train() for model in build_pair(patch_size, **options))
    # the same draws for both: row 3 i + j for branch j of block i, also where it is recomputed
    keep = 1.25 * torch.tensor([[0, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1]]).double()
    draws = {id(block.drop_path): cycle(keep[3 * i:3 * i + 3]) for i, block in enumerate(fast.blocks)}
    monkeypatch.setattr(DropPath, 'draw', lambda self, x: next(draws[id(self)]))
    plain_draws = cycle(keep)
    monkeypatch.setattr(reference, '_drop_path', lambda x, rate, training: x * next(plain_draws).view(-1, 1, 1))
    assert_same_step(fast, slow, torch.randn(3, 3, *(side * patch_size // 8 for side in IMAGE)).double())


@pytest.mark.parametrize('norm_eval, gradient', ((False, True), (True, True), (False, False), (True, False)))
def test_stochastic_depth_needs_training_not_gradients(gradient, norm_eval, monkeypatch):
    """A training forward without gradients drops as one with them does; each branch by its own draw."""
    model = build_pair(drop_path_rate=0.2, norm_eval=norm_eval, out_strides=None)[0].train()
    block, x = model.blocks[0], torch.randn(64, 64, 32).double()
    drop_path = block.drop_path
    for run in (fast.attend, partial(fast.mix_neighbours, height=8, width=8), fast.feed_forward):
        keep = drop_path.draw(x)
        with torch.set_grad_enabled(gradient), monkeypatch.context() as patch:
            patch.setattr(drop_path, 'draw', lambda x, keep=keep: keep)
            out = run(block, x)
        assert torch.equal((out == x).flatten(1).all(1), keep == 0), run
    keep = drop_path.draw(torch.empty(4000, 1, 1))
    assert keep.unique().tolist() == [0., 1.25] and abs((keep == 0).double().mean() - 0.2) < 0.03
    drop_path.rate = 0.5
    for gram in (False, True):
        choose_form(monkeypatch, gram)
        x = torch.randn(256, 9, 32).double()
        with torch.set_grad_enabled(gradient):
            kept = (block(x, 3, 3) == x).flatten(1).all(1).double().mean()
        assert 0.05 < kept < 0.22, gram  # all three branches are skipped: 1/8
    assert block.eval().drop_path.draw(torch.empty(4, 1, 1)) is None


@pytest.mark.parametrize('cutting, gram', (('chunks', False), ('chunks', True), ('whole', True)))
@pytest.mark.parametrize('grid', ((1, 1), (1, 6), (5, 1), (2, 2), (3, 2)))
def test_least_grids(grid, gram, cutting, monkeypatch):
    cut_as(cutting, monkeypatch, floats=32)
    choose_form(monkeypatch, gram)
    fast, slow = build_pair(out_strides=None)
    x = torch.randn(2, 3, *(8 * side for side in grid)).double()
    for mode in (True, False):
        assert_same_step(fast.train(mode), slow.train(mode), x)
    with torch.inference_mode():
        assert_same(dict(enumerate(fast(x))), dict(enumerate(slow(x))))


def test_inference_mode_copies_and_pickles(tmp_path):
    fast, slow = build_pair()
    assert fast.state_dict().keys() == slow.state_dict().keys()
    x = torch.randn(2, 3, *IMAGE).double()
    step(fast.train(), x)
    for model in (fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        torch.save(model.state_dict(), tmp_path / 'state.pt')
        slow.load_state_dict(torch.load(tmp_path / 'state.pt', weights_only=True))
        wanted = dict(enumerate(slow.eval()(x)))
        with torch.inference_mode():
            assert_same(dict(enumerate(model.eval()(x))), wanted)
        with torch.no_grad():
            assert_same(dict(enumerate(model(x))), wanted)
