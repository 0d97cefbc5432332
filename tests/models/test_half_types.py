"""Half types, devices and tracers: where a fast form could be less exact than the released one, or not run at all."""
import copy
from functools import partial

import pytest
import torch
from models.forms import cut_as, errors_of, released_block

from helpers.models import TINY, assert_close, build, randomise, relative_error
from xcit_dense import XCiT, set_fast
from xcit_dense.models import fast, reference
from xcit_dense.models.fast import xca

GRID = (23, 13)
TOKENS = GRID[0] * GRID[1]


def make_block(gamma=None, **options):
    block = randomise(build(8, out_indices=(0, ), out_strides=None, **options)).train().blocks[0]
    if gamma is not None:
        for factor in (block.gamma1, block.gamma2, block.gamma3):
            torch.nn.init.uniform_(factor, gamma, 2 * gamma)
    return block


def step(run, block, x, weights, scale=1.):
    x = x.clone().requires_grad_()
    out = run(x, *GRID)
    grads = torch.autograd.grad(((out - x) * weights).sum() * scale, [x, *block.parameters()])
    return [out - x, *(g.double() / scale for g in grads)]


@pytest.mark.parametrize('dtype, gamma, scale, slack', (
    (torch.bfloat16, 1., 1., 1e-3), (torch.float16, 1., 1., 1e-3), (torch.float16, 1e-5, 2.**12, 2e-3)))
@pytest.mark.parametrize('keep', (None, torch.tensor([0, 1.25]), torch.tensor([2., 0.5])),
                         ids=('no stochastic depth', 'one dropped', 'both kept'))
def test_whole_block_under_autocast_is_as_exact_as_the_released_form(keep, dtype, gamma, scale, slack):
    """In root mean square over six draws, also with the LayerScale of deep models, of which float16 loses digits."""
    ours, theirs, exact = [], [], []
    for seed in range(6):
        torch.manual_seed(seed)
        block = make_block(gamma)
        x, weights, double = torch.randn(2, TOKENS, 32), torch.randn(2, TOKENS, 32), copy.deepcopy(block).double()
        exact.append(step(partial(released_block, double, keep=keep), double, x.double(), weights.double()))
        block.drop_path.draw = lambda x: keep
        with torch.autocast('cpu', dtype=dtype):
            ours.append(step(block, block, x, weights, scale))
            theirs.append(step(partial(released_block, block, keep=keep), block, x, weights, scale))
    for name, (a, b) in errors_of(['out', 'x', *dict(block.named_parameters())], ours, theirs, exact).items():
        assert a < 1.5 * b + slack, name


def test_a_model_in_chunks_in_bfloat16_is_as_exact_as_the_released_form(monkeypatch):
    """On a CPU, where sums of chunks and statistics of maps have forms of their own: maps, and all gradients."""
    cut_as('chunks', monkeypatch, floats=2000)
    forms = (True, torch.bfloat16), (False, torch.bfloat16), (False, torch.float64)
    found = [[] for _ in forms]
    for seed in range(4):
        torch.manual_seed(seed)
        model, x = randomise(build(8)).train(), torch.randn(2, 3, 104, 120)
        heads = [torch.randn_like(level) for level in model(x)]
        for seen, (is_fast, dtype) in zip(found, forms, strict=True):
            copied = copy.deepcopy(model).to(torch.promote_types(dtype, torch.float32))
            with set_fast(is_fast), torch.autocast('cpu', torch.bfloat16, enabled=dtype != torch.float64):
                levels = copied(x.to(copied.blocks[0].gamma1.dtype))
            sum((level * head).sum() for level, head in zip(levels, heads, strict=True)).backward()
            seen.append([torch.cat([t.detach().double().flatten() for t in tensors])
                         for tensors in (levels, [p.grad for p in copied.parameters()])])
    for name, (ours, theirs) in errors_of(('levels', 'gradients'), *found).items():
        assert 0 < ours < 1.5 * theirs, name


@pytest.mark.parametrize('scale', (2.**-50, 2.**50))
def test_the_scale_of_the_loss_changes_no_digit_in_float16(scale):
    """Its range ends at 2^-24 and 2^16; gradients of images without objects are far below those of others."""
    block, x, weights = make_block(1e-5), torch.randn(2, TOKENS, 32), torch.randn(2, TOKENS, 32)
    if scale > 1:
        block.attn.qkv.bias = None  # not there either
    with torch.autocast('cpu', dtype=torch.float16):
        found = [step(block, block, x, weights, factor) for factor in (1., scale)]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_a_layer_scale_of_zero_gives_no_nan_in_float16():
    """And a gradient of zeros, as that of a sample without a box, neither; a branch that is off is off."""
    block = make_block()
    for gamma in (block.gamma1, block.gamma2, block.gamma3):
        torch.nn.init.zeros_(gamma)
    x = torch.randn(2, TOKENS, 32).requires_grad_()
    with torch.autocast('cpu', dtype=torch.float16):
        out = block(x, *GRID)
    assert torch.equal(out, x)
    for grad in (torch.randn_like(out), torch.zeros_like(out)):
        block.zero_grad()
        found, = torch.autograd.grad(out, x, grad, retain_graph=True)
        assert torch.equal(found, grad)
        out.backward(grad, retain_graph=True)
        assert all(torch.isfinite(p.grad).all() for p in block.parameters())
    assert not any(p.grad.any() for p in block.parameters())


