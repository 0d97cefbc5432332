"""What somebody wraps, swaps, prunes, parametrises or hooks takes effect.

At every image size, in training and evaluation. Each touch is compared with the same model with the fast path off,
which calls every layer, and with the model before.
"""
import copy
import statistics
from time import perf_counter

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn
from torch.nn.utils import parametrizations, prune

from helpers.models import relative_error
from helpers.touches import SIZES, TOUCHES, on_layer, replaced, touched
from xcit_dense import XCABlock, XCiT, set_fast
from xcit_dense.models import fast
from xcit_dense.models.drop_path import DropPath
from xcit_dense.models.fast import untouched
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
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return outs, x.grad, grads


def assert_same_steps(model, other, x):
    """Two steps, as power iterations and averages need: the second model with the fast path off."""
    for _ in range(2):
        outs, *grads = outputs_and_gradients(model, x)
        with set_fast(False):
            wanted, *wanted_grads = outputs_and_gradients(other, x)
        assert all(relative_error(got, value) < EXACT for got, value in zip(outs, wanted, strict=True))
        assert relative_error(grads[0], wanted_grads[0]) < EXACT
        assert grads[1].keys() == wanted_grads[1].keys()
        got, wanted = (torch.cat([grad.flatten() for grad in of[1].values()]) for of in (grads, wanted_grads))
        assert relative_error(got, wanted) < EXACT
    for (name, value), wanted in zip(model.named_buffers(), other.buffers(), strict=True):
        assert relative_error(value, wanted) < EXACT, name


@MODELS.register_module()
class OwnBatchNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) + 0.5


@pytest.mark.parametrize('training', (True, False))
@pytest.mark.parametrize('name', TOUCHES)
def test_a_touch_takes_effect(name, training):
    """Its output is that with the fast path off, and not the one before the change."""
    x = [torch.randn(2, 3, *size) for size in SIZES]
    for images in x:
        assert_same_steps(touched(TOUCHES[name], training), touched(TOUCHES[name], training), images)
    with torch.no_grad():
        for images in x:
            before = touched(lambda model: None, training)(images)
            after = touched(TOUCHES[name], training)(images)
            with set_fast(False):
                wanted = touched(TOUCHES[name], training)(images)
            assert all(relative_error(a, b) < EXACT for a, b in zip(after, wanted, strict=True))
            assert max(relative_error(a, b) for a, b in zip(after, before, strict=True)) > 5e-5


@pytest.mark.parametrize('name', ('attn.qkv', 'attn.proj', 'local_mp.conv1', 'local_mp.conv2', 'mlp.fc1', 'mlp.fc2'))
def test_layers_without_a_bias(name):
    """As left by tools that remove biases; in training, in evaluation, and fused."""
    touch = on_layer(name, lambda layer: setattr(layer, 'bias', None))
    x = torch.randn(2, 3, *SIZES[1]).double()
    for training in (True, False):
        model, other = (touched(touch, training, out_strides=None).double() for _ in range(2))
        outs, *grads = outputs_and_gradients(model, x)
        with set_fast(False):
            wanted, *wanted_grads = outputs_and_gradients(other, x)
        assert all(relative_error(a, b) < 1e-10 for a, b in zip(outs, wanted, strict=True))
        assert relative_error(grads[0], wanted_grads[0]) < 1e-10 and grads[1].keys() == wanted_grads[1].keys()
    assert all(relative_error(a, b) < 1e-10 for a, b in zip(model.fuse()(x), wanted, strict=True))


@pytest.mark.parametrize('kind', (XCA, LPI, FFN, DropPath, nn.Linear, nn.LayerNorm, nn.Conv2d, nn.GELU, nn.BatchNorm2d,
                                  nn.ConvTranspose2d, nn.Sequential, XCABlock))
