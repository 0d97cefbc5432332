"""Training of detectors and segmentors with different backbones: images per second, memory, largest batch."""
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from mmengine.device import get_device
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData

from xcit_dense.config.loading import get_config
from xcit_dense.errors import ConfigError
from xcit_dense.models import ReferenceXCiT, graphs

from .cells import DTYPES, say, time_interleaved


@dataclass(frozen=True)
class Task:
    """What is trained.

    Args:
        backbones: Backbone and channels of its four maps, by name.
        build: Function from both to the model and its optimiser.
        make_data: Function from a number of images and their height and width to a batch of a data loader.
    """
    backbones: dict
    build: Callable
    make_data: Callable


def _xcit(kind, patch_size):
    return dict(type=kind, arch=f'small_12_p{patch_size}', drop_path_rate=0.05, norm_cfg=dict(type='BN')), [384] * 4


#: Backbone and channels of its four maps, by name; those of mmdet are set as in its own Mask R-CNN configs.
BACKBONES = {
    'graphs small_12_p8': _xcit('XCiT', 8),
    'ours small_12_p8': _xcit('XCiT', 8),
    'authors small_12_p8': _xcit(ReferenceXCiT, 8),
    'graphs small_12_p16': _xcit('XCiT', 16),
    'ours small_12_p16': _xcit('XCiT', 16),
    'authors small_12_p16': _xcit(ReferenceXCiT, 16),
    'swin_t': (dict(type='SwinTransformer', drop_path_rate=0.2), [96, 192, 384, 768]),
    'resnet50': (dict(type='ResNet', depth=50, frozen_stages=1, norm_cfg=dict(type='BN', requires_grad=True),
                      norm_eval=True, style='pytorch'), [256, 512, 1024, 2048]),
}


def check_detector_device(force):
    """Raise `ConfigError` on a machine where this would take hours, unless forced."""
    if get_device() != 'cuda' and not force:
        raise ConfigError('--detector needs a GPU, and torch finds none. --detector any runs it on the CPU, slowly')


def build_detector(backbone, channels):
    """Build the Mask R-CNN of ``maskrcnn_xcit_s12_p8_coco`` with another backbone, and its optimiser.

    Args:
        backbone: Config of the backbone.
        channels: Channels of its maps.
    """
    cfg = get_config('maskrcnn_xcit_s12_p8_coco', pretrained=False)
    cfg.model.neck.in_channels = channels
    return build_with(cfg, backbone)


def build_with(cfg, backbone):
    """Build the model of a config with another backbone, ready to train on the device, and its optimiser.

    Args:
        cfg: The config.
        backbone: Config of the backbone.
    """
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build({**cfg.model, 'backbone': backbone}).to(get_device()).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    return model, torch.optim.AdamW(parameters, lr=1e-6)  # so small that the weights stay finite for any loss


def make_data(batch, image, boxes=10):
    """Return random images with boxes and masks, like a batch from mmdet's data loader."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    height, width = image
    generator = torch.Generator().manual_seed(0)
    inputs, samples = [], []
    for _ in range(batch):
        corner = torch.rand(boxes, 2, generator=generator) * torch.tensor([width, height]) * 0.6
        size = (torch.rand(boxes, 2, generator=generator) * 0.3 + 0.05) * torch.tensor([width, height])
        bboxes = torch.cat((corner, corner + size), dim=1)
        masks = torch.zeros(boxes, height, width, dtype=torch.uint8)
        for mask, (x1, y1, x2, y2) in zip(masks, bboxes.int().tolist(), strict=True):
            mask[y1:y2, x1:x2] = 1
        labels = torch.randint(80, (boxes, ), generator=generator)
        sample = DetDataSample(metainfo=dict(img_shape=image, ori_shape=image, scale_factor=(1., 1.)))
        masks = BitmapMasks(masks.numpy(), height, width)
        sample.gt_instances = InstanceData(bboxes=bboxes, labels=labels, masks=masks)
        inputs.append(torch.randint(256, (3, height, width), dtype=torch.uint8, generator=generator))
        samples.append(sample)
    return dict(inputs=inputs, data_samples=samples)


MASK_RCNN = Task(BACKBONES, build_detector, make_data)


def make_training_step(model, optimizer, data, dtype):
    """Return a function that trains one step: preprocessing, losses under autocast, backward, optimiser."""
    device = get_device()

    def step():
        batch = model.data_preprocessor(data, training=True)
        with torch.autocast(device, DTYPES[dtype], enabled=dtype != 'float32'):
            losses = model(**batch, mode='loss')
        model.parse_losses(losses)[0].backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure_detectors(names, *, image, batch, dtype, runs, report=say, task=MASK_RCNN, search=True):
    """Measure detectors or segmentors: time interleaved, memory one by one.

    Args:
        names: Keys of the backbones of the task.
        image: Height and width.
        batch: Images per step.
        dtype: Key of `DTYPES`.
        runs: Number of timed rounds.
        report: Function that is called with each line of progress.
        task: What is trained.
        search: Whether to find the largest batch.

    Returns:
        A dict per model. Peak memory and the largest batch (found by doubling, then bisecting) are measured with
        only this model on the device; on a CPU they are omitted.
    """
    report(f'detector: images per second of {len(names)} detectors')
    data = task.make_data(batch, image)
    steps = {name: make_training_step(*build_task(task, name), data, dtype) for name in names}
    for _ in range(graphs.AFTER + 1):
        for name in (name for name in names if name.startswith('graphs')):
            steps[name]()
    rows = []
    for name, seconds in time_interleaved(steps, runs).items():
        rows.append(dict(name=name, image=list(image), batch=batch, dtype=dtype, seconds=statistics.median(seconds),
                         fastest=min(seconds), slowest=max(seconds),
                         images_per_second=batch / statistics.median(seconds)))
    del steps
    if get_device() == 'cuda':
        for i, row in enumerate(rows, start=1):
            report(f'detector [{i}/{len(rows)}]: memory and largest batch of {row["name"]}')
            fits = _memory_probe(task, row['name'], image, dtype, batch)
            row['peak_bytes'] = fits(batch)
            if search:
                row['largest_batch'] = largest(fits, batch)
            del fits  # and the detector in it, before the next one
    return rows


def build_task(task, name):
    """Build the model of a task with a backbone, which replays CUDA graphs if its name says so, and its optimiser."""
    model, optimizer = task.build(*task.backbones[name])
    if name.startswith('graphs'):
        model.backbone.graphs = graphs.Graphs(model.backbone, say)
    return model, optimizer


def _memory_probe(task, name, image, dtype, start):
    """Return a function from a batch size to the peak bytes of a training step, or None if it does not fit."""
    model, optimizer = build_task(task, name)
    make_training_step(model, optimizer, task.make_data(start, image), dtype)()  # creates the optimiser's state

    def probe(batch):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        try:
            step = make_training_step(model, optimizer, task.make_data(batch, image), dtype)
            for _ in range(graphs.AFTER + 2 if name.startswith('graphs') else 1):
                step()
        except torch.OutOfMemoryError:
            optimizer.zero_grad(set_to_none=True)
            return None
        return torch.cuda.max_memory_allocated()

    return probe


def largest(fits, start=1, limit=1024) -> int:
    """Return the largest number up to ``limit`` that fits, by doubling from ``start``, then bisecting; 0 if none."""
    low, high = 0, start
    while high <= limit and fits(high):
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
