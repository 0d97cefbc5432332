"""The report as one file for a browser: `template/page.html`, filled in."""
import base64
import hashlib
import io
import math
import numbers
import os
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from .._utils.files import atomic_write
from .._utils.text import counted, printable
from ..errors import DataError
from .curves import figure_of
from .tables import most_confused, percent, shown

_TEMPLATE = Path(__file__).parent / 'template'
#: A matrix with more classes would be slow to open; the CSV has all.
_MOST_CLASSES = 200
#: With more, the cells have no room for numbers, which the line above the matrix shows.
_MOST_WITH_NUMBERS = 31
_MOST_PAIRS = 20
_WIDTH = 640  # pixels, of a picture
_NONE = '\N{EN DASH}'
#: Ends of the names of the metrics that stand at the top.
_HEADLINES = ('mAP', 'mAP_50', 'mIoU', 'mAcc', 'aAcc', 'top1', 'top5')
#: Ends of the names of the metrics that go from 0 to 100.
_IN_PERCENT = {'mIoU', 'mAcc', 'aAcc', 'mDice', 'mFscore', 'mPrecision', 'mRecall', 'top1', 'top5', 'precision',
               'recall', 'f1-score'}
_SUBJECTS = dict(detection='detector', segmentation='segmentor', classification='classifier')


def write_page(path, content):
    """Write a `Content` as a page that needs no other file and no network.

    Pictures are drawn, encoded and written one at a time.

    Args:
        path: The file.
        content: The `Content`.
    """
    from jinja2 import Environment, FileSystemLoader  # comes with torch
    environment = Environment(loader=FileSystemLoader(_TEMPLATE), autoescape=True, trim_blocks=True,
                              lstrip_blocks=True)
    environment.filters.update(text=printable, sentence=_sentence, cell=_cell, count=counted)
    script = (_TEMPLATE / 'page.js').read_text()
    metrics, (columns, rows) = _metrics(content), content.images
    folder = _common_folder([row.name for row in rows])
    values = dict(
        task=content.task, title=_title(content), style=(_TEMPLATE / 'page.css').read_text(), script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        facts=content.facts, notes=content.notes, metrics=metrics,
        in_percent=all(name.rpartition('/')[2] in _IN_PERCENT for name, _ in metrics),
        headlines=[(name, value) for name, value in metrics if name.endswith(_HEADLINES)],
        class_columns=content.classes[0], class_rows=content.classes[1], chips=_chips(content),
        confusion=content.confusion, matrix=_matrix(content.confusion), pairs=_pairs(content),
        pictures=map(_encoded, content.pictures), image_columns=columns, image_rows=rows, folder=folder,
        as_text=printable, name_of_image=partial(_inside, folder), **_curves(content.work_dir))
    with atomic_write(Path(path)) as part, open(part, 'w', encoding='utf-8') as file:
        file.writelines(environment.get_template('page.html').generate(values))


def _sentence(text):
    text = printable(text)
    return f'{text[:1].upper()}{text[1:]}' + '.' * bool(text and text[-1] not in '.!?')


def _title(content):
    config = Path(str(dict(content.facts).get('config', '')))
    name = f': {printable(config.stem)}' if config.suffix == '.py' else ''
    return f'Test of a {_SUBJECTS.get(content.task, "model")}{name}'


def _metrics(content):
    """Return names and texts of the metrics: numbers with as many digits as any of them needs, four at most."""
    found = {name: float(value) for name, value in content.metrics.items()
             if isinstance(value, numbers.Real) or getattr(value, 'ndim', None) == 0}
    digits = max((len(f'{value:.4f}'.rstrip('0').partition('.')[2]) for value in found.values()
                  if math.isfinite(value)), default=0)
    lines = []
    for name, value in content.metrics.items():
        if isinstance(value, str):
            lines.append((name, printable(value)))
        elif name in found:
            is_missing = found[name] == -1 and content.task == 'detection'  # what pycocotools prints then
            lines.append((name + is_missing * ' (no such objects)', f'{found[name]:.{digits}f}'))
    return lines


