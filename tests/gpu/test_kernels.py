"""Kernels: where the time of a block goes, and the least that it could take."""
import statistics
from functools import partial
from itertools import product

import pytest
import torch
from mmengine.device import get_device
from torch.profiler import ProfilerActivity

from benchmarks.cells import DTYPES, make_step, time_interleaved
from benchmarks.costs import branch_elements, branch_multiply_adds, gpu_time, moved_elements, multiply_adds, time_call
from benchmarks.models import build_models
from gpu.measuring import DTYPE, describe, rates
from xcit_dense.archs import get_arch
from xcit_dense.models import fast

pytestmark = pytest.mark.gpu
#: The branches: in their fast form, and as the plain lines of a block.
FORMS = {
    'XCA': (lambda block, x, *grid: fast.attend(block, x),
            lambda block, x, *grid: x + block.gamma1 * block.attn(block.norm1(x))),
    'LPI': (fast.mix_neighbours, lambda block, x, *grid: x + block.gamma3 * block.local_mp(block.norm3(x), *grid)),
    'FFN': (lambda block, x, *grid: fast.feed_forward(block, x),
            lambda block, x, *grid: x + block.gamma2 * block.mlp(block.norm2(x)))}
CELLS = (('small_12_p16', (800, 1280), 2), ('small_12_p16', (512, 512), 16), ('small_12_p8', (800, 1280), 2),
         ('medium_24_p16', (512, 512), 8))
BATCH = 2
#: The whole step, beside the branches.
STEP = 'training step'


