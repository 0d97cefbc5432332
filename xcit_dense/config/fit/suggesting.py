"""Suggest a config that fits the data: `--suggest`."""
import copy
import math
import re

import numpy as np

from ..._utils.text import counted
from ...data.datasets import LOADERS, dicts_in, named_datasets
from ...errors import ConfigError, DataError
from ..check.keys import changes as differences
from ..check.keys import value_at as at
from ..framework import framework_of
from ..image_size import box_of, set_image_size
from ..loading import read_config
from .geometry import patch_of, resize_of, rounded, zooms
from .looking import MOST_ENLARGED, RARE
from .maps import measure_maps
from .objects import measure_objects
from .rules import change_detector, fit_schedule, write_images
from .writing import Change, Code, write_config

#: The largest factor by which the number of pixels of an image, and so its memory and time, may grow.
_MORE_PIXELS = 7
#: The size in tokens that the median object gets, and the width of a thin band.
_OBJECT, _BAND = 1., 0.25
#: The objects per step that the learning rates of the small configs are for: eight images of the demo. With more, the
#: rate rises with their square root, up to this factor.
_OBJECTS, _FASTER = 32, 2.
#: A smaller factor would change little.
_LEAST_FACTOR = 1.15
_ASKED = 'as requested'
#: The keys of a loader that are written in addition to its images.
_OF_LOADERS = ('batch_size', 'num_workers', 'persistent_workers', 'prefetch_factor')


