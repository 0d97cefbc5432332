"""XCiT against the authors' release, and its options."""
import copy
import json
from pathlib import Path

import pytest
import torch
from conftest import TINY
from torch import nn
from weight_files import build, randomise

from xcit_dense import ReferenceXCiT, XCiT, arch_names, get_arch, set_fast
from xcit_dense.models.positions import FourierPositions

ARCHITECTURES = json.loads((Path(__file__).parent / 'golden/architectures.json').read_text())['archs']
TOLERANCE = 5e-6


def build_golden(patch_size, golden, kind=XCiT, **options):
    model = kind(dict(TINY, patch_size=patch_size), **dict(norm_cfg=dict(type='BN')) | options)
    model.load_state_dict({n.removeprefix('state/'): v for n, v in golden.items() if n.startswith('state/')})
    return model


def error(value, wanted):
    """Relative error in the 2-norm."""
    return ((value.double() - wanted.double()).norm() / wanted.double().norm()).item()


def loss_of(levels):
    """The loss of the golden files."""
    return sum((x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)).mean() for x in levels)


@pytest.mark.parametrize('name', arch_names())
def test_parameter_and_key_counts_are_the_authors(name):
    with torch.device('meta'):
        model = XCiT(name)
    size, patch = name.rsplit('_', 1)
    assert sum(p.numel() for p in model.parameters()) == ARCHITECTURES[size]['dense_params'][patch]
    assert len(model.state_dict()) == ARCHITECTURES[size]['dense_state_keys'][patch]


@pytest.mark.parametrize('size', ARCHITECTURES)
def test_table_of_sizes_is_the_authors(size):
    arch, wanted = get_arch(f'{size}_p8'), ARCHITECTURES[size]
    for field in ('embed_dims', 'depth', 'num_heads', 'eta', 'tokens_norm', 'mlp_ratio', 'qkv_bias'):
        assert getattr(arch, field) == wanted[field]
    assert list(arch.out_indices) == wanted['out_indices']


@pytest.mark.parametrize('is_fast', (True, False))
def test_evaluation_equals_the_release_block_by_block(golden, is_fast):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors).eval()
    blocks = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, out: blocks.append(out))
    with torch.no_grad(), set_fast(is_fast):
        levels = model(tensors['input'])
    for i, out in enumerate(blocks):
        assert error(out, tensors[f'eval/block{i}']) < TOLERANCE
    for i, out in enumerate(levels, start=1):
        assert out.shape == tensors[f'eval/level{i}'].shape
        assert error(out, tensors[f'eval/level{i}']) < TOLERANCE


@pytest.mark.parametrize('kind, is_fast, with_cp', (
    (XCiT, True, False), (XCiT, True, True), (XCiT, False, False), (XCiT, False, True), (ReferenceXCiT, True, False)))
def test_training_equals_the_release_to_every_gradient(golden, kind, is_fast, with_cp):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors, kind, with_cp=with_cp).train()
    with set_fast(is_fast):
        levels = model(tensors['input'])
    for i, out in enumerate(levels, start=1):
        assert error(out, tensors[f'train/level{i}']) < TOLERANCE
    loss = loss_of(levels)
    assert error(loss, tensors['train/loss'][0]) < TOLERANCE
    loss.backward()
    # By layer, its weight and bias as one vector: a bias before a batch norm has the gradient 0, and float32
    # leaves 1e-9 of rounding. norm3 counts with the LPI that it feeds: most of its gradient cancels in the batch
    # norm there, and the order of summation, which changes with the threads, decides what is left. Tensor by
    # tensor in float64 below.
    layers = {}
    for name, parameter in model.named_parameters():
        layer = name.rpartition('.')[0].replace('norm3', 'local_mp.conv1')
        layers.setdefault(layer, []).append((parameter.grad.flatten(), tensors[f'grad/{name}'].flatten()))
    for name, gradients in layers.items():
        got, wanted = (torch.cat(parts) for parts in zip(*gradients, strict=True))
        assert error(got, wanted) < TOLERANCE, name


