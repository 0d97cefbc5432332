"""The check of images of classes before a test: what would end it, or make its figures mean nothing."""
import logging

from mmengine.logging import print_log

from ...errors import DataError
from ...text import counted
from ..class_folders import ClassImages
from ..classes import difference_of, known_classes, outputs_of
from ..datasets import LOADERS, datasets, is_elsewhere, prefixes_of, reader_of
from ..imagenet import are_imagenet_names, imagenet_classes
from .class_folders import check_labels
from .classes import wanted_classes
from .findings import each_kind_first

#: What ends a test, or makes its figures mean nothing; the names of classes do not.
_ENDS = ('not-there', 'no-images', 'class-count', 'class-numbers', 'list-line')
_SHOWN = 3


def classified_data(cfg) -> list:
    """Return those data sets of the test data that have images of classes, on a disk."""
    return [dataset for dataset in datasets(cfg, LOADERS[2:]) if reader_of(dataset) == 'CustomDataset'
            and not is_elsewhere(dataset, dataset.get('ann_file') or '', *prefixes_of(dataset).values())]


def check_before_test(cfg):
    """Check classes and lists of `classified_data`; no image is looked at. Warnings are logged.

    Raises:
        DataError: A test would end, or count labels that the model cannot say.
    """
    for dataset in classified_data(cfg):
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
    """Warn in the log where `classified_data` have other class names than a checkpoint, or another order.

    Labels are compared as numbers, so that nothing else would tell. Names that the config gives may be for display:
    either they or those of the folders are to be the checkpoint's.

    Args:
        cfg: The config.
        checkpoint: What the file holds; without names nothing is compared.
        source: The file, for the words.
    """
    known = known_classes(checkpoint, source)
    for dataset in classified_data(cfg) if known else ():
        images = ClassImages(dataset)
        own = wanted_classes(dataset, bool(cfg.get('classes_from_data')))
        in_data = images.named if images.list else images.classes()
        sides = [tuple(names) for names in (in_data, own) if names]
        if sides and not any(_are_same(names, known) for names in sides):
            print_log(
                f'{images.source} has other classes than {source}, or another order: {difference_of(sides[0], known)}. '
                'Classes are compared by their numbers, and the figures mean nothing where a number is one class in '
                f'the data and another to the model. {images.mend}'.rstrip(), logger='current', level=logging.WARNING)


def _are_same(names, others):
    both = names, others
    return names == others or all(are_imagenet_names(some) or list(some) == list(imagenet_classes()) for some in both)


def _beyond(source, count):
    """Return sentences on labels that a model with some outputs never says."""
    if not count or not source.is_labelled:
        return []
    if not source.list:
        number = len(source.classes())
        return [f'{source.source} has {counted(number, "class folders")}, and the model {counted(count, "classes")}: '
                'give a checkpoint of a model for this data, with its config'] if number > count else []
    return [f'{source.source}: the line {line.number} has the label {line.label}; those of the model are 0 to '
            f'{count - 1}' for line in source.lines if line.label >= count]
