"""Data sets beside each other and beside what judges them: the same one twice, or a metric for another one."""
from pathlib import Path

from ...text import counted, listed
from ..classes import difference_of
from ..datasets import LOADERS, ann_file_of, files_of, is_elsewhere, named_datasets
from ..evaluators import annotation_files
from .classes import wanted_classes
from .coco_file import read_coco
from .findings import Finding


def check_beside(cfg, loaders=LOADERS) -> list:
    """Find data sets that a loader reads twice, and metrics whose annotation file is not that of their loader.

    Args:
        cfg: The config.
        loaders: Those that will be used.

    Returns:
        Findings.
    """
    return [finding for loader in loaders for finding in (*_twice(cfg, loader), *_judged(cfg, loader))]


def _twice(cfg, loader):
    first = {}
    for name, _, dataset in named_datasets(cfg, [loader]):
        key = files_of(dataset)
        if key in first:
            yield Finding('data-set-twice', name, value=first[key])
        first.setdefault(key, name)


def _judged(cfg, loader):
    datasets = [dataset for *_, dataset in named_datasets(cfg, [loader]) if dataset.get('ann_file')]
    if any(is_elsewhere(dataset, dataset['ann_file']) for dataset in datasets):
        return
    own = [ann_file_of(dataset) for dataset in datasets]
    for key, file in annotation_files(cfg, [loader]) if datasets else ():
        if not file.exists():
            yield Finding('evaluator-data', key, value=f'its ann_file {file} is not there')
        elif [path.resolve() for path in own] != [file.resolve()]:
            yield from _compare(key, file, own, wanted_classes(datasets[0], bool(cfg.get('classes_from_data'))))


def _compare(key, file, own, wanted):
    """Yield findings where a metric's file has not the images, objects or classes of the loader's."""
    contents = [read_coco(path) for path in (file, *own)]
    if any(fault for _, fault in contents):
        return  # the checks of the files themselves tell
    try:
        (judge, classes), *read = [_content_of(content, wanted) for content, _ in contents]
    except (KeyError, TypeError, AttributeError):
        return
    images = {id: image for content, _ in read for id, image in content.items()}
    missing = [id for id in images if id not in judge]
    # the same image may have better annotations there, or another name
    others = [id for id, (known_by, objects) in images.items()
              if id in judge and judge[id][0] != known_by and judge[id][1] != objects]
    if missing:
        yield Finding('evaluator-data', key, value=(
            f'{file} has none of {counted(len(missing), "images")} of {own[0]}, such as '
            f'{listed(map(repr, missing), 3)}'))
    elif 2 * len(others) > len(images):
        yield Finding('evaluator-data', key, value=(
            f'in {file} {counted(len(others), "images")} have other names or sizes, and other objects, than by the '
            f'same ids in {own[0]}, such as {listed(map(repr, others), 3)}'))
    elif len(judge) > len(images):
        yield Finding('evaluator-more', key, value=(
            f'{file} has {counted(len(judge) - len(images), "images")} that are not in {own[0]}; their objects count '
            'as not found'))
    if difference := difference_of(classes, read[0][1]):
        yield Finding('evaluator-data', key, value=f'{file} has other classes than {own[0]}: {difference}')


def _content_of(content, wanted):
    """Return what an image is known by and its objects, by its id, and the classes that count."""
    names = {category['id']: category['name'] for category in content['categories']}
    images = {image['id']: ((Path(image['file_name']).stem, image['width'], image['height']), [])
              for image in content['images']}
    for annotation in content['annotations']:
        if annotation['image_id'] in images:
            images[annotation['image_id']][1].append((names.get(annotation['category_id']), annotation['bbox']))
    return images, [name for name in names.values() if wanted is None or name in wanted]
