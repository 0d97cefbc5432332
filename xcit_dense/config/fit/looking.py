"""Check whether a config fits its data: report problems before a training, each with the option that fixes it."""
from typing import NamedTuple

import numpy as np

from ..._utils.text import counted, listed
from ...data.datasets import LOADERS, named_datasets
from ..check.schedule import WARM_UP, schedulers, shortened, warm_up_of
from ..framework import framework_of
from .geometry import (
    NO_ANCHOR,
    anchors_of,
    are_poor,
    best_ious,
    counts_hundred,
    objects_kept,
    patch_of,
    resize_of,
    rounded,
    zooms,
)
from .maps import measure_maps
from .objects import measure_objects

#: The size in tokens below which an object is hard to see, and the width below which a band of a class is.
SMALL, THIN = 0.5, 0.25
#: Enlarging images by more adds no detail.
MOST_ENLARGED = 1.5
#: A class with fewer objects (or images that have it) is hard to learn.
RARE = 10
#: In a run of fewer iterations the model changes hardly more than in a warm-up.
_SHORT = 300
_HUNDRED = 100


class Look(NamedTuple):
    """The result of `look`.

    Attributes:
        facts: Texts by name, for the block at the start of a run.
        warnings: Sentences, each with the option that fixes the problem.
    """
    facts: dict
    warnings: list


def look(cfg, epoch_length: int = None, images: int = None) -> Look:
    """Check whether a config fits the training data; data that cannot be measured gives no lines.

    Args:
        cfg: The config, with its classes.
        epoch_length: The iterations of an epoch, if known.
        images: The images of a batch, over all processes, if known.
    """
    facts, warnings = {}, []
    task = framework_of(cfg)
    if task not in ('mmdet', 'mmseg'):
        return Look(facts, warnings)
    measured = measure_objects(cfg) if task == 'mmdet' else measure_maps(cfg)
    if task == 'mmdet' and measured:
        _look_at_objects(cfg, measured, facts, warnings)
    elif measured:
        _look_at_maps(cfg, measured, facts, warnings)
    if measured:
        _look_at_classes(task, measured, warnings)
    _look_at_length(cfg, epoch_length, images, measured, warnings)
    return Look(facts, warnings)


def _look_at_objects(cfg, objects, facts, warnings):
    step, patch = resize_of(cfg), patch_of(cfg)
    if step is not None:
        zoom = zooms(step, objects.boxes[:, :2])
        boxes = objects.boxes[:, 2:] * zoom
        low, median, high = np.percentile(np.sqrt(boxes.prod(1)), (10, 50, 90))
        tokens = f', {median / patch:.2g} tokens' if patch else ''
        facts['objects'] = (f'median {median:.3g} pixels after resizing{tokens} (80% have {low:.3g} to {high:.3g}); '
                            f'median {objects.most(50)} per image, {objects.most(100)} at most')
        if patch and median < SMALL * patch:
            warnings.append(f'the median object has {median:.2g} pixels after resizing, {median / patch:.2g} tokens of '
                            f'{patch} pixels: {_larger(step, objects, SMALL * patch / median)}')
        _look_at_anchors(anchors_of(cfg), boxes, facts, warnings)
    most = objects.most(99)
    for key, kept in objects_kept(cfg.model).items():
        # one object has several proposals
        need = 2 * most if 'rpn' in key else most
        if kept < need:
            what = 'proposals' if 'rpn' in key else 'detections'
            warnings.append(f'99% of the images have up to {counted(most, "objects")}, which need {need} {what}, but '
                            f'{key} = {kept}: use --cfg-options {key}={rounded(1.5 * need, 50)}')
    if counts_hundred(cfg) and most > _HUNDRED:
        warnings.append(f'images have up to {most} objects, but COCO\'s mAP counts only the {_HUNDRED} best of an '
                        'image, so it cannot reach 1; mAP_50 and the others count 1000')
    if objects.too_small:
        key = named_datasets(cfg, LOADERS[:1])[0][1]
        warnings.append(f'{counted(objects.too_small, "images")} with a side below the min_size of the filter_cfg '
                        f'{"is" if objects.too_small == 1 else "are"} not used: use --cfg-options '
                        f'{key}.filter_cfg.min_size=1')


