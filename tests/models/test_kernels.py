"""The Triton kernels compute what the forms for a CPU compute: run by Triton's interpreter, on a CPU."""
import copy
import importlib

import pytest
import torch

from helpers.models import relative_error
from xcit_dense import Arch, XCiT, set_fast
from xcit_dense.models.fast import mix, ops

triton = pytest.importorskip('triton', reason='comes with CUDA builds of torch')
importlib.import_module('triton.experimental.gluon')  # the first kernel imports it, which fails in the interpreter
from triton.runtime.interpreter import InterpretedFunction  # noqa: E402

from xcit_dense.models.fast import kernels, launching  # noqa: E402

OPS = launching.KERNELS


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Run every kernel on tensors of a CPU, in place of the forms for it."""
    torch.manual_seed(0)
    for module in (kernels, triton.language, triton.language.standard):  # tl.sum is a kernel itself
        for name, value in list(vars(module).items()):
            if isinstance(value, triton.JITFunction):
                monkeypatch.setattr(module, name, InterpretedFunction(value.fn))


def on_kernels(monkeypatch):
    """Let the fast path use the kernels, as on a GPU; only there a product of half types may be in float32."""

    def small_product(a, b, dtype):
        if dtype == torch.float32:
            return a @ b.t()
        return OPS.split(a, True).float() @ OPS.split(b, False).float().t()

    monkeypatch.setattr(ops, 'kernels_for', lambda x: OPS if x.is_contiguous() else None)
    monkeypatch.setattr(ops, 'small_product', small_product)


def errors(monkeypatch, function, *args):
    """Return the relative errors of what ``function`` returns on kernels, beside the forms for a CPU."""
    wanted = function(*args)
    with monkeypatch.context() as patch:
        on_kernels(patch)
        found = function(*args)
    pairs = [(a, b) for a, b in zip(found, wanted, strict=True) if b is not None]
    assert pairs and all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)
    return [relative_error(*pair) for pair in pairs]


@pytest.mark.parametrize('samples, tokens, channels, affine', (
    (2, 37, 48, True), (2, 37, 48, False), (1, 3, 128, True), (3, 700, 20, True)))
def test_norms(samples, tokens, channels, affine, monkeypatch):
    x, grad, residual = (torch.randn(samples, tokens, channels) for _ in range(3))
    x = 5 + 2 * x
    mean = torch.randn(samples, channels)
    norm = (*torch.randn(2, channels, 2)[..., 0], 1e-3) if affine else (None, None, 1e-3)  # parts of others

    def run():
        y, statistics = ops.normalise(x, norm, torch.float32)
        out = torch.empty_like(x), torch.empty_like(x)
        plain = ops.input_gradient(grad, x, norm, statistics, residual, None, out[0])
        scaled = ops.input_gradient(grad, x, norm, statistics, residual, torch.tensor([3.]), out[1])
        return (y, ops.normalise(x, norm, torch.float32, mean)[0], *ops.centre(x, norm, torch.float32), *out, *plain,
                *scaled)

    assert max(errors(monkeypatch, run)) < 1e-6
    for dtype, slack in ((torch.float16, 1e-3), (torch.bfloat16, 8e-3)):  # the interpreter cuts bfloat16 off
        half = *ops.converted(dtype, *norm[:2]), norm[2]
        assert max(errors(monkeypatch, lambda dtype=dtype, half=half: [
            ops.normalise(x, norm, dtype)[0], *ops.centre(x.to(dtype), half, dtype)])) < slack


@pytest.mark.parametrize('keep', (None, torch.tensor([0., 1.5]), torch.tensor([1.5]).expand(2)))
@pytest.mark.parametrize('shape', ((24, ), (2, 24)))
def test_sum_with_the_residual(shape, keep):
    x, branch, offset, out = torch.randn(2, 50, 24), torch.randn(2, 50, 24), torch.randn(shape), torch.empty(2, 50, 24)
    OPS.add_branch(x, branch, offset, keep, out)
    factor = 1 if keep is None else keep.view(2, 1, 1)
    torch.testing.assert_close(out, x + factor * (branch + (offset.unsqueeze(1) if len(shape) == 2 else offset)))


def test_products_in_three_parts_are_as_exact_as_float32():
    a, b = torch.randn(70, 45), torch.randn(45, 33).t()
    wanted = a.double() @ b.double().t()
    found = OPS.split(a, True).double() @ OPS.split(b, False).double().t()
    assert relative_error(found, wanted) < 2 * relative_error(a @ b.t(), wanted)


@pytest.mark.parametrize('heads, width, samples, temperatures', ((2, 12, 3, 2), (3, 16, 1, 1)))
def test_attention_of_channels(heads, width, samples, temperatures, monkeypatch):
    """With a query and a key of length zero, as those of pruned channels."""
    C, N = heads * width, 50
    tokens, mean, parameters = torch.randn(samples, N, C), torch.randn(samples, C), []
    for shape in ((3 * C, C), (3 * C, ), (temperatures, 1, 1), (C, C), (C, ), (C, )):
        parameters.append(torch.randn(shape) * 0.3)
    for values in parameters[:2]:
        values[[3, C + 5]] = 0
    gram, grads = tokens.mT @ tokens, (torch.randn(samples, C, C), torch.randn(samples, C))

    def run():
        weights = mix.prepare(heads, *parameters)
        matrix, offset, kept = mix.mix(mean, gram, N, weights, torch.float32)
        back = mix.mix_backward(*grads, kept, mean, N, weights, parameters[3:], torch.float32)
        return matrix, offset, *kept, *back[:2], *back[2]

    assert max(errors(monkeypatch, run)) < 2e-6


@pytest.mark.parametrize('dtype', (torch.float32, torch.float16))
def test_a_model(dtype, monkeypatch):
    arch = Arch(32, 1, 2, 16, out_indices=(0, ))
    model = XCiT(arch, out_indices=(0, ), out_strides=None, norm_cfg=dict(type='BN'), drop_path_rate=0.4)
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, 0.2, 0.8) if parameter.dim() == 1 else None
    torch.nn.init.normal_(model.blocks[0].attn.qkv.weight, std=0.5)
    torch.nn.init.constant_(model.blocks[0].attn.temperature, 5.)  # so that its gradient is no small difference
    x = torch.randn(3, 3, 112, 144)

    def infer(model, x):
        with torch.no_grad(), torch.autocast('cpu', dtype, enabled=dtype != torch.float32):
            return list(model(x))

    def results(model, x):
        torch.manual_seed(1)
        with torch.autocast('cpu', dtype, enabled=dtype != torch.float32):
            maps = model(x)
        loss = sum((y.double() * torch.linspace(-1, 1, y.numel()).view_as(y)).mean() for y in maps)
        return [*maps, *torch.autograd.grad(loss, model.parameters()), *infer(model.eval(), x)]

    with set_fast(False):
        plain = results(copy.deepcopy(model), x)
        exact = results(copy.deepcopy(model).double(), x.double())
    with monkeypatch.context() as patch:
        on_kernels(patch)
        found = [*results(model, x), *infer(model.fuse(), x)]
    errors_of_each = [(relative_error(a, c), relative_error(b, c)) for a, b, c in zip(
        found, [*plain, plain[-1]], [*exact, exact[-1]], strict=True)]
    ours, theirs = map(sum, zip(*errors_of_each, strict=True))
    assert ours < 1.5 * theirs, errors_of_each
