"""The check of images of classes before a test: what would end it, or make its figures mean nothing."""
import logging

from mmengine.logging import print_log

from ...errors import DataError
from ...text import counted
from ..class_folders import ClassImages
from ..classes import outputs_of
from ..datasets import LOADERS, datasets, is_elsewhere, prefixes_of, reader_of
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