def _look_at_anchors(anchors, boxes, facts, warnings):
    if anchors is None:
        return
    best = best_ious(boxes, anchors.shapes)
    fitting, least = (best >= anchors.positive).mean(), max(anchors.least, NO_ANCHOR)
    facts['anchors'] = (f'{fitting:.0%} of the boxes have an anchor with an IoU of {anchors.positive:g} or more '
                        f'(centred); median of the best IoU {np.median(best):.2f}')
    if are_poor(best, anchors.least):
        sides, (low, high) = np.sqrt(anchors.shapes.prod(1)), np.percentile(np.sqrt(boxes.prod(1)), (10, 90))
        warnings.append(f'the anchors do not fit the boxes: {(best < least).mean():.0%} of the boxes have no anchor '
                        f'with an IoU of {least:g}. Anchors measure {sides.min():.3g} to {sides.max():.3g} pixels, 80% '
                        f'of the boxes {low:.3g} to {high:.3g}: change the scales or ratios of {anchors.key}, as '
                        '--suggest does')


def _look_at_maps(cfg, maps, facts, warnings):
    step, patch = resize_of(cfg), patch_of(cfg)
    rarest = min(maps.classes, key=lambda name: maps.classes[name][0], default=None)
    words = [f'the rarest class {rarest!r} has {maps.classes[rarest][0]:.2%} of the pixels'] if rarest else []
    if step is not None and maps.widths:
        zoom = np.average(zooms(step, maps.images[:, :2]).mean(1), weights=maps.images[:, 2])
        widths = {name: width * zoom for name, width in maps.widths.items()}
        name = min(widths, key=widths.get)
        tokens = f', {widths[name] / patch:.2g} tokens' if patch else ''
        words.insert(0, f'the thinnest class {name!r} is {widths[name]:.2g} pixels wide after resizing{tokens}')
        thin = {name: width for name, width in widths.items() if patch and width < THIN * patch}
        if thin:
            warnings.append(f'{_named(thin)} {"is" if len(thin) == 1 else "are"} less than a quarter of a token wide '
                            f'after resizing, {min(thin.values()):.2g} pixels: '
                            f'{_larger(step, maps, THIN * patch / min(thin.values()))}')
    if words:
        facts['labels'] = '; '.join(words)


def _larger(step, measured, factor):
    """Return advice to enlarge the images by a factor, or by as much as makes sense."""
    sizes, count = measured.images[:, :2], measured.images[:, 2]
    now = np.average(zooms(step, sizes).mean(1), weights=count)
    wanted = min(now * factor, MOST_ENLARGED)
    if wanted < 1.1 * now:
        return 'larger images would show no more; use a backbone with patch 8 (configs with p8): four times the tokens'
    side = rounded(wanted * np.average(sizes.max(1), weights=count), 32)
    return f'use --image-size {side}'


def _look_at_classes(task, measured, warnings):
    what = 'objects' if task == 'mmdet' else 'images'
    amounts = {name: values[0] if task == 'mmdet' else values[1] for name, values in measured.classes.items()}
    rare = sorted((name for name, amount in amounts.items() if amount < RARE), key=amounts.get)
    if rare and measured.count >= RARE:
        repeated = '; --suggest repeats the images that have one' if task == 'mmdet' else ''
        warnings.append(f'{_named(rare)} {"has" if len(rare) == 1 else "have"} fewer than {RARE} {what} to learn from '
                        f'(the fewest: {amounts[rare[0]]}): add more'
                        + (repeated if amounts[rare[-1]] else ', or remove classes without any'))


def _look_at_length(cfg, epoch_length, images, measured, warnings):
    if measured and images and measured.count < images:
        warnings.append(f'a step needs {images} images, but the data has only {measured.count}: '
                        f'use --batch-size {max(measured.count // 4, 1)}')
    found = warm_up_of(cfg, epoch_length)
    if found and 0.25 * found[2] < found[1] <= found[2]:  # check_schedule reports one beyond the run
        path, end, length, unit = found
        shorter = shortened(dict(schedulers(cfg.param_scheduler, 'param_scheduler'))[path],
                            int(WARM_UP * length) // unit)
        if shorter * unit < end:
            warnings.append(f'{path} warms up for {end} of the {length} iterations: use --cfg-options '
                            f'{path}.end={shorter}')
    train = cfg.get('train_cfg') or {}
    if measured and epoch_length and train.get('max_epochs') and train['max_epochs'] * epoch_length < _SHORT:
        warnings.append(f'the run has only {counted(train["max_epochs"] * epoch_length, "iterations")} in all: '
                        f'use --epochs {-(-1000 // epoch_length)}')
    elif measured and (train.get('max_iters') or _SHORT) < _SHORT:
        warnings.append(f'the run has only {counted(train["max_iters"], "iterations")} in all: use --iterations 1000')


def _named(names):
    names = list(names)
    return f'{"the class" if len(names) == 1 else f"{len(names)} classes"} {listed(map(repr, names))}'
