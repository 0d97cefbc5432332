"""Splits data without a split: the same images are held out for validation in every run."""
import hashlib
import re

from ...errors import ConfigError, DataError
from ...text import counted
from ...weights.files import checkpoints_in
from ..files import read_json
from .writing import Made

SHARE = 0.2
_DIVIDED = 'divided.json'


def hold_out(images, made: Made, source: str, fix: str, share=None, judged=None) -> tuple:
    """Choose the images for validation only by their names.

    Copies of an image that Roboflow augmented stay together. Images that were divided before, in data with these names,
    keep their part.

    Args:
        images: The names of the images.
        made: Stores the split.
        source: Where the images come from, for errors.
        fix: The options that name validation data, for errors.
        share: The share of images for validation; by default that of an earlier run, or `SHARE`.
        judged: The images with objects, which are divided separately because a model can only be evaluated on them.
            By default all.

    Returns:
        The names of the images for validation, a set, and the share.

    Raises:
        ConfigError: The share is out of range, or differs from that of a training in the same work dir.
        DataError: There are too few images.
    """
    if share is not None and not 0 < share < 1:
        raise ConfigError(f'--val-share must be above 0 and below 1, not {share:g}')
    known, before = _known(made, images)
    if before is not None and share not in (None, before):
        if checkpoints_in(made.work_dir):
            raise ConfigError(f'--val-share {share:g}: the training in {made.work_dir} held out {before:g} of the same '
                              'images. Omit it, or use another --work-dir')
        known, before = {}, None
    share = share or before or SHARE
    held = _draw(images, known, share, images if judged is None else judged)
    if held is None:
        number = counted(len(images if judged is None else judged), 'images')
        raise DataError(f'{source} has only {number}{"" if judged is None else " with objects"}, too few for training '
                        f'and validation. Name other images for validation with {fix}')
    parts = {part: [name for name in images if (name in held) == (part == 'val')] for part in ('train', 'val')}
    made.write_json(_DIVIDED, dict(share=share, **parts))
    return held, share


def _known(made, images):
    """Return the part of each image in an earlier split, and the share that was held out."""
    images = set(images)
    for folder in made.earlier:
        try:
            content = read_json(folder / _DIVIDED)
            known = {name: part for part in ('train', 'val') for name in content[part] if name in images}
            if known:
                return known, float(content['share'])
        except (OSError, ValueError, KeyError, TypeError):  # nothing was divided
            continue
    return {}, None


def _draw(images, known, share, judged):
    """Return the names of the images for validation, None if there are too few."""
    judged, groups = set(judged), {}
    for name in images:
        groups.setdefault(_origin_of(name), []).append(name)
    kinds = [], []
    for origin, names in groups.items():
        kinds[not judged.isdisjoint(names)].append(origin)
    if len(kinds[True]) < 2:
        return None
    held = []
    for is_judged, origins in enumerate(kinds):
        number = round(share * len(origins))
        if is_judged:
            number = min(max(number, 1), len(origins) - 1)
        before = {origin: {known.get(name) for name in groups[origin]} - {None} for origin in origins}
        kept = [origin for origin in origins if 'val' in before[origin]]
        new = sorted((origin for origin in origins if not before[origin]), key=_number)
        held += kept + new[:max(number - len(kept), 0)]
    return {name for origin in held for name in groups[origin]}


def _origin_of(name):
    """Return the name of the image that a copy, such as ``a_jpg.rf.0123abcd.jpg``, was made from."""
    return re.sub(r'\.rf\.[0-9A-Za-z]+(?=\.\w+$)', '', name)


def _number(name):
    return hashlib.sha256(name.encode()).digest(), name
