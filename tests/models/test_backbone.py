"""The backbone: sizes, levels, options, and errors."""
import copy

import pytest
import torch
from models.forms import papers_code

from helpers.models import TINY, assert_close, build, build_golden, loss_of, randomise, relative_error
from xcit_dense import XCiT, set_fast
from xcit_dense.models.positions import FourierPositions


@pytest.mark.parametrize('patch_size, size, wanted', (
    (16, (500, 333), ((128, 84), (64, 42), (32, 21), (16, 10))),
    (8, (500, 333), ((126, 84), (63, 42), (31, 21), (15, 10))),
    (8, (25, 40), ((8, 10), (4, 5), (2, 2), (1, 1))),
    (16, (17, 17), ((8, 8), (4, 4), (2, 2), (1, 1)))))
def test_level_sizes(patch_size, size, wanted):
    levels = build(patch_size).eval()(torch.randn(1, 3, *size))
    assert tuple(tuple(x.shape[2:]) for x in levels) == wanted


@pytest.mark.parametrize('patch_size', (8, 16))
@pytest.mark.parametrize('size', ((1, 40), (70, 5), (17, 16), (1, 1)))
def test_each_level_of_a_strip_has_a_cell(patch_size, size):
    """The largest of the tokens that are there."""
    model, x, step = build(patch_size).eval(), torch.randn(2, 3, *size), 32 // patch_size
    tokens, level = model.token_maps(x, (3, ))[0], model(x)[-1]
    assert level.shape[2:] == tuple(max(side // step, 1) for side in tokens.shape[2:])
    assert torch.equal(level[..., 0, 0], tokens[..., :step, :step].amax((2, 3))) and model.min_size == 1


@pytest.mark.parametrize('strides', ((4, 8, 16, 32), None))
def test_maps_in_the_order_that_view_needs(strides):
    """For heads that fail without; with the same values."""
    some, others = build(16, out_strides=strides), build(16, out_strides=strides, channels_last=False)
    others.load_state_dict(some.state_dict())
    x = torch.randn(2, 3, 64, 96)
    for a, b in zip(some.eval()(x), others.eval()(x), strict=True):
        assert torch.equal(a, b) and not a.is_contiguous() and b.view(2, -1).shape == a.flatten(1).shape


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
    assert [tuple(p.shape) for p in plain] == [(1, 32, -(-70 // patch_size), -(-90 // patch_size))] * 4
    assert all(map(torch.equal, full.token_maps(x, (1, 3)), plain[1::2]))
    assert torch.equal(plain[1 if patch_size == 8 else 2], wanted[1 if patch_size == 8 else 2])


def test_every_field_of_a_record_reaches_the_blocks():
    """With values that no published size has, and that are no whole numbers where they need not be."""
    for depth, wanted in ((24, (7, 11, 15, 23)), (12, (3, 5, 7, 11)), (6, (0, 2, 3, 5))):
        model = XCiT(dict(embed_dims=32, depth=depth, num_heads=4))
        assert len(model.blocks) == depth and model.out_indices == wanted
    model = XCiT(dict(embed_dims=48, depth=2, num_heads=3, patch_size=8, eta=0.3, mlp_ratio=2.7, qkv_bias=False,
                      out_indices=[1]), out_strides=None, attn_drop_rate=0.1, drop_path_rate=0.2)
    assert len(model.blocks) == 2 and model.out_indices == (1, ) and len(model.patch_embed.proj) == 5
    for block in model.blocks:
        assert (block.mlp.fc1.weight.shape, block.mlp.fc2.weight.shape) == ((129, 48), (48, 129))
        assert block.attn.qkv.bias is None and block.attn.proj.bias is not None
        assert (block.attn.num_heads, block.attn.temperature.shape) == (3, (3, 1, 1))
        assert all((gamma == 0.3).all() for gamma in (block.gamma1, block.gamma2, block.gamma3))
        assert (block.attn.drop_rate, block.drop_path.rate) == (0.1, 0.2)
    assert 'rate=0.2' in str(model)


def test_blocks_behind_the_last_map_are_not_built():
    model = build(out_indices=(1, ), out_strides=(16, ), in_channels=4)
    assert len(model.blocks) == 2
    level, = model(torch.randn(1, 4, 33, 49))
    level.sum().backward()
    assert level.shape == (1, 32, 3, 4) and all(p.grad is not None for p in model.parameters())


def test_tokens_that_are_no_grid_are_refused():
    block = build(8).eval().blocks[0]
    with torch.no_grad(), pytest.raises(RuntimeError, match='100'):
        block(torch.randn(1, 100, 32), 11, 9)


@pytest.mark.parametrize('mode, patch_size', (('training', 16), ('evaluation', 8), ('fused', 16), ('plain', 8)))
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


@pytest.mark.parametrize('dtype, tolerance, of_autocast', (
    (torch.float64, 1e-6, 1e-5), (torch.bfloat16, 5e-2, 5e-2), (torch.float16, 5e-3, 1e-2)))
def test_other_types(golden, dtype, tolerance, of_autocast):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors)
    with torch.autocast('cpu', dtype=dtype, enabled=dtype != torch.float64):
        levels = model.train()(tensors['input'])
    loss_of([x.float() for x in levels]).backward()
    assert_close(levels, [tensors[f'train/level{i}'] for i in range(1, 5)], of_autocast)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    model = build_golden(patch_size, tensors).eval().to(dtype)
    with torch.no_grad():
        levels = model(tensors['input'].to(dtype))
    assert_close(levels, [tensors[f'eval/level{i}'] for i in range(1, 5)], tolerance)
    assert {level.dtype for level in levels} == {dtype}


def test_rows_of_any_length():
    """Of a length beyond float16, of zeros, where float16 has no eps, and short ones, divided by their length too."""
    attention = build(8, out_strides=None).blocks[0].attn
    with torch.no_grad():
        attention.qkv.weight.mul_(20)
        attention.qkv.weight[3] = attention.qkv.weight[40] = 0  # a query's and a key's channel
        x = torch.full((1, 65536, 32), 80.) + torch.randn(1, 65536, 32)
        wanted = attention(x)
        assert torch.linalg.vector_norm(attention.qkv(x), dim=1).max() > torch.finfo(torch.float16).max
        for dtype in (torch.float16, torch.bfloat16):
            assert relative_error(copy.deepcopy(attention).to(dtype)(x.to(dtype)), wanted) < 2e-2
        attention.qkv.weight[:64] *= 1e-15
        assert relative_error(attention(x), wanted) < 1e-2


def test_positions_are_the_papers_code():
    """Also in half types on a grid of 70,000, which is beyond float16, and where bfloat16 counts by 256."""
    positions, x = FourierPositions(16), torch.empty(1, 16, 37, 211)
    exact = copy.deepcopy(positions).double()
    assert relative_error(exact(x.double()), exact.token_projection(papers_code(37, 211)[None])) < 1e-12
    with torch.no_grad():
        for dtype, tolerance in ((torch.float16, 5e-4), (torch.bfloat16, 3.5e-3)):
            x = torch.empty(1, 16, 70000, 5)
            assert relative_error(copy.deepcopy(positions).to(dtype)(x.to(dtype)), positions(x)) < tolerance


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
    with pytest.raises(TypeError):
        XCiT('nano_12_p16', 3)  # options are named


WRONG_ARCHS = (
    ('small_12_p12', 'small_12_p12', 'small_12_p8'), (7, '7'), (dict(TINY, patch_size=12), '12', '(8, 16)'),
    (dict(TINY, num_heads=5), '32', '5'), (dict(TINY, eta='1e-5'), 'eta', "'1e-5'"), (dict(TINY, eta=0), 'eta', '0'),
    (dict(TINY, embed_dims=32.0), 'embed_dims', '32.0'), (dict(TINY, out_indices=(0, 4)), '0 to 3', '(0, 4)'),
    (dict(TINY, width=3), 'width'), (dict(depth=4, num_heads=4), 'embed_dims'))
WRONG_OPTIONS = (
    (dict(out_indices=(0, 1, 1, 2)), '(0, 1, 1, 2)'), (dict(out_indices=()), '()'),
    (dict(out_indices=(1, 3)), 'out_strides', '(4, 8, 16, 32)'), (dict(out_strides=(4, 8, 16, 64)), '64'),
    (dict(out_strides=(8, 4, 16, 32)), 'ascending'), (dict(out_strides=(4, 4, 16, 32)), 'different'),
    (dict(drop_path_rate=1.), 'drop_path_rate', '1.0', '[0, 1)'), (
        dict(attn_drop_rate='0.1'), 'attn_drop_rate', "'0.1'"), (dict(in_channels=0), 'in_channels', '0'),
    (dict(frozen_stages=5), 'frozen_stages', '5', '4'), (dict(norm_cfg='BN'), "'BN'", 'type'),
    (dict(norm_cfg=dict(type='BatchNrom')), 'BatchNrom', 'BN'), (dict(norm_cfg=dict(type='LN')), '(B, C, H, W)'),
    (dict(norm_cfg=dict(type='GN', num_groups=3)), "'num_groups': 3", '4 channels'),
    (dict(norm_cfg=dict(type='BN', momentumm=1)), 'momentumm'), (dict(with_cp='False'), 'with_cp', "'False'"),
    (dict(norm_eval=1), 'norm_eval', '1'), (dict(channels_last=0), 'channels_last'),
    (dict(out_indices=(0, 1), out_strides=None, frozen_stages=3), 'frozen_stages', ' 2', '3'),  # two blocks are built
    *((dict(init_cfg=init_cfg), 'init_cfg must be') for init_cfg in (
        dict(type='Pretrained'), dict(type='Pretrained', checkpoint=None),
        dict(type='Pretrained', checkpoint='a.pth', map_location='cuda'),
        [dict(type='TruncNormal', layer='Linear'), dict(type='Pretrained', checkpoint='a.pth')],
        [dict(type='Pretrained', checkpoint='a.pth'), dict(type='TruncNormal', layer='Linear')])))
WRONG_IMAGES = (
    (torch.zeros(1, 3, 0, 40), '1 x 1', '0 x 40'), (torch.zeros(1, 4, 40, 40), 'in_channels=3', '(1, 4, 40, 40)'),
    (torch.zeros(1, 3, 40, 40, dtype=torch.uint8), 'uint8'), (torch.zeros(3, 40, 40), '(B, 3, H, W)', '(3, 40, 40)'),
    (torch.zeros(1, 3, 2, 40, 40), '(B, 3, H, W)', '(1, 3, 2, 40, 40)'))


@pytest.mark.parametrize('make, value, words', [
    *((XCiT, arch, words) for arch, *words in WRONG_ARCHS),
    *((lambda options: build(**options), options, words) for options, *words in WRONG_OPTIONS),
    *((lambda image: build()(image), image, words) for image, *words in WRONG_IMAGES)])
def test_wrong_archs_options_and_images(make, value, words):
    with pytest.raises(ValueError) as caught:
        make(value)
    assert all(word in str(caught.value) for word in words), caught.value