@pytest.mark.parametrize('is_fast', (True, False))
def test_float64_equals_the_release_tensor_by_tensor(golden, is_fast):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors).double().train()
    with set_fast(is_fast):
        loss_of(model(tensors['input'].double())).backward()
    for name, parameter in model.named_parameters():
        wanted = tensors[f'grad/{name}']
        if wanted.norm() < 1e-12:  # exactly 0 but for rounding: the bias between two layers under a batch norm
            assert name == 'fpn1.0.bias' and parameter.grad.norm() < 1e-12
        else:
            assert error(parameter.grad, wanted) < 5e-7, name


def test_reference_equals_the_release_in_evaluation(golden):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors, ReferenceXCiT).eval()
    with torch.no_grad():
        for i, out in enumerate(model(tensors['input']), start=1):
            assert error(out, tensors[f'eval/level{i}']) < TOLERANCE
    model.with_cp = True
    with pytest.raises(ValueError, match='with_cp'):
        model(tensors['input'])


@pytest.mark.parametrize('patch_size, size, wanted', (
    (16, (500, 333), ((128, 84), (64, 42), (32, 21), (16, 10))),
    (8, (500, 333), ((126, 84), (63, 42), (31, 21), (15, 10))),
    (16, (64, 64), ((16, 16), (8, 8), (4, 4), (2, 2))),
    (8, (25, 40), ((8, 10), (4, 5), (2, 2), (1, 1))),
    (16, (17, 17), ((8, 8), (4, 4), (2, 2), (1, 1))),
))
def test_level_sizes(patch_size, size, wanted):
    levels = build(patch_size).eval()(torch.randn(1, 3, *size))
    assert tuple(tuple(x.shape[2:]) for x in levels) == wanted