def test_autocast_leaves_float64_alone():
    block, x = make_block(1.).double(), torch.randn(2, TOKENS, 32).double()
    weights = torch.randn(2, TOKENS, 32).double()
    wanted = step(block, block, x, weights)
    with torch.autocast('cpu', dtype=torch.float16):
        got = step(block, block, x, weights)
    assert all(relative_error(a, b) < 1e-12 for a, b in zip(got, wanted, strict=True) if b.norm() > 1e-9)


@pytest.mark.parametrize('weight, bias', ((1e-3, 40), (0, 1.5)))
@pytest.mark.parametrize('mode', ('training', 'evaluation'))
@pytest.mark.parametrize('dtype, autocast', ((torch.bfloat16, True), (torch.float16, True), (torch.float16, False)))
def test_channels_that_hardly_vary_before_the_batch_norm(dtype, autocast, bias, weight, mode):
    """Their deviation is a division by nearly nothing: rounded apart, factor and shift would leave noise."""
    block = make_block(1., norm_cfg=dict(type='BN', momentum=1.))
    conv = block.local_mp.conv1
    with torch.no_grad():
        conv.weight[::2] *= weight
        conv.bias[::2] = bias
    x = torch.randn(2, TOKENS, 32)
    with torch.no_grad():
        block(x, *GRID)  # running statistics
    block.train(mode == 'training')
    if not autocast:  # the types of the parameters are what is computed in
        block, x = block.to(dtype), x.to(dtype)
    exact = copy.deepcopy(block).double()

    def branch(block, x):
        return block.gamma3 * reference._mix_locally(block, x, *GRID)

    with torch.no_grad():
        wanted = branch(exact, x.double())
        with torch.autocast('cpu', dtype=dtype, enabled=autocast):
            theirs = x + branch(copy.deepcopy(block), x)
            got = fast.mix_neighbours(block, x, *GRID)
    got, theirs = (out.double() - x.double() for out in (got, theirs))
    assert relative_error(got, wanted) <= 2 * relative_error(theirs, wanted)


@pytest.mark.parametrize('is_fast', (True, False))
@pytest.mark.parametrize('dtype', (torch.bfloat16, torch.float16))
def test_models_of_half_types_train_with_stochastic_depth(dtype, is_fast):
    model = randomise(build(8, drop_path_rate=0.5)).to(dtype).train()
    with set_fast(is_fast):
        levels = model(torch.randn(3, 3, 70, 90, dtype=dtype))
    assert {level.dtype for level in levels} == {dtype}
    sum(level.float().square().mean() for level in levels).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_attention_that_drops_runs_in_the_plain_line():
    """Each time it drops others, and in the mean the output is that of evaluation."""
    block, x = randomise(build(8, attn_drop_rate=0.3)).blocks[0], torch.randn(2, 99, 32)
    assert fast.attend(block.train(), x) is None
    with torch.no_grad():
        drawn = torch.stack([block.attn(x) for _ in range(300)])
        assert drawn.std(0).min() > 0 and relative_error(drawn.mean(0), block.eval().attn(x)) < 0.1
    assert fast.attend(block, x) is not None


@pytest.mark.parametrize('training', (False, True))
def test_all_that_a_forward_makes_is_where_the_images_are(training):
    """On a device without data, where what is added or joined from the CPU is an error, as on a GPU."""
    model, x = build(8).train(training), torch.zeros(2, 3, 70, 90)
    wanted = [tuple(level.shape) for level in model(x)]
    with torch.device('meta'):
        built = build(8).train(training)
    for on_meta in (model.to('meta'), built):
        levels = on_meta(x.to('meta'))
        assert [tuple(level.shape) for level in levels] == wanted
        assert {level.device.type for level in levels} == {'meta'}


@pytest.mark.parametrize('dtype', (torch.bfloat16, torch.float16))
def test_compiled_attention_keeps_a_small_layer_scale(dtype):
    """Of 1e-5, as deep models have: what a compiler gets does not fold it into weights of a half type."""
    torch._dynamo.reset()
    block, x = make_block(1e-5), torch.randn(2, TOKENS, 32)
    compiled = torch.compile(lambda x: fast.attend(block, x), backend='eager', fullgraph=True)
    with torch.no_grad(), torch.autocast('cpu', dtype):
        got, theirs = compiled(x) - x, block.gamma1 * block.attn(block.norm1(x))
    exact = copy.deepcopy(block).double()
    wanted = (exact.gamma1 * exact.attn(exact.norm1(x.double()))).detach()
    assert relative_error(got, wanted) < 2 * relative_error(theirs, wanted) + 0.01  # of the sum with x


@pytest.mark.parametrize('dtype, bias', ((torch.bfloat16, True), (torch.float16, False)))
def test_compiled_attention_has_the_gradient_of_ordinary_autograd(dtype, bias):
    """Although a compiler traces it under the autocast of the forward, which would multiply in the half type."""
    torch._dynamo.reset()
    arch = dict(TINY, patch_size=8, qkv_bias=bias)
    block = randomise(XCiT(arch, out_strides=None, norm_cfg=dict(type='BN'))).train().blocks[0]
    x, weights = torch.randn(2, TOKENS, 32).requires_grad_(), torch.randn(2, TOKENS, 32)
    compiled = torch.compile(lambda x: fast.attend(block, x), backend='aot_eager', fullgraph=True)
    with torch.autocast('cpu', dtype):
        outs = compiled(x), x + block.gamma1 * xca.gram_form(block.attn, block.norm1(x))
    leaves = x, block.gamma1, *block.norm1.parameters(), *block.attn.parameters()
    assert_close(*(torch.autograd.grad((out * weights).sum(), leaves) for out in outs), 1e-5)
