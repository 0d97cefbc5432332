"""The confusion matrix of a test: as a table of all counts, and as a picture."""
import csv

import numpy as np

from ..files import atomic_write
from ..text import counted, printable

#: A picture with more classes could not be read.
MOST_CLASSES = 30
_CELL = 0.42  # inches
_DIGITS = 5  # fit into a cell
_LETTERS = 26


def confusion_of(results, count) -> np.ndarray:
    """Return how many images of each class (row) were taken for each class (column), for `Result` of some classes."""
    from mmpretrain.evaluation import ConfusionMatrix
    truth, prediction = ([getattr(result, key) for result in results] for key in ('truth', 'prediction'))
    return ConfusionMatrix.calculate(prediction, truth, count).numpy()


def write_confusion(path, counts, names):
    """Write the counts as CSV: a row for each true class, a column for each prediction."""
    with atomic_write(path) as part, open(part, 'w', newline='', encoding='utf-8') as file:
        table = csv.writer(file)
        table.writerow(['truth \\ prediction', *names.prediction])
        table.writerows([name, *row] for name, row in zip(names.truth, counts.tolist(), strict=True))


def draw_confusion(path, counts, names):
    """Draw the matrix as PNG: colours are shares of the row.

    Args:
        path: The file.
        counts: Of `confusion_of`.
        names: `Names` of the classes. Of more than `MOST_CLASSES` those are drawn that are most confused with each
            other.
    """
    from matplotlib.figure import Figure  # slow to import
    places = most_confused(counts, MOST_CLASSES)
    images = counts.sum(1)
    shares = (counts / np.maximum(images, 1)[:, None])[places][:, places]
    truths, predictions = ([_short(side[place]) for place in places] for side in names)
    size = _CELL * len(places)
    figure = Figure(figsize=(max(size, 2.4) + 3.6, max(size, 1.8) + 2.6), layout='constrained')
    axes = figure.subplots()
    picture = axes.imshow(shares, cmap='Blues', vmin=0, vmax=1)
    for row, column in zip(*np.nonzero(counts[places][:, places]), strict=True):
        text = str(counts[places[row], places[column]])
        if len(text) <= _DIGITS:
            axes.text(column, row, text, ha='center', va='center', fontsize=8, parse_math=False,
                      color='white' if shares[row, column] > 0.55 else 'black')
    ticks = range(len(places))
    axes.set_xticks(ticks, predictions, rotation=90, fontsize=9, parse_math=False)
    axes.set_yticks(ticks, [f'{label} ({images[place]:,})' for label, place in zip(truths, places, strict=True)],
                    fontsize=9, parse_math=False)
    axes.set_xlabel('prediction')
    axes.set_ylabel('truth (images)')
    bar = figure.colorbar(picture, ax=axes, fraction=0.05, shrink=min(1., 3 / max(size, 1.8)))
    bar.set_label('share of the images of the class', fontsize=9)
    bar.ax.yaxis.set_major_formatter(lambda share, _: f'{share:.0%}')
    right = int(np.trace(counts))
    lines = [f'{right:,} of {counted(int(images.sum()), "images")} right ({right / max(images.sum(), 1):.1%})']
    if len(places) < len(counts):
        lines.append(f'{len(places)} of {len(counts):,} classes: those most confused with each other')
    figure.suptitle('\n'.join(lines), fontsize=11)
    with atomic_write(path) as part:
        figure.savefig(part, dpi=110, format='png', bbox_inches='tight', pad_inches=0.2)


def most_confused(counts, number) -> np.ndarray:
    """Return the places of so many classes in their order: all, or those of the pairs that are confused most often.

    Where there are fewer of these, others follow in their order.
    """
    if len(counts) <= number:
        return np.arange(len(counts))
    pairs = np.triu(counts + counts.T, 1)
    order = np.argsort(-pairs, axis=None, kind='stable')[:np.count_nonzero(pairs)]
    wanted = dict.fromkeys(np.stack(np.unravel_index(order, pairs.shape), 1).ravel().tolist())
    wanted.update(dict.fromkeys(range(len(counts))))
    return np.array(sorted(list(wanted)[:number]))


def _short(name):
    name = printable(name)
    return name if len(name) <= _LETTERS else f'{name[:_LETTERS - 3]}...'
