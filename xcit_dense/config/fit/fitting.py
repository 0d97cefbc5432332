"""Fit a config to its training data before a training, use what was fitted afterwards, or suggest it: `--suggest`."""
import ast
import copy
import itertools
import math
import re
import textwrap
from numbers import Real

from mmengine.config import Config

from ..._utils.text import counted, digits
from ...data.datasets import LOADERS, datasets
from ...errors import ConfigError, DataError
from ...weights.contents import config_of_checkpoint
from ..check import warm_up_of
from ..check.keys import changes, concerns, copies_of, restore_given, set_value, value_at
from ..check.top_level import option_for
from ..image_size import box_of, set_image_size, use_trained_size
from ..length import UNITS, process_count, repeats_of, set_length, set_val_interval, shorten_warm_up
from ..loading import base_name, read_config
from ..own import ACCUMULATED, PARTS, own_files, own_keys
from ..tasks import task_of
from . import changes_in_words
from .detection import REPEATS, repeat_rare
from .geometry import LEAST_BATCH, resize_of, rounded
from .maps import IOU_LOSS, add_iou_loss

#: What is recorded under a name of its own, as it changes many places of a config.
SIZE = 'image_size'
#: What is added to a config, by the name of its record: where, and the function that adds it once.
ADDED = {REPEATS: ('train_dataloader.dataset.oversample_thr', repeat_rare),
         IOU_LOSS: ('model.decode_head.loss_decode', add_iou_loss)}
#: The keys of a data set that are not about which data it is.
_OF_IMAGES = ('pipeline', 'filter_cfg')
#: The fewest iterations of a run that counts epochs; how often a run that counts iterations sees the data.
_ITERATIONS, _LEAST_PASSES, _MOST_PASSES = 1000, 10, 400
#: The most epochs, however small the data is; and the number of validations of a run that is made longer.
_MOST_EPOCHS, _VALIDATIONS = 300, 10


def fits_itself(cfg) -> bool:
    """Whether a config is fitted by default: one of this package that reads its classes from the data, or one based on
    it, that is not fitted yet."""
    return bool(cfg.get('classes_from_data') and cfg.get('train_cfg') and task_of(cfg).fit and 'fitted' not in cfg
                and own_files(cfg)[0])