@pytest.mark.parametrize('patch_size', (8, 16))
def test_levels_of_the_pyramid_are_chosen_by_stride(patch_size):
    full, some = build(patch_size).eval(), build(patch_size, out_indices=(1, 3), out_strides=(8, 32)).eval()
    some.load_state_dict({n: v for n, v in full.state_dict().items() if n in some.state_dict()})
    tokens = build(patch_size, out_strides=None).eval()
    tokens.load_state_dict({n: v for n, v in full.state_dict().items() if n in tokens.state_dict()})
    x = torch.randn(1, 3, 70, 90)
    with torch.no_grad():
        wanted, got, plain = full(x), some(x), tokens(x)
    assert torch.equal(got[0], wanted[1]) and torch.equal(got[1], wanted[3])
    grid = tuple(-(-side // patch_size) for side in (70, 90))
    assert [tuple(p.shape) for p in plain] == [(1, 32, *grid)] * 4
    assert torch.equal(plain[1 if patch_size == 8 else 2], wanted[1 if patch_size == 8 else 2])


@pytest.mark.parametrize('depth, wanted', ((24, (7, 11, 15, 23)), (12, (3, 5, 7, 11)), (6, (0, 2, 3, 5))))
def test_records_of_any_depth_build_all_their_blocks(depth, wanted):
    model = XCiT(dict(embed_dims=32, depth=depth, num_heads=4))
    assert len(model.blocks) == depth and model.out_indices == wanted


def test_blocks_behind_the_last_map_are_not_built():
    model = build(out_indices=(1, ), out_strides=(16, ))
    assert len(model.blocks) == 2
    model(torch.randn(1, 3, 33, 33))[0].sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize('name', arch_names())
def test_every_arch_runs_and_gradients_reach_every_parameter(name):
    model = XCiT(name, norm_cfg=dict(type='BN')).train()
    levels = model(torch.randn(2, 3, 33, 41))
    assert all(torch.isfinite(x).all() for x in levels)
    sum(x.square().mean() for x in levels).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize('channels', (1, 4))
def test_in_channels(channels):
    assert build(in_channels=channels)(torch.randn(2, channels, 40, 40))[0].shape == (2, 32, 12, 12)


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


@pytest.mark.parametrize('norm_cfg', (dict(type='BN'), dict(type='IN', affine=True, track_running_stats=True)))
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
    assert error(*results) < TOLERANCE


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
            assert error(a.float(), b.float()) < TOLERANCE, change


def test_tokens_that_are_no_grid_are_refused():
    block = build(8).eval().blocks[0]
    with torch.no_grad(), pytest.raises(RuntimeError, match='100'):
        block(torch.randn(1, 100, 32), 11, 9)


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


@pytest.mark.parametrize('mode', ('training', 'evaluation', 'fused', 'plain'))
@pytest.mark.parametrize('patch_size', (8, 16))
def test_an_empty_batch_gives_empty_maps(patch_size, mode):
    """And changes nothing; a detector may get one where all images of a process were filtered out."""
    model = randomise(build(patch_size)).train(mode == 'training')
    model = model.fuse() if mode == 'fused' else model
    before = copy.deepcopy(dict(model.named_buffers()))
    with set_fast(mode != 'plain'):
        levels = model(torch.empty(0, 3, 133, 77))
        wanted = model(torch.randn(2, 3, 133, 77)) if mode == 'evaluation' else None
    if wanted:
        assert [level.shape for level in levels] == [(0, *level.shape[1:]) for level in wanted]
    assert all(len(level) == 0 and level.shape[1] == 32 for level in levels)
    if mode != 'fused':
        loss_of(levels).nan_to_num().backward()
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    for name, value in model.named_buffers():  # torch counts it as a batch
        assert torch.equal(value, before[name]) or name.endswith('num_batches_tracked'), name


def test_stochastic_depth_skips_whole_branches_of_single_samples():
    model = randomise(build(drop_path_rate=0.5, norm_eval=True)).train()
    block, x = model.blocks[0], torch.randn(64, 9, 32)
    kept = [(block(x, 3, 3) - x).flatten(1).abs().amax(1) == 0 for _ in range(4)]
    share = torch.stack(kept).float().mean().item()
    assert 0.05 < share < 0.22  # all three branches skipped: 1/8
    model.eval()
    assert torch.equal(block(x, 3, 3), block(x, 3, 3))


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


@pytest.mark.parametrize('dtype, tolerance', ((torch.float64, 1e-6), (torch.bfloat16, 5e-2), (torch.float16, 5e-3)))
def test_other_types(golden, dtype, tolerance):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors).eval().to(dtype)
    with torch.no_grad():
        levels = model(tensors['input'].to(dtype))
    for i, out in enumerate(levels, start=1):
        assert out.dtype == dtype
        assert error(out, tensors[f'eval/level{i}']) < tolerance


@pytest.mark.parametrize('dtype', (torch.bfloat16, torch.float16))
def test_autocast_trains(golden, dtype):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors).train()
    with torch.autocast('cpu', dtype=dtype):
        levels = model(tensors['input'])
    loss_of([x.float() for x in levels]).backward()
    for i, out in enumerate(levels, start=1):
        assert error(out, tensors[f'train/level{i}']) < (5e-2 if dtype == torch.bfloat16 else 1e-2)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize('dtype', (torch.float16, torch.bfloat16))
def test_half_types_survive_long_rows_and_dead_channels(dtype):
    """The length of 65,536 large tokens is beyond float16, and the eps of a channel of zeros is zero in it."""
    attention = build(8, out_strides=None).blocks[0].attn
    with torch.no_grad():
        attention.qkv.weight.mul_(20)
        attention.qkv.weight[3] = attention.qkv.weight[40] = 0  # a query's and a key's channel
        x = torch.full((1, 65536, 32), 80.) + torch.randn(1, 65536, 32)
        assert torch.linalg.vector_norm(attention.qkv(x), dim=1).max() > torch.finfo(torch.float16).max
        got = copy.deepcopy(attention).to(dtype)(x.to(dtype))
        assert error(got, attention(x)) < 2e-2