def _cell(value, column):
    """Return a value as a cell of a table shows it."""
    if isinstance(value, str):
        return printable(value)
    return _NONE if value is None or math.isnan(value) else shown(value, column)


def _chips(content):
    """Return a colour of CSS for each class, or nothing if one has none."""
    colours = {name: f'rgb({", ".join(map(str, colour))})' for name, colour in content.colours.items()}
    return colours if all(row.name in colours for row in content.classes[1]) else None


def _curves(work_dir):
    """Return the curves as pictures for a wide and a narrow window, or why there are none."""
    if not work_dir:
        return dict(why_no_curves='There is no log of the training next to what was tested.')
    try:
        return dict(work_dir=work_dir, curves={name: _svg(figure_of(work_dir, columns=columns)) for name, columns in
                                               (('wide', 3), ('narrow', 1))})
    except DataError as error:
        return dict(why_no_curves=str(error))


def _svg(figure):
    file = io.BytesIO()
    figure.savefig(file, format='svg', transparent=True, metadata=dict(Date=None))
    return base64.b64encode(file.getvalue()).decode()


def _matrix(confusion):
    """Return columns, rows and what the numbers in the cells are (nothing if there is no room)."""
    counts = confusion.counts
    places = most_confused(counts, _MOST_CLASSES)
    totals = counts.sum(1)
    shares = counts / np.maximum(totals, 1)[:, None]
    kind = ''
    if len(places) <= _MOST_WITH_NUMBERS:
        kind = confusion.unit if counts.max(initial=0) < 100_000 else 'percent of the row'
    rows = []
    for row in places:
        cells = []
        for column in places:
            count, share = int(counts[row, column]), shares[row, column]
            level = f'{"d" if row == column else "c"}{max(1, math.ceil(10 * share))}' if count else ''
            text = str(count) if kind == confusion.unit else percent(share)
            cells.append((level, count, text if count and kind else ''))
        rows.append((confusion.truth[row], int(totals[row]), cells))
    return dict(columns=[confusion.prediction[place] for place in places], rows=rows, numbers=kind,
                left_out=len(counts) - len(places))


def _pairs(content):
    """Return the most frequent errors: true class, prediction, count, and share of the true class in percent."""
    confusion = content.confusion
    truths, predictions = [*confusion.truth], [*confusion.prediction]
    if confusion.has_background:
        truths[-1] += ' (false positives)'
        predictions[-1] += ' (missed)'
    wrong = confusion.counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind='stable')[:_MOST_PAIRS]
    totals = confusion.counts.sum(1)
    return [(truths[row], predictions[column], int(wrong[row, column]),
             100 * wrong[row, column] / totals[row])
            for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True) if wrong[row, column]]


def _encoded(picture):
    """Return a `Picture` with its images as JPEG in base 64, each with title, width and height."""
    images = []
    for title, array in (('ground truth', picture.truth), ('prediction', picture.prediction)):
        if array is not None:
            image, file = Image.fromarray(array), io.BytesIO()
            image.thumbnail((_WIDTH, 2 * _WIDTH), Image.Resampling.LANCZOS)
            image.save(file, format='JPEG', quality=85)
            images.append((title, base64.b64encode(file.getvalue()).decode(), *image.size))
    if picture.prediction is None:
        images = [('', *image[1:]) for image in images]
    return dict(path=picture.path, caption=picture.caption, images=images)


def _common_folder(paths):
    """Return the folder that all files are below; empty if there is none."""
    try:
        folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    except ValueError:  # no paths, or absolute and relative ones
        return ''
    return '' if folder == os.sep else folder


def _inside(folder, path):
    return printable(os.path.relpath(path, folder) if folder and path.startswith(folder + os.sep) else path)
