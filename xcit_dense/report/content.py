"""What a report says, for every task, its tables as text, and what makes it: a recorder, one class per task."""
import csv
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .._utils.files import atomic_write
from .._utils.text import counted, first_line, printable
from ..predict.classes import test_dataset
from ..predict.reading import ImageReader, picture_of
from ..train.startup import versions

#: How many of the worst images are drawn.
MOST_PICTURES = 24
#: The row of predictions without an object, and the column of missed objects.
BACKGROUND = 'background'
#: Ends of the names of the usual metrics, which stand at the top.
HEADLINES = ('mAP', 'mAP_50', 'mIoU', 'mAcc', 'aAcc', 'top1', 'top5')
#: Of more classes, the log has only the worst.
_MOST_LINES = 40
_LETTERS = 30  # of a name


class Column(NamedTuple):
    """A column of numbers."""
    key: str  # name in rows and in CSV files, such as ``AP50``
    title: str  # name for people, such as ``AP at IoU 0.5``
    digits: int | None = None  # after the point; None for text and for counts, which are whole numbers
    explanation: str = ''  # what the number means, in one sentence


class Row(NamedTuple):
    """A class or an image."""
    name: str  # of the class, or path of the image
    values: dict  # number by key of the column; None where there is none
    note: str = ''  # what a reader must know about it, such as that a class has no objects and is not in the means


class Confusion(NamedTuple):
    """How often each class (row) was predicted as each class (column).

    In detection the last is the background: as a row the predictions without an object, as a column the objects that
    were missed.
    """
    names: list  # of the classes
    counts: np.ndarray  # whole numbers (classes, classes): objects, pixels or images
    unit: str  # what is counted, such as ``objects``
    rule: str  # when a prediction counts as one of an object, with all thresholds, in whole sentences

    @property
    def has_background(self) -> bool:
        """Whether the last row and column are no class."""
        return self.unit == 'objects'


class Picture(NamedTuple):
    """One of the worst images: ground truth and prediction, each drawn on the image, (H, W, 3) uint8 RGB.

    In classification, nothing is: ``truth`` is the image, ``prediction`` is None, and the caption has both classes.
    """
    path: str
    caption: str  # what is wrong, such as ``3 missed, 1 false positive``
    truth: np.ndarray
    prediction: np.ndarray | None


@dataclass
class Content:
    """All that a report says. Tables are columns and rows, in the order in which they are shown."""
    task: str  # ``detection``, ``segmentation`` or ``classification``
    facts: list  # what was tested, in order: name and value, such as ``checkpoint``, ``config``, ``images``
    metrics: dict  # name and value of each metric, as the test printed them
    classes: tuple  # table of classes, the best last
    images: tuple  # table of images, the worst first
    confusion: Confusion
    pictures: object = ()  # an iterator over the worst images, in the order of ``images``, each drawn when asked for
    notes: list = field(default_factory=list)  # what a reader must know, such as which classes have no objects
    work_dir: str | None = None  # of the training of the checkpoint, whose curves are drawn; None if unknown
    #: By name of the class, (r, g, b) from 0 to 255, as in the pictures; empty if these do not have them.
    colours: dict = field(default_factory=dict)
    sizes: tuple = ((), ())  # table of objects by size, the smallest first; no rows if there is none
    trained: dict = field(default_factory=dict)  # the metrics on some training images; empty if there are none
    by_size: tuple | None = None  # of a test at several image sizes: that of the report, columns, rows, and a figure


def write_classes(path, content):
    """Write the table of classes as CSV, with all digits; the columns are named by their keys."""
    columns, rows = content.classes
    _write_csv(path, [['class', *(column.key for column in columns), 'note'],
                      *([row.name, *(row.values.get(column.key) for column in columns), row.note] for row in rows)])


def write_confusion(path, confusion):
    """Write a `Confusion` as CSV: a row for each true class, a column for each prediction."""
    _write_csv(path, [['truth \\ prediction', *confusion.names], *(
        [name, *row] for name, row in zip(confusion.names, confusion.counts.tolist(), strict=True))])


def _write_csv(path, rows):
    """Write rows. Names from folders may have letters that UTF-8 cannot have: these are escaped."""
    with atomic_write(path) as part, open(part, 'w', newline='', encoding='utf-8', errors='backslashreplace') as file:
        csv.writer(file).writerows(rows)


