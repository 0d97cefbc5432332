"""The layers of the stand-in for mmcv's compiled ops: against loops over pixels, gradients in float64, half types."""
import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from mmcv.ops import carafe, deform_conv2d, masked_conv2d, modulated_deform_conv2d, sigmoid_focal_loss
from mmcv.ops.carafe import carafe_naive
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction, multi_scale_deformable_attn_pytorch
from mmcv.ops.psa_mask import psa_mask

SHAPES = torch.tensor([[5, 7], [3, 4]])


def attend(value, places, weights):
    return MultiScaleDeformableAttnFunction.apply(value, SHAPES, torch.tensor([0, 35]), places, weights, 64)


def test_deformable_attention_is_that_of_mmcv_in_plain_torch():
    value, places = torch.randn(3, 47, 4, 3).double(), torch.rand(3, 6, 4, 2, 5, 2).double() * 1.4 - 0.2  # also outside
    weights = torch.randn(3, 6, 4, 2, 5).double().flatten(3).softmax(-1).view(3, 6, 4, 2, 5)
    inputs = [one.requires_grad_() for one in (value, places, weights)]
    wanted = multi_scale_deformable_attn_pytorch(inputs[0], SHAPES, *inputs[1:])
    torch.testing.assert_close(attend(*inputs), wanted, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(attend, inputs, fast_mode=True)
    half = [one.detach().half().requires_grad_() for one in inputs]  # half types sum in float32
    exact = [one.detach().double().requires_grad_() for one in half]
    for got, wanted in ((attend(*half), attend(*exact)), *zip(*(
            torch.autograd.grad(attend(*some).sum(), some) for some in (half, exact)), strict=True)):
        assert got.dtype == torch.float16
        torch.testing.assert_close(got.double(), wanted, rtol=2e-3, atol=2e-3)


def pixel(maps, y, x):
    """Return maps (C, H, W) at a place between pixels; there are zeros around the map."""
    value = torch.zeros(len(maps), dtype=maps.dtype)
    for row, column in product((math.floor(y), math.floor(y) + 1), (math.floor(x), math.floor(x) + 1)):
        if 0 <= row < maps.shape[1] and 0 <= column < maps.shape[2]:
            value = value + maps[:, row, column] * (1 - abs(y - row)) * (1 - abs(x - column))
    return value


def plain_deform_conv(maps, offset, weight, mask, stride, padding, dilation, groups, offset_groups):
    """Return the deformable convolution of one image (C, H, W) by its definition."""
    outs, points = len(weight), [*product(range(weight.shape[2]), range(weight.shape[3]))]
    output = torch.zeros(outs, *offset.shape[1:], dtype=maps.dtype)
    for out, row, column in product(range(outs), *map(range, offset.shape[1:])):
        group = out * groups // outs
        for channel, (number, (i, j)) in product(range(weight.shape[1]), enumerate(points)):
            source = group * weight.shape[1] + channel
            sample = source * offset_groups // len(maps) * len(points) + number
            y = row * stride[0] - padding[0] + i * dilation[0] + offset[2 * sample, row, column].item()
            x = column * stride[1] - padding[1] + j * dilation[1] + offset[2 * sample + 1, row, column].item()
            output[out, row, column] += (pixel(maps[source:source + 1], y, x)[0] * weight[out, channel, i, j]
                                         * mask[sample, row, column])
    return output


GEOMETRY = ((1, 1), (1, 1), (1, 1), 1, 1), ((2, 1), (2, 0), (1, 2), 2, 4)


def convolution_inputs(stride, padding, dilation, groups, offset_groups, size=(5, 6)):
    maps = torch.randn(2, 4, *size, dtype=torch.float64)
    weight = torch.randn(6, 4 // groups, 3, 2, dtype=torch.float64)
    places = F.conv2d(maps, weight.new_zeros(1, 4, 3, 2), None, stride, padding, dilation).shape[2:]
    offset = torch.randn(2, offset_groups * 12, *places, dtype=torch.float64)
    mask = torch.rand(2, offset_groups * 6, *places, dtype=torch.float64)
    return [one.requires_grad_() for one in (maps, offset, mask, weight, torch.randn(6, dtype=torch.float64))]


@pytest.mark.parametrize('geometry', GEOMETRY)
def test_deformable_convolution_and_its_gradients(geometry):
    maps, offset, mask, weight, bias = convolution_inputs(*geometry)
    plain, modulated = deform_conv2d(maps, offset, weight, *geometry), modulated_deform_conv2d(
        maps, offset, mask, weight, bias, *geometry)
    for image in range(2):
        words = maps[image].detach(), offset[image], weight.detach()
        with torch.no_grad():
            torch.testing.assert_close(plain[image], plain_deform_conv(*words, torch.ones_like(mask[image]), *geometry))
            torch.testing.assert_close(modulated[image], plain_deform_conv(*words, mask[image], *geometry)
                                       + bias[:, None, None])
    tiny = convolution_inputs(*geometry, size=(4, 4))
    assert torch.autograd.gradcheck(lambda *one: deform_conv2d(*one, *geometry), [tiny[0], tiny[1], tiny[3]],
                                    fast_mode=True)
    assert torch.autograd.gradcheck(lambda *one: modulated_deform_conv2d(*one, *geometry), tiny, fast_mode=True)
    assert torch.autograd.gradcheck(lambda *one: modulated_deform_conv2d(*one, None, *geometry), tiny[:4],
                                    fast_mode=True)


def test_offsets_of_a_larger_level_are_read_from_the_start_of_their_memory():
    """As DyHead asks for: its offsets are of a level that is twice as large as the map."""
    geometry = GEOMETRY[0]
    maps, offset, mask, weight, bias = (one.detach() for one in convolution_inputs(*geometry))
    both = torch.randn(2, 18, 9, 9, dtype=torch.float64)  # offsets and factors are parts of one tensor, as in DyHead
    used = [torch.stack([image.flatten()[:one[0].numel()].view_as(one[0]) for image in part])
            for one, part in ((offset, both[:, :12]), (mask, both[:, 12:]))]
    wanted, got = [one.clone().requires_grad_() for one in used], both.clone().requires_grad_()
    large = modulated_deform_conv2d(maps, got[:, :12], got[:, 12:], weight, bias, *geometry)
    small = modulated_deform_conv2d(maps, *wanted, weight, bias, *geometry)
    torch.testing.assert_close(large, small, rtol=0, atol=0)
    (large.square().sum() + small.square().sum()).backward()
    for part, one in zip((got.grad[:, :12], got.grad[:, 12:]), wanted, strict=True):
        for image, gradient in zip(part, one.grad, strict=True):
            flat = image.flatten()
            torch.testing.assert_close(flat[:gradient.numel()], gradient.flatten())
            assert not flat[gradient.numel():].any()


def test_deformable_convolution_of_half_types():
    rounded = [one.detach().bfloat16().requires_grad_() for one in convolution_inputs(*GEOMETRY[0])]
    got = modulated_deform_conv2d(*rounded, *GEOMETRY[0])
    wanted = modulated_deform_conv2d(*(one.detach().double() for one in rounded), *GEOMETRY[0])
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), wanted, rtol=0.005, atol=0.005)
    got.sum().backward()
    assert all(one.grad.dtype == torch.bfloat16 and one.grad.abs().max() > 0 for one in rounded)


