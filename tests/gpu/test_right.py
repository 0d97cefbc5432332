"""Right: the same results as on a CPU."""
import copy
from itertools import product

import pytest
import torch
import torch.nn.functional as F

from benchmarks import validation
from benchmarks.costs import without_tf32
from gpu.checking import all_of, beside, within, worst
from gpu.models import HALF_TYPES, build, errors_of, labelled, odd_images, plain_of, recipe_sizes, step
from helpers.models import build_golden, build_golden_classifier, gradient_pairs, loss_of, relative_error
from helpers.paths import ROOT
from xcit_dense.archs import PATCH_SIZES
from xcit_dense.compat.masks import RunLengths
from xcit_dense.models import set_fast
from xcit_dense.models.fast import attend, feed_forward, mix_neighbours

pytestmark = pytest.mark.gpu
#: Of small 12 in float32, whose sums are longer: on a CPU the plain form is up to 7e-6 off float64.
LARGE = 1e-5
#: In float64 forms differ by rounding alone, so that any mistake shows.
ROUNDING = 1e-9
#: Batches, over which errors are root mean squares.
DRAWS = 2


@without_tf32()
def test_golden(check):
    """Compare outputs and gradients in float32 with those that the authors' code computed, fast and plain."""
    from safetensors.torch import load_file
    errors = {}
    for file in sorted((ROOT / 'tests/golden').glob('xcit_*.safetensors')):
        tensors = {name: value.to(check.device) for name, value in load_file(file).items()}
        for kind, is_fast in (('fast', True), ('plain', False)):
            with set_fast(is_fast):
                errors |= labelled(f'{file.stem}, {kind}', _golden_errors(file.stem, tensors, check.device))
    check.judge(*within(errors, 5e-6))  # as the tests have it on a CPU


def _golden_errors(name, tensors, device):
    """Return the worst errors of a golden file: of outputs in both modes, and of the gradients of a layer."""
    is_classifier, patch_size = 'classifier' in name, 8 if '_p8' in name else 16
    model = (build_golden_classifier(patch_size, name.endswith('1'), tensors) if is_classifier
             else build_golden(patch_size, tensors)).to(device)
    with torch.no_grad():
        evaluated = model.eval()(tensors['input'])
    trained = model.train()(tensors['input'])
    if is_classifier:
        loss, outputs = F.cross_entropy(trained, tensors['labels']), dict(logits=(evaluated, trained))
    else:
        loss = loss_of(trained)
        outputs = {f'level{i}': pair for i, pair in enumerate(zip(evaluated, trained, strict=True), 1)}
    loss.backward()
    return dict(
        evaluation=worst(relative_error(pair[0], tensors[f'eval/{key}']) for key, pair in outputs.items()),
        training=worst(relative_error(pair[1], tensors[f'train/{key}']) for key, pair in outputs.items()),
        loss=relative_error(loss, tensors['train/loss'][0]),
        gradients=worst(relative_error(*pair) for pair in gradient_pairs(model, tensors).values()))


@without_tf32()
def test_float64(check):
    """Compare small 12 in float32 on the device with the plain form in float64 on the CPU."""
    errors = {}
    for patch_size, eta in product(PATCH_SIZES, (None, 1e-5)):
        ours, images = build(check, patch_size, eta=eta), odd_images(check, patch_size)
        wanted = step(plain_of(ours).double(), images.double())
        found = step(ours.to(check.device), images.to(check.device))
        errors |= labelled(f'patch {patch_size}, LayerScale {eta or "random"}', errors_of(found, wanted))
    check.judge(*within(errors, LARGE))