@pytest.mark.minutes(2.5)
def test_forms(check):
    """Time of the GPU for every branch of a block in its fast form and as the plain line, with and without backward."""
    rows, slow = [], []
    for (arch, image, batch), mode in product(check.choose(CELLS, (('nano_12_p16', (256, 256), 1), )),
                                              ('training', 'inference')):
        grid = [side // get_arch(arch).patch_size for side in image]
        block = build_models(arch, mode, ['ours'])['ours'].blocks[0]
        x = torch.randn(batch, grid[0] * grid[1], len(block.gamma1), device=get_device(),
                        requires_grad=mode == 'training')
        grad = torch.randn_like(x)
        for name in FORMS:
            steps = {form: partial(_run_branch, name, run, block, x, grad, grid)
                     for form, run in zip(('fast', 'plain'), FORMS[name], strict=True)}
            if check.is_cuda:
                found = {form: 1000 * gpu_time(run) for form, run in steps.items()}
            else:
                times = time_interleaved(steps, check.choose(20, 1), check.choose(5, 0))
                found = {form: 1000 * statistics.median(values) for form, values in times.items()}
            gain = found['plain'] / found['fast']
            if gain < 0.95:  # it must run in the plain line on a GPU
                slow.append(f'{name} of {arch} at {image[0]}x{image[1]} in {mode} ({gain:.2f})')
            rows.append({'arch': arch, 'image': 'x'.join(map(str, image)), 'batch': batch, 'mode': mode, 'branch': name,
                         'times as fast': f'{gain:.2f}', **{f'{form}, ms': f'{ms:.3g}' for form, ms in found.items()}})
    words = [f'slower in their fast form than as the plain line: {", ".join(slow)}'] if slow else []
    check.judge(check.choose(words, []), f'{len(rows)} branches', rows)


def _run_branch(name, form, block, x, grad, grid):
    """Run a form of a branch of a block, and its backward if x needs a gradient."""
    with torch.set_grad_enabled(x.requires_grad), torch.autocast(x.device.type, DTYPES[DTYPE]):
        y = form(block, x, *grid)
    assert y is not None, f'the fast form of {name} does not run'
    if x.requires_grad:
        y.backward(grad)
        x.grad = None
        block.zero_grad(set_to_none=True)


@pytest.mark.minutes(1)
def test_products(check):
    """The Gram matrix of the tokens and the products of C x C matrices, in the types that they could be in."""
    if not check.is_cuda:
        pytest.skip('a product of half types in float32 needs a GPU')
    rows = []
    for batch, tokens, C in ((2, 4000, 384), (2, 16000, 384), (16, 1024, 384), (8, 1024, 512)):
        x = torch.randn(batch, tokens, C, device='cuda').bfloat16()
        a, b = torch.randn(2 * C, C, device='cuda'), torch.randn(C, batch * C, device='cuda')
        parts = [each.bfloat16() for each in (a.repeat(1, 6), b.repeat(6, 1))]
        cases = (('Gram matrix, in float32', batch * tokens * C**2, lambda x=x: torch.bmm(
                     x.mT, x, out_dtype=torch.float32)),
                 ('Gram matrix, in bfloat16', batch * tokens * C**2, lambda x=x: torch.bmm(x.mT, x)),
                 ('C x C, float32', 2 * batch * C**3, lambda a=a, b=b: a @ b),
                 ('C x C, as three bfloat16 parts', 12 * batch * C**3, lambda parts=parts: torch.mm(
                     *parts, out_dtype=torch.float32)))
        for name, adds, call in cases:
            seconds = statistics.median([time_call(call) for _ in range(25)][5:])
            rows.append({'batch': batch, 'tokens': tokens, 'C': C, 'product': name, 'us': f'{1e6 * seconds:.0f}',
                         'T multiply-adds/s': f'{adds / seconds / 1e12:.3g}'})
    check.record(f'{len(rows)} products', rows)


@pytest.mark.minutes(3)
@pytest.mark.parametrize('patch_size', (16, 8))
def test_block(check, patch_size):
    """Kernels of the branches of a block and of a training step of small 12 at 800x1280, 2 images, bfloat16."""
    arch = f'{check.choose("small_12", "nano_12")}_p{patch_size}'
    image = check.choose((800, 1280), (16 * patch_size, 16 * patch_size))  # tiny: enough tokens for the Gram form
    model, known = build_models(arch, 'training', ['ours'])['ours'], rates(check)
    least, runs, rows = least_seconds(arch, image, known), check.choose(5, 1), []
    for name, step in _steps(model, arch, image).items():
        for _ in range(check.choose(3, 1)):
            step()
        kernels = _profile(step, runs, check.is_cuda)
        if not kernels:
            pytest.skip('the profiler saw no kernels of the GPU')
        total = sum(seconds for _, _, seconds in kernels)
        rows.append({'part': name, 'kernel': 'all', 'ms': f'{1000 * total:.3g}',
                     'least ms': f'{1000 * least[name]:.3g}'})
        rows += [{'part': name, 'kernel': kernel[:80], 'calls': f'{calls:g}', 'ms': f'{1000 * seconds:.3g}',
                  'share': f'{seconds / total:.1%}'} for kernel, calls, seconds in kernels if seconds >= 0.01 * total]
    wall = statistics.median(time_call(step) for _ in range(runs))  # the last is the whole step
    check.record(f'kernels run for {1000 * total:.3g} of the {1000 * wall:.3g} ms of a training step, at least '
                 f'{1000 * least[STEP]:.3g} ms are needed; {describe(known)}', rows)


def _profile(step, runs, cuda):
    """Return name, calls and seconds of each kernel of a function, the longest first; on a CPU of each operator."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(runs):
            step()
        if cuda:
            torch.cuda.synchronize()
    kernels = [(each.key, each.count / runs, (each.self_device_time_total if cuda else each.self_cpu_time_total)
                / runs / 1e6) for each in found.key_averages() if not getattr(each, 'is_user_annotation', False)
               and (each.device_type != torch.autograd.DeviceType.CPU) == cuda]
    return sorted(kernels, key=lambda kernel: -kernel[2])


def _steps(model, arch, image):
    """Return functions that run a branch of a block, or the whole model, forward and backward; the latter is last."""
    grid = [-(-side // get_arch(arch).patch_size) for side in image]
    x = torch.randn(BATCH, grid[0] * grid[1], get_arch(arch).embed_dims, device=get_device(), requires_grad=True)
    gradient, block = torch.randn_like(x), model.blocks[0]
    branches = {name: partial(_run_branch, name, form, block, x, gradient, grid) for name, (form, _) in FORMS.items()}
    return {**branches, STEP: make_step(model, torch.randn(BATCH, 3, *image, device=get_device()), 'training', DTYPE)}


def least_seconds(arch, image, rates) -> dict:
    """Return the seconds in which `rates` can compute and move, in bfloat16, what each branch and a step must."""
    patch_size = get_arch(arch).patch_size
    tokens = -(-image[0] // patch_size) * -(-image[1] // patch_size)
    adds = branch_multiply_adds(arch, tokens, training=True) | {STEP: multiply_adds(arch, *image, training=True)}
    elements = branch_elements(arch, tokens, training=True) | {STEP: moved_elements(arch, *image, training=True)}
    return {name: BATCH * max(adds[name] / rates['matrix'], elements[name] * DTYPES[DTYPE].itemsize / rates['copy'])
            for name in adds}