def fit(cfg, settings=None, given=()):
    """Fit a config to its training data; ``cfg.fitted`` gets the changes with reasons, ``cfg.fitted_to`` the data.

    Data that cannot be measured, and configs with several training data sets, stay as they are.

    Args:
        cfg: The config, with its data and its classes.
        settings: `xcit_dense.config.settings.Settings` that were applied to the config: these values stay.
        given: Dotted keys that are set by ``--cfg-options``, and ``train_cfg`` if something else will set the length:
            these stay too, and so do those in which a config of the user's differs from the one of this package that
            it is based on.

    Returns:
        What the data has, as the part ``measure`` of the task's `xcit_dense.config.fit.Fit` returns it; None if nothing
        was fitted.
    """
    part = task_of(cfg).part('fit')
    measured = part.measure(cfg)
    if measured is None:
        return None
    given = [*given, *own_keys(cfg)]
    asked = _asked([*given, *(settings.options if settings else ())])
    record, factor, box, before = [], 1., box_of(cfg), copies_of(cfg, PARTS)
    if '--image-size' not in asked:
        batch = cfg.train_dataloader.get('batch_size') or 1
        factor, why = _enlarge(cfg, part, measured, batch if '--batch-size' in asked else min(batch, LEAST_BATCH))
        if any(concerns(key, given) for name in before for key, *_ in changes(before[name], cfg[name], name)):
            cfg.update(before)  # a size that the user gave: the others are right for it
            factor = 1.
        if factor != 1.:
            record.append(dict(key=SIZE, before=list(box), after=list(box_of(cfg)), why=why))
    recipe = box_of(read_config(own_files(cfg)[0] or cfg.filename))
    if factor == 1. and box and recipe:  # by which the user enlarged the images
        factor = max((math.prod(box) / math.prod(recipe)) ** 0.5, 1.)
    before, whys, times = copies_of(cfg, PARTS), {}, repeats_of(cfg)
    if '--batch-size' not in asked:
        whys |= _fit_batch(cfg, factor, measured.count * (times or 1))
    images = (cfg.train_dataloader.get('batch_size') or 1) * process_count()
    if part.change:
        whys |= part.change(cfg, measured, given, keeps_rate=bool(asked & {'--lr', '--batch-size'}))
        if measured.too_small:
            measured = part.measure(cfg)  # with small images, which were left out before
    added, value, why_added = part.add(cfg, measured) or ('', None, '')
    if added and concerns(ADDED[added][0], given):
        added = ''
    count = measured.repeated(value) if added == REPEATS else measured.count
    epoch_length = times and -(-count * times // images)
    for key, unit in UNITS.items():
        length = settings.options.get(f'--{unit}') if settings else None
        if length and not cfg.train_cfg.get(key):  # was converted by the batch size of before
            set_length(cfg, length, unit, epoch_length)
            whys |= {'train_cfg': f'--{unit} {length}', 'param_scheduler': 'scaled with the run'}
    if not {'train_cfg', *(f'train_cfg.{key}' for key in UNITS)} & {*given}:
        warm_up, *_ = warm_up_of(cfg, epoch_length) or ('', )
        rates = [key for key in given if key.startswith('param_scheduler') and not key.startswith(f'{warm_up}.')]
        if epoch_length and not rates and not asked & {'--epochs', '--iterations'}:
            whys |= fit_length(cfg, epoch_length, times)
        if why := shorten_warm_up(cfg, epoch_length):
            whys['param_scheduler'] = '; '.join(filter(None, (whys.get('param_scheduler'), why)))
    for key, old, new in restore_given(cfg, before, given):
        why = next((why for start, why in whys.items() if f'{key}.'.startswith(f'{start}.')), '')
        record.append(dict(key=key, before=old, after=new, why=why))
    if added:
        ADDED[added][1](cfg, value)
        record.append(dict(key=added, before=None, after=value, why=why_added))
    cfg.fitted, cfg.fitted_to = record, measured.in_words
    return measured


def use_fit(cfg, checkpoint, given=(), trains: bool = False, source='the checkpoint'):
    """Change a config as `fit`, ``--minutes`` and ``--image-size`` changed that of a training; a user's values stay.

    The checkpoint is the content of one of the training, or None; ``source`` is its file, for the log. The user set the
    ``given`` dotted keys and options, perhaps to the value of the recipe. Unless the training continues (``trains``),
    only the image size of the test and the model are changed.
    """
    asked = _asked(given)
    trained = config_of_checkpoint(checkpoint)
    records = {name: record for name in ('fitted', 'timed', 'fitted_to') if (record := trained.get(name)) is not None}
    for change in itertools.chain(records.get('fitted', ()), records.get('timed', ())):
        key, old, new = (change.get(name) for name in ('key', 'before', 'after'))
        # a checkpoint may be from anyone: this sets nothing that is run, read or downloaded
        if not _is_number(new) or concerns(key, given) or option_for(key) in asked:
            continue
        if key == SIZE:
            if box_of(cfg) and list(box_of(cfg)) == old:
                set_image_size(cfg, tuple(new), LOADERS if trains else LOADERS[-1:])
        elif key in ADDED:
            if trains and value_at(trained, 'model.type') == cfg.model.type:
                ADDED[key][1](cfg, new)
        elif (trains or key.startswith('model.')) and value_at(cfg, key) == old:
            set_value(cfg, key, new)
    if trains:
        cfg.update(records)
    elif '--image-size' not in asked:
        use_trained_size(cfg, trained, source)


def _is_number(value):
    return all(map(_is_number, value)) if isinstance(value, (list, tuple)) else isinstance(value, Real)


def _asked(given):
    """Return the options among what the user gave, and those that change the same as its dotted keys."""
    options = (key if key.startswith('--') else option_for(key) for key in given if re.search(r'^--|\.', key))
    return {*filter(None, options)}


def _enlarge(cfg, fit, measured, least):
    """Enlarge the images of a config to the size that objects or bands need; return the factor and the reason.
    ``least``: the fewest images that a step may have then."""
    step, box = resize_of(cfg), box_of(cfg)
    factor, why = (1., '') if step is None or box is None else fit.factor(cfg, step, measured, least)
    if factor == 1.:
        return 1., ''
    sides = tuple(rounded(side * factor, math.gcd(side, 32)) for side in box)
    set_image_size(cfg, sides)
    return factor, f'{why}; an image costs {math.prod(sides) / math.prod(box):.2g} times as many pixels'


def _fit_batch(cfg, factor, images):
    """Change the batch size, and the one that the rate is for; return the reasons by key."""
    now = cfg.train_dataloader.get('batch_size')
    if not isinstance(now, int):
        return {}
    of_pixels, least = max(round(now / factor ** 2), 1), min(now, LEAST_BATCH)
    size = max(min(of_pixels, images // (8 * process_count()) if 'max_epochs' in cfg.train_cfg else now), least)
    if size == now:
        return {}
    cfg.train_dataloader.batch_size = size
    if 'base_batch_size' in (cfg.get('auto_scale_lr') or {}):
        base, step = cfg.auto_scale_lr.base_batch_size, size * process_count() * (value_at(cfg, ACCUMULATED) or 1)
        cfg.auto_scale_lr.base_batch_size = max(round(base * size / now), min(base, step))
    return {'train_dataloader.batch_size': (
        f'larger images, so that a step has {"the same number of" if of_pixels >= least else "not too many"} pixels'
        if max(of_pixels, least) == size else
        f'so that a pass over {counted(images, "images")} has more steps') + ', without scaling the learning rate',
            'auto_scale_lr.base_batch_size': 'the batch size that the learning rate is for'}


def fit_length(cfg, epoch_length: int, times: int = 1) -> dict:
    """Set the length of a run for its data, by the iterations of an epoch and how often that has each image; return the
    reasons by the keys that were changed."""
    key = next((key for key in UNITS if cfg.train_cfg.get(key)), None)
    if key is None:
        return {}
    now, whys = cfg.train_cfg[key], {}
    if key == 'max_epochs':
        length = min(max(now, -(-_ITERATIONS // epoch_length)), max(_MOST_EPOCHS, now))
        why = f'{length * epoch_length} iterations, before {now * epoch_length}'
    else:
        data = -(-epoch_length // times)
        length = min(max(now, _LEAST_PASSES * data), max(_MOST_PASSES * data, _ITERATIONS))
        why = f'{digits(length / data)} passes over the data, before {digits(now / data)}'
    if length != now:
        set_length(cfg, length, UNITS[key], epoch_length)
        whys.update({f'train_cfg.{key}': why, 'param_scheduler': 'scaled with the run'})
        if key == 'max_epochs' and cfg.train_cfg.get('val_interval', length) < length // _VALIDATIONS:
            set_val_interval(cfg, length // _VALIDATIONS)
            whys |= dict.fromkeys(('train_cfg.val_interval', 'default_hooks'), f'{_VALIDATIONS} validations')
    return whys


def suggest(cfg, base, source: str, settings=None, given=(), out=None) -> str:
    """Return the text of a config in the file ``out``, based on ``base``, that fits the data of ``cfg``, see `fit`;
    `ConfigError` if the config is not for a detector or segmentor, or does not consist of plain values, `DataError` if
    the data cannot be measured."""
    if task_of(cfg).fit is None:
        raise ConfigError(f'--suggest is for detectors and segmentors, not for {task_of(cfg).name}')
    fitted = copy.deepcopy(cfg)
    measured = fit(fitted, settings, given)
    if measured is None:
        raise DataError('--suggest needs one training data set on a local disk: a COCO file with objects, or label '
                        'maps whose pixels are numbers of classes')
    title = f'Suggested by train --suggest for {source}: {measured.in_words}.'
    return write_config(base_name(base, out), _changed(read_config(base), fitted),
                        [title, *changes_in_words(fitted.fitted)])


def _changed(own, cfg) -> dict:
    """Return what a config has that its file has not, by dotted key; lists, and dicts of another type, are whole."""
    cfg, found = copy.deepcopy(cfg), {}
    for loader in LOADERS:
        for dataset, other in zip(datasets(cfg, [loader]), datasets(own, [loader]), strict=False):
            kept = {key: dataset[key] for key in _OF_IMAGES if key in dataset}
            dataset.clear()
            dataset.update({**other, **kept})
    for part in PARTS:
        for key, old, value in changes(own.get(part), cfg.get(part), part, by_type=True):
            whole = re.split(r'\.\d', key)[0]
            if key.endswith('.num_classes') or '.init_cfg' in key:
                continue
            replaced = whole == key and isinstance(old, dict) and isinstance(value, dict)
            found[whole] = dict(_delete_=True, **value) if replaced else value_at(cfg, whole)
    return found


def write_config(base, values: dict, comments) -> str:
    """Return the text of a config that sets values by dotted key in ``base``, below lines of comments; `ConfigError`
    for a value that is no number, text, list or dict, such as the class of a pure-Python config."""
    lines = [line for text in comments for line in textwrap.wrap(text, 118, subsequent_indent='    ')]
    cfg = Config()
    cfg.merge_from_dict(values)
    try:
        ast.parse(text := cfg.pretty_text)
    except SyntaxError as error:
        raise ConfigError('--suggest can write only numbers, texts, lists and dicts, and this config has other '
                          f'values: {error}') from error
    return '\n'.join([*(f'# {line}' for line in lines), f'_base_ = {base!r}', '', text])
