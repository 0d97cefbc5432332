"""Check whether a config fits its data: problems before a training, each with the option that fixes it."""
from collections.abc import Callable
from typing import NamedTuple

from ..._utils.text import counted, named_classes, shown
from ..check import warm_up_of
from ..length import repeats_of
from ..tasks import task_of
from .detection import factor_for_objects, fit_detector, look_at_objects, share_of_rare
from .geometry import RARE, measure_objects
from .maps import factor_for_maps, look_at_maps, loss_for_thin, measure_maps

#: In a run of fewer iterations the model changes hardly more than in a warm-up.
_SHORT = 300


class Fit(NamedTuple):
    """How configs of a kind are fitted to their data."""
    measure: Callable  # from a config to what it is trained on
    look: Callable  # adds facts and warnings to those of `look`
    #: From config, resizing step, data and fewest images of a step to the factor that enlarges images, and the reason.
    factor: Callable
    change: Callable | None  # changes the model for the data, see `fit_detector`
    add: Callable  # from config and data to what is added: its record's name, value and reason; or None
    examples: str  # what a class is learnt from


OF_OBJECTS = Fit(measure_objects, look_at_objects, factor_for_objects, fit_detector, share_of_rare, 'objects')
OF_MAPS = Fit(measure_maps, look_at_maps, factor_for_maps, None, loss_for_thin, 'images')


class Look(NamedTuple):
    """The result of `look`."""
    facts: dict  # texts by name, for the block at the start of a run
    warnings: list  # sentences, each with the option that fixes the problem
    data: str = ''  # what was looked at, in words; '' if it cannot be measured


def look(cfg, epoch_length: int = None, images: int = None) -> Look:
    """Check whether a config, with its classes, fits the training data; data that cannot be measured gives no lines.

    Without the iterations of an epoch, those of the measured images count. ``images`` are those of a batch, over all
    processes, if known.
    """
    facts, warnings, others, measured = {}, [], [], None
    if fit := task_of(cfg).part('fit'):
        if measured := fit.measure(cfg):
            times = repeats_of(cfg)
            epoch_length = epoch_length or images and times and -(-measured.count * times // images)
            fit.look(cfg, measured, facts, others)
            _look_at_classes(fit, measured, 'fitted' in cfg, others)
        if _look_at_length(cfg, epoch_length, images, measured, warnings):  # larger images would need more still
            others = [line for line in others if '--image-size' not in line]
    return Look(facts, warnings + others, measured.in_words if measured else '')


def describe_fit(cfg, found: Look) -> dict:
    """Return what a start says about the fit, by name: what was changed, the facts, and under '' the warnings."""
    lines = dict(found.facts)
    if 'fitted' in cfg:
        was = cfg.get('fitted_to')
        title = (f'to {was}, which is not this data: train with the original config to fit it again'
                 if was not in (None, found.data) else
                 'to the data (--no-fit keeps the recipe)' if cfg.fitted else
                 'nothing was changed' if found.warnings else 'the recipe fits the data')
        lines = {'fitted': '\n  '.join([title + ':' * bool(cfg.fitted), *changes_in_words(cfg.fitted)]), **lines}
    if found.warnings:
        lines[''] = '\n'.join(['the config may not fit the data:', *(f'  {line}' for line in found.warnings),
                               *['--suggest prints a config that fits'] * ('fitted' not in cfg)])
    return lines


def changes_in_words(fitted) -> list:
    """Return a line for each change that `fit` of `fitting` recorded; one reason may be for several."""
    lines, last = [], ''
    for key, before, after, why in ((change[name] for name in ('key', 'before', 'after', 'why')) for change in fitted):
        lines.append(f'{key}  {shown(before)} -> {shown(after)}' + (f'  ({why})' if why not in ('', last) else ''))
        last = why
    return lines


def _look_at_classes(fit, measured, is_fitted, warnings):
    amounts = measured.examples
    rare = sorted((name for name, amount in amounts.items() if amount < RARE), key=amounts.get)
    if rare and measured.count >= RARE:
        repeated = '; --suggest repeats the images that have one' if fit.change and not is_fitted else ''
        warnings.append(f'{named_classes(rare)} {"has" if len(rare) == 1 else "have"} fewer than {RARE} {fit.examples} '
                        f'to learn from (the fewest: {amounts[rare[0]]}): add more'
                        + (repeated if amounts[rare[-1]] else ', or remove classes without any'))


def _look_at_length(cfg, epoch_length, images, measured, warnings):
    """Add warnings about the length; return whether the run is too short to learn."""
    if measured and images and measured.count < images:
        warnings.append(f'a step needs {images} images, but the data has only {measured.count}: '
                        f'use --batch-size {max(measured.count // 4, 1)}')
    if found := warm_up_of(cfg, epoch_length):
        path, node, end, length, shorter = found
        if 0.25 * length < end <= length and shorter < node['end']:  # check_schedule reports one beyond the run
            warnings.append(f'{path} warms up for {end} of the {length} iterations: use --cfg-options '
                            f'{path}.end={shorter}')
    epochs, iterations = map((cfg.get('train_cfg') or {}).get, ('max_epochs', 'max_iters'))
    length = iterations or (epochs or 0) * (epoch_length or 0)
    is_short = bool(measured) and 0 < length < _SHORT
    if is_short and not cfg.get('timed'):  # as short as it was asked for
        option = f'--epochs {-(-1000 // epoch_length)}' if epochs and epoch_length else '--iterations 1000'
        warnings.append(f'the run has only {counted(length, "iterations")} in all: use {option}')
    return is_short
