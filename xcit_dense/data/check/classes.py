"""The classes of a data set, compared between the config, the data and the heads of the model."""
from pathlib import Path

from ...errors import DataError
from ...text import counted, listed, nearest
from ..class_folders import ClassImages
from ..classes import difference_of, heads_of_classes
from ..datasets import LOADERS, datasets, reader_of, type_of
from ..explicit import explicit_classes
from ..files import Unreadable, read_class_list
from ..labels import void_names
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
        names = getattr(type_of(dataset), 'METAINFO', {}).get('classes')
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
    number = len(getattr(type_of(sets[LOADERS[0]][0]), 'METAINFO', {}).get('thing_classes') or wanted)
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
    return ClassImages(dataset) if reader_of(dataset) == 'CustomDataset' else None


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
