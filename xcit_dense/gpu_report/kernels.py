"""Where the time of a block goes, and the least that it could take."""
import statistics
from dataclasses import replace
from functools import partial

import torch
from mmengine.device import get_device

from ..archs import get_arch
from ..benchmark.cells import DTYPES, make_step
from ..benchmark.costs import branch_elements, branch_multiply_adds, moved_elements, multiply_adds, time_call
from ..benchmark.models import build_models
from .branches import FORMS, compare_forms, run_branch, time_products
from .checks import Check, Outcome
from .measuring import DTYPE, describe, rates
from .operators import BOUND_BY_MEMORY, CONVOLUTIONS, FUSED, PRODUCTS, profile

_BATCH = 2
#: The whole step, beside the branches.
STEP = 'training step'
#: Above this share of a step, the groups that memory bounds are worth kernels of their own.
_MOST = 1 / 3


def find_time(setting, patch_size) -> Outcome:
    """Profile the branches of a block, forward and backward, and a training step of small 12.

    Args:
        setting: The `Setting`.
        patch_size: 8 or 16.
    """
    arch = f'{setting.choose("small_12", "nano_12")}_p{patch_size}'
    image = setting.choose((800, 1280), (16 * patch_size, 16 * patch_size))  # tiny: enough tokens for the Gram form
    model = build_models(arch, 'training', ['ours'])['ours']
    least = floors(arch, image, rates())
    runs, parts = setting.choose(5, 1), {}
    for name, step in _steps(model, arch, image).items():
        for _ in range(setting.choose(3, 1)):
            step()
        operators = profile(step, runs, setting.is_cuda)
        if not operators:
            return Outcome(None, 'not possible here: the profiler saw no kernels of the GPU')
        parts[name] = dict(operators=operators, least=least[name],
                           wall=statistics.median(time_call(step) for _ in range(runs)))
    found = outcome_of(arch, parts)
    return replace(found, text=f'{found.text}; {describe(rates())}')


