"""Suggest a config that fits the data: `--suggest`."""
import copy
import math
import re

from ..._utils.text import counted
from ...data.datasets import LOADERS, datasets
from ...errors import ConfigError, DataError
from ...tasks import task_of
from ..check.keys import changes as differences
from ..check.keys import value_at as at
from ..check.schedule import WARM_UP, schedulers, shortened, warm_up_of
from ..image_size import box_of, set_image_size
from ..length import UNITS, set_length
from ..loading import read_config
from . import fit_of
from .geometry import resize_of, rounded
from .writing import Change, Code, write_config

#: The fewest iterations of a run that counts epochs; how often a run that counts iterations sees the data.
_ITERATIONS, _LEAST_PASSES, _MOST_PASSES = 1000, 10, 400
#: The most epochs, however small the data is; and the number of validations of a run that is made longer.
_MOST_EPOCHS, _VALIDATIONS = 300, 10
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
    fit = fit_of(cfg)
    measured = fit.measure(cfg)
    if measured is None:
        raise DataError('--suggest needs training data on a local disk: a COCO file with objects, or label maps whose '
                        'pixels are numbers of classes')
    asked = {name for name, value in vars(settings).items() if value is not None} if settings else set()
    own, after, whys, changes = read_config(base), copy.deepcopy(cfg), {}, []
    factor, why = (1., '') if 'image_size' in asked else _enlarge(after, fit, measured)
    if factor != 1. or asked & {'image_size', 'augment'}:
        changes += write_images(own, after, why or _ASKED)
    if 'batch_size' not in asked:
        whys |= _fit_batch(after, factor, measured.count)
    size = after.train_dataloader.get('batch_size') or 1
    if fit.change:
        whys |= fit.change(after, measured, changes, keeps_rate=bool(asked & {'lr', 'batch_size'}))
    if not asked & {'epochs', 'iterations'}:
        whys |= fit_schedule(after, -(-measured.count // size))
    changes += _others(own, cfg, after, whys)
    return write_config(base, changes, f'Suggested by train --suggest for {source}: {measured.in_words}.')


def check_kind(cfg):
    """Raise `ConfigError` if a config is not for a detector or segmentor: there is nothing to suggest."""
    if fit_of(cfg) is None:
        raise ConfigError(f'--suggest is for detectors and segmentors, not for {task_of(cfg).name}')


def _enlarge(cfg, fit, measured):
    """Enlarge the images of a config to the size that objects or bands need; return the factor and the reason."""
    step, box = resize_of(cfg), box_of(cfg)
    if step is None or box is None:
        return 1., ''
    factor, why = fit.factor(cfg, step, measured)
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


def write_images(own, cfg, why: str) -> list:
    """Return the changes of everything that images pass through.

    Args:
        own: The config without the changes.
        cfg: The config with the changes.
        why: The reason.

    Raises:
        ConfigError: A loader has several data sets.
    """
    names, uses = {}, []
    for loader in LOADERS:
        usual = 'train_pipeline' if loader == LOADERS[0] else 'test_pipeline'
        for dataset in datasets(cfg, [loader]):
            key = dataset.key
            if 'datasets.' in key or not dataset.get('pipeline'):
                raise ConfigError(f'--suggest cannot change the images of {key}: it supports only loaders with one '
                                  'data set')
            uses += _uses(own, cfg, key, f'{loader}.dataset',
                          lambda node, usual=usual: _name(names, node['pipeline'], usual))
    for key in ('size', 'batch_augments'):
        uses.append(Change(f'model.data_preprocessor.{key}', at(cfg, f'model.data_preprocessor.{key}')))
    for key in ('crop_size', 'stride'):
        uses.append(Change(f'model.test_cfg.{key}', at(cfg, f'model.test_cfg.{key}')))
    # a pipeline must be defined before it is used
    pipelines = [Change(name, value, '' if place else why) for place, (name, value) in enumerate(names.items())]
    return [*pipelines, *(change for change in uses if change.value is not None)]


def _name(names, pipeline, usual):
    """Return the name of the variable for a pipeline; loaders may share one."""
    name = next((name for name, other in names.items() if other == pipeline), None)
    if name is None:
        name = usual if usual not in names else f'{usual}_{len(names)}'
        names[name] = pipeline
    return Code(name)


def _uses(own, cfg, key, whole, name_of):
    """Return the changes that set the pipelines of a data set, and of a data set around it that mixes its images.

    Args:
        own: The config without the changes.
        cfg: The config with the changes.
        key: The key of the data set.
        whole: The key of the outermost data set.
        name_of: Returns the variable for a node with a pipeline.
    """
    inner, changes = name_of(at(cfg, key)), []
    outer = key
    while outer != whole:
        outer = outer.removesuffix('.dataset')
        if not at(cfg, outer).get('pipeline'):
            continue
        if outer == whole and at(own, whole).get('type') != at(cfg, whole)['type']:  # a new data set around it
            return [Change(whole, dict(_delete_=True, type=at(cfg, whole)['type'], pipeline=name_of(at(cfg, whole)),
                                       dataset=Code(_inside(whole, key, inner))))]
        changes.append(Change(f'{outer}.pipeline', name_of(at(cfg, outer))))
    return [Change(f'{key}.pipeline', inner), *changes]


def _inside(whole, key, pipeline):
    """Return code for the data set of the base with another pipeline in the data set at a key."""
    path = key.replace(f'{whole}.dataset', whole, 1)
    code = f'dict(_base_.{path}, pipeline={pipeline})'
    while path != whole:
        path = path.removesuffix('.dataset')
        code = f'dict(_base_.{path}, dataset={code})'
    return code


def fit_schedule(cfg, epoch_length: int) -> dict:
    """Set the length of a run for its data, and fit its schedulers to that length.

    Args:
        cfg: The config, which is changed.
        epoch_length: The iterations of an epoch.

    Returns:
        The reasons, by the keys that were changed.
    """
    key = next((key for key in UNITS if cfg.train_cfg.get(key)), None)
    if key is None:
        return {}
    now, whys = cfg.train_cfg[key], {}
    if key == 'max_epochs':
        length = min(max(now, -(-_ITERATIONS // epoch_length)), max(_MOST_EPOCHS, now))
        why = f'{length * epoch_length} iterations, before {now * epoch_length}'
    else:
        length = min(max(now, _LEAST_PASSES * epoch_length), max(_MOST_PASSES * epoch_length, _ITERATIONS))
        why = f'{length / epoch_length:.3g} passes over the data, before {now / epoch_length:.3g}'
    before = warm_up_of(cfg, epoch_length)
    if length != now:
        set_length(cfg, length, UNITS[key], epoch_length)
        whys.update({f'train_cfg.{key}': why, 'param_scheduler': 'stretched with the run'})
        if key == 'max_epochs':
            _space(cfg, length)
    after = warm_up_of(cfg, epoch_length)
    if after:
        node = dict(schedulers(cfg.param_scheduler, 'param_scheduler'))[after[0]]
        node['end'] = shortened(node, int(WARM_UP * after[2]) // after[3])
    if before and warm_up_of(cfg, epoch_length)[1] != before[1]:
        why = f'the warm-up takes a tenth of the run, before {counted(before[1], "iterations")}'
        whys['param_scheduler'] = '; '.join(filter(None, (whys.get('param_scheduler'), why)))
    return whys


def _space(cfg, length):
    """Make a run of many epochs validate and save less often."""
    now, interval = cfg.train_cfg.get('val_interval'), length // _VALIDATIONS
    if not now or now >= interval:
        return
    cfg.train_cfg.val_interval = interval
    saving = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    if saving.get('interval') == now and saving.get('by_epoch', True):
        saving['interval'] = interval
