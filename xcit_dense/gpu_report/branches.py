"""Every branch of a block with the fast path and without, and the products of its C x C matrices."""
import statistics
from functools import partial

import torch
from mmengine.device import get_device

from ..archs import get_arch
from ..benchmark.cells import DTYPES, time_interleaved
from ..benchmark.costs import host_time, launches, time_call
from ..benchmark.models import build_models
from ..models import fast
from ..text import counted, listed
from .checks import Outcome
from .measuring import DTYPE

#: The branches: in their fast form, and as the plain lines of a block.
FORMS = {
    'XCA': (lambda block, x, *grid: fast.attend(block, x),
            lambda block, x, *grid: x + block.gamma1 * block.attn(block.norm1(x))),
    'LPI': (fast.mix_neighbours, lambda block, x, *grid: x + block.gamma3 * block.local_mp(block.norm3(x), *grid)),
    'FFN': (lambda block, x, *grid: fast.feed_forward(block, x),
            lambda block, x, *grid: x + block.gamma2 * block.mlp(block.norm2(x))),
}
_CELLS = (('small_12_p16', (800, 1280), 2), ('small_12_p16', (512, 512), 16), ('small_12_p8', (800, 1280), 2),
          ('medium_24_p16', (512, 512), 8))
#: A branch that the fast path makes slower than this must run in the plain line on a GPU.
_LEAST = 0.95


def compare_forms(setting) -> Outcome:
    """Time each branch, forward with and without backward, in its fast form and as the plain line."""
    rows, slow = [], []
    for arch, image, batch in setting.choose(_CELLS, (('nano_12_p16', (256, 256), 1), )):
        grid = [side // get_arch(arch).patch_size for side in image]
        for mode in ('training', 'inference'):
            block = build_models(arch, mode, ['ours'])['ours'].blocks[0]
            x = torch.randn(batch, grid[0] * grid[1], len(block.gamma1), device=get_device(),
                            requires_grad=mode == 'training')
            grad = torch.randn_like(x)
            for name in FORMS:
                steps = {form: partial(run_branch, name, run, block, x, grad, grid)
                         for form, run in zip(('fast', 'plain'), FORMS[name], strict=True)}
                times = time_interleaved(steps, setting.choose(20, 1), setting.choose(5, 0))
                found = {form: 1000 * statistics.median(values) for form, values in times.items()}
                gain = found['plain'] / found['fast']
                if gain < _LEAST:
                    slow.append(f'{name} of {arch} at {image[0]}x{image[1]} in {mode} ({gain:.2f})')
                row = {'arch': arch, 'image': 'x'.join(map(str, image)), 'batch': batch, 'mode': mode, 'branch': name,
                       'times as fast': f'{gain:.2f}'}
                for form, step in steps.items():
                    host = 1000 * statistics.median(host_time(step) for _ in range(setting.choose(20, 1)))
                    row |= {f'{form}, ms': f'{found[form]:.3g}', f'host of {form}': f'{host:.3g}'}
                    if setting.is_cuda:
                        row[f'launches of {form}'] = launches(step)[0]
                rows.append(row)
    words = f'{counted(len(rows), "branches")}; ' + (
        f'slower in their fast form than as the plain line: {listed(slow)}' if slow else 'none is slower')
    return Outcome(None if setting.tiny else not slow, words, rows)


def run_branch(name, form, block, x, grad, grid):
    """Run a form of a branch of a block, and its backward if x needs a gradient."""
    with torch.set_grad_enabled(x.requires_grad), torch.autocast(x.device.type, DTYPES[DTYPE]):
        y = form(block, x, *grid)
    if y is None:
        raise RuntimeError(f'the fast form of {name} does not run')
    if x.requires_grad:
        y.backward(grad)
        x.grad = None
        block.zero_grad(set_to_none=True)


def time_products(setting) -> Outcome:
    """Time the Gram matrix of the tokens, and the products of C x C matrices, in the types that they could be in."""
    if not setting.is_cuda:
        return Outcome(None, 'not possible here: a product of half types in float32 needs a GPU')
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
        for name, multiply_adds, call in cases:
            seconds = statistics.median([time_call(call) for _ in range(25)][5:])
            rows.append({'batch': batch, 'tokens': tokens, 'C': C, 'product': name, 'us': f'{1e6 * seconds:.0f}',
                         'T multiply-adds/s': f'{multiply_adds / seconds / 1e12:.3g}'})
    return Outcome(None, counted(len(rows), 'products'), rows)
