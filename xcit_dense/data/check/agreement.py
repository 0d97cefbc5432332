"""What must agree: the classes of config, data and heads, and data sets with each other and with their metrics."""
from pathlib import Path

from ..._utils.text import counted, listed, nearest
from ...errors import DataError
from ..class_folders import ClassImages
from ..classes import difference_of, explicit_classes, heads_of_classes
from ..datasets import LOADERS, datasets
from ..evaluators import annotation_files
from ..files import Unreadable, read_class_list
from ..label_maps import void_names
from .coco_file import read_coco
from .findings import Finding


def wanted_classes(dataset, from_data: bool):
    """Return the class names that a config sets for its data set, or the data set's own; None if any will do.

    Args:
        dataset: The config.
        from_data: Whether the names come from the data, unless the config already has some.

    Raises:
        DataError: The config names a file of classes that cannot be read.
    """
    names = (dataset.get('metainfo') or {}).get('classes') or dataset.get('classes')  # mmpretrain accepts both
    if isinstance(names, str):
        try:
            names = Path(names).read_text().splitlines()
        except (OSError, ValueError) as error:
            raise DataError('metainfo.classes must be a list of names, or a file with one name per line; '
                            f'{names!r} cannot be read: {error}') from error
    if names is None and not from_data:
        names = dataset.own_classes
    return None if names is None else tuple(names)


def check_names(source, wanted, found) -> list:
    """Compare the class names of a config and of a file, by name.

    Args:
        source: The file.
        wanted: The names of the config, or None if any will do.
        found: The names of the file, in its order.

    Returns:
        Findings.
    """
    if wanted is None:
        return []
    findings = []
    missing = [name for name in wanted if name not in found]
    unused = [name for name in found if name not in wanted]
    if missing:
        lowered = {name.lower(): name for name in unused}
        near = {name: nearest(name.lower(), lowered) for name in missing}
        words = (repr(name) + (f' (it has {lowered[near[name][0]]!r})' if near[name] else '') for name in missing)
        findings.append(Finding('class-missing', str(source), value=(
            f'{len(missing)} of the {counted(len(wanted), "classes")} of the config: {listed(words)}')))
    if unused:
        findings.append(Finding('class-unused', str(source), value=(
            f'{counted(len(unused), "classes")} that the config does not use: {listed(map(repr, unused))}')))
    order = [name for name in found if name in wanted]
    if not missing and len(order) == len(set(order)) and (difference := difference_of(order, wanted)):
        findings.append(Finding('class-order', str(source), value=difference))
    return findings


def check_void(source, names, first: int, ignored) -> list:
    """Find class names that mean that a pixel has no class.

    Args:
        source: Where the names are from.
        names: The names of the labels from the first on.
        first: The first label.
        ignored: Labels that are ignored already.

    Returns:
        Findings.
    """
    found = [(place + first, name) for place, name in void_names(names) if place + first not in ignored]
    return [Finding('class-void', str(source), value=(
        f'{listed(repr(name) for _, name in found)}. To ignore these pixels: --ignore-label '
        f'{" ".join(str(label) for label, _ in found)}'))] if found else []


def listed_names(path):
    """Return the names of a ``classes.txt``, or None if there is no such file, and findings."""
    try:
        return read_class_list(path), []
    except Unreadable as error:
        return None, [Finding('class-list', str(path), value=str(error))]


def check_classes(cfg) -> list:
    """Compare the number of classes of the heads and the classes of the other data with those of the training data.

    With ``classes_from_data`` there is nothing to compare before `xcit_dense.data.classes.take_classes`.

    Args:
        cfg: The config.

    Returns:
        Findings; those that concern only the test data are warnings.
    """
    if words := explicit_classes(cfg):
        return [Finding('class-explicit', cfg.filename or 'the config', value=words)]
    sets = {name: datasets(cfg, [name]) for name in LOADERS}
    from_data = bool(cfg.get('classes_from_data'))
    first = sets[LOADERS[0]][0] if sets[LOADERS[0]] else None
    wanted = wanted_classes(first, from_data) if first else None
    images = None if from_data or not first else _images_of(first)  # otherwise `take_classes` looks at them
    if wanted is None and images:
        wanted = _classes_of(images)
    if wanted is None:
        return []
    findings = []
    # of panoptic data, heads for boxes and masks have only the things
    number = len(getattr(first.type, 'METAINFO', {}).get('thing_classes') or wanted)
    for head in heads_of_classes(cfg.model):
        if head.get('num_classes', number) != number:
            # classes without objects are never learned, as intended for an open vocabulary
            kind = 'class-count' if head['num_classes'] < number else 'class-spare'
            findings.append(Finding(kind, f'model.{head.get("type")}', value=(
                f'has num_classes = {head["num_classes"]}, but the training data has '
                f'{counted(number, "classes")}')))
    for loader, members in sets.items():
        for dataset in members:
            names = wanted_classes(dataset, from_data)
            if names is not None and names != wanted:
                kind = 'class-test' if loader == LOADERS[-1] else 'class-count'
                findings.append(Finding(kind, loader, value=(
                    'has different classes than the training data, or a different order: '
                    f'{difference_of(names, wanted)}')))
            elif images and dataset is not first:
                findings += _other_folders(loader, images, _images_of(dataset))
    return findings


def _images_of(dataset):
    return ClassImages(dataset) if dataset.reader == 'CustomDataset' else None


def _classes_of(images):
    try:
        return images.classes() or None
    except DataError:  # the check of the data set reports it
        return None


def _other_folders(loader, images, others):
    """Yield a finding if other data has different class folders than the training data, which shifts the numbers."""
    if not others or images.list or others.list:
        return
    wanted, names = _classes_of(images), _classes_of(others)
    if wanted and names and (difference := difference_of(names, wanted)):
        yield Finding('class-test' if loader == LOADERS[-1] else 'class-count', loader, value=(
            f'has different class folders than the training data: {difference}. {others.advice}'))


def check_beside(cfg, loaders=LOADERS) -> list:
    """Find data sets that a loader reads twice, and metrics whose annotation file is not the one of their loader.

    Args:
        cfg: The config.
        loaders: The loaders that will be used.

    Returns:
        Findings.
    """
    return [finding for loader in loaders for finding in (*_twice(cfg, loader), *_judged(cfg, loader))]


def _twice(cfg, loader):
    first = {}
    for dataset in datasets(cfg, [loader]):
        key = dataset.files
        if key in first:
            yield Finding('data-set-twice', dataset.name, value=first[key])
        first.setdefault(key, dataset.name)


def _judged(cfg, loader):
    members = [dataset for dataset in datasets(cfg, [loader]) if dataset.get('ann_file')]
    if any(dataset.is_elsewhere for dataset in members):
        return
    own = [dataset.ann_file for dataset in members]
    for key, file in annotation_files(cfg, [loader]) if members else ():
        if not file.exists():
            yield Finding('evaluator-data', key, value=f'its ann_file {file} does not exist')
        elif [path.resolve() for path in own] != [file.resolve()]:
            contents = [read_coco(path) for path in (file, *own)]
            if not any(fault for _, fault in contents):  # the checks of the files themselves report them
                wanted = wanted_classes(members[0], bool(cfg.get('classes_from_data')))
                found = _compare(file, own, [content for content, _ in contents], wanted)
                yield from (Finding(kind, key, value=value) for kind, value in found)


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
