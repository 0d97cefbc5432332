"""The report as one file for a browser, `template/page.html` filled in; and the confusion matrix as a picture."""
import base64
import hashlib
import io
import os
from numbers import Real
from pathlib import Path

import numpy as np
from PIL import Image

from .._utils.files import atomic_write
from .._utils.text import counted, printable
from ..draw.classes import font_of, legible
from ..errors import DataError
from .content import HEADLINES, shortened, shown
from .curves import INK, figure_of, new_figure

_TEMPLATE = Path(__file__).parent / 'template'
#: A picture with more classes would be unreadable, as would be numbers in the cells of a page, where the line above the
#: matrix shows them; a page with more would be slow to open. The CSV has all.
MOST_CLASSES, _MOST_ON_PAGE = 30, 200
_CELL = 0.42  # inches
_LARGE = 100_000  # such counts do not fit into a cell
_MOST_PAIRS = 20
_WIDTH = 640  # pixels, of a picture
_SUBJECTS = dict(detection='detector', segmentation='segmentor', classification='classifier')


def write_page(path, content):
    """Write a `Content` as a page that needs no other file and no network.

    Pictures are drawn, encoded and written one at a time.
    """
    from jinja2 import Environment, FileSystemLoader  # comes with torch
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(text=printable, sentence=_sentence, cell=shown, count=counted)
    script = (_TEMPLATE / 'page.js').read_text()
    metrics, folder = _metrics(content.metrics), os.path.commonprefix([row.name for row in content.images[1]])
    folder, config = folder[:folder.rfind(os.sep) + 1], dict(content.facts).get('config', '')
    values = dict(
        content=content, title=f'Test of a {_SUBJECTS[content.task]}: {printable(Path(config).stem)}',
        style=(_TEMPLATE / 'page.css').read_text(), script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        metrics=metrics, trained=dict(_metrics(content.trained)), matrix=_matrix(content.confusion),
        headlines=[(name, value) for name, value in metrics if name.endswith(HEADLINES)], pairs=_pairs(content),
        by_size_plot=content.by_size and _as_svg(content.by_size[-1]), as_text=printable,
        pictures=map(_encoded, content.pictures), folder=folder,
        name_of_image=lambda path: printable(path.removeprefix(folder)), **_curves(content.work_dir))
    with atomic_write(Path(path)) as part, open(part, 'w', encoding='utf-8') as file:
        file.writelines(environment.get_template('page.html').generate(values))


def _sentence(text):
    text = printable(text)
    return f'{text[:1].upper()}{text[1:]}' + '.' * bool(text and text[-1] not in '.!?')


def _metrics(metrics):
    """Return names and texts of the metrics that are numbers, with at most four digits after the point."""
    return [(name + ' (no such objects)' * bool(value == -1), str(round(float(value), 4)))  # COCO's mean of nothing
            for name, value in metrics.items() if isinstance(value, Real)]


def _curves(work_dir):
    """Return the curves as a picture, or why there are none."""
    if not work_dir:
        return dict(why_no_curves='There is no log of the training next to what was tested.')
    try:
        return dict(work_dir=work_dir, curves=_as_svg(figure_of(work_dir)))
    except DataError as error:
        return dict(why_no_curves=str(error))


def _as_svg(figure):
    """Return a figure of matplotlib as SVG in base64."""
    file = io.BytesIO()
    figure.savefig(file, format='svg', transparent=True, metadata=dict(Date=None))
    return base64.b64encode(file.getvalue()).decode()


def _part(confusion, places):
    """Return the part of a matrix that has some classes: counts, whole rows, shares of them, texts for its cells.

    The texts are counts, or where these have no room the shares in percent; the last value says which.
    """
    counts, totals = confusion.counts[places][:, places], confusion.counts.sum(1)[places]
    shares = counts / np.maximum(totals, 1)[:, None]
    if counts.max(initial=0) < _LARGE:
        return counts, totals, shares, counts.astype(str), confusion.unit
    return counts, totals, shares, np.char.mod('%.1f', 100 * shares), 'percent of the row'


