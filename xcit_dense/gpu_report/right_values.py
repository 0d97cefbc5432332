"""Values against the authors' golden tensors, against float64, and those of half types beside the plain form's."""
from pathlib import Path

import torch
import torch.nn.functional as F

from ..archs import PATCH_SIZES
from ..benchmark.costs import without_tf32
from ..models import ReferenceXCiT, XCiT, XCiTClassifier, set_fast
from ..text import listed
from .checks import Outcome, relative_error, within
from .steps import build, copy_of, errors_of, labelled, loss_of, odd_images, step

#: The tests of the checkout carry them; an installed package does not.
GOLDEN = Path(__file__).parents[2] / 'tests/golden'
#: Of the golden files, as the tests have them on a CPU.
EXACT = 5e-6
#: Of small 12 in float32, whose sums are longer: on a CPU the plain form is up to 7e-6 off float64.
LARGE = 1e-5
#: Ours may have at most this times the error of the plain form in the same type.
TIMES_PLAIN = 1.5
HALF_TYPES = {'bfloat16': torch.bfloat16, 'float16': torch.float16}
#: Batches, over which errors are root mean squares.
_DRAWS = 2


@without_tf32()
def golden(setting) -> Outcome:
    """Compare outputs and gradients in float32 with those that the authors' code computed, fast and plain."""
    files = sorted(GOLDEN.glob('xcit_*.safetensors'))
    if not files:
        return Outcome(None, f'not possible here: {GOLDEN} has no golden files, which a checkout has')
    from safetensors.torch import load_file
    errors = {}
    for file in files:
        tensors = {name: value.to(setting.device) for name, value in load_file(file).items()}
        for kind, is_fast in (('fast', True), ('plain', False)):
            with set_fast(is_fast):
                found = _golden_errors(file.stem, tensors, setting.device)
            errors |= labelled(f'{file.stem}, {kind}', found)
    return within(errors, EXACT)


def _golden_errors(name, tensors, device):
    """Return the worst errors of a golden file: of outputs in both modes, and of the gradients of a layer."""
    model = _golden_model(name, tensors).to(device)
    with torch.no_grad():
        outs = model.eval()(tensors['input'])
    trained = model.train()(tensors['input'])
    if isinstance(model, XCiTClassifier):
        loss, names, outs, trained = F.cross_entropy(trained, tensors['labels']), ['logits'], [outs], [trained]
    else:
        loss, names = loss_of(trained), [f'level{i}' for i in range(1, len(outs) + 1)]
    loss.backward()
    layers = {}
    for key, parameter in model.named_parameters():
        # norm3 counts with the LPI that it feeds: most of its gradient cancels in the batch norm there
        layer = key.rpartition('.')[0].replace('norm3', 'local_mp').replace('local_mp.conv1', 'local_mp')
        layers.setdefault(layer, []).append((parameter.grad.flatten(), tensors[f'grad/{key}'].flatten()))
    pairs = dict(evaluation=[(out, tensors[f'eval/{key}']) for key, out in zip(names, outs, strict=True)],
                 training=[(out, tensors[f'train/{key}']) for key, out in zip(names, trained, strict=True)],
                 loss=[(loss, tensors['train/loss'][0])],
                 gradients=[[torch.cat(side) for side in zip(*found, strict=True)] for found in layers.values()])
    # NaN must not lose against a number
    return {key: max((relative_error(*pair) for pair in found), key=lambda error: (error != error, error))
            for key, found in pairs.items()}


def _golden_model(name, tensors):
    state = {key.removeprefix('state/'): value for key, value in tensors.items() if key.startswith('state/')}
    arch = dict(embed_dims=32, num_heads=4, patch_size=8 if '_p8' in name else 16)
    if 'classifier' in name:
        arch.update(depth=2, tokens_norm=name.endswith('1'))
        model = XCiTClassifier(arch, num_classes=len(state['head.bias']), norm_cfg=dict(type='BN'))
        state |= {key: value for key, value in model.state_dict().items() if key.endswith('num_batches_tracked')}
    else:
        model = XCiT(dict(arch, depth=4, out_indices=(0, 1, 2, 3)), norm_cfg=dict(type='BN'))
    model.load_state_dict(state)
    return model


@without_tf32()
def float64(setting) -> Outcome:
    """Compare small 12 in float32 on the device with the plain form in float64 on the CPU."""
    errors = {}
    for patch_size in PATCH_SIZES:
        for name, eta in (('random LayerScale', None), ('LayerScale 1e-5', 1e-5)):
            ours = build(setting, patch_size, eta=eta)
            images = odd_images(setting, patch_size)
            wanted = step(copy_of(ours, ReferenceXCiT).double(), images.double())
            found = step(ours.to(setting.device), images.to(setting.device))
            errors |= labelled(f'patch {patch_size}, {name}', errors_of(found, wanted))
    return within(errors, LARGE)


def half_types(setting) -> Outcome:
    """Compare errors under autocast with those of the plain form under autocast, both against float64 on the CPU."""
    pairs = {}
    for patch_size in PATCH_SIZES:
        for name, eta in (('', None), (', LayerScale 1e-5', 1e-5)):
            ours = build(setting, patch_size, eta=eta)
            plain = copy_of(ours, ReferenceXCiT)
            exact = copy_of(ours, ReferenceXCiT).double()
            models = [model.to(setting.device) for model in (ours, plain)]
            batches = [odd_images(setting, patch_size, seed) for seed in range(_DRAWS)]
            wanted = [step(exact, images.double()) for images in batches]
            for label, dtype in HALF_TYPES.items():
                found = [_mean_errors(model, batches, wanted, dtype, setting.device) for model in models]
                pairs |= {f'patch {patch_size}{name}, {label}: {part}': (found[0][part], found[1][part])
                          for part in found[0]}
    return beside(pairs)


def _mean_errors(model, batches, wanted, dtype, device):
    """Return the root mean squares of errors over batches, by part."""
    found = [errors_of(step(model, images.to(device), dtype), right)
             for images, right in zip(batches, wanted, strict=True)]
    return {part: (sum(errors[part]**2 for errors in found) / len(found))**0.5 for part in found[0]}


def beside(pairs: dict) -> Outcome:
    """Return the outcome of errors of ours that must not exceed `TIMES_PLAIN` times those of the plain form.

    Args:
        pairs: By what they are of, the error of ours and that of the plain form.
    """
    times = {name: ours / plain for name, (ours, plain) in pairs.items()}
    rows = [dict(what=name, ours=f'{ours:.1e}', plain=f'{plain:.1e}', times=f'{times[name]:.2f}')
            for name, (ours, plain) in pairs.items()]
    wrong = {name: value for name, value in times.items() if not value <= TIMES_PLAIN}  # NaN too
    if wrong:
        words = listed(f'{name} ({value:.1f} times)' for name, value in wrong.items())
        return Outcome(False, f'more than {TIMES_PLAIN:g} times the error of the plain form: {words}', rows)
    return Outcome(True, f'at most {max(times.values()):.2f} times the errors of the plain form; '
                   f'{TIMES_PLAIN:g} times are allowed', rows)
