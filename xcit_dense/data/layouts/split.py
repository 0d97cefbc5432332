"""Annotations without a split: images that are held out for validation, the same ones in every run."""
import hashlib
import re
from pathlib import Path

from ...errors import ConfigError, DataError
from ...weights.work_dirs import checkpoints_in
from ..files import read_json

SHARE = 0.2
#: The key of ``info`` that says how a file was made.
_KEY = 'xcit_dense'


def divide(content: dict, source: str, folder: Path, share=None) -> tuple:
    """Divide the images of a COCO file into training and validation.

    Images are drawn by their names alone, those with objects and those without apart. Copies of an image that Roboflow
    augmented stay together. What was divided in ``folder`` before keeps its part.

    Args:
        content: That of the file.
        source: Its name, by which it is known again.
        folder: Where ``train.json`` and ``val.json`` of an earlier run may lie.
        share: Of the images for validation; by default that of an earlier run, or `SHARE`.

    Returns:
        The contents for training and validation, and the share.

    Raises:
        ConfigError: The share cannot be, or is another one than that of a training in the same work dir.
        DataError: There are too few images.
    """
    if share is not None and not 0 < share < 1:
        raise ConfigError(f'--val-share must be above 0 and below 1, not {share:g}')
    known, before = _known(folder, source)
    if before is not None and share not in (None, before):
        if checkpoints_in(folder.parent):
            raise ConfigError(f'--val-share {share:g}: the training in {folder.parent} held out {before:g} of the same '
                              'images. Leave it out, or give another --work-dir')
        known, before = {}, None
    share = share or before or SHARE
    held = _held_out(content, known, share, source)
    ids = {image['id'] for image in content['images'] if image['file_name'] in held}
    parts = []
    for wanted in (False, True):
        images = [image for image in content['images'] if (image['file_name'] in held) == wanted]
        # those of no image stay in the training, for the check of the data to tell
        annotations = [annotation for annotation in content['annotations']
                       if (annotation.get('image_id') in ids) == wanted]
        info = dict(description=f'{"validation" if wanted else "training"} images of {source}',
                    **{_KEY: dict(source=source, share=share)})
        parts.append(dict(content, info=info, images=images, annotations=annotations))
    return *parts, share


def _known(folder, source):
    """Return the part of each image that was divided before, and the share that was held out."""
    found, shares = {}, set()
    for part in ('train', 'val'):
        try:
            content = read_json(folder / f'{part}.json')
            made = content['info'][_KEY]
            if made['source'] == source:
                found.update((image['file_name'], part) for image in content['images'])
                shares.add(made['share'])
        except (OSError, ValueError, KeyError, TypeError):  # it was not divided, or is not there
            continue
    # two of them: another process is writing them anew
    return (found, shares.pop()) if len(shares) == 1 else ({}, None)


def _held_out(content, known, share, source):
    """Return the names of the images for validation."""
    annotated = {annotation.get('image_id') for annotation in content['annotations']}
    groups = {}
    for image in content['images']:
        groups.setdefault(_origin_of(image['file_name']), []).append(image)
    kinds = [], []
    for name, images in groups.items():
        kinds[any(image['id'] in annotated for image in images)].append(name)
    if len(kinds[True]) < 2:
        raise DataError(f'{source} has {len(kinds[True])} images with objects, which cannot be divided into training '
                        'and validation: give --val-annotations FILE with other images')
    held = set()
    for has_objects, names in enumerate(kinds):
        number = round(share * len(names))
        if has_objects:
            number = min(max(number, 1), len(names) - 1)
        before = {name: {known.get(image['file_name']) for image in groups[name]} - {None} for name in names}
        kept = [name for name in names if 'val' in before[name]]
        new = sorted((name for name in names if not before[name]), key=_draw)
        held.update(kept, new[:max(number - len(kept), 0)])
    return {image['file_name'] for name in held for image in groups[name]}


def _origin_of(name):
    """Return the name of the image that copies were made of, such as ``a_jpg.rf.0123abcd.jpg``."""
    return re.sub(r'\.rf\.[0-9A-Za-z]+(?=\.\w+$)', '', name)


def _draw(name):
    return hashlib.sha256(name.encode()).digest(), name