def tell_classes(content) -> str:
    """Return the table of classes as text; of many classes only the worst."""
    return tell_rows('class', *content.classes)


def tell_rows(head, columns, rows) -> str:
    """Return a table, such as that of classes, as text, with the digits of its columns; of many rows only the first."""
    lines = [[head, *(column.key for column in columns)],
             *([shortened(row.name), *(shown(row.values.get(column.key), column) for column in columns)]
               for row in rows[:_MOST_LINES])]
    left_out = max(len(rows) - _MOST_LINES, 0)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ['  '.join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
    return '\n'.join(table) + f'\nand {counted(left_out, "classes")} more in the CSV file' * bool(left_out)


def shown(value, column) -> str:
    """Return a number as a table shows it, and ``-`` if there is none; or a text in printable form."""
    if value is None or isinstance(value, str):
        return printable(value or '-')
    return f'{value:,}' if column.digits is None else f'{value:.{column.digits}f}'


def shortened(name) -> str:
    """Return a name in printable form, cut to a length that a table has room for."""
    name = printable(name)
    return name if len(name) <= _LETTERS else f'{name[:_LETTERS - 3]}...'


class Recorder:
    """Watches a test and makes the `Content` of its report. Subclasses do the work.

    A data set without classes has the names ``()``, and one without colours of them the palette None.
    """

    def __init__(self, runner):
        self.runner, self.dataset = runner, runner.test_dataloader.dataset
        meta = getattr(self.dataset, 'metainfo', None) or {}
        self.classes, self.palette = tuple(meta.get('classes') or ()), meta.get('palette')

    def see(self, batch, outputs):
        """Look at a batch of the data loader and the data samples that the model made of it, after the metrics did."""

    def content(self, metrics):
        """Return the `Content`, in the first process; all processes call it, so that they can join what they saw.

        Returns None, after a warning in the log, if the data or the metrics of the test do not have what it needs.
        """
        raise NotImplementedError

    def warn(self, reason):
        """Log why there is no report."""
        self.runner.logger.warning(f'no report written: {reason}')

    def draw(self, path, picture, known):
        """Return the `Picture` of an image (H, W, 3) uint8 RGB and of what is known of it."""
        raise NotImplementedError

    def pictures(self, images):
        """Yield a `Picture` for each pair of a path and what is known of the image; a warning if it cannot be drawn."""
        reader = ImageReader(test_dataset(self.runner.cfg), on_disk=False)
        for path, known in images:
            try:
                yield self.draw(path, picture_of(reader.load(path)), known)
            except Exception as error:  # of any type: loaders may be the user's own, and some data sets have no files
                self.runner.logger.warning(f'the report has no picture of {path}: {first_line(error)}')

    def facts(self, *more) -> list:
        """Return the facts of every test, with some of the task before the versions: pairs of name and text."""
        root = getattr(self.dataset, 'data_root', None)
        data = [counted(len(self.dataset), 'images')] + [counted(len(self.classes), 'classes')] * bool(self.classes)
        is_merged = 'module' in (self.runner.cfg.get('model') or {})  # the model is in one that merges
        return [('checkpoint', near(tested_file(self.runner) or 'none: random weights')),
                ('config', near(self.runner.cfg.filename or 'made in memory')),
                ('test data', ' of '.join(data) + (f', in {near(root)}' if root else '')),
                *[('test-time augmentation', 'predictions of several views of each image, merged')] * is_merged, *more,
                ('versions', versions(self.runner))]

    def work_dir(self) -> str | None:
        """Return the folder of the checkpoint if a training logged its losses there, otherwise None."""
        file = tested_file(self.runner)
        folder = os.path.dirname(file or '') or '.'
        return folder if file and any(Path(folder).glob('*/vis_data/scalars.json')) else None


def tested_file(runner) -> str | None:
    """Return what is tested as the user named it: a checkpoint, a work dir, an exported file."""
    model = runner.cfg.get('model') or {}
    return runner.cfg.get('load_from') or (model.get('file') if model.get('type') == 'ExportedModel' else None)


def near(path) -> str:
    """Return a path relative to the current folder if it is inside, otherwise as it is."""
    path = str(path)
    return os.path.relpath(path) if os.path.isabs(path) and Path(path).is_relative_to(os.getcwd()) else path
