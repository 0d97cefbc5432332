"""Forms of the same model against each other: fast and plain, fused and not, compiled and eager."""
import copy

import torch

from ..archs import PATCH_SIZES
from ..benchmark.costs import without_tf32
from ..models import ReferenceXCiT, set_fast
from ..models.fast import attend, feed_forward, mix_neighbours
from ..text import listed
from .checks import Outcome, within
from .right_values import HALF_TYPES, LARGE, beside
from .steps import build, copy_of, errors_of, labelled, odd_images, recipe_sizes, step

#: In float64 forms differ by rounding alone, so that any mistake shows.
_ROUNDING = 1e-9
#: What fusing may change in float32, as `XCiT.fuse` promises.
_FUSED = 1e-5
#: A graph for any size, and one more where sizes of 1 or equal sides would be special.
_MOST_GRAPHS = 2


@without_tf32()
def fast(setting) -> Outcome:
    """Compare the fast path with the plain one, which draw the same samples to drop, at sizes that no patch divides."""
    errors, limits, slow = {}, {}, []
    for patch_size in PATCH_SIZES:
        images = odd_images(setting, patch_size, batch=4)
        for eta, drop_path_rate in ((None, 0.), (None, 0.3), (1e-5, 0.3)):
            model = build(setting, patch_size, eta=eta, drop_path_rate=drop_path_rate)
            words = f'LayerScale {eta or "random"}, drop path {drop_path_rate:g}'
            for dtype, limit in ((torch.float64, _ROUNDING), (torch.float32, 2 * LARGE)):  # LARGE for each
                for mode in ('training', 'evaluation') if not drop_path_rate or eta else ('training', ):
                    of_case = [_step_of(model, images, setting.device, dtype, mode, is_fast)
                               for is_fast in (True, False)]
                    label = f'patch {patch_size}, {words}, {str(dtype).removeprefix("torch.")} {mode}'
                    found = labelled(label, errors_of(*of_case))
                    errors |= found
                    limits |= dict.fromkeys(found, limit)
        block, x = model.blocks[0].to(setting.device), torch.randn(2, 40 * 30, model.embed_dims, device=setting.device)
        ran = [y is not None for y in (attend(block, x), mix_neighbours(block, x, 40, 30), feed_forward(block, x))]
        if not all(ran):
            slow.append(f'{ran.count(False)} of {len(ran)} branches of patch {patch_size}')
    outcome = within(errors, limits)
    if slow:  # the same twice
        return Outcome(False, f'the fast path did not run in {listed(slow)}', outcome.rows)
    return outcome


def _step_of(model, images, device, dtype, mode, is_fast):
    model = copy.deepcopy(model).to(device, dtype).train(mode == 'training')
    with set_fast(is_fast):
        return step(model, images.to(device, dtype))


@without_tf32()
def fused(setting) -> Outcome:
    """Compare a fused model with itself before: in float64 and float32, and in half types beside the plain form."""
    errors, limits, pairs = {}, {}, {}
    for patch_size in PATCH_SIZES:
        model = build(setting, patch_size).eval()
        images = odd_images(setting, patch_size).to(setting.device)
        exact = copy.deepcopy(model).to(setting.device).double()
        wanted = step(exact, images.double())
        model = model.to(setting.device)
        plain = copy_of(model, ReferenceXCiT).to(setting.device)
        unfused = step(model, images)
        for dtype, limit, found, right in (
                ('float64', _ROUNDING, step(exact.fuse(), images.double()), wanted),
                ('float32', _FUSED, step(model.fuse(), images), unfused)):
            found = labelled(f'patch {patch_size}, {dtype}', errors_of(found, right))
            errors |= found
            limits |= dict.fromkeys(found, limit)
        for label, dtype in HALF_TYPES.items():
            found = [errors_of(step(each, images, dtype), wanted)['maps'] for each in (model, plain)]
            pairs[f'patch {patch_size}, {label}: maps'] = tuple(found)
    parts = within(errors, limits), beside(pairs)
    return Outcome(all(part.passed for part in parts), '; '.join(part.text for part in parts),
                   [row for part in parts for row in part.rows])


@without_tf32()
def compiled(setting) -> Outcome:
    """Compare compiled models, as ``--compile`` makes them, with eager ones over sizes of the multi-scale recipe.

    On a CPU the graphs run without being compiled to kernels.
    """
    sizes, errors, pairs, rows, graphs = recipe_sizes(setting, setting.choose(20, 4)), {}, {}, [], {}
    for patch_size, dtype in setting.choose(((16, torch.bfloat16), (8, torch.bfloat16), (16, None)), ((8, None), )):
        model = build(setting, patch_size, depth=4).to(setting.device)
        eager = copy.deepcopy(model)
        case = f'patch {patch_size}, {str(dtype or torch.float32).removeprefix("torch.")}'
        found = _compare_compiled(model, eager, sizes, dtype, setting.device)
        graphs[case] = found.pop('graphs')
        rows.append(dict(what=f'{case}: graphs over {len(sizes)} sizes', error=str(graphs[case]),
                         limit=str(_MOST_GRAPHS)))
        if dtype is None:
            errors |= labelled(case, {part: ours for part, (ours, _) in found.items()})
        else:
            pairs |= labelled(case, found)
    parts = [within(errors, LARGE), *([beside(pairs)] if pairs else [])]
    many = {case: count for case, count in graphs.items() if count > _MOST_GRAPHS}
    words = (f'compiled {", ".join(f"{count} graphs for {case}" for case, count in many.items())} over {len(sizes)} '
             f'sizes, more than {_MOST_GRAPHS}') if many else (
        f'at most {max(graphs.values())} graphs over {len(sizes)} sizes')
    return Outcome(not many and all(part.passed for part in parts), '; '.join([words, *(part.text for part in parts)]),
                   [*rows, *(row for part in parts for row in part.rows)], dict(graphs=graphs))


def _compare_compiled(model, eager, sizes, dtype, device):
    """Return the number of graphs, and by part the worst error of the compiled model and that of eager.

    Both are relative to eager in float32. The error of eager is 0 where that is what runs.
    """
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    # inductor takes minutes on a CPU even for a tiny model; the graphs, and those of their gradients, are the same
    model.compile_blocks(backend='aot_eager' if device == 'cpu' else 'inductor')
    worst = {}
    try:
        for height, width in sizes:
            images = torch.randn(2, 3, height, width, device=device)
            wanted = step(eager, images)
            ours = errors_of(step(model, images, dtype), wanted)
            theirs = errors_of(step(eager, images, dtype), wanted) if dtype else dict.fromkeys(ours, 0.)
            for part in ours:
                before = worst.get(part, (0., 0.))
                worst[part] = tuple(max(pair, key=lambda error: (error != error, error)) for pair in (
                    (before[0], ours[part]), (before[1], theirs[part])))
        return dict(worst, graphs=counters['stats']['unique_graphs'])
    finally:
        torch._dynamo.reset()
