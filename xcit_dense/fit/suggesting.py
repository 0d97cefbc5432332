"""What a config has to say to fit its data: `--suggest`."""
import numpy as np

from ..config.framework import framework_of
from ..data.datasets import LOADERS, dicts_in, named_datasets
from ..errors import ConfigError, DataError
from .geometry import patch_of, resize_of, zooms
from .looking import MOST_ENLARGED, RARE
from .maps import measure_maps
from .objects import measure_objects
from .pipelines import scaled, scaled_pipeline
from .schedules import change_schedule
from .suggesting_objects import change_detector
from .writing import Change, Code, write_config

#: How many times the pixels of the config's own images those of the suggested ones are at most: so much more memory
#: and time an image takes.
_MORE_PIXELS = 7
#: The share of a token that the usual object gets, and a thin band.
_OBJECT, _BAND = 1., 0.25
#: The objects of a step that the rates of the small configs are for: eight images of the demo. More of them let the
#: rate rise with their root, up to so many times.
_OBJECTS, _FASTER = 32, 2.
#: Less would change little.
_LEAST_FACTOR = 1.15
_ASKED = 'as asked for'


def suggest(cfg, base, source: str, settings=None) -> str:
    """Return the text of a config that fits the training data of another.

    Args:
        cfg: The other, its data placed and its classes known.
        base: Its file.
        source: What the suggestion is for, in words.
        settings: `xcit_dense.config.settings.Settings` that were applied to it: these values stay, and are written.

    Raises:
        ConfigError: The config is of no detector or segmentor, or not of plain values.
        DataError: Its data cannot be measured.
    """
    task = framework_of(cfg)
    if task not in ('mmdet', 'mmseg'):
        raise ConfigError(f'--suggest is for detectors and segmentors, not for a config of {task}')
    measured = measure_objects(cfg) if task == 'mmdet' else measure_maps(cfg)
    if measured is None:
        raise DataError('--suggest needs training data on a disk: a COCO file with objects, or label maps of numbers')
    step, factor, why = resize_of(cfg), 1., ''
    asked = {name for name, value in vars(settings).items() if value is not None} if settings else set()
    if asked & {'image_size', 'augment'}:
        why = _ASKED
    elif step is not None:
        factor, why = _for_objects(cfg, step, measured) if task == 'mmdet' else _for_bands(cfg, step, measured)
    changes = _change_sizes(cfg, factor, why) if factor != 1. or why == _ASKED else []
    changes += _batch(cfg, factor, measured.count, asked)
    size = next((change.value for change in changes if change.key == 'train_dataloader.batch_size'),
                cfg.train_dataloader.get('batch_size') or 1)
    length = -(-measured.count // size)
    if task == 'mmdet':
        zoom = zooms(step or {}, measured.boxes[:, :2]) * factor
        changes += change_detector(cfg, measured, measured.boxes[:, 2:] * zoom)
        changes += _balance(cfg, measured, changes)
        changes += [] if asked & {'lr', 'batch_size'} else _rate(cfg, size * measured.total / measured.count)
    changes += change_schedule(cfg, length, _ASKED if asked & {'epochs', 'iterations'} else '')
    amount = f'{measured.total} objects on ' if task == 'mmdet' else ''
    return write_config(base, changes, f'Suggested by train --suggest for {source}: {amount}{measured.count} images.')


def _for_objects(cfg, step, objects):
    """Return by how much images are to be enlarged for their objects, and why."""
    patch = patch_of(cfg) or 16
    median = np.median(np.sqrt((objects.boxes[:, 2:] * zooms(step, objects.boxes[:, :2])).prod(1)))
    factor = _bounded(step, objects, _OBJECT * patch / median)
    return factor, (f'the median object becomes {median * factor:.2g} pixels, before {median:.2g}: a token has {patch}')


def _for_bands(cfg, step, maps):
    patch = patch_of(cfg) or 16
    if not maps.widths:
        return 1., ''
    name = min(maps.widths, key=maps.widths.get)
    now = np.average(zooms(step, maps.images[:, :2]).mean(1), weights=maps.images[:, 2])
    width = maps.widths[name] * now
    factor = _bounded(step, maps, _BAND * patch / width)
    return factor, f'the thinnest class, {name!r}, becomes {width * factor:.2g} pixels wide, before {width:.2g}'


def _bounded(step, measured, factor):
    """Return a factor that neither takes too much memory nor enlarges images beyond what they show."""
    now = np.average(zooms(step, measured.images[:, :2]).mean(1), weights=measured.images[:, 2])
    factor = min(factor, _MORE_PIXELS ** 0.5, max(MOST_ENLARGED / now, 1.))
    return factor if factor > _LEAST_FACTOR else 1.


def _change_sizes(cfg, factor, why):
    """Return changes that multiply the sizes of images."""
    keys = {loader: [(key, dataset) for _, key, dataset in named_datasets(cfg, [loader])] for loader in LOADERS}
    changes, written = [], {}
    for loader, members in keys.items():
        for key, dataset in members:
            if 'datasets.' in key or not dataset.get('pipeline'):
                raise ConfigError(f'--suggest cannot change the images of {key}: it writes configs whose loaders have '
                                  'one data set')
            pipeline = scaled_pipeline(dataset.pipeline, factor)
            name = next((name for name, other in written.items() if other == pipeline), None)
            if name is None:
                name = {'train_dataloader': 'train_pipeline'}.get(loader, 'test_pipeline')
                name = name if name not in written else f'{name}_{loader.partition("_")[0]}'
                written[name] = pipeline
                changes.append(Change(name, pipeline, why))
                why = ''
            changes.append(Change(f'{key}.pipeline', Code(name)))
    size = cfg.model.get('data_preprocessor', {}).get('size')
    if size is not None:
        changes.append(Change('model.data_preprocessor.size', scaled(size, factor), 'that of the crops'))
    for name in ('crop_size', 'stride'):
        if (cfg.model.get('test_cfg') or {}).get(name):
            changes.append(Change(f'model.test_cfg.{name}', scaled(cfg.model.test_cfg[name], factor)))
    # pipelines stand before what names them
    return sorted(changes, key=lambda change: not change.key.endswith('_pipeline') and '_pipeline_' not in change.key)


def _batch(cfg, factor, images, asked):
    """Return the changes of the batch size, and of what depends on it."""
    now = cfg.train_dataloader.get('batch_size')
    if not isinstance(now, int):
        return []
    rate = ('optim_wrapper.optimizer.lr', cfg.optim_wrapper.get('optimizer', {}).get('lr'))
    changes = [Change(*rate, _ASKED)] if asked & {'lr', 'batch_size'} and rate[1] else []
    if 'batch_size' in asked:
        return [*changes, Change('train_dataloader.batch_size', now, _ASKED)]
    of_pixels, least = max(round(now / factor ** 2), 1), min(now, 2)
    size = max(min(of_pixels, images // 8 if 'max_epochs' in cfg.train_cfg else now), least)
    if size == now:
        return changes
    changes.append(Change('train_dataloader.batch_size', size, (
        'of larger images fewer make a step of as many pixels' if max(of_pixels, least) == size else
        f'an epoch of {images} images has more steps so') + ': the learning rate stays'))
    if 'base_batch_size' in (cfg.get('auto_scale_lr') or {}):
        base = max(round(cfg.auto_scale_lr.base_batch_size * size / now), 1)
        changes.append(Change('auto_scale_lr.base_batch_size', base, 'what the learning rate is for'))
    return changes


def _rate(cfg, objects):
    """Return the change of the learning rate for so many objects a step, in a run from random weights."""
    rate = cfg.optim_wrapper.get('optimizer', {}).get('lr')
    factor = min((objects / _OBJECTS) ** 0.5, _FASTER)
    if not rate or factor < 1.2 or any('Pretrained' in str(part.get('init_cfg')) for part in dicts_in(cfg.model)):
        return []
    return [Change('optim_wrapper.optimizer.lr', float(f'{rate * factor:.2g}'),
                   f'a step learns from {objects:.0f} objects, the rate was for about {_OBJECTS}')]


def _balance(cfg, objects, changes):
    """Return the change that repeats images of rare classes, where there are some beside frequent ones."""
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
                   f'images of rare classes, such as {min(rare, key=rare.get)!r}, come up to three times an epoch')]
