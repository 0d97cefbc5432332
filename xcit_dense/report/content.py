"""What a report says, for every task: made by a recorder, written by the tables, the pictures and the page."""
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


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
        truth: Names of the rows. In detection the last is the background: predictions without an object.
        prediction: Names of the columns. In detection the last is the background: objects that were missed.
        counts: Whole numbers (rows, columns): objects, pixels or images.
        unit: What is counted, such as ``objects``.
        rule: When a prediction counts as one of an object, with all thresholds, in whole sentences.
    """
    truth: list
    prediction: list
    counts: np.ndarray
    unit: str
    rule: str


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