def test_positions_are_the_papers_code():
    """Against the definition written out, on a grid that is neither square nor small."""
    positions = FourierPositions(16).double()
    height, width = 37, 211
    y = torch.arange(1, height + 1).double() / (height + 1e-6) * 2 * torch.pi
    x = torch.arange(1, width + 1).double() / (width + 1e-6) * 2 * torch.pi
    grid = torch.zeros(64, height, width, dtype=torch.float64)
    for channel in range(32):
        wave = 10000**(2 * (channel // 2) / 32)
        turn = torch.sin if channel % 2 == 0 else torch.cos
        grid[channel] = turn(y / wave)[:, None]
        grid[32 + channel] = turn(x / wave)[None]
    x = torch.empty(1, 16, height, width, dtype=torch.float64)
    assert error(positions(x), positions.token_projection(grid[None])) < 1e-12


@pytest.mark.parametrize('dtype, tolerance', ((torch.float16, 5e-4), (torch.bfloat16, 3.5e-3)))
def test_positions_in_half_types_count_to_large_grids(dtype, tolerance):
    """70,000 is beyond float16; a bfloat16 counts by 256 there. What is left is the rounding of the code."""
    positions, x = FourierPositions(16), torch.empty(1, 16, 70000, 5)
    with torch.no_grad():
        assert error(copy.deepcopy(positions).to(dtype)(x.to(dtype)), positions(x)) < tolerance


def test_fresh_weights_follow_the_release():
    model = XCiT('tiny_24_p16')
    block = model.blocks[3]
    assert (block.gamma1 == 1e-5).all() and (block.gamma2 == 1e-5).all() and (block.gamma3 == 1e-5).all()
    assert (block.attn.temperature == 1).all()
    for linear in (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2):
        assert abs(linear.weight.std().item() - 0.02) < 1e-3 and (linear.bias == 0).all()
    assert (XCiT('tiny_12_p16').blocks[0].gamma1 == 1).all()
    state = copy.deepcopy(model.state_dict())
    model.init_weights()
    assert all(torch.equal(v, state[n]) for n, v in model.state_dict().items())


@pytest.mark.parametrize('arch, words', (
    ('small_12_p12', ('small_12_p12', 'small_12_p8')),
    ('huge_12_p8', ('huge_12_p8', )),
    (dict(TINY, patch_size=12), ('12', '(8, 16)')),
    (dict(TINY, num_heads=5), ('32', '5')),
    (dict(TINY, eta='1e-5'), ('eta', "'1e-5'")),
    (dict(TINY, eta=0), ('eta', '0')),
    (dict(TINY, depth=0), ('depth', '0')),
    (dict(TINY, embed_dims=32.0), ('embed_dims', '32.0')),
    (dict(TINY, out_indices=(0, 4)), ('0 to 3', '(0, 4)')),
    (dict(TINY, width=3), ('width', )),
    (dict(depth=4, num_heads=4), ('embed_dims', )),
    (7, ('7', )),
))
def test_wrong_arch(arch, words):
    with pytest.raises(ValueError) as caught:
        XCiT(arch)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize('options, words', (
    (dict(out_indices=(0, 1, 2, 4)), ('0 to 3', '(0, 1, 2, 4)')),
    (dict(out_indices=(0, 1, 1, 2)), ('(0, 1, 1, 2)', )),
    (dict(out_indices=(2, 1, 0, 3)), ('ascending', )),
    (dict(out_indices=()), ('()', )),
    (dict(out_indices=(1, 3)), ('out_strides', '(4, 8, 16, 32)')),
    (dict(out_strides=(4, 8, 16, 64)), ('64', '(4, 8, 16, 32)')),
    (dict(out_strides=(8, 4, 16, 32)), ('ascending', )),
    (dict(drop_path_rate=1.), ('drop_path_rate', '1.0', '[0, 1)')),
    (dict(drop_path_rate=-0.1), ('-0.1', )),
    (dict(drop_path_rate='0.1'), ("'0.1'", )),
    (dict(in_channels=0), ('in_channels', '0')),
    (dict(frozen_stages=5), ('frozen_stages', '5', '4')),
    (dict(frozen_stages=-2), ('-2', )),
    (dict(norm_cfg='BN'), ("'BN'", 'type')),
    (dict(norm_cfg=dict(type='BatchNrom')), ('BatchNrom', 'BN')),
    (dict(norm_cfg=dict(type='LN')), ("'LN'", '(B, C, H, W)')),
    (dict(norm_cfg=dict(type='GN', num_groups=3)), ("'num_groups': 3", '4 channels')),
    (dict(norm_cfg=dict(type='BN', momentumm=1)), ('momentumm', )),
    (dict(with_cp='False'), ('with_cp', "'False'")),
    (dict(norm_eval=1), ('norm_eval', '1')),
))
def test_wrong_options(options, words):
    with pytest.raises(ValueError) as caught:
        build(**options)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize('patch_size, image, words', (
    (16, torch.zeros(1, 3, 16, 40), ('17 x 17', '16 x 40')),
    (8, torch.zeros(1, 3, 40, 24), ('25 x 25', '40 x 24')),
    (16, torch.zeros(1, 4, 40, 40), ('in_channels=3', '(1, 4, 40, 40)')),
    (16, torch.zeros(1, 3, 40, 40, dtype=torch.uint8), ('uint8', )),
    (16, torch.zeros(3, 40, 40), ('(3, 40, 40)', )),
))
def test_wrong_images(patch_size, image, words):
    with pytest.raises(ValueError) as caught:
        build(patch_size)(image)
    assert all(word in str(caught.value) for word in words), caught.value


def test_options_are_keyword_only():
    with pytest.raises(TypeError):
        XCiT('nano_12_p16', 3)


def test_export_with_dynamic_height_and_width(golden):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors, norm_cfg=dict(type='SyncBN')).eval()  # the default
    height, width = torch.export.Dim('height', min=64, max=2048), torch.export.Dim('width', min=64, max=2048)
    program = torch.export.export(model, (torch.randn(1, 3, 128, 160), ), dynamic_shapes={'x': {2: height, 3: width}})
    x = tensors['input'][:1]
    for out, i in zip(program.module()(x), range(1, 5), strict=True):
        assert error(out, tensors[f'eval/level{i}'][:1]) < TOLERANCE


@pytest.mark.parametrize('is_fast', (True, False))
@pytest.mark.parametrize('training', (True, False))
def test_compilers_get_one_graph(is_fast, training):
    """For every size, whatever the switch says; the Gram form in it where it is cheaper and on."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    model = randomise(build(8, out_indices=(0, ), out_strides=(4, ), drop_path_rate=0.3)).train(training)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    with set_fast(is_fast):
        for size in ((96, 112), (120, 88)):
            x = torch.randn(2, 3, *size)
            torch.manual_seed(3)
            got = compiled(x)
            torch.manual_seed(3)
            assert error(got[0], model(x)[0]) < TOLERANCE
    assert len(graphs) == 1
    # the Gram form alone takes the mean over the tokens
    assert ('.mean(1)' in graphs[0].code) == is_fast


@pytest.mark.slow
@pytest.mark.parametrize('with_cp', (False, True))
def test_compile_with_dynamic_height_and_width(with_cp):
    torch._dynamo.reset()
    arch = dict(embed_dims=32, depth=1, num_heads=4, patch_size=16)
    model = randomise(XCiT(arch, out_strides=(4, ), with_cp=with_cp)).train()
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, dynamic=True)
    for size in ((133, 77), (200, 222)):
        x = torch.randn(2, 3, *size)
        for run in (compiled, plain):
            loss_of(run(x)).backward()
    for (name, a), b in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.allclose(a.grad, b[1].grad, rtol=1e-4, atol=1e-5), name
    for (name, a), b in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert error(a.float(), b.float()) < TOLERANCE, name