def test_masked_convolution_computes_the_chosen_pixels_only():
    maps, weight, bias = torch.randn(1, 3, 6, 7), torch.randn(4, 3, 5, 3), torch.randn(4)
    mask = torch.rand(1, 6, 7) - 0.5
    got = masked_conv2d(maps, mask, weight, bias, (2, 1))
    torch.testing.assert_close(got, F.conv2d(maps, weight, bias, padding=(2, 1)) * (mask > 0))


@pytest.mark.parametrize('upsample', (carafe, carafe_naive))
def test_carafe_and_its_gradients(upsample):
    """Each output pixel weighs the window around its source with a kernel of its own."""
    maps = torch.randn(1, 4, 2, 3, dtype=torch.float64, requires_grad=True)
    kernels = torch.randn(1, 18, 4, 6, dtype=torch.float64, requires_grad=True)
    got, padded = upsample(maps, kernels, 3, 2, 2), F.pad(maps, (1, 1, 1, 1))
    for channel, y, x in product(range(4), range(4), range(6)):
        kernel = kernels[0, channel // 2 * 9:][:9, y, x].view(3, 3)
        window = padded[0, channel, y // 2:y // 2 + 3, x // 2:x // 2 + 3]
        torch.testing.assert_close(got[0, channel, y, x], (window * kernel).sum())
    if upsample is carafe:  # mmcv allows the gradient of the other on a GPU only
        assert torch.autograd.gradcheck(lambda *one: carafe(*one, 3, 2, 2), (maps, kernels), fast_mode=True)


@pytest.mark.parametrize('distribute', (0, 1))
def test_psa_mask_and_its_gradient(distribute):
    windows = torch.randn(2, 15, 4, 3, dtype=torch.float64, requires_grad=True)  # 5 x 3 around each of 4 x 3 pixels
    got = psa_mask(windows, distribute, (5, 3))
    wanted = torch.zeros(2, 4, 3, 4, 3, dtype=torch.float64)
    for y, x, row, column in product(range(4), range(3), range(5), range(3)):
        to_y, to_x = y + row - 2, x + column - 1
        if 0 <= to_y < 4 and 0 <= to_x < 3:
            value = windows[:, row * 3 + column, y, x]
            if distribute:
                wanted[:, y, x, to_y, to_x] = value
            else:
                wanted[:, to_y, to_x, y, x] = value
    torch.testing.assert_close(got, wanted.flatten(1, 2))
    assert torch.autograd.gradcheck(lambda one: psa_mask(one, distribute, (5, 3)), (windows, ), fast_mode=True)


@pytest.mark.parametrize('gamma, alpha, weight', (
    (2., 0.25, None), (1.5, 0.6, torch.tensor([0.5, 2., 1.], dtype=torch.double))))
def test_focal_loss_and_its_gradient(gamma, alpha, weight):
    logits = (torch.randn(6, 3, dtype=torch.double) * 3).requires_grad_()
    target = torch.tensor([0, 1, 2, 3, 3, 1])  # 3 is the background
    loss = sigmoid_focal_loss(logits, target, gamma, alpha, weight, 'none')
    p, hit = logits.sigmoid(), target[:, None] == torch.arange(3)
    wanted = torch.where(hit, -alpha * (1 - p)**gamma * p.log(), -(1 - alpha) * p**gamma * (1 - p).log())
    factors = 1 if weight is None else torch.cat([weight, torch.ones(1)])[target, None]
    torch.testing.assert_close(loss, factors * wanted, rtol=1e-9, atol=0)
    assert torch.autograd.gradcheck(lambda x: sigmoid_focal_loss(x, target, gamma, alpha, weight, 'mean'), (logits, ))
