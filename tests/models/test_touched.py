"""What somebody wraps, swaps, prunes or parametrises is compared with the plain modules and the model before."""
import copy
import functools

import pytest
import torch
from models.touches import SIZES, TOUCHES, on_layer, touched
from torch import nn
from torch.nn.utils import parametrizations, prune

from helpers.models import assert_close, randomise, relative_error
from xcit_dense import XCABlock, set_fast
from xcit_dense.models import fast
from xcit_dense.models.drop_path import DropPath
from xcit_dense.models.fast import conditions
from xcit_dense.models.ffn import FFN
from xcit_dense.models.lpi import LPI
from xcit_dense.models.xca import XCA

EXACT = 5e-6


def outputs_and_gradients(model, x):
    """Of a step whose loss weights every value differently."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    outs = model(x)
    sum((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum() for out in outs).backward()
    return outs, x.grad, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_steps(model, other, x, tolerance=EXACT):
    """Two steps, as power iterations and averages need: the second model with the fast path off."""
    for _ in range(2):
        outs, *grads = outputs_and_gradients(model, x)
        with set_fast(False):
            wanted, *wanted_grads = outputs_and_gradients(other, x)
        assert_close([*outs, grads[0]], [*wanted, wanted_grads[0]], tolerance)
        assert grads[1].keys() == wanted_grads[1].keys()
        got, wanted = (torch.cat([grad.flatten() for grad in of[1].values()]) for of in (grads, wanted_grads))
        assert relative_error(got, wanted) < tolerance
    for (name, value), wanted in zip(model.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(value, wanted) or relative_error(value, wanted) < tolerance, name


@functools.cache
def unchanged(size, training):
    """Images of a size, and what the model makes of them before any touch."""
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return x, touched(training=training)(x)


@pytest.mark.parametrize('training', (True, False))
@pytest.mark.parametrize('name', TOUCHES)
def test_a_touch_takes_effect(name, training):
    for size in SIZES:
        x, before = unchanged(size, training)
        assert_same_steps(touched(TOUCHES[name], training), touched(TOUCHES[name], training), x)
        with torch.no_grad():
            after = touched(TOUCHES[name], training)(x)
            with set_fast(False):
                wanted = touched(TOUCHES[name], training)(x)
            assert_close(after, wanted, EXACT)
            assert max(relative_error(a, b) for a, b in zip(after, before, strict=True)) > 5e-5
            if not training:
                fused = touched(TOUCHES[name], training).fuse()
                for is_on in (True, False):
                    with set_fast(is_on):
                        assert_close(fused(x), wanted, 1e-5, f'fused, {is_on}')


@pytest.mark.parametrize('make_norm, size', ((nn.utils.weight_norm, SIZES[0]),
                                             (parametrizations.weight_norm, SIZES[1])))
def test_norms_of_weights_train_after_loading(make_norm, size):
    """`load_state_dict` leaves the old weight in the layer until it is called."""

    def touch(model):
        for block in model.blocks:
            for layer in (block.mlp.fc1, block.attn.proj, block.local_mp.conv1):
                make_norm(layer)

    state, models = randomise(touched(touch)).state_dict(), [touched(touch), touched(touch)]
    x = torch.randn(2, 3, *size)
    for model in models:
        model.load_state_dict(state)
    assert_same_steps(*models, x)
    for model in models:
        torch.optim.SGD(model.parameters(), 1e-4).step()
    assert_same_steps(*models, x)


@pytest.mark.parametrize('name', ('attn.qkv', 'attn.proj', 'local_mp.conv1', 'local_mp.conv2', 'mlp.fc1', 'mlp.fc2'))
def test_layers_without_a_bias(name):
    touch = on_layer(name, lambda layer: setattr(layer, 'bias', None))
    x = torch.randn(2, 3, *SIZES[1]).double()
    for training in (True, False):
        model, other = (touched(touch, training, out_strides=None).double() for _ in range(2))
        assert_same_steps(model, other, x, 1e-10)
    assert_close(model.fuse()(x), other(x), 1e-10)


@pytest.mark.parametrize('kind', (XCA, LPI, FFN, DropPath, nn.Linear, nn.LayerNorm, nn.Conv2d, nn.GELU, nn.BatchNorm2d,
                                  nn.ConvTranspose2d, nn.Sequential, XCABlock))
def test_a_forward_put_into_a_class_takes_effect(kind, monkeypatch):
    """As many tools do that patch attention or explain models; also in a fused model."""
    for size in SIZES:
        x = torch.randn(1, 3, *size)
        model = touched(training=False)
        with torch.no_grad(), monkeypatch.context() as patch:
            before = model(x)
            patch.setattr(kind, 'forward', lambda *args, forward=kind.forward: 1.5 * forward(*args))
            after = model(x)
            with set_fast(False):
                wanted = model(x)
            fused = model.fuse()(x)
        assert_close(after, wanted, EXACT)
        assert_close(fused, wanted, 1e-5)
        assert max(relative_error(a, b) for a, b in zip(after, before, strict=True)) > 1e-3


@pytest.mark.parametrize('accepts, kind, own, others', (
    (conditions.is_halving, nn.Conv2d, dict(kernel_size=3, stride=2, padding=1), dict(
        kernel_size=5, stride=1, padding=2, groups=2, dilation=2, padding_mode='reflect')),
    (conditions.is_depthwise, nn.Conv2d, dict(kernel_size=3, padding=1, groups=8), dict(
        kernel_size=5, stride=2, padding=2, groups=4, dilation=2, out_channels=16, padding_mode='circular')),
    (conditions.is_pointwise, nn.Conv2d, dict(kernel_size=1), dict(
        kernel_size=3, stride=2, padding=1, groups=2, dilation=2, padding_mode='reflect')),
    (conditions.is_doubling, nn.ConvTranspose2d, dict(kernel_size=2, stride=2), dict(
        kernel_size=4, stride=1, padding=1, output_padding=1, groups=2, dilation=2))))
def test_convolutions_that_fast_forms_know(accepts, kind, own, others):
    """Each setting of a layer counts by itself, and its class does."""

    def layer(kind, **changes):
        return kind(**dict(dict(in_channels=8, out_channels=8), **own) | changes)

    class Own(kind):
        pass

    assert accepts(layer(kind)) and accepts(layer(kind, bias=False)) and not accepts(layer(Own))
    assert not any(accepts(layer(kind, **{name: value})) for name, value in others.items())


def test_pruning_made_permanent_is_fast_again():
    model = touched(TOUCHES['pruning'], False)
    x = torch.randn(1, 99, 32)
    assert fast.feed_forward(model.blocks[0], x) is None
    wanted = model.blocks[0](x, 11, 9)
    for block in model.blocks:
        prune.remove(block.mlp.fc1, 'weight')
    assert fast.feed_forward(model.blocks[0], x) is not None
    assert relative_error(model.blocks[0](x, 11, 9), wanted) < EXACT


@pytest.mark.parametrize('fused', (False, True))
def test_dynamic_quantisation_takes_effect(fused):
    """Every linear layer, at both sizes: so far from the model as rounding to 8 bits is, and no nearer."""
    model = touched(training=False)
    quantised = torch.ao.quantization.quantize_dynamic(
        copy.deepcopy(model).fuse() if fused else model, {nn.Linear}, dtype=torch.qint8)
    with torch.no_grad():
        for size in SIZES:
            x = torch.randn(1, 3, *size)
            wanted, got = model(x), quantised(x)
            with set_fast(False):
                assert_close(got, quantised(x), EXACT)
            assert all(1e-3 < relative_error(a, b) < 0.1 for a, b in zip(got, wanted, strict=True))


def test_mixed_types_are_what_torch_makes_of_them():
    """Where the plain modules raise an error, the model does too."""
    model = touched(lambda model: model.blocks[0].mlp.fc1.double(), False)
    with pytest.raises(RuntimeError, match='[Dd]ouble|dtype'):
        model(torch.randn(1, 3, *SIZES[1]))
