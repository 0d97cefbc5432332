"""Training of whole detectors and segmentors, and the largest batch that a backbone trains with."""
from functools import partial

import torch
from mmengine.device import get_device

from ..benchmark.cells import make_step
from ..benchmark.detector import MASK_RCNN, largest, measure_detectors
from ..benchmark.models import build_models
from ..benchmark.segmentor import UPERNET
from ..text import counted
from .checks import Outcome
from .measuring import DTYPE, in_time

_OURS, _SWIN = 'ours small_12_p16', 'swin_t'
#: What is measured interleaved, the most important first.
_GROUPS = (_OURS, 'plain small_12_p16', _SWIN, 'resnet50'), ('ours small_12_p8', 'plain small_12_p8')


def measure_mask_rcnn(setting) -> Outcome:
    """Measure the training of Mask R-CNN with several backbones; ours with patch 16 must be ahead of Swin-T."""
    return _measure(setting, MASK_RCNN, (800, 1280), judged=not setting.tiny)


def measure_upernet(setting) -> Outcome:
    """Measure the training of UperNet with several backbones."""
    return _measure(setting, UPERNET, (512, 512), judged=False)


def _measure(setting, task, image, judged):
    options = dict(image=setting.choose(image, (64, 96)), batch=2, dtype=DTYPE, runs=setting.choose(8, 1), task=task,
                   search=False)
    jobs = [(', '.join(names), partial(measure_detectors, names, **options))
            for names in setting.choose(_GROUPS, ((_OURS, _SWIN), ))]
    return in_time(setting, jobs, lambda groups, missing: outcome_of(
        [row for group in groups for row in group], missing, judged))


def outcome_of(rows, missing, judged) -> Outcome:
    """Return the outcome of what `measure_detectors` measured.

    Args:
        rows: Its rows.
        missing: Sentences about what was not measured.
        judged: Whether ours must be ahead of Swin-T.
    """
    found = {row['name']: row['images_per_second'] for row in rows}
    passed, words = None, [counted(len(rows), 'backbones')]
    if _OURS in found and _SWIN in found:
        times = found[_OURS] / found[_SWIN]
        passed = times >= 1 if judged else None
        words.append(f'{_OURS} trains {times:.2f} times as fast as {_SWIN}')
    if any('failed' in sentence for sentence in missing):
        passed = False
    table = [{'backbone': row['name'], 'image': 'x'.join(map(str, row['image'])), 'batch': row['batch'],
              'images/s': f'{row["images_per_second"]:.2f}', 'ms a step': f'{1000 * row["seconds"]:.0f}',
              'peak, GiB': f'{row["peak_bytes"] / 2**30:.2f}' if row.get('peak_bytes') else ''} for row in rows]
    return Outcome(passed, '; '.join([*words, *missing]), table, dict(rows=rows))


def measure_largest(setting) -> Outcome:
    """Find the largest batch that fits into the memory of the GPU for a training step of a backbone."""
    image, jobs = setting.choose((800, 1280), (64, 96)), []
    for arch, names in setting.choose({
            'small_12_p16': ('ours', 'plain', 'swin_t', 'resnet50', 'convnext_t'), 'small_12_p8': ('ours', 'plain')},
            {'nano_12_p16': ('ours', 'plain')}).items():
        jobs += [(f'{arch} {name}', partial(_largest_row, arch, name, image, setting.choose(1024, 4)))
                 for name in names]
    return in_time(setting, jobs, _outcome_of_largest)


def _outcome_of_largest(rows, missing):
    failed = any('failed' in sentence for sentence in missing)
    batches = ', '.join(f'{row["model"]} {row["largest batch"]}' for row in rows)
    return Outcome(False if failed else None, '; '.join([batches, *missing]), rows, dict(rows=rows))


def _largest_row(arch, name, image, limit):
    model = build_models(arch, 'training', [name])[name]

    def fits(batch):
        if get_device() == 'cuda':
            torch.cuda.empty_cache()
        try:
            make_step(model, torch.randn(batch, 3, *image, device=get_device()), 'training', DTYPE)()
        except RuntimeError as error:  # out of memory, or a library that finds no way to compute it with what is left
            if isinstance(error, torch.AcceleratorError):
                raise
            model.zero_grad(set_to_none=True)
            return False
        return True

    found = largest(fits, limit=limit)
    return {'arch': arch, 'image': 'x'.join(map(str, image)), 'model': name,
            'largest batch': found if found < limit else f'at least {found}'}
