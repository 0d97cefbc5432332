"""The confusion matrix of a test: a table of all counts, and a picture."""
import csv
import textwrap

import numpy as np

from ..draw.classes import font_of, legible
from ..draw.plots import INK, new_figure
from ..files import atomic_write
from ..text import counted
from .tables import open_csv, short

#: A picture with more classes would be unreadable.
MOST_CLASSES = 30
#: The row of predictions without an object, and the column of missed objects.
BACKGROUND = 'background'
_CELL = 0.42  # inches
_DIGITS = 5  # more do not fit into a cell
_LETTERS = 26


def confusion_of(results, count) -> np.ndarray:
    """Return how many images of each class (row) were predicted as each class (column).

    Args:
        results: All `Result`.
        count: The number of classes.
    """
    from mmpretrain.evaluation import ConfusionMatrix
    truth, prediction = ([getattr(result, key) for result in results] for key in ('truth', 'prediction'))
    return ConfusionMatrix.calculate(prediction, truth, count).numpy()


def write_confusion(path, confusion):
    """Write a `Confusion` as CSV: a row for each true class, a column for each prediction."""
    with atomic_write(path) as part, open_csv(part) as file:
        table = csv.writer(file)
        table.writerow(['truth \\ prediction', *confusion.prediction])
        table.writerows([name, *row] for name, row in zip(confusion.truth, confusion.counts.tolist(), strict=True))


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
    counts, unit = confusion.counts, confusion.unit
    places = drawn_places(confusion)
    totals = counts.sum(1)
    shares = (counts / np.maximum(totals, 1)[:, None])[places][:, places]
    truths, predictions = ([short(legible(side[place]), _LETTERS) for place in places] for side in confusion[:2])
    size = _CELL * len(places)
    width = max(size, 2.4) + 3.6
    picture = axes.imshow(shares, cmap='Blues', vmin=0, vmax=1)
    has_counts = len(str(counts[places][:, places].max(initial=0))) <= _DIGITS
    for row, column in zip(*np.nonzero(counts[places][:, places]), strict=True):
        text = str(counts[places[row], places[column]]) if has_counts else percent(shares[row, column])
        axes.text(column, row, text, ha='center', va='center', fontsize=8, parse_math=False,
                  color='white' if shares[row, column] > 0.55 else INK)
    ticks = range(len(places))
    axes.set_xticks(ticks, predictions, rotation=90, fontsize=9, parse_math=False)
    axes.set_yticks(ticks, [f'{label} ({compact(totals[place])})' for label, place in zip(truths, places, strict=True)],
                    fontsize=9, parse_math=False)
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set_font(FontProperties(fname=font_of(9, text.get_text()).path, size=9))
    axes.tick_params(length=0)
    axes.set_xlabel('prediction', color=INK)
    axes.set_ylabel(f'truth ({unit})', color=INK)
    bar = figure.colorbar(picture, ax=axes, fraction=0.05, shrink=min(1., 3 / max(size, 1.8)))
    bar.set_label('share of the row', fontsize=9, color=INK)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=9, length=0)
    bar.ax.yaxis.set_major_formatter(lambda share, _: f'{share:.0%}')
    lines = [headline(confusion)]
    if len(places) < len(counts):
        background = has_background(confusion)
        lines.append(f'{len(places) - background:,} of {counted(len(counts) - background, "classes")}: those most '
                     'confused with each other')
    if not has_counts:
        lines.append('numbers: percent of the row')
    figure.suptitle('\n'.join(lines), fontsize=11, color=INK)
    rule = textwrap.wrap(f'Rule: {confusion.rule}', round(17 * width))
    figure.supxlabel('\n'.join(rule), fontsize=8, color=INK, parse_math=False)
    figure.set_size_inches(width, max(size, 1.8) + 2.6 + 0.15 * len(rule))
    with atomic_write(path) as part:
        figure.savefig(part, dpi=110, format='png', bbox_inches='tight', pad_inches=0.2)


def headline(confusion) -> str:
    """Return how much is correct: objects with the right class, pixels or images."""
    counts, unit = confusion.counts, confusion.unit
    total, right = int(counts[:-1].sum() if has_background(confusion) else counts.sum()), int(np.trace(counts))
    words = 'found with the right class' if has_background(confusion) else 'correct'
    return f'{right:,} of {counted(total, unit)} {words} ({right / max(total, 1):.1%})'


def has_background(confusion) -> bool:
    """Whether the last row and column are no class: predictions without an object, and missed objects."""
    return confusion.unit == 'objects' and confusion.truth[-1:] == [BACKGROUND]


def drawn_places(confusion, number: int = MOST_CLASSES) -> np.ndarray:
    """Return the indices of the classes to draw, ascending: see `most_confused`, with the background in addition."""
    if not has_background(confusion):
        return most_confused(confusion.counts, number)
    last = len(confusion.counts) - 1
    return np.append(most_confused(confusion.counts[:-1, :-1], number), last)


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
    return f'{100 * share:.0f}' if share >= 0.0995 else f'{100 * share:.1f}' if share >= 0.0005 else '<0.1'


def compact(number) -> str:
    """Return a count of any size in few letters: ``12,345``, ``1.2 M``."""
    for limit, letter in ((10**9, 'G'), (10**6, 'M')):
        if number >= limit:
            return f'{number / limit:.3g} {letter}' if number < 1000 * limit else f'{number / limit:,.0f} {letter}'
    return f'{number:,}'