def test_a_forward_put_into_a_class_takes_effect(kind, monkeypatch):
    """As many tools do that patch attention or explain models; also in a fused model."""
    for size in SIZES:
        x = torch.randn(1, 3, *size)
        model = touched(lambda model: None, False)
        with torch.no_grad(), monkeypatch.context() as patch:
            before = model(x)
            patch.setattr(kind, 'forward', lambda *args, forward=kind.forward: 1.5 * forward(*args))
            after = model(x)
            with set_fast(False):
                wanted = model(x)
            fused = model.fuse()(x)
        for a, b, c in zip(after, wanted, fused, strict=True):
            assert relative_error(a, b) < EXACT and relative_error(c, b) < 1e-5
        assert max(relative_error(a, b) for a, b in zip(after, before, strict=True)) > 1e-3


def test_a_forward_put_into_a_block_takes_effect():

    def touch(model):
        for block in model.blocks:
            block.forward = lambda x, height, width, block=block: x + block.norm1(block.gamma1 * block.attn(x))

    x = torch.randn(1, 3, *SIZES[1])
    with torch.no_grad():
        wanted = touched(touch, False)(x)
        assert all(relative_error(a, b) < 1e-5 for a, b in zip(touched(touch, False).fuse()(x), wanted, strict=True))


HALVING = dict(kernel_size=3, stride=2, padding=1)
DEPTHWISE = dict(kernel_size=3, padding=1, groups=8)


@pytest.mark.parametrize('accepts, kind, own, others', (
    (untouched.is_halving, nn.Conv2d, HALVING, (
        dict(kernel_size=5), dict(stride=1), dict(padding=2), dict(padding=0), dict(groups=2), dict(dilation=2),
        dict(padding_mode='reflect'))),
    (untouched.is_depthwise, nn.Conv2d, DEPTHWISE, (
        dict(kernel_size=5), dict(stride=2), dict(padding=2), dict(groups=4), dict(dilation=2), dict(out_channels=16),
        dict(padding_mode='circular'))),
    (untouched.is_pointwise, nn.Conv2d, dict(kernel_size=1), (
        dict(kernel_size=3), dict(stride=2), dict(padding=1), dict(groups=2), dict(dilation=2),
        dict(padding_mode='reflect'))),
    (untouched.is_doubling, nn.ConvTranspose2d, dict(kernel_size=2, stride=2), (
        dict(kernel_size=4), dict(stride=1), dict(padding=1), dict(output_padding=1), dict(groups=2),
        dict(dilation=2)))))
def test_convolutions_that_fast_forms_know(accepts, kind, own, others):
    """Each setting of a layer counts by itself, and its class does."""

    def layer(kind, **changes):
        return kind(**dict(dict(in_channels=8, out_channels=8), **own) | changes)

    class Own(kind):
        pass

    assert accepts(layer(kind)) and accepts(layer(kind, bias=False))
    assert not any(accepts(layer(kind, **changes)) for changes in others)
    assert not accepts(layer(Own)) and not accepts(nn.Identity())


def test_parts_that_are_no_modules():
    """A function for stochastic depth or a norm is called, and goes with copies."""

    def touch(model):
        for block in model.blocks:
            del block.drop_path, block.norm2
            block.drop_path, block.norm2 = torch.abs, torch.tanh

    for size in SIZES:
        assert_same_steps(touched(touch), copy.deepcopy(touched(touch)), torch.randn(2, 3, *size))


@pytest.mark.parametrize('training', (True, False))
def test_a_batch_norm_of_the_registry(training):
    """A subclass is called, however like its parent it looks."""

    def build_model():
        return touched(lambda model: None, training, norm_cfg=dict(type='OwnBatchNorm'))

    for size in SIZES:
        assert_same_steps(build_model(), build_model(), torch.randn(2, 3, *size))


@pytest.mark.parametrize('make_norm', (nn.utils.weight_norm, nn.utils.spectral_norm, parametrizations.weight_norm,
                                       parametrizations.spectral_norm))
