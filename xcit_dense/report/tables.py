"""The tables of a report, as CSV and as text for the log, and a picture of the confusion matrix."""
import csv
import textwrap

import numpy as np

from .._utils.files import atomic_write
from .._utils.text import counted, printable
from ..draw.classes import font_of, legible
from ..draw.plots import INK, new_figure

#: With more classes, the log has only the worst.
_MOST_LINES, _FEW = 40, 20
#: A picture with more classes would be unreadable.
MOST_CLASSES = 30
#: The row of predictions without an object, and the column of missed objects.
BACKGROUND = 'background'
_LETTERS = 30  # of a name
_CELL = 0.42  # inches
_DIGITS = 5  # more do not fit into a cell


def write_classes(path, content):
    """Write the table of classes as CSV, with all digits; the columns are named by their keys."""
    columns, rows = content.classes
    _write_csv(path, [['class', *(column.key for column in columns), 'note'],
                      *([row.name, *(row.values.get(column.key) for column in columns), row.note] for row in rows)])


def write_confusion(path, confusion):
    """Write a `Confusion` as CSV: a row for each true class, a column for each prediction."""
    _write_csv(path, [['truth \\ prediction', *confusion.prediction], *(
        [name, *row] for name, row in zip(confusion.truth, confusion.counts.tolist(), strict=True))])


def _write_csv(path, rows):
    """Write rows. Names from folders may have letters that UTF-8 cannot have: these are escaped."""
    with atomic_write(path) as part, open(part, 'w', newline='', encoding='utf-8', errors='backslashreplace') as file:
        csv.writer(file).writerows(rows)


def tell_classes(content) -> str:
    """Return the table of classes as text, with the digits of its columns; of many classes only the worst."""
    columns, rows = content.classes
    shown_rows = rows if len(rows) <= _MOST_LINES else rows[:_FEW]
    lines = [['class', *(column.key for column in columns)],
             *([_short(row.name), *(shown(row.values.get(column.key), column) for column in columns)]
               for row in shown_rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ['  '.join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
    if len(shown_rows) < len(rows):
        text.append(f'and {counted(len(rows) - len(shown_rows), "classes")} more in the CSV file')
    return '\n'.join(text)


def shown(value, column) -> str:
    """Return a number as a table shows it; ``-`` if there is none. Text stays as it is."""
    if value is None or isinstance(value, str):
        return '-' if value is None else value
    return f'{value:,}' if column.digits is None else f'{value:.{column.digits}f}'


def _short(name):
    name = printable(name)
    return name if len(name) <= _LETTERS else f'{name[:_LETTERS - 3]}...'


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
    truths, predictions = ([_short(legible(side[place])) for place in places] for side in confusion[:2])
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