def _matrix(confusion):
    """Return columns, rows and what the numbers in the cells are (nothing if there is no room)."""
    places = most_confused(confusion.counts, _MOST_ON_PAGE)
    counts, totals, shares, texts, kind = _part(confusion, places)
    kind = kind * (len(places) <= MOST_CLASSES + confusion.has_background)
    names, rows = [confusion.names[place] for place in places], []
    for row, name in enumerate(names):
        levels = np.ceil(10 * shares[row]).astype(int)
        cells = [(f'{"d" if row == column else "c"}{levels[column]}', int(count), texts[row, column] if kind else '')
                 if count else ('', 0, '') for column, count in enumerate(counts[row])]
        rows.append((name, int(totals[row]), cells))
    return dict(columns=names, rows=rows, numbers=kind, left_out=len(confusion.names) - len(places))


def _pairs(content):
    """Return the most frequent errors: true class, prediction, count, and share of the true class in percent."""
    confusion = content.confusion
    truths, predictions = [*confusion.names], [*confusion.names]
    if confusion.has_background:
        truths[-1] += ' (false positives)'
        predictions[-1] += ' (missed)'
    wrong = confusion.counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind='stable')[:_MOST_PAIRS]
    totals = confusion.counts.sum(1)
    return [(truths[row], predictions[column], int(wrong[row, column]), 100 * wrong[row, column] / totals[row])
            for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True) if wrong[row, column]]


def _encoded(picture):
    """Return a `Picture` with its images as JPEG in base 64, each with title, width and height."""
    sides, images = [('ground truth', picture.truth), ('prediction', picture.prediction)], []
    for title, array in sides if picture.prediction is not None else [('', picture.truth)]:
        image, file = Image.fromarray(array), io.BytesIO()
        image.thumbnail((_WIDTH, 2 * _WIDTH), Image.Resampling.LANCZOS)
        image.save(file, format='JPEG', quality=85)
        images.append((title, base64.b64encode(file.getvalue()).decode(), *image.size))
    return dict(path=picture.path, caption=picture.caption, images=images)


def draw_confusion(path, confusion):
    """Draw a `Confusion` as PNG: colours are shares of the row, cells have counts or, of large counts, shares.

    With more than `MOST_CLASSES` classes, only those that are confused most are drawn, and the background.
    """
    from matplotlib.font_manager import FontProperties  # slow to import
    figure, (axes, ) = new_figure()
    axes.grid(False)
    axes.spines[:].set_visible(False)
    classes = len(confusion.names) - confusion.has_background
    drawn = most_confused(confusion.counts[:classes, :classes], MOST_CLASSES)
    places = [*drawn, *range(classes, len(confusion.names))]
    counts, totals, shares, texts, kind = _part(confusion, places)
    size = _CELL * len(places)
    axes.imshow(shares, cmap='Blues', vmin=0, vmax=1)
    for row, column in zip(*np.nonzero(counts), strict=True):
        axes.text(column, row, texts[row, column], ha='center', va='center', fontsize=8, parse_math=False,
                  color='white' if shares[row, column] > 0.55 else INK)
    names, ticks = [shortened(legible(confusion.names[place])) for place in places], range(len(places))
    axes.set_xticks(ticks, names, rotation=90, fontsize=9, parse_math=False)
    axes.set_yticks(ticks, [f'{name} ({total:,})' for name, total in zip(names, totals, strict=True)], fontsize=9,
                    parse_math=False)
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set_font(FontProperties(fname=font_of(9, text.get_text()).path, size=9))
    axes.tick_params(length=0)
    axes.set_xlabel('prediction', color=INK)
    axes.set_ylabel(f'truth ({confusion.unit})', color=INK)
    right, total = int(np.trace(confusion.counts)), int(confusion.counts[:classes].sum())
    wrong = int(confusion.counts[classes:].sum())
    lines = [f'{right:,} of {counted(total, confusion.unit)} correct ({right / max(total, 1):.1%})'
             + f'; {counted(wrong, "false positives")}' * bool(wrong),
             f'numbers: {kind}; colours: share of the row']
    if len(drawn) < classes:
        lines.append(f'{MOST_CLASSES} of {counted(classes, "classes")}: those confused most')
    figure.suptitle('\n'.join(lines), fontsize=11, color=INK)
    figure.set_size_inches(max(size, 2.4) + 3.6, max(size, 1.8) + 2.6)
    with atomic_write(path) as part:
        figure.savefig(part, dpi=110, format='png', bbox_inches='tight', pad_inches=0.2)


def most_confused(counts, number) -> np.ndarray:
    """Return the indices of ``number`` classes, ascending: all, or those with the most errors, theirs and with them."""
    errors = counts.sum(0) + counts.sum(1) - 2 * np.diag(counts)
    return np.sort(np.argsort(-errors, kind='stable')[:number])
