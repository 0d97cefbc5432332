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
    """A column of numbers.

    Args:
        key: Name in rows and in CSV files, such as ``AP50``.
        title: Name for people, such as ``AP at IoU 0.5``.
        digits: Digits after the point; None for text and for counts, which are whole numbers.
        explanation: What the number means, in one sentence.
    """
    key: str
    title: str
    digits: int | None = None
    explanation: str = ''


class Row(NamedTuple):
    """A class or an image.

    Args:
        name: Name of the class, or path of the image.
        values: Number by key of the column; None where there is none.
        note: What a reader must know about it, such as that a class has no objects and is not in the means.
    """
    name: str
    values: dict
    note: str = ''


class Confusion(NamedTuple):
    """How often each class (row) was predicted as each class (column).

    Args:
        names: The classes. In detection the last is the background: as a row the predictions without an object, as a
            column the objects that were missed.
        counts: Whole numbers (classes, classes): objects, pixels or images.
        unit: What is counted, such as ``objects``.
        rule: When a prediction counts as one of an object, with all thresholds, in whole sentences.
    """
    names: list
    counts: np.ndarray
    unit: str
    rule: str

    @property
    def has_background(self) -> bool:
        """Whether the last row and column are no class."""
        return self.unit == 'objects'


class Picture(NamedTuple):
    """One of the worst images: ground truth and prediction side by side.

    Args:
        path: The image file.
        caption: What is wrong, such as ``3 missed, 1 false positive``.
        truth: The image with the ground truth drawn, (H, W, 3) uint8 RGB.
        prediction: The image with the prediction drawn, of the same size. None in classification, where nothing is
            drawn: ``truth`` is the image, and the caption has both classes.
    """
    path: str
    caption: str
    truth: np.ndarray
    prediction: np.ndarray | None


@dataclass
class Content:
    """All that a report says.

    Args:
        task: ``detection``, ``segmentation`` or ``classification``.
        facts: What was tested, in order: name and value, such as ``checkpoint``, ``config``, ``images``.
        metrics: Name and value of each metric, as the test printed them.
        classes: Columns and rows of the table of classes; the rows in the order in which they are shown, best last.
        images: Columns and rows of the table of images, the worst first.
        confusion: The confusion matrix.
        pictures: An iterator over the worst images, in the order of ``images``, each drawn when asked for.
        notes: Sentences that a reader must know, such as which classes have no objects.
        work_dir: The work dir of the training of the checkpoint, whose curves are drawn; None if unknown.
        colours: Colour by name of the class, (r, g, b) from 0 to 255, as in the pictures; empty if nothing is drawn in
            the colours of the classes.
        trained: The metrics on some training images, by the same names; empty if there are none.
        sizes: Columns and rows of the table of objects by size, the smallest first; no rows if there is none.
        by_size: Of a test at several image sizes: that of the report, and columns, rows and a figure of all.
    """
    task: str
    facts: list
    metrics: dict
    classes: tuple
    images: tuple
    confusion: Confusion
    pictures: object = ()
    notes: list = field(default_factory=list)
    work_dir: str | None = None
    colours: dict = field(default_factory=dict)
    sizes: tuple = ((), ())
    trained: dict = field(default_factory=dict)
    by_size: tuple | None = None


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

    Attributes:
        dataset: The data set of the test.
        classes: The names of its classes; empty if it has none.
        palette: Their colours; None if it has none.
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
