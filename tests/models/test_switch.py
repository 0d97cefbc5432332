"""The switch of the fast path: what torch can do with it off, and that with it on nothing is silently wrong."""
from importlib.util import find_spec, module_from_spec

import pytest
import torch
from models.touches import SIZES, make
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.feature_extraction import create_feature_extractor

from helpers.models import TINY, assert_close, relative_error
from xcit_dense import ReferenceXCiT, set_fast
from xcit_dense.errors import SetupError
from xcit_dense.models import fast


def images(batch=2, size=SIZES[1]):
    return torch.randn(batch, 3, *size)


def modules_of(model):
    return {name: module for name, module in model.named_modules() if not isinstance(module, nn.ModuleList)}


def is_fast(model):
    nodes, names = [model(images())[0].grad_fn], set()
    while nodes:
        node = nodes.pop()
        names.add(node.name())
        nodes += [following for following, _ in node.next_functions if following is not None]
    fast_names = {'_ResidualBackward', 'NormActBackward'}
    assert names & fast_names in (set(), fast_names)
    return bool(names & fast_names)


def test_switch_by_call_and_by_block():
    model = make()
    assert is_fast(model)
    with set_fast(False):
        assert not is_fast(model)
        with set_fast(True):
            assert is_fast(model)
        assert not is_fast(model)
    with pytest.raises(RuntimeError, match='the body'), set_fast(False):
        raise RuntimeError('the body')
    assert is_fast(model)
    off = set_fast(False)
    try:
        assert not is_fast(model)
    finally:
        set_fast(True)
    for _ in range(2):  # it can be used again
        with off as same:
            assert same is off and not is_fast(model)
        assert is_fast(model)
    with pytest.raises(ValueError, match="'off'"):
        set_fast('off')


def test_switch_by_environment(monkeypatch):
    module = module_from_spec(find_spec('xcit_dense.models.fast.conditions'))  # as when it is first imported
    for value, wanted in (('0', False), ('1', True), ('', True)):
        monkeypatch.setenv('XCIT_DENSE_FAST', value)
        module.__spec__.loader.exec_module(module)
        assert module.is_on() is wanted
    monkeypatch.setenv('XCIT_DENSE_FAST', 'off')
    with pytest.raises(SetupError, match="XCIT_DENSE_FAST.*'off'"):
        module.__spec__.loader.exec_module(module)


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('training', (True, False))
def test_second_derivatives_are_an_error_or_right(training, size):
    """Also where the incoming gradient needs none, as that of a mean: such were zeros."""
    model, x = make().train(training), images(size=size).requires_grad_()
    for differentiate in (
            lambda: torch.autograd.grad(model(x)[0].mean(), x, create_graph=True),
            lambda: torch.autograd.functional.vhp(lambda x: model(x)[0].mean(), x, torch.ones_like(x)),
            lambda: torch.autograd.grad(level := model(x)[0], x, torch.ones(2, *level.shape), is_grads_batched=True)):
        with pytest.raises(RuntimeError, match='set_fast'):
            differentiate()

    def penalty(model, x):
        found, = torch.autograd.grad(model(x)[0].mean(), x, create_graph=True)
        return found.square().sum() * 1e6

    model, x = model.double(), x.detach().double()
    released = ReferenceXCiT(dict(TINY, patch_size=8), out_indices=(0, 1), out_strides=(4, 16),
                             norm_cfg=dict(type='BN')).double().train(training)
    released.load_state_dict(model.state_dict())
    with set_fast(False):
        got = torch.autograd.grad(penalty(model, x.requires_grad_()), list(model.parameters())[1:], allow_unused=True)
    wanted = torch.autograd.grad(penalty(released, x), list(released.parameters())[1:], allow_unused=True)
    assert [g is None for g in got] == [g is None for g in wanted]
    got, wanted = (torch.cat([g.flatten() for g in of if g is not None]) for of in (got, wanted))
    assert wanted.norm() > 0 and relative_error(got, wanted) < 1e-5  # the release has its positions in float32


