"""What a config needs to fit its data: anchors, heads, sizes of images, augmentation, and the length of a run."""
from typing import NamedTuple

import numpy as np

from ..._utils.text import counted
from ...data.datasets import LOADERS, named_datasets
from ...errors import ConfigError
from ..check.keys import value_at as at
from ..check.schedule import WARM_UP, schedulers, shortened, warm_up_of
from ..length import UNITS, set_length
from .geometry import anchors_of, are_poor, best_ious, objects_kept, rounded
from .writing import Change, Code

#: Sizes of the anchors of the finest level, in strides; and how many sizes there are per level.
_SCALES, _PER_OCTAVE = (1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16), (1, 2, 3)
_USUAL = (0.5, 1.0, 2.0)
#: The gain in mean IoU that one more anchor per position must bring.
_PRICE = 0.008
#: Boxes that are compared at most.
_SAMPLE = 2000


class Fitted(NamedTuple):
    """Anchors: the arguments of their generator, and their shapes."""
    arguments: dict
    shapes: np.ndarray


def fit_anchors(boxes, generator):
    """Return the anchors that fit boxes best.

    Args:
        boxes: Widths and heights (n, 2) in pixels of the resized images.
        generator: The config of an ``AnchorGenerator`` with ``scales`` or ``octave_base_scale``.

    Returns:
        `Fitted`; None if the anchors of the generator are as good, or if it is of another type.
    """
    strides = [stride if isinstance(stride, (int, float)) else stride[0] for stride in generator.get('strides') or ()]
    keys = {'strides', 'ratios', 'scales', 'octave_base_scale', 'scales_per_octave', 'type'}
    if not strides or set(generator) - keys or str(generator.get('type')).rpartition('.')[2] != 'AnchorGenerator':
        return None
    boxes = np.asarray(boxes)[np.unique(np.linspace(0, len(boxes) - 1, min(len(boxes), _SAMPLE)).astype(int))]
    octave = generator.get('octave_base_scale')
    now = [octave * 2 ** (i / generator['scales_per_octave']) for i in range(generator['scales_per_octave'])] \
        if octave else list(generator.get('scales') or ())
    if not now:
        return None
    low, middle, high = (round(float(value), 2) for value in np.percentile(boxes[:, 1] / boxes[:, 0], (10, 50, 90)))
    # ratios of the usual box and of higher and wider ones, unless boxes hardly differ
    own = (middle, ) if high / low < 1.5 else (low, middle, high)
    counts = (generator['scales_per_octave'], ) if octave else _PER_OCTAVE
    best = None
    for scale in _SCALES:
        for count in counts:
            for ratios in dict.fromkeys((own, (1.0, ), _USUAL)):
                scales = [round(scale * 2 ** (i / count), 2) for i in range(count)]
                score, shapes = _judge(boxes, scales, ratios, strides)
                if best is None or score > best[0]:
                    best = score, scales, ratios, shapes
    before, _ = _judge(boxes, now, generator['ratios'], strides)
    if best[0] < before + 0.03:
        return None
    scales = dict(octave_base_scale=best[1][0]) if octave else dict(scales=best[1])
    return Fitted(dict(scales, ratios=list(best[2])), best[3])


def _judge(boxes, scales, ratios, strides):
    """Return the score of anchors, and their shapes (n, 2)."""
    sides = np.multiply.outer(strides, scales).ravel()
    shapes = np.concatenate([np.stack([sides / ratio ** 0.5, sides * ratio ** 0.5], 1) for ratio in ratios])
    return best_ious(boxes, shapes).mean() - _PRICE * len(scales) * len(ratios), shapes


#: With more samples per image, time grows but accuracy hardly does.
_MOST_SAMPLES = 512


def change_detector(cfg, objects, boxes) -> list:
    """Return the changes of anchors, of limits on the number of objects and of filters.

    Args:
        cfg: The config.
        objects: `xcit_dense.config.fit.objects.Objects`.
        boxes: Widths and heights (n, 2) in pixels of the resized images.
    """
    return [*_anchors(cfg, boxes), *_numbers(cfg, objects), *_filter(cfg, objects)]


def _anchors(cfg, boxes):
    anchors = anchors_of(cfg)
    if anchors is None or not are_poor(best_ious(boxes, anchors.shapes), anchors.least):
        return []
    fitted = fit_anchors(boxes, anchors.generator)
    if fitted is None:
        return []
    before, after = ((best_ious(boxes, shapes) >= anchors.positive).mean()
                     for shapes in (anchors.shapes, fitted.shapes))
    why = f'{after:.0%} of the boxes have an anchor with an IoU of {anchors.positive:g} or more, before {before:.0%}'
    changes = []
    for name, value in fitted.arguments.items():
        changes.append(Change(f'{anchors.key}.{name}', value, why))
        why = ''
    return changes


def _numbers(cfg, objects):
    most, usual = objects.most(100), objects.most(50)
    changes, why = [], f'images have a median of {counted(usual, "objects")}, and up to {most}'
    wanted = {key: rounded((3 if 'rpn' in key else 1.3) * most, 50) for key in objects_kept(cfg.model)}
    changes += [Change(key, wanted[key]) for key, now in objects_kept(cfg.model).items()
                if now < (2 if 'rpn' in key else 1) * most]
    for key in [change.key.replace('max_per_img', 'nms_pre') for change in changes]:
        now, least = at(cfg, key), 2 * wanted[key.replace('nms_pre', 'max_per_img')]
        if isinstance(now, int) and now < least:
            changes.append(Change(key, rounded(least, 100)))
    # at most a half and a quarter of these are objects
    for key, share in (('model.train_cfg.rpn.sampler.num', 3), ('model.train_cfg.rcnn.sampler.num', 1)):
        now, least = at(cfg, key), min(rounded(share * usual, 32), _MOST_SAMPLES)
        if isinstance(now, int) and now < least:
            changes.append(Change(key, least))
    return [Change(key, value, '' if place else why) for place, (key, value, _) in enumerate(changes)]


def _filter(cfg, objects):
    if not objects.too_small:
        return []
    return [Change('train_dataloader.dataset.filter_cfg.min_size', 1,
                   f'otherwise {counted(objects.too_small, "images")} would be too small to be used')]


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
        for _, key, dataset in named_datasets(cfg, [loader]):
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


#: The fewest iterations of a run that counts epochs; how often a run that counts iterations sees the data.
_ITERATIONS, _LEAST_PASSES, _MOST_PASSES = 1000, 10, 400
#: The most epochs, however small the data is; and the number of validations of a run that is made longer.
_MOST_EPOCHS, _VALIDATIONS = 300, 10


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
