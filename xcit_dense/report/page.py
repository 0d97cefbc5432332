"""The report as one file for a browser, `template/page.html` filled in; and the confusion matrix as a picture."""
import base64
import hashlib
import io
import math
import numbers
import os
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from .._utils.files import atomic_write
from .._utils.text import counted, printable
from ..draw.classes import font_of, legible
from ..draw.plots import INK, new_figure
from ..errors import DataError
from .content import shortened, shown
from .curves import figure_of

_TEMPLATE = Path(__file__).parent / 'template'
#: A picture with more classes would be unreadable; a page with more would be slow to open. The CSV has all.
MOST_CLASSES, _MOST_ON_PAGE = 30, 200
_CELL = 0.42  # inches
_DIGITS = 5  # more do not fit into a cell
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
    metrics, folder = _metrics(content), _common_folder([row.name for row in content.images[1]])
    values = dict(
        content=content, title=_title(content), style=(_TEMPLATE / 'page.css').read_text(), script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        metrics=metrics, trained=dict(_metrics(replace(content, metrics=content.trained))),
        in_percent=all(name.rpartition('/')[2] in _IN_PERCENT for name, _ in metrics),
        headlines=[(name, value) for name, value in metrics if name.endswith(_HEADLINES)],
        chips=_chips(content), matrix=_matrix(content.confusion), pairs=_pairs(content),
        pictures=map(_encoded, content.pictures), folder=folder, as_text=printable,
        name_of_image=partial(_inside, folder), **_curves(content.work_dir))
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
    places = most_confused(counts, _MOST_ON_PAGE)
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


def draw_confusion(path, confusion):
    """Draw a `Confusion` as PNG: colours are shares of the row, cells have counts or, of large counts, shares.

    With more than `MOST_CLASSES` classes, only those that are most confused with each other are drawn, and the
    background.

    Args:
        path: The file.
        confusion: The `Confusion`.
    """
    from matplotlib.font_manager import FontProperties  # slow to import
    figure, (axes, ) = new_figure()
    axes.grid(False)
    axes.spines[:].set_visible(False)
    counts, classes = confusion.counts, len(confusion.counts) - confusion.has_background
    places = [*most_confused(counts[:classes, :classes], MOST_CLASSES), *range(classes, len(counts))]
    drawn, totals = counts[places][:, places], counts.sum(1)[places]
    shares = drawn / np.maximum(totals, 1)[:, None]
    truths, predictions = ([shortened(legible(side[place])) for place in places] for side in confusion[:2])
    size = _CELL * len(places)
    width = max(size, 2.4) + 3.6
    picture = axes.imshow(shares, cmap='Blues', vmin=0, vmax=1)
    has_counts = len(str(drawn.max(initial=0))) <= _DIGITS
    for row, column in zip(*np.nonzero(drawn), strict=True):
        text = str(drawn[row, column]) if has_counts else percent(shares[row, column])
        axes.text(column, row, text, ha='center', va='center', fontsize=8, parse_math=False,
                  color='white' if shares[row, column] > 0.55 else INK)
    ticks = range(len(places))
    axes.set_xticks(ticks, predictions, rotation=90, fontsize=9, parse_math=False)
    axes.set_yticks(ticks, [f'{name} ({total:,})' for name, total in zip(truths, totals, strict=True)], fontsize=9,
                    parse_math=False)
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set_font(FontProperties(fname=font_of(9, text.get_text()).path, size=9))
    axes.tick_params(length=0)
    axes.set_xlabel('prediction', color=INK)
    axes.set_ylabel(f'truth ({confusion.unit})', color=INK)
    bar = figure.colorbar(picture, ax=axes, fraction=0.05, shrink=min(1., 3 / max(size, 1.8)))
    bar.set_label('share of the row', fontsize=9, color=INK)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=9, length=0)
    bar.ax.yaxis.set_major_formatter(lambda share, _: f'{share:.0%}')
    lines = [_headline(confusion, classes)]
    if len(places) < len(counts):
        lines.append(f'{MOST_CLASSES} of {counted(classes, "classes")}: those most confused with each other')
    if not has_counts:
        lines.append('numbers: percent of the row')
    figure.suptitle('\n'.join(lines), fontsize=11, color=INK)
    rule = textwrap.wrap(f'Rule: {confusion.rule}', round(17 * width))
    figure.supxlabel('\n'.join(rule), fontsize=8, color=INK, parse_math=False)
    figure.set_size_inches(width, max(size, 1.8) + 2.6 + 0.15 * len(rule))
    with atomic_write(path) as part:
        figure.savefig(part, dpi=110, format='png', bbox_inches='tight', pad_inches=0.2)


def _headline(confusion, classes):
    """Return how much is correct: objects with the right class, pixels or images."""
    total, right = int(confusion.counts[:classes].sum()), int(np.trace(confusion.counts))
    words = 'found with the right class' if confusion.has_background else 'correct'
    return f'{right:,} of {counted(total, confusion.unit)} {words} ({right / max(total, 1):.1%})'


def most_confused(counts, number) -> np.ndarray:
    """Return the indices of ``number`` classes, ascending: all, or those of the pairs that are confused most often.

    If there are fewer of these, the first other classes are added.
    """
    if len(counts) <= number:
        return np.arange(len(counts))
    pairs = np.triu(counts + counts.T, 1)
    order = np.argsort(-pairs, axis=None, kind='stable')[:np.count_nonzero(pairs)]
    wanted = dict.fromkeys(np.stack(np.unravel_index(order, pairs.shape), 1).ravel().tolist())
    wanted.update(dict.fromkeys(range(len(counts))))
    return np.array(sorted(list(wanted)[:number]))


def percent(share) -> str:
    """Return a share of a row as a number in percent that fits into a cell."""
    return f'{100 * share:.1f}' if share >= 0.0005 else '<0.1'
