"""A config in a few iterations on this machine: is its backbone correct, and its speed and memory."""
import copy
import statistics
from pathlib import Path

import torch
from mmengine.device import get_device
from mmengine.registry import MODELS

from xcit_dense._utils.machine import own_peak_memory
from xcit_dense._utils.text import counted, type_name
from xcit_dense.data.datasets import datasets
from xcit_dense.data.evaluators import evaluators
from xcit_dense.data.files import read_json
from xcit_dense.data.folders import find_images
from xcit_dense.errors import DataError
from xcit_dense.report.curves import read_curves
from xcit_dense.report.on_training import write_part
from xcit_dense.train.runner import build_runner

from .costs import without_tf32


def backbone_errors(backbone_cfg, size=(200, 264)):
    """Compare the backbone on the device with itself in float64 on the CPU, with randomised parameters.

    Args:
        backbone_cfg: Config of the backbone.
        size: Height and width of the two random images.

    Returns:
        Relative error (2-norm, worst level) by precision: outputs and gradients in float32, and outputs under
        autocast.
    """
    torch.manual_seed(0)
    model = MODELS.build(dict(backbone_cfg, init_cfg=None, drop_path_rate=0.)).double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter) * parameter.abs().mean().clamp_min(0.1)
    images = torch.randn(2, model.in_channels, *size, dtype=torch.double)
    other = copy.deepcopy(model).float().to(get_device())
    wanted = model(images)
    images = images.float().to(get_device())
    with without_tf32():
        levels = other(images)
        for outs in (wanted, levels):
            sum(x.square().mean() for x in outs).backward()
    errors = {'float32': _worst(levels, wanted)}
    parameters = list(zip(other.parameters(), model.parameters(), strict=True))
    everything = [torch.cat([p.grad.double().cpu().flatten() for p in side]) for side in zip(*parameters, strict=True)]
    errors['float32 gradient'] = _worst(everything[:1], everything[1:])
    for dtype in (torch.bfloat16, torch.float16):
        with torch.no_grad(), torch.autocast(images.device.type, dtype=dtype):
            errors[f'autocast {str(dtype).rpartition(".")[2]}'] = _worst(other(images), wanted)
    return errors


def _worst(got, wanted):
    return max(((a.double().cpu() - b).norm() / b.norm()).item() for a, b in zip(got, wanted, strict=True))


def cut_data(cfg, folder, num_train, num_val):
    """Limit a config to the first images of its data; shorter annotation files of COCO are written into a folder.

    Raises:
        DataError: There are too few validation images.
    """
    for loader, count in (('train_dataloader', num_train), ('val_dataloader', num_val)):
        for dataset in datasets(cfg, [loader]) if cfg.get(loader) else ():
            if dataset.reader != 'UnlabelledImages' and dataset.ann_file.suffix == '.json':
                kept = _cut_coco(cfg, dataset, count, Path(folder, loader).with_suffix('.json'))
            else:
                dataset['indices'] = count
                kept = len(find_images(dataset.folder(next(iter(dataset.prefixes), None)))[1])
            if loader == 'val_dataloader' and kept < count:
                raise DataError(f'{dataset.root.absolute()} has only {counted(kept, "images with annotations")} for '
                                f'validation, but {count:,} are needed')


def _cut_coco(cfg, dataset, count, file):
    """Write the first images that have objects; the metrics read the file too, and count all images in it."""
    content = read_json(dataset.ann_file)
    annotated = {a['image_id'] for a in content['annotations']}
    kept = {*[i['id'] for i in content['images'] if i['id'] in annotated][:count]}
    written = write_part(content, kept, file)
    for _, metric in evaluators(cfg):
        if metric.get('ann_file') and Path(metric.ann_file).absolute() == dataset.ann_file:
            metric.ann_file = written
    dataset['ann_file'] = written
    return len(kept)


def limit_iterations(cfg, iterations):
    """Make a config train for ``iterations`` iterations, evaluate once at the end, and log every iteration.

    The seed is fixed: every measurement uses the same images at the same sizes.
    """
    cfg.randomness = dict(seed=0)
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=iterations, val_interval=iterations)
    for hook in cfg.get('custom_hooks') or ():
        if type_name(hook.get('type')) == 'DINOHook':
            hook['freeze_last_layer'] = 0  # a whole step is measured
    cfg.train_dataloader.sampler = dict(type='InfiniteSampler', shuffle=True)
    cfg.default_hooks.logger.interval = 1
    cfg.default_hooks.checkpoint = dict(type='CheckpointHook', by_epoch=False, interval=iterations)
    cfg.log_processor = dict(type='LogProcessor', window_size=1, by_epoch=False)


def train_and_measure(cfg):
    """Train and evaluate a config of `limit_iterations` in a fresh work dir.

    Returns:
        A dict: seconds per iteration and per evaluated image (medians; None without validation), the seconds of each
        iteration and how many of them it waited for its data, peak memory of the device (on a CPU of the process) in
        GiB, the losses and the metrics.
    """
    runner = build_runner(cfg)
    runner.train()
    curves = read_curves(cfg.work_dir)
    # of a GPU by the log, as mmengine resets torch's count with each line: in MiB
    memory = max(value for _, value in curves['memory']) * 2**20 if 'memory' in curves else own_peak_memory()
    metrics = {n.removeprefix('val/'): points[-1][1] for n, points in curves.items()
               if '/' in n and n not in ('val/time', 'val/data_time')}
    return dict(
        batch_size=cfg.train_dataloader.batch_size,
        iterations=runner.max_iters,
        seconds_per_iteration=statistics.median(value for _, value in curves['time']),
        iteration_seconds=[value for _, value in curves['time']],
        waiting_seconds=[value for _, value in curves['data_time']],
        seconds_per_image=curves['val/time'][-1][1] / cfg.val_dataloader.batch_size if cfg.get('val_dataloader') else
        None,
        peak_memory_gib=memory / 2**30,
        losses=[value for _, value in curves['loss']],
        metrics=metrics)
