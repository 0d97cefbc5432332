"""Pictures of maps over an image: rows of panels with titles, and a note below that explains how to read them."""
import textwrap
from typing import NamedTuple

import cv2
import numpy as np

#: In pixels: largest width of a picture, largest height of a panel, gap around panels, height of a title and of a line
#: of the note.
WIDTH, PANEL_HEIGHT, GAP, TITLE, LINE = 1600, 480, 12, 26, 20
#: Titles would not fit into narrower columns.
COLUMN = 185
#: Percentiles of a map that its colour scale starts and ends at.
LOW, HIGH = 1, 99
RULE = (f'Each map has its own colour scale, from its {LOW}st to its {HIGH}th percentile (dark to bright); values '
        'beyond are clipped.')


class Panel(NamedTuple):
    """The image, or a map over it.

    Args:
        title: The text above it.
        values: A map (h, w), drawn in a perceptually uniform colormap, or (h, w, 3), drawn as RGB; None for the image
            itself.
        cells: How many rows and columns of the map the image covers, as fractional numbers: the last cells may reach
            beyond the image, or end before it.
        ahead: By how many cells the map starts above and to the left of the image.
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
        rows: Lists of `Panel`; None leaves a place empty.
        note: What the panels show; `RULE` is added.
        file: Path of the picture; any name.
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
    """Return a panel as RGB (H, W, 3) uint8, as large as ``image`` (also RGB uint8); white where the map ends early."""
    if panel.values is None:
        return image
    values, (rows, columns) = _stretched(panel.values), panel.cells
    height, width = image.shape[:2]
    # cells smaller than pixels are averaged, larger ones keep their borders
    sizes = [min(count, max(round(length * count / cells), 1))
             for count, length, cells in zip(values.shape, (height, width), (rows, columns), strict=False)]
    places = [(np.arange(length) + 0.5) / length * cells
              for length, cells in zip((height, width), (rows, columns), strict=True)]
    # the last cell of a map that starts ahead of the image is stretched to where the map would end otherwise
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
    """Return a map scaled so that its percentiles are 0 and 1, for each channel if it has channels; a flat map is 0."""
    low, high = np.percentile(values, (LOW, HIGH), axis=(0, 1))
    return ((values - low) / np.maximum(high - low, 1e-30)).clip(0, 1).astype(np.float32)


def _panel_size(image, columns):
    """Return height and width of a panel, with the aspect ratio of the image."""
    height, width = image.shape[:2]
    scale = min(((WIDTH - GAP) // columns - GAP) / width, PANEL_HEIGHT / height)
    return max(round(height * scale), 1), max(round(width * scale), 1)