@pytest.mark.parametrize('is_on', (True, False))
@pytest.mark.parametrize('size', SIZES)
def test_transforms_of_torch(size, is_on):
    """With torch.func and in forward mode the plain lines run, in either state of the switch."""
    model, x = make().eval(), images(3, size)
    wanted = model(x)[0].detach()
    parameters, scale = dict(model.named_parameters()), 'blocks.0.gamma2'

    def loss(parameters, x):
        return functional_call(model, parameters, (x[None], ))[0].square().mean()

    with set_fast(is_on):
        assert relative_error(vmap(lambda x: model(x[None])[0][0])(x), wanted) < 5e-6
        each = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
        out, tangent = jvp(lambda x: model(x)[0], (x, ), (torch.ones_like(x), ))
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(model(forward_ad.make_dual(x, torch.ones_like(x)))[0])
        twice = hessian(lambda gamma: loss({scale: gamma}, x[1]))(parameters[scale])
    assert relative_error(out, wanted) < 5e-6 and relative_error(dual.tangent, tangent) < 5e-6
    alone = torch.autograd.grad(loss(parameters, x[1]), list(parameters.values()), allow_unused=True)
    for (name, value), gradient in zip(each.items(), alone, strict=True):
        assert gradient is None or (value[1] - gradient).norm() < 1e-4 * gradient.norm().clamp_min(1e-2), name
    with set_fast(False):
        slope, = torch.autograd.grad(loss(parameters, x[1]), parameters[scale], create_graph=True)
    assert relative_error(twice[2], torch.autograd.grad(slope[2], parameters[scale])[0]) < 5e-6


@pytest.mark.parametrize('norm', ('BN', 'SyncBN'))
def test_feature_extraction_of_torchvision(norm):
    """What a layer returns, also with the default norm; and in training, where no CPU runs that."""
    model, x, seen = make(norm_cfg=dict(type=norm), drop_path_rate=0.3).eval(), images(), {}
    names = ('blocks.1.attn.qkv', 'blocks.0.mlp.act', 'blocks.1.local_mp.bn', 'patch_embed.proj.1', 'fpn1.0')
    extractor = create_feature_extractor(model, list(names))
    got = extractor(x)
    for name in names:
        model.get_submodule(name).register_forward_hook(lambda module, args, out, name=name: seen.update({name: out}))
    model(x)
    assert_close([got[name] for name in names], [seen[name] for name in names], 5e-6)
    if norm == 'BN':
        extractor.train()(x)['blocks.1.attn.qkv'].sum().backward()


@pytest.mark.parametrize('kind, size', zip(
    ('forward_hook', 'forward_pre_hook', 'full_backward_hook', 'full_backward_pre_hook'), SIZES * 2, strict=True))
def test_hooks_on_every_inner_layer_fire(kind, size):
    """Once per call, on each layer alone and on all together; when they are removed, the fast path is back."""
    model, x = make().train(), images(size=size)
    layers, wanted = {name: module for name, module in modules_of(model).items() if name}, model(x)
    for names in (*([name] for name in layers), list(layers)):
        calls = []
        handles = [getattr(layers[name], f'register_{kind}')(lambda *_, name=name, calls=calls: calls.append(name))
                   for name in names]
        outs = model(x)
        sum(out.square().mean() for out in outs).backward()
        for handle in handles:
            handle.remove()
        # stochastic depth is called by each of the three branches
        assert sorted(calls) == sorted(name for name in names for _ in range(3 if 'drop_path' in name else 1))
        assert_close(outs, wanted, 5e-6, names)
    assert is_fast(model)


@pytest.mark.parametrize('register, traced', ((nn.modules.module.register_module_forward_hook, False),
                                              (nn.modules.module.register_module_forward_pre_hook, True)))
def test_hooks_on_all_modules_fire(register, traced):
    model, x, seen = make().eval(), images(), set()
    with register(lambda module, *_: seen.add(module) or None):
        torch.jit.trace(model, x, check_trace=False) if traced else model(x)
    assert set(modules_of(model).values()) <= seen


def test_tracers_of_operations_see_ordinary_ones():
    model, x = make().eval(), images()
    with torch.no_grad():
        for traced in (make_fx(model)(x), torch.jit.trace(model, x, check_trace=False)):
            assert_close(traced(x), model(x), 5e-6)
        with set_fast(False), FlopCounterMode(display=False) as plain:
            model(x)
        with FlopCounterMode(display=False) as counter:
            model(x)
    assert counter.get_total_flops() == plain.get_total_flops() > 0


@pytest.mark.parametrize('touch', (lambda mlp: setattr(mlp, 'act', nn.ReLU()),
                                   lambda mlp: mlp.compile(backend='eager')), ids=('replaced', 'compiled alone'))
def test_a_touch_of_one_layer_leaves_the_other_branches_fast(touch):
    block, x = make().blocks[0], torch.randn(1, 99, 32)
    touch(block.mlp)
    assert fast.feed_forward(block, x) is None
    assert fast.attend(block, x) is not None and fast.mix_neighbours(block, x, 11, 9) is not None