def suggest(cfg, base, source: str, settings=None) -> str:
    """Return the text of a config that fits the training data of another.

    Args:
        cfg: The other config, with its data and its classes.
        base: The file of that config.
        source: A description of what the suggestion is for.
        settings: `xcit_dense.config.settings.Settings` that were applied to the config: these values stay, and are
            written.

    Raises:
        ConfigError: The config is not for a detector or segmentor, or does not consist of plain values.
        DataError: The data cannot be measured.
    """
    check_kind(cfg)
    task = framework_of(cfg)
    measured = measure_objects(cfg) if task == 'mmdet' else measure_maps(cfg)
    if measured is None:
        raise DataError('--suggest needs training data on a local disk: a COCO file with objects, or label maps whose '
                        'pixels are numbers of classes')
    asked = {name for name, value in vars(settings).items() if value is not None} if settings else set()
    own, after, whys, changes = read_config(base), copy.deepcopy(cfg), {}, []
    factor, why = (1., '') if 'image_size' in asked else _enlarge(after, task, measured)
    if factor != 1. or asked & {'image_size', 'augment'}:
        changes += write_images(own, after, why or _ASKED)
    if 'batch_size' not in asked:
        whys |= _fit_batch(after, factor, measured.count)
    size = after.train_dataloader.get('batch_size') or 1
    if task == 'mmdet':
        boxes = measured.boxes[:, 2:] * zooms(resize_of(after) or {}, measured.boxes[:, :2])
        changes += change_detector(after, measured, boxes)
        changes += _balance(after, measured, changes)
        whys |= {} if asked & {'lr', 'batch_size'} else _fit_rate(after, size * measured.total / measured.count)
    if not asked & {'epochs', 'iterations'}:
        whys |= fit_schedule(after, -(-measured.count // size))
    changes += _others(own, cfg, after, whys)
    amount = f'{counted(measured.total, "objects")} in ' if task == 'mmdet' else ''
    return write_config(base, changes, f'Suggested by train --suggest for {source}: {amount}'
                        f'{counted(measured.count, "images")}.')


def check_kind(cfg):
    """Raise `ConfigError` if a config is not for a detector or segmentor: there is nothing to suggest."""
    task = framework_of(cfg)
    if task not in ('mmdet', 'mmseg'):
        raise ConfigError(f'--suggest is for detectors and segmentors, not for a config of {task}')


def _enlarge(cfg, task, measured):
    """Enlarge the images of a config to the size that objects or bands need; return the factor and the reason."""
    step, box = resize_of(cfg), box_of(cfg)
    if step is None or box is None:
        return 1., ''
    factor, why = _for_objects(cfg, step, measured) if task == 'mmdet' else _for_bands(cfg, step, measured)
    if factor == 1.:
        return 1., ''
    set_image_size(cfg, tuple(rounded(side * factor, math.gcd(side, 32)) for side in box))
    return factor, why


def _others(own, asked, cfg, whys):
    """Return the changes outside of images, data and model: those that were requested, and what follows from them."""
    found = {}
    for part in (*LOADERS, 'auto_scale_lr', 'optim_wrapper', 'train_cfg', 'default_hooks', 'custom_hooks',
                 'param_scheduler'):
        for key, _, value in differences(own.get(part), cfg.get(part), part):
            if part not in LOADERS or key.partition('.')[2] in _OF_LOADERS:
                whole = re.split(r'\.\d', key)[0]  # a list is written as a whole
                found[whole] = value if whole == key else at(cfg, whole)
    return [Change(key, value, whys.get(key) or (_ASKED if at(asked, key) == value else ''))
            for key, value in found.items()]


def _for_objects(cfg, step, objects):
    """Return the factor by which images should be enlarged for their objects, and the reason."""
    patch = patch_of(cfg) or 16
    median = np.median(np.sqrt((objects.boxes[:, 2:] * zooms(step, objects.boxes[:, :2])).prod(1)))
    factor = _bounded(step, objects, _OBJECT * patch / median)
    return factor, f'the median object grows from {median:.2g} to {median * factor:.2g} pixels; a token has {patch}'


def _for_bands(cfg, step, maps):
    patch = patch_of(cfg) or 16
    if not maps.widths:
        return 1., ''
    name = min(maps.widths, key=maps.widths.get)
    now = np.average(zooms(step, maps.images[:, :2]).mean(1), weights=maps.images[:, 2])
    width = maps.widths[name] * now
    factor = _bounded(step, maps, _BAND * patch / width)
    return factor, f'the thinnest class, {name!r}, grows from {width:.2g} to {width * factor:.2g} pixels in width'


def _bounded(step, measured, factor):
    """Return a factor that needs not too much memory and does not enlarge images beyond their detail."""
    now = np.average(zooms(step, measured.images[:, :2]).mean(1), weights=measured.images[:, 2])
    factor = min(factor, _MORE_PIXELS ** 0.5, max(MOST_ENLARGED / now, 1.))
    return factor if factor > _LEAST_FACTOR else 1.


def _fit_batch(cfg, factor, images):
    """Change the batch size, and the one that the rate is for; return the reasons by key."""
    now = cfg.train_dataloader.get('batch_size')
    if not isinstance(now, int):
        return {}
    of_pixels, least = max(round(now / factor ** 2), 1), min(now, 2)
    size = max(min(of_pixels, images // 8 if 'max_epochs' in cfg.train_cfg else now), least)
    if size == now:
        return {}
    cfg.train_dataloader.batch_size = size
    if 'base_batch_size' in (cfg.get('auto_scale_lr') or {}):
        cfg.auto_scale_lr.base_batch_size = max(round(cfg.auto_scale_lr.base_batch_size * size / now), 1)
    return {'train_dataloader.batch_size': (
        'larger images, so that a step has the same number of pixels' if max(of_pixels, least) == size else
        f'so that an epoch of {counted(images, "images")} has more steps') + '; the learning rate stays',
            'auto_scale_lr.base_batch_size': 'the batch size that the learning rate is for'}


def _fit_rate(cfg, objects):
    """Change the learning rate for a number of objects per step, if weights start random; return the reason by key."""
    optimizer = cfg.optim_wrapper.get('optimizer', {})
    factor = min((objects / _OBJECTS) ** 0.5, _FASTER)
    starts = cfg.get('init_from') or cfg.get('load_from')
    if not optimizer.get('lr') or factor < 1.2 or starts or any(
            'Pretrained' in str(part.get('init_cfg')) for part in dicts_in(cfg.model)):
        return {}
    optimizer['lr'] = float(f'{optimizer["lr"] * factor:.2g}')
    return {'optim_wrapper.optimizer.lr': f'a step has {objects:.0f} objects, and the original rate is for about '
            f'{_OBJECTS}'}


def _balance(cfg, objects, changes):
    """Return the change that repeats images of rare classes, if there are both rare and frequent ones."""
    shares = {name: images / objects.count for name, (_, images) in objects.classes.items() if images}
    (_, key, dataset), *others = named_datasets(cfg, LOADERS[:1])
    rare = {name: share for name, share in shares.items()
            if share < max(shares.values()) / 10 and (share < 0.02 or objects.classes[name][1] < RARE)}
    if not rare or others or key != 'train_dataloader.dataset':
        return []
    pipeline = next((change for change in changes if change.key == f'{key}.pipeline'), None)
    if pipeline:
        changes.remove(pipeline)
    inner = f'dict(_base_.{key}, pipeline={pipeline.value})' if pipeline else f'_base_.{key}'
    threshold = round(min(9 * min(rare.values()), 0.3), 4)
    return [Change(key, dict(_delete_=True, type='ClassBalancedDataset', oversample_thr=threshold, dataset=Code(inner)),
                   f'images of rare classes, such as {min(rare, key=rare.get)!r}, are used up to three times an epoch')]
