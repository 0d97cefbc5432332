"""What must agree: the classes of config, data and heads, and data sets with each other and with their metrics."""
from contextlib import suppress
from pathlib import Path

from ..._utils.text import counted, listed, nearest
from ...errors import DataError
from ..class_folders import ClassImages
from ..classes import class_count, count_key, difference_of, explicit_classes, heads_of_classes
from ..datasets import LOADERS, datasets
from ..evaluators import annotation_files
from ..files import read_class_list
from .coco_file import read_coco
from .findings import Finding


def wanted_classes(dataset, from_data: bool):
    """Return the class names that a config sets for its data set, or without ``from_data`` the data set's own; None if
    any will do. `DataError`: the config names a file of classes that cannot be read."""
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


def check_names(source, wanted, found, spelt: bool = False) -> list:
    """Return findings on class names that a config wants, or None if any will do, and those found in a file, in order.

    With ``spelt`` they decide nothing, as names next to label maps that the config names itself: then they may be other
    spellings, in any order, unless most are missing.
    """
    if wanted is None:
        return []
    findings = []
    missing = [name for name in wanted if name not in found]
    unused = [name for name in found if name not in wanted]
    if spelt and (2 * len(missing) <= len(wanted) or len(found) >= len(wanted) > len(missing)):
        return []
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


def listed_names(path):
    """Return the names of a ``classes.txt``, or None if there is no such file, and findings."""
    try:
        return read_class_list(path), []
    except DataError as error:
        return None, [Finding('class-list', str(path), value=str(error).removeprefix(f'{path} '))]


def check_classes(cfg) -> list:
    """Return where the number of classes of the heads or the classes of other data are not those of the training data.

    With ``classes_from_data`` there is nothing to compare before `xcit_dense.data.classes.take_classes`. Findings that
    concern only the test data are warnings.
    """
    if words := explicit_classes(cfg):
        return [Finding('class-explicit', cfg.filename or 'the config', value=words)]
    from_data, trained = bool(cfg.get('classes_from_data')), datasets(cfg, LOADERS[:1])
    wanted, images = _classes_of(trained[0], from_data) if trained else (None, None)
    if wanted is None:
        return []
    findings = []
    # of panoptic data, heads for boxes and masks have only the things
    number = len(getattr(trained[0].type, 'METAINFO', {}).get('thing_classes') or wanted)
    for head in heads_of_classes(cfg.model):
        count = class_count(head)
        if count not in (number, None):
            # classes without objects are never learned, as intended for an open vocabulary
            kind = 'class-count' if count < number else 'class-spare'
            findings.append(Finding(kind, f'model.{head.get("type")}', value=(
                f'has {count_key(head)} = {count}, but the training data has {counted(number, "classes")}')))
    for loader in LOADERS:
        for dataset in datasets(cfg, [loader]):
            names, others = _classes_of(dataset, from_data)
            # in lists, classes are numbers, of which not all need to occur
            if (names is not None and names != wanted and bool(images) == bool(others)
                    and not any(side and side.list for side in (images, others))):
                findings.append(Finding('class-test' if loader == LOADERS[-1] else 'class-count', loader, value=(
                    'has different classes than the training data, or a different order: '
                    f'{difference_of(names, wanted)}. {others.advice if others else ""}'.rstrip('. '))))
    return findings


def _classes_of(dataset, from_data):
    """Return the classes in the config, or without them those of its folders or list, with their `ClassImages`."""
    names = wanted_classes(dataset, from_data)
    if names is not None or from_data or dataset.reader != 'CustomDataset':  # `take_classes` looks at the data
        return names, None
    images = ClassImages(dataset)
    try:
        return images.classes() or None, images
    except DataError:  # the check of the data set reports it
        return None, None


def check_beside(cfg, loaders=LOADERS) -> list:
    """Find data sets that a loader reads twice, and metrics whose annotation file is not the one of their loader."""
    return [finding for loader in loaders for finding in _beside(cfg, loader)]


def _beside(cfg, loader):
    first = {}
    for dataset in datasets(cfg, [loader]):
        if (same := first.setdefault(dataset.files, dataset.name)) != dataset.name:
            yield Finding('data-set-twice', dataset.name, value=same)
    members = [dataset for dataset in datasets(cfg, [loader]) if dataset.get('ann_file')]
    own = [] if any(dataset.is_elsewhere for dataset in members) else [dataset.ann_file for dataset in members]
    for key, file in annotation_files(cfg, [loader]) if own else ():
        if not file.exists():
            yield Finding('evaluator-data', key, value=f'its ann_file {file} does not exist')
        elif [path.resolve() for path in own] != [file.resolve()]:
            contents = [read_coco(path)[0] for path in (file, *own)]
            with suppress(KeyError, TypeError, AttributeError):  # the checks of the files themselves report them
                wanted = wanted_classes(members[0], bool(cfg.get('classes_from_data')))
                if difference := _compare(*contents, wanted=wanted):
                    yield Finding('evaluator-data', key, value=f'{file} has {difference} than {own[0]}')


def _compare(judge, *read, wanted):
    """Describe how a metric's file differs from the files of the loader in images or classes; '' if it does not."""
    # the same image may have another ending there, or be in another folder
    judged, images = ({image['id']: Path(image['file_name']).stem for content in contents
                      for image in content['images']} for contents in ([judge], read))
    if ids := [id for id in {**images, **judged} if images.get(id) != judged.get(id)]:
        return f'other images for {counted(len(ids), "ids")} ({listed(map(repr, ids), 3)})'
    found, names = ([category['name'] for category in content['categories']
                     if wanted is None or category['name'] in wanted] for content in (judge, read[0]))
    difference = difference_of(found, names)
    return f'other classes ({difference})' if difference else ''