def test_half_types(check):
    """Compare errors under autocast with those of the plain form under autocast, both against float64 on the CPU."""
    pairs = {}
    for patch_size, eta in product(PATCH_SIZES, (None, 1e-5)):
        ours = build(check, patch_size, eta=eta)
        exact, models = plain_of(ours).double(), [model.to(check.device) for model in (ours, plain_of(ours))]
        batches = [odd_images(check, patch_size, seed) for seed in range(DRAWS)]
        wanted = [step(exact, images.double()) for images in batches]
        for label, dtype in HALF_TYPES.items():
            found, plain = (_mean_errors(model, batches, wanted, dtype, check.device) for model in models)
            pairs |= labelled(f'patch {patch_size}, LayerScale {eta or "random"}, {label}',
                              {part: (found[part], plain[part]) for part in found})
    check.judge(*beside(pairs))


def _mean_errors(model, batches, wanted, dtype, device, is_fast=True):
    """Return the root mean squares of errors over batches, by part."""
    with set_fast(is_fast):
        found = [errors_of(step(model, images.to(device), dtype), right)
                 for images, right in zip(batches, wanted, strict=True)]
    return {part: (sum(errors[part]**2 for errors in found) / len(found))**0.5 for part in found[0]}


def test_stochastic_depth(check):
    """Compare errors under autocast with those without the fast path, where samples have factors that differ."""
    pairs = {}
    for patch_size in PATCH_SIZES:
        model = build(check, patch_size)
        for block in model.blocks:
            block.drop_path.draw = lambda x: torch.linspace(2, 0.5, len(x), device=x.device)
        batches = [odd_images(check, patch_size, seed) for seed in range(DRAWS)]
        wanted = [step(copy.deepcopy(model).double(), images.double()) for images in batches]
        model.to(check.device)
        for label, dtype in HALF_TYPES.items():
            found, plain = (_mean_errors(model, batches, wanted, dtype, check.device, fast) for fast in (True, False))
            pairs |= labelled(f'patch {patch_size}, {label}', {part: (found[part], plain[part]) for part in found})
    check.judge(*beside(pairs))


@without_tf32()
def test_fast_path(check):
    """Compare the fast path with the plain one, which draw the same samples to drop, at sizes that no patch divides."""
    errors, limits, slow = {}, {}, []
    for patch_size in PATCH_SIZES:
        images = odd_images(check, patch_size, batch=4)
        for (eta, drop_path_rate, mode), (dtype, limit) in product(
                ((None, 0., 'training'), (None, 0., 'evaluation'), (None, 0.3, 'training'), (1e-5, 0.3, 'training'),
                 (1e-5, 0., 'evaluation')),
                ((torch.float64, ROUNDING), (torch.float32, 2 * LARGE))):  # LARGE for each
            model = build(check, patch_size, eta=eta, drop_path_rate=drop_path_rate)
            pair = (_step_of(model, images, check.device, dtype, mode, is_fast) for is_fast in (True, False))
            found = labelled(f'patch {patch_size}, LayerScale {eta or "random"}, drop path {drop_path_rate:g}, '
                             f'{str(dtype).removeprefix("torch.")} {mode}', errors_of(*pair))
            errors |= found
            limits |= dict.fromkeys(found, limit)
        block, x = model.blocks[0].to(check.device), torch.randn(2, 40 * 30, model.embed_dims, device=check.device)
        ran = [y is not None for y in (attend(block, x), mix_neighbours(block, x, 40, 30), feed_forward(block, x))]
        if not all(ran):
            slow.append(f'{ran.count(False)} of {len(ran)} branches of patch {patch_size}')
    rest = [f'the fast path did not run in {", ".join(slow)}'] if slow else []  # the same twice
    check.judge(*all_of((rest, 'it ran', []), within(errors, limits)))


def _step_of(model, images, device, dtype, mode, is_fast):
    model = copy.deepcopy(model).to(device, dtype).train(mode == 'training')
    with set_fast(is_fast):
        return step(model, images.to(device, dtype))