def test_norms_of_weights_train_after_loading(make_norm):
    """Two steps after `load_state_dict`, which leaves the old weight in the layer until it is called."""

    def build_model():
        return touched(lambda model: [make_norm(layer) for block in model.blocks
                                      for layer in (block.mlp.fc1, block.attn.proj, block.local_mp.conv1)])

    state = {name: value.clone() for name, value in build_model().state_dict().items()}
    for name, value in state.items():
        if value.is_floating_point() and 'blocks' in name and not name.endswith(('_u', '_v', 'running_var')):
            value += 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name)))
    for size in SIZES:
        x, results = torch.randn(2, 3, *size), []
        for is_on in (True, False):
            model = build_model()
            model.load_state_dict(state)
            optimizer = torch.optim.SGD(model.parameters(), 1e-4)
            with set_fast(is_on):
                for _ in range(2):
                    optimizer.zero_grad()
                    sum(out.square().mean() for out in model(x)).backward()
                    optimizer.step()
                results.append([*model.eval()(x), *model.state_dict().values()])
        for a, b in zip(*results, strict=True):
            assert relative_error(a, b) < 2e-5 or (a - b).norm() < 1e-6


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
    model = touched(lambda model: None, False)
    with torch.no_grad():
        for size in SIZES:
            x = torch.randn(1, 3, *size)
            wanted = model(x)
            quantised = torch.ao.quantization.quantize_dynamic(
                copy.deepcopy(model).fuse() if fused else model, {nn.Linear}, dtype=torch.qint8)
            got = quantised(x)
            with set_fast(False):
                plain = quantised(x)
            assert all(relative_error(a, b) < EXACT for a, b in zip(got, plain, strict=True))
            assert all(1e-3 < relative_error(a, b) < 0.1 for a, b in zip(got, wanted, strict=True))


def test_quantisation_aware_layers_take_effect():

    def quantise(model):
        from torch.ao.nn.qat import Linear
        for block in model.blocks:
            block.mlp.fc1.qconfig = torch.ao.quantization.get_default_qat_qconfig('x86')
            replaced(block, 'mlp.fc1', Linear.from_float)

    for size in SIZES:
        x = torch.randn(2, 3, *size)
        models = [touched(quantise) for _ in range(2)]
        with set_fast(False):
            wanted = models[1](x)
        assert all(relative_error(a, b) < EXACT for a, b in zip(models[0](x), wanted, strict=True))


class OwnBlock(XCABlock):
    """A user's block with its own forward: the FFN first."""

    def forward(self, x, height, width):
        x = x + self.gamma2 * self.mlp(self.norm2(x))
        x = x + self.gamma1 * self.attn(self.norm1(x))
        return x + self.gamma3 * self.local_mp(self.norm3(x), height, width)


def test_a_block_of_ones_own():
    def change(model):
        for block in model.blocks:
            block.__class__ = OwnBlock

    x = torch.randn(2, 3, *SIZES[1])
    assert_same_steps(touched(change), touched(change), x)
    with torch.no_grad():
        wanted = touched(change, False)(x)
        assert all(relative_error(a, b) < 1e-5 for a, b in zip(touched(change, False).fuse()(x), wanted, strict=True))


def test_mixed_types_are_what_torch_makes_of_them():
    """Where the plain modules raise an error, the model does too."""
    model = touched(lambda model: model.blocks[0].mlp.fc1.double(), False)
    with pytest.raises(RuntimeError, match='[Dd]ouble|dtype'):
        model(torch.randn(1, 3, *SIZES[1]))


@pytest.mark.slow
def test_looking_costs_less_than_a_hundredth_of_a_block(monkeypatch):
    """Small 12 patch 16 at 224 pixels, in inference: the time of a block against that of checking it."""
    from xcit_dense.models.fast import branches
    block = XCiT('small_12_p16', norm_cfg=dict(type='BN')).eval().blocks[0]
    x = torch.randn(1, 196, 384)

    def seconds(call, count):
        start = perf_counter()
        for _ in range(count):
            call()
        return (perf_counter() - start) / count

    with torch.inference_mode():
        whole = statistics.median(seconds(lambda: block(x, 14, 14), 5) for _ in range(20))
        for module in (branches.xca, branches.lpi, branches.ffn):
            monkeypatch.setattr(module, 'residual', lambda *args: None)
        monkeypatch.setattr(branches.xca, 'is_cheaper', lambda x: True)
        looking = statistics.median(seconds(lambda: (
            fast.attend(block, x), fast.mix_neighbours(block, x, 14, 14), fast.feed_forward(block, x)), 50)
            for _ in range(20))
    assert looking < 0.01 * whole
