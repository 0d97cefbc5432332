"""Does a config fit its data? What is remarkable, before a training, with the option that mends it."""
from typing import NamedTuple

import numpy as np

from ..config.check.schedule import WARM_UP, schedulers, shortened, warm_up_of
from ..config.framework import framework_of
from ..data.datasets import LOADERS, named_datasets
from ..text import counted, listed
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

#: Below this share of a token an object, and below that a band of a class, is hard to see.
SMALL, THIN = 0.5, 0.25
#: Enlarging images by more shows nothing that was not there.
MOST_ENLARGED = 1.5
#: Fewer objects, or images with a class, teach little.
RARE = 10
#: Fewer steps change hardly more than the rate of the warm-up does.
_SHORT = 300
_HUNDRED = 100


class Look(NamedTuple):
    """What a look at data and config together gives.

    Attributes:
        facts: Texts by a name, for the block at the start of a run.
        warnings: Sentences, each with the option that mends it.
    """
    facts: dict
    warnings: list


def look(cfg, epoch_length: int = None, images: int = None) -> Look:
    """Look whether a config fits the training data; data that cannot be measured has no lines.

    Args:
        cfg: The config, its classes known.
        epoch_length: The iterations of an epoch, where that is known.
        images: Those of a batch of all processes, likewise.
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
        facts['objects'] = (f'{median:.3g} pixels after resizing by the median{tokens} (8 in 10 have {low:.3g} to '
                            f'{high:.3g}); {objects.most(50)} an image, {objects.most(100)} at most')
        if patch and median < SMALL * patch:
            warnings.append(f'the median object has {median:.2g} pixels after resizing, {median / patch:.2g} tokens of '
                            f'{patch} pixels: {_larger(step, objects, SMALL * patch / median)}')
        _look_at_anchors(anchors_of(cfg), boxes, facts, warnings)
    most = objects.most(99)
    for key, kept in objects_kept(cfg.model).items():
        # of proposals, several are of one object
        need = 2 * most if 'rpn' in key else most
        if kept < need:
            warnings.append(f'images have up to {counted(most, "objects")} (99 in 100 of them), and {key} = {kept}: '
                            f'--cfg-options {key}={rounded(1.5 * need, 50)}')
    if counts_hundred(cfg) and most > _HUNDRED:
        warnings.append(f'images have up to {most} objects, and COCO\'s mAP counts the {_HUNDRED} best of an image: it '
                        'cannot reach 1; mAP_50 and the others count 1000')
    if objects.too_small:
        key = named_datasets(cfg, LOADERS[:1])[0][1]
        warnings.append(f'{counted(objects.too_small, "images")} have a side below the min_size of the filter_cfg and '
                        f'are left out: --cfg-options {key}.filter_cfg.min_size=1')


def _look_at_anchors(anchors, boxes, facts, warnings):
    if anchors is None:
        return
    best = best_ious(boxes, anchors.shapes)
    fitting, least = (best >= anchors.positive).mean(), max(anchors.least, NO_ANCHOR)
    facts['anchors'] = (f'{fitting:.0%} of the boxes have one of an IoU of {anchors.positive:g} with them (centred); '
                        f'the median has {np.median(best):.2f}')
    if are_poor(best, anchors.least):
        sides, (low, high) = np.sqrt(anchors.shapes.prod(1)), np.percentile(np.sqrt(boxes.prod(1)), (10, 90))
        warnings.append(f'the anchors do not fit the boxes: {(best < least).mean():.0%} of these have none of an IoU '
                        f'of {least:g}. Anchors measure {sides.min():.3g} to {sides.max():.3g} pixels, 8 in 10 boxes '
                        f'{low:.3g} to {high:.3g}: change the scales or ratios of {anchors.key}, as --suggest does')


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
    """Return the option that enlarges the images by a factor, or as much as makes sense."""
    sizes, count = measured.images[:, :2], measured.images[:, 2]
    now = np.average(zooms(step, sizes).mean(1), weights=count)
    wanted = min(now * factor, MOST_ENLARGED)
    if wanted < 1.1 * now:
        return 'the images have no more to show; a backbone with patch 8 (configs with p8) has four times the tokens'
    side = rounded(wanted * np.average(sizes.max(1), weights=count), 32)
    return f'--image-size {side}'


def _look_at_classes(task, measured, warnings):
    what = 'objects' if task == 'mmdet' else 'images'
    amounts = {name: values[0] if task == 'mmdet' else values[1] for name, values in measured.classes.items()}
    rare = sorted((name for name, amount in amounts.items() if amount < RARE), key=amounts.get)
    if rare and measured.count >= RARE:
        repeated = '; --suggest repeats images that have one' if task == 'mmdet' else ''
        warnings.append(f'{_named(rare)} {"has" if len(rare) == 1 else "have"} fewer than {RARE} {what} to learn from '
                        f'(the fewest: {amounts[rare[0]]}): more of them are needed'
                        + (repeated if amounts[rare[-1]] else ', or the class left out'))


def _look_at_length(cfg, epoch_length, images, measured, warnings):
    if measured and images and measured.count < images:
        warnings.append(f'a step takes {images} images and the data has {measured.count}: '
                        f'--batch-size {max(measured.count // 4, 1)}')
    found = warm_up_of(cfg, epoch_length)
    if found and 0.25 * found[2] < found[1] <= found[2]:  # beyond the run is told by the check of the schedule
        path, end, length, unit = found
        shorter = shortened(dict(schedulers(cfg.param_scheduler, 'param_scheduler'))[path],
                            int(WARM_UP * length) // unit)
        if shorter * unit < end:
            warnings.append(f'{path} warms up for {end} of the {length} iterations: --cfg-options {path}.end={shorter}')
    train = cfg.get('train_cfg') or {}
    if measured and epoch_length and train.get('max_epochs') and train['max_epochs'] * epoch_length < _SHORT:
        warnings.append(f'the run has {train["max_epochs"] * epoch_length} iterations in all, which are few: '
                        f'--epochs {-(-1000 // epoch_length)}')
    elif measured and (train.get('max_iters') or _SHORT) < _SHORT:
        warnings.append(f'the run has {train["max_iters"]} iterations in all, which are few: --iterations 1000')


def _named(names):
    names = list(names)
    return f'{"the class" if len(names) == 1 else f"{len(names)} classes"} {listed(map(repr, names))}'