def _steps(model, arch, image):
    """Return functions that run a branch of a block, or the whole model, forward and backward."""
    device = get_device()
    grid = [-(-side // get_arch(arch).patch_size) for side in image]
    x = torch.randn(_BATCH, grid[0] * grid[1], get_arch(arch).embed_dims, device=device, requires_grad=True)
    gradient, block = torch.randn_like(x), model.blocks[0]

    images = torch.randn(_BATCH, 3, *image, device=device)
    branches = {name: partial(run_branch, name, form, block, x, gradient, grid) for name, (form, _) in FORMS.items()}
    return {**branches, STEP: make_step(model, images, 'training', DTYPE)}


def floors(arch, image, rates) -> dict:
    """Return the least that each branch of a block, and a training step, must compute and move.

    Args:
        arch: Name of an architecture.
        image: Height and width.
        rates: ``'matrix'``, multiply-adds per second, and ``'copy'``, bytes per second.

    Returns:
        Dicts of ``multiply_adds``, ``bytes`` (in bfloat16), and the ``seconds`` that the slower of the two takes, by
        branch; for the step also ``groups``: the seconds by group of operators. What is in no group could be part of
        the products and convolutions next to it, which then take no longer.
    """
    tokens = 1
    for side in image:
        tokens *= -(-side // get_arch(arch).patch_size)
    adds = branch_multiply_adds(arch, tokens, training=True)
    elements = branch_elements(arch, tokens, training=True)
    blocks = get_arch(arch).out_indices[-1] + 1
    lpi = blocks * adds['LPI'], blocks * elements['LPI']
    step = multiply_adds(arch, *image, training=True), moved_elements(arch, *image, training=True)

    def floor(multiply_adds, elements):
        multiply_adds, size = _BATCH * multiply_adds, _BATCH * elements * DTYPES[DTYPE].itemsize
        return dict(multiply_adds=multiply_adds, bytes=size,
                    seconds=max(multiply_adds / rates['matrix'], size / rates['copy']))

    groups = {CONVOLUTIONS: floor(*lpi)['seconds'], PRODUCTS: floor(step[0] - lpi[0], step[1] - lpi[1])['seconds']}
    return {**{name: floor(adds[name], elements[name]) for name in adds}, STEP: dict(
        floor(*step), seconds=sum(groups.values()), groups=groups)}


def outcome_of(arch, parts) -> Outcome:
    """Return the outcome of profiles.

    Args:
        arch: Name of the architecture.
        parts: By branch, and for the step, a dict: ``operators`` as `profile` returns them, ``least`` as `floors`
            returns it, and ``wall``, the seconds without the profiler.
    """
    rows, facts = [], {}
    for name, part in parts.items():
        groups = groups_of(part['operators'])
        total = sum(groups.values())
        rows.append(_row(name, 'all', '', '', total, total, least=part['least']))
        if name == STEP:
            least = _least_of(groups, part['least']['groups'])
            rows += [_row(name, '', group, '', seconds, total, least=dict(seconds=least.get(group, 0)))
                     for group, seconds in groups.items()]
        else:
            shown = [o for o in part['operators'] if abs(o['seconds']) >= 0.01 * total]
            rows += [_row(name, o['name'], o['group'], f'{o["calls"]:g}', o['seconds'], total, o['kernel'])
                     for o in shown]
            rest = total - sum(o['seconds'] for o in shown)
            rows.append(_row(name, 'those below 1%', '', '', rest, total))
        facts[name] = dict(groups=groups, least=part['least'], wall=part['wall'])
    return Outcome(None, f'{arch}: {advice(facts[STEP])}', rows, dict(arch=arch, parts=facts))


def groups_of(operators) -> dict:
    """Return the seconds of operators by group, the largest first."""
    groups = {}
    for operator in operators:
        groups[operator['group']] = groups.get(operator['group'], 0) + operator['seconds']
    return dict(sorted(groups.items(), key=lambda item: -item[1]))


def _least_of(groups, least):
    """Return the floors of groups; that of convolutions goes to fused kernels if these do all of them."""
    if CONVOLUTIONS in groups or FUSED not in groups:
        return least
    return {**least, FUSED: least[CONVOLUTIONS]}


def advice(step) -> str:
    """Return which group to fuse next, and whether the groups that memory bounds are worth it.

    Args:
        step: A dict of the step: seconds by ``groups``, what is ``least``, and ``wall``.
    """
    groups, total = step['groups'], sum(step['groups'].values())
    least = _least_of(groups, step['least']['groups'])
    above = {group: seconds - least.get(group, 0) for group, seconds in groups.items()}
    first = max(above, key=above.get)
    share = sum(seconds for group, seconds in groups.items() if group in BOUND_BY_MEMORY) / total
    return (f'operators run for {_ms(total)} of the {_ms(step["wall"])} ms of a training step, at least '
            f'{_ms(step["least"]["seconds"])} ms are needed; groups that memory bounds take {share:.0%} of it, '
            f'{"more" if share > _MOST else "not more"} than a third; the most above its least, '
            f'{_ms(above[first])} ms, is in: {first}')


def _row(part, operator, group, calls, seconds, total, kernel='', least=None):
    least = least or {}
    return {'part': part, 'operator': operator, 'group': group, 'calls': calls, 'ms': _ms(seconds),
            'share': f'{seconds / total:.1%}', 'least ms': _ms(least['seconds']) if least else '',
            'least G multiply-adds': f'{least["multiply_adds"] / 1e9:.4g}' if 'multiply_adds' in least else '',
            'least MB': f'{least["bytes"] / 1e6:.4g}' if 'bytes' in least else '', 'longest kernel': kernel[:60]}


def _ms(seconds):
    value = 1000 * seconds
    return f'{value:.3g}' if value < 100 else f'{value:.0f}'


#: The checks in the order in which they run.
CHECKS = (
    Check('forms', 'Every branch of a block in its fast form and as the plain line', compare_forms, 2),
    Check('products', 'The Gram matrix and the products of C x C matrices', time_products, 1),
    *(Check(f'block_p{patch_size}', f'Kernels of a block and of a training step of small 12, patch '
                     f'{patch_size}, 800x1280, {_BATCH} images, {DTYPE}', partial(find_time, patch_size=patch_size), 3)
      for patch_size in (16, 8)))
