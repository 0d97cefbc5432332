"""Pictures of maps over an image: panels in rows, each with a title, and words below that say how to read them."""
import textwrap
from typing import NamedTuple

import cv2
import numpy as np

#: Pixels: width of a picture at most, height of a panel at most, around panels, of a title and of a line below.
WIDTH, PANEL_HEIGHT, GAP, TITLE, LINE = 1600, 480, 12, 26, 20
#: Narrower columns would not hold their titles.
COLUMN = 185
#: Percentiles of a map that get the ends of its colours.
LOW, HIGH = 1, 99
RULE = (f'Each map has colours of its own, from its {LOW}st to its {HIGH}th percentile (dark to bright); what lies '
        'beyond is cut off.')


class Panel(NamedTuple):
    """The image, or a map over it.

    Args:
        title: Above it.
        values: A map (h, w), drawn in colours that are perceptually uniform, or (h, w, 3), drawn as RGB; None for the
            image itself.
        cells: Rows and columns of the map, with fractions, that the image takes: its last ones may reach beyond the
            image, or end before it.
        ahead: How many cells the map begins above and to the left of the image.
        over_image: Whether the image shows through, in grey.
    """
    title: str
    values: np.ndarray = None
    cells: tuple = None
    ahead: float = 0.
    over_image: bool = False


def draw(image, rows, note, file):
    """Write a picture as PNG, at most `WIDTH` wide.

    Args:
        image: RGB (H, W, 3) uint8.
        rows: Lists of `Panel`, None for an empty place.
        note: What the panels are; `RULE` follows.
        file: Path of the picture, of any name.
    """
    from matplotlib.figure import Figure  # slow to import
    columns = max(map(len, rows))
    height, width = _panel_size(image, columns)
    pitch = max(width, COLUMN)
    total_width = columns * (pitch + GAP) + GAP
    lines = textwrap.wrap(f'{note} {RULE}', total_width // 7)
    total_height = len(rows) * (height + TITLE) + len(lines) * LINE + 2 * GAP
    figure = Figure((total_width / 100, total_height / 100), dpi=100)
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            if panel is None:
                continue
            left, top = GAP + j * (pitch + GAP) + (pitch - width) // 2, i * (height + TITLE) + TITLE
            figure.figimage(colours_of(panel, small), left, total_height - top - height, resize=False)
            figure.text((left + width / 2) / total_width, 1 - (top - 7) / total_height, panel.title, fontsize=10.5,
                        ha='center', va='baseline')
    figure.text(GAP / total_width, (GAP + len(lines) * LINE / 2) / total_height, '\n'.join(lines), fontsize=9,
                color='0.3', va='center', linespacing=1.4)
    figure.savefig(file, format='png')


def colours_of(panel: Panel, image) -> np.ndarray:
    """Return a panel as RGB (H, W, 3) uint8 in the size of an image, given likewise; white where the map ends early."""
    if panel.values is None:
        return image
    values, (rows, columns) = _stretched(panel.values), panel.cells
    height, width = image.shape[:2]
    # cells smaller than pixels are averaged, larger ones keep their borders
    sizes = [min(count, max(round(length * count / cells), 1))
             for count, length, cells in zip(values.shape, (height, width), (rows, columns), strict=False)]
    places = [(np.arange(length) + 0.5) / length * cells
              for length, cells in zip((height, width), (rows, columns), strict=True)]
    # the last cell of a map that begins ahead of the image reaches to the end that it would reach otherwise
    ends = [place >= count for place, count in zip(places, values.shape, strict=False)]
    down, across = (((place + panel.ahead) * size / count).astype(int).clip(max=size - 1)
                    for place, size, count in zip(places, sizes, values.shape, strict=False))
    values = cv2.resize(values, sizes[::-1], interpolation=cv2.INTER_AREA)[down][:, across]
    if values.ndim == 2:
        from matplotlib import colormaps
        values = colormaps['inferno'](values)[..., :3]
    if panel.over_image:
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None] / 255
        values = 0.35 * grey + 0.65 * values
    colours = (255 * values).round().astype(np.uint8)
    colours[ends[0]] = colours[:, ends[1]] = 255
    return colours


def _stretched(values):
    """Return a map with its percentiles at 0 and 1, for each channel where there are some; a flat one is 0."""
    low, high = np.percentile(values, (LOW, HIGH), axis=(0, 1))
    return ((values - low) / np.maximum(high - low, 1e-30)).clip(0, 1).astype(np.float32)


def _panel_size(image, columns):
    """Return height and width of a panel, in the shape of the image."""
    height, width = image.shape[:2]
    scale = min(((WIDTH - GAP) // columns - GAP) / width, PANEL_HEIGHT / height)
    return max(round(height * scale), 1), max(round(width * scale), 1)
