"""The check of images by class before a test: problems that would stop it or make its results meaningless."""
import logging

from mmengine.logging import print_log

from ..._utils.text import counted
from ...errors import DataError
from ..class_folders import ClassImages
from ..classes import difference_of, known_classes, outputs_of
from ..datasets import LOADERS, datasets
from ..imagenet import same_classes
from .agreement import wanted_classes
from .class_images import check_labels
from .findings import each_kind_first

#: Findings that stop a test or make its results meaningless; different class names do neither.
_ENDS = ('not-there', 'no-images', 'class-count', 'class-numbers', 'list-line')
_SHOWN = 3


def classified_data(cfg, loaders=LOADERS[2:]) -> list:
    """Return the data sets of some loaders, by default the test data, that have images by class and are on a disk."""
    return [dataset for dataset in datasets(cfg, loaders) if dataset.reader == 'CustomDataset'
            and not dataset.is_elsewhere]


def check_before_test(cfg, loaders=LOADERS[2:]):
    """Check classes and lists of `classified_data`, but no images. Warnings are logged.

    Args:
        cfg: The config.
        loaders: The loaders that will be used.

    Raises:
        DataError: The test would stop, or the data has labels that the model cannot predict.
    """
    for dataset in classified_data(cfg, loaders):
        source = ClassImages(dataset)
        findings = check_labels(dataset, wanted_classes(dataset, bool(cfg.get('classes_from_data'))))
        errors = [finding.sentence for finding in findings if finding.kind in _ENDS] or _beyond(
            source, outputs_of(cfg.get('model')))
        if errors:
            more = [f'and {len(errors) - _SHOWN:,} more'] if len(errors) > _SHOWN else []
            raise DataError('\n'.join([*errors[:_SHOWN], *more]))
        for place in each_kind_first(findings)[:_SHOWN]:
            print_log(findings[place].sentence, logger='current', level=logging.WARNING)


def warn_of_other_classes(cfg, checkpoint, source):
    """Log a warning if `classified_data` has different class names than a checkpoint, or a different order.

    Labels are compared as numbers, so nothing else would notice. Names in the config may be for display: either they or
    the names of the folders must match the checkpoint.

    Args:
        cfg: The config.
        checkpoint: The content of the file; without names nothing is compared.
        source: The file, for the message.
    """
    known = known_classes(checkpoint, source)
    for dataset in classified_data(cfg) if known else ():
        images = ClassImages(dataset)
        own = wanted_classes(dataset, bool(cfg.get('classes_from_data')))
        in_data = images.named if images.list else images.classes()
        sides = [tuple(names) for names in (in_data, own) if names]
        if sides and not any(same_classes(names, known) for names in sides):
            print_log(
                f'{images.source} has different classes than {source}, or a different order: '
                f'{difference_of(sides[0], known)}. Classes are compared by number, so the results are meaningless if '
                f'a number means different classes in the data and in the model. {images.advice}'.rstrip(),
                logger='current', level=logging.WARNING)


def check_learned_alike(cfg):
    """Check that what a test learns from the training images it can predict for the test images.

    Raises:
        DataError: Training images have no labels, or class folders of the two have different names or another order.
    """
    first = None
    for dataset in classified_data(cfg, (LOADERS[0], LOADERS[2])):
        source = ClassImages(dataset)
        if not source.is_labelled:
            raise DataError(f'{source.source} has images without labels (with_label=False), but this test needs the '
                            'classes of the training and test images: set with_label=True in their data sets')
        if source.list:  # numbers, which have the same meaning everywhere
            continue
        first = first or source
        if difference := difference_of(source.classes(), first.classes()):
            raise DataError(f'{source.source} has different classes than {first.source}, or a different order: '
                            f'{difference}. Make them the same. {source.advice}'.rstrip())


def _beyond(source, count):
    """Return sentences on labels that a model with ``count`` outputs never predicts."""
    if not count or not source.is_labelled:
        return []
    if not source.list:
        number = len(source.classes())
        return [f'{source.source} has {counted(number, "class folders")}, but the model {counted(count, "classes")}. '
                'Use a config and a checkpoint of a model for this data'] if number > count else []
    return [f'{source.source}: line {line.number} has the label {line.label}; the labels of the model are 0 to '
            f'{count - 1}' for line in source.lines if line.label >= count]