@without_tf32()
def test_fused(check):
    """Compare a fused model with itself before: in float64 and float32, and in half types beside the plain form."""
    errors, limits, pairs = {}, {}, {}
    for patch_size in PATCH_SIZES:
        model, images = build(check, patch_size).eval().to(check.device), odd_images(check, patch_size).to(check.device)
        exact, plain = copy.deepcopy(model).double(), plain_of(model).to(check.device)
        wanted, unfused = step(exact, images.double()), step(model, images)
        for dtype, limit, found, right in (
                ('float64', ROUNDING, step(exact.fuse(), images.double()), wanted),
                ('float32', 1e-5, step(model.fuse(), images), unfused)):  # as `XCiT.fuse` promises
            found = labelled(f'patch {patch_size}, {dtype}', errors_of(found, right))
            errors |= found
            limits |= dict.fromkeys(found, limit)
        for label, dtype in HALF_TYPES.items():
            pairs[f'patch {patch_size}, {label}: maps'] = [
                errors_of(step(each, images, dtype), wanted)['maps'] for each in (model, plain)]
    check.judge(*all_of(within(errors, limits), beside(pairs)))


def test_masks(check):
    """Compare masks that are pasted within their boxes with those that mmdet pastes into the image, byte by byte."""
    theirs, ours = (head.to(check.device) for head in validation.heads())
    differ = {}
    for name, (count, height, width, *rest) in validation.MASKS.items():
        inputs = [part.to(check.device) for part in validation.objects_of(check.choose(count, 9), height, width, *rest)]
        wanted, found = (validation.masks_of(head, *inputs, height, width)[0] for head in (theirs, ours))
        differ[name] = sum(one != other for one, other in zip(wanted, found, strict=True)) / len(found)
    whole = torch.rand(3, 20, 30, device=check.device) > 0.7
    chosen = RunLengths.of(whole)[torch.tensor([2, 0], device=check.device)]
    differ['chosen'] = (chosen != whole[[2, 0]].cpu()).sum().item()
    check.judge(*within(differ, 0.))


@pytest.mark.minutes(6)
@without_tf32()
def test_compiled(check):
    """Compare compiled models, as ``--compile`` makes them, with eager ones over sizes of the multi-scale recipe.

    In bfloat16 both are compared with float32. There eager is the plain form: FFN and LPI, which a compiler gets in
    their plain lines, round as often as it does, and more often than the fast form.
    """
    sizes, errors, limits, pairs = recipe_sizes(check, check.choose(20, 4)), {}, {}, {}
    for patch_size, dtype in check.choose(((16, torch.bfloat16), (8, torch.bfloat16), (16, None)), ((8, None), )):
        model = build(check, patch_size, depth=4).to(check.device)
        eager = copy.deepcopy(model)
        case = f'patch {patch_size}, {str(dtype or torch.float32).removeprefix("torch.")}'
        found = _compare_compiled(model, eager, sizes, dtype, check.device)
        graphs = f'{case}: graphs over {len(sizes)} sizes'
        errors[graphs], limits[graphs] = found.pop('graphs'), 2  # one more where 1 or equal sides are special
        if dtype is None:
            found = labelled(case, {part: ours for part, (ours, _) in found.items()})
            errors |= found
            limits |= dict.fromkeys(found, LARGE)
        else:
            pairs |= labelled(case, found)
    check.judge(*all_of(within(errors, limits), *([beside(pairs)] if pairs else [])))


def _compare_compiled(model, eager, sizes, dtype, device):
    """Return the number of graphs, and by part the worst errors, beside eager in float32, of compiled and plain."""
    plain = plain_of(eager).to(device)
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    # inductor takes minutes on a CPU even for a tiny model; the graphs, and those of their gradients, are the same
    model.compile_blocks(backend='aot_eager' if device == 'cpu' else 'inductor')
    errors = {}
    try:
        for height, width in sizes:
            images = torch.randn(2, 3, height, width, device=device)
            wanted = step(eager, images)
            ours = errors_of(step(model, images, dtype), wanted)
            theirs = errors_of(step(plain, images, dtype), wanted) if dtype else dict.fromkeys(ours, 0.)
            for part in ours:
                before = errors.get(part, (0., 0.))
                errors[part] = worst((before[0], ours[part])), worst((before[1], theirs[part]))
        return dict(errors, graphs=counters['stats']['unique_graphs'])
    finally:
        torch._dynamo.reset()
