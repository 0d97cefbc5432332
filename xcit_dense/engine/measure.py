"""What a config does on this machine: is the backbone right, how fast does it train, with how much memory."""
import copy
import json
import platform
import resource
import statistics
from pathlib import Path

import torch
from mmengine.device import get_device
from mmengine.registry import MODELS

from ..errors import DataError
from .curves import read_curves
from .runner import build_runner


def describe_machine():
    """Return the device and the versions that a measurement depends on."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        names = [line.split(':')[1].strip() for line in Path('/proc/cpuinfo').read_text().splitlines()
                 if line.startswith('model name')] if Path('/proc/cpuinfo').exists() else [platform.processor()]
        device = f'{names[0]}, {torch.get_num_threads()} threads'
    return dict(device=device, torch=torch.__version__, python=platform.python_version())


def backbone_errors(backbone_cfg, size=(200, 264)):
    """Compare the backbone on the device with itself in float64 on the CPU, parameters randomised.

    Args:
        backbone_cfg: Config of the backbone.
        size: Height and width of the two random images.

    Returns:
        Relative error (2-norm, the worst level) by precision: float32 outputs and gradients, and the
        outputs under autocast.
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
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    levels = other(images)
    errors = {'float32': _worst(levels, wanted)}
    for outs in (wanted, levels):
        sum(x.square().mean() for x in outs).backward()
    parameters = list(zip(other.parameters(), model.parameters(), strict=True))
    everything = [torch.cat([p.grad.double().cpu().flatten() for p in side]) for side in zip(*parameters, strict=True)]
    errors['float32 gradient'] = _worst(everything[:1], everything[1:])
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32
    for dtype in (torch.bfloat16, torch.float16):
        with torch.no_grad(), torch.autocast(images.device.type, dtype=dtype):
            errors[f'autocast {str(dtype).rpartition(".")[2]}'] = _worst(other(images), wanted)
    return errors


def _worst(got, wanted):
    return max(((a.double().cpu() - b).norm() / b.norm()).item() for a, b in zip(got, wanted, strict=True))


def cut_coco(root, out, num_train, num_val):
    """Write a data root with the first images of another: annotations cut, image folders linked.

    Raises:
        DataError: There are not that many validation images.
    """
    root, out = Path(root).expanduser().absolute(), Path(out)
    (out / 'annotations').mkdir(parents=True, exist_ok=True)
    for split, count in (('train', num_train), ('val', num_val)):
        content = json.loads((root / f'annotations/instances_{split}2017.json').read_text())
        annotated = {a['image_id'] for a in content['annotations']}
        content['images'] = [i for i in content['images'] if i['id'] in annotated][:count]
        if split == 'val' and len(content['images']) < count:
            raise DataError(f'{root} has {len(content["images"])} validation images with annotations, not {count}')
        kept = {i['id'] for i in content['images']}
        content['annotations'] = [a for a in content['annotations'] if a['image_id'] in kept]
        (out / f'annotations/instances_{split}2017.json').write_text(json.dumps(content))
        link = out / f'{split}2017'
        link.unlink(missing_ok=True)
        link.symlink_to(root / f'{split}2017')


def limit_iterations(cfg, iterations):
    """Make a config train that many iterations, evaluate once at the end, and log every iteration.

    The seed is fixed: the same images in the same sizes in every measurement.
    """
    cfg.randomness = dict(seed=0)
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=iterations, val_interval=iterations)
    cfg.train_dataloader.sampler = dict(type='InfiniteSampler', shuffle=True)
    cfg.default_hooks.logger.interval = 1
    cfg.default_hooks.checkpoint = dict(type='CheckpointHook', by_epoch=False, interval=iterations)
    cfg.log_processor = dict(type='LogProcessor', window_size=1, by_epoch=False)


def train_and_measure(cfg):
    """Train and evaluate a config of `limit_iterations` in a fresh work dir.

    Returns:
        A dict: seconds per iteration and per evaluated image (medians), peak memory in GiB of the
        device (of the process on a CPU), the losses, and the metrics.
    """
    runner = build_runner(cfg)
    runner.train()
    curves = read_curves(cfg.work_dir)
    if torch.cuda.is_available():
        memory = torch.cuda.max_memory_allocated() / 2**30
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux
    metrics = {n: points[-1][1] for n, points in curves.items() if '/' in n and not n.startswith('val/')}
    return dict(
        batch_size=cfg.train_dataloader.batch_size,
        iterations=runner.max_iters,
        seconds_per_iteration=statistics.median(value for _, value in curves['time']),
        seconds_per_image=curves['val/time'][-1][1] / cfg.val_dataloader.batch_size,
        peak_memory_gib=memory,
        losses=[value for _, value in curves['loss']],
        metrics=metrics)
