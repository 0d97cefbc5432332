"""Fast: throughput and memory beside other backbones; what a new image size costs."""
import statistics

import pytest
import torch
from mmengine.device import get_device

from benchmarks.cells import make_step
from benchmarks.costs import time_call
from benchmarks.detector import MASK_RCNN, largest, make_training_step, measure_detectors
from benchmarks.models import build_models
from benchmarks.segmentor import UPERNET
from gpu.measuring import DTYPE, OTHERS, SIZES, compare, figures, free_memory
from gpu.models import recipe_sizes

pytestmark = pytest.mark.gpu
_OURS, _SWIN = 'ours small_12_p16', 'swin_t'
#: What is measured interleaved, the most important first.
_GROUPS = (_OURS, 'authors small_12_p16', _SWIN, 'resnet50'), ('ours small_12_p8', 'authors small_12_p8')


@pytest.mark.minutes(6)
def test_small(check):
    """Small 12, beside the authors' form, timm's, Swin-T, ResNet-50 and ConvNeXt-T."""
    compare(check, ('small_12_p16', 'small_12_p8'), OTHERS, SIZES)


@pytest.mark.minutes(2.5)
def test_mask_rcnn(check):
    """Mask R-CNN training at 800x1280, which must be faster than with Swin-T."""
    found = _train(check, MASK_RCNN, (800, 1280))
    times = found[_OURS] / found[_SWIN]
    assert check.tiny or times >= 1, f'{_OURS} trains {times:.2f} times as fast as {_SWIN}'


@pytest.mark.minutes(2)
def test_upernet(check):
    """UperNet training at 512x512."""
    _train(check, UPERNET, (512, 512))


def _train(check, task, image):
    """Measure and record trainings; return the images a second by backbone."""
    rows = []
    for names in check.choose(_GROUPS, ((_OURS, _SWIN), )):
        rows += measure_detectors(names, image=check.choose(image, (64, 96)), batch=2, dtype=DTYPE, task=task,
                                  runs=check.choose(8, 1), search=False)
        check.record(f'{len(rows)} backbones', map(figures, rows))
        free_memory()
    return {row['name']: row['images_per_second'] for row in rows}


@pytest.mark.minutes(2.5)
def test_new_sizes(check):
    """The first step of Mask R-CNN at an image size beside later ones, with cuDNN and without."""
    rows, sizes = [], list(dict.fromkeys(recipe_sizes(check, check.choose(8, 1))))
    for name in check.choose((_OURS, 'authors small_12_p16', 'resnet50'), (_OURS, )):
        for cudnn in check.choose((True, False), (True, )):
            model, optimizer = MASK_RCNN.build(*MASK_RCNN.backbones[name])
            first, later = [], []
            with torch.backends.cudnn.flags(enabled=cudnn):
                make_training_step(model, optimizer, MASK_RCNN.make_data(2, (96, 96)), DTYPE)()  # loads libraries
                for size in sizes:
                    step = make_training_step(model, optimizer, MASK_RCNN.make_data(2, size), DTYPE)
                    first.append(time_call(step))
                    later += [time_call(step) for _ in range(check.choose(3, 1))]
            new, known = (1000 * statistics.median(times) for times in (first, later))
            rows.append({'backbone': name, 'cuDNN': 'yes' if cudnn else 'no', 'sizes': len(sizes),
                         'first step, ms': f'{new:.0f}', 'later, ms': f'{known:.0f}'})
            check.record('; '.join('{backbone}, cuDNN {cuDNN}: {first step, ms} and {later, ms} ms'.format_map(row)
                                   for row in rows), rows)
            free_memory()


@pytest.mark.minutes(6)
def test_medium(check):
    """Medium 24, beside the authors' form and timm's."""
    compare(check, ('medium_24_p16', 'medium_24_p8'), ('timm', ), SIZES)


@pytest.mark.minutes(3)
def test_largest_batch(check):
    """The largest batch of a training step at 800x1280."""
    rows, ours = [], ('ours', 'authors')
    archs = {'small_12_p16': (*ours, 'swin_t', 'resnet50', 'convnext_t'), 'small_12_p8': ours}
    for arch, names in check.choose(archs, {'nano_12_p16': ours}).items():
        for name in names:
            found, limit = _largest(check, build_models(arch, 'training', [name])[name]), check.choose(1024, 4)
            rows.append(dict(arch=arch, model=name, batch=found if found < limit else f'at least {found}'))
            check.record(', '.join(f'{row["model"]} {row["batch"]}' for row in rows), rows)
            free_memory()


def _largest(check, model):
    def fits(batch):
        free_memory()
        try:
            images = torch.randn(batch, 3, *check.choose((800, 1280), (64, 96)), device=get_device())
            make_step(model, images, 'training', DTYPE)()
        except RuntimeError as error:  # out of memory, or a library that finds no way to compute it with what is left
            if isinstance(error, torch.AcceleratorError):
                raise
            model.zero_grad(set_to_none=True)
            return False
        return True

    return largest(fits, limit=check.choose(1024, 4))
