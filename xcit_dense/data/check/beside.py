"""Data sets compared with each other and with their metrics: one read twice, or a metric for a different one."""
import os
from pathlib import Path

from ...files import stamp_of
from ...text import counted, listed
from ..classes import difference_of
from ..datasets import LOADERS, ann_file_of, files_of, is_elsewhere, named_datasets
from ..evaluators import annotation_files
from ..files import recall, remember
from .classes import wanted_classes
from .coco_file import read_coco
from .findings import Finding


def check_beside(cfg, loaders=LOADERS, use_cache: bool = True) -> list:
    """Find data sets that a loader reads twice, and metrics whose annotation file is not the one of their loader.

    Args:
        cfg: The config.
        loaders: The loaders that will be used.
        use_cache: Whether to reuse results for files with the same size and time.

    Returns:
        Findings.
    """
    return [finding for loader in loaders for finding in (*_twice(cfg, loader), *_judged(cfg, loader, use_cache))]


def _twice(cfg, loader):
    first = {}
    for name, _, dataset in named_datasets(cfg, [loader]):
        key = files_of(dataset)
        if key in first:
            yield Finding('data-set-twice', name, value=first[key])
        first.setdefault(key, name)


def _judged(cfg, loader, use_cache):
    datasets = [dataset for *_, dataset in named_datasets(cfg, [loader]) if dataset.get('ann_file')]
    if any(is_elsewhere(dataset, dataset['ann_file']) for dataset in datasets):
        return
    own = [ann_file_of(dataset) for dataset in datasets]
    for key, file in annotation_files(cfg, [loader]) if datasets else ():
        if not file.exists():
            yield Finding('evaluator-data', key, value=f'its ann_file {file} does not exist')
        elif [path.resolve() for path in own] != [file.resolve()]:
            wanted = wanted_classes(datasets[0], bool(cfg.get('classes_from_data')))
            yield from (Finding(kind, key, value=value) for kind, value in _compared(file, own, wanted, use_cache))


def _compared(file, own, wanted, use_cache):
    """Return what `_compare` yields, from the cache if the files are the same."""
    files = [file, *own]
    place = f'beside {[os.path.abspath(path) for path in own]} {wanted}', file
    if not all(path.is_file() for path in files):
        return []  # the checks of the files themselves report it
    stamps = [stamp_of(path) for path in files]
    known = recall(*place) if use_cache else None
    if known and known['stamps'] == stamps:
        return known['found']
    contents = [read_coco(path) for path in files]
    if any(fault for _, fault in contents):
        return []
    found = list(_compare(file, own, [content for content, _ in contents], wanted))
    if use_cache:
        remember(*place, dict(stamps=stamps, found=found))
    return found


def _compare(file, own, contents, wanted):
    """Yield kinds and values where a metric's file lacks images, objects or classes of the loader's file."""
    try:
        (judge, classes), *read = [_content_of(content, wanted) for content in contents]
    except (KeyError, TypeError, AttributeError):
        return
    images = {id: image for content, _ in read for id, image in content.items()}
    missing = [id for id in images if id not in judge]
    # the same image may have better annotations or another name there
    others = [id for id, (known_by, objects) in images.items()
              if id in judge and judge[id][0] != known_by and judge[id][1] != objects]
    if missing:
        yield 'evaluator-data', (
            f'{file} lacks {counted(len(missing), "images")} of {own[0]}: {listed(map(repr, missing), 3)}')
    elif 2 * len(others) > len(images):
        yield 'evaluator-data', (
            f'{file} has other names or sizes and other objects than {own[0]} for the ids of '
            f'{counted(len(others), "images")}: {listed(map(repr, others), 3)}')
    elif len(judge) > len(images):
        yield 'evaluator-more', (
            f'{file} has {counted(len(judge) - len(images), "images")} that are not in {own[0]}; their objects count '
            'as missed')
    if difference := difference_of(classes, read[0][1]):
        yield 'evaluator-data', f'{file} has different classes than {own[0]}: {difference}'


def _content_of(content, wanted):
    """Return the name, size and objects of each image by its id, and the classes that count."""
    names = {category['id']: category['name'] for category in content['categories']}
    images = {image['id']: ((Path(image['file_name']).stem, image['width'], image['height']), [])
              for image in content['images']}
    for annotation in content['annotations']:
        if annotation['image_id'] in images:
            images[annotation['image_id']][1].append((names.get(annotation['category_id']), annotation['bbox']))
    return images, [name for name in names.values() if wanted is None or name in wanted]
