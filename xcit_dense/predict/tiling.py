"""How an image is cut into tiles."""
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import ConfigError

#: The default share of a tile that the next one covers too.
OVERLAP = 0.2


class Span(NamedTuple):
    """Pixels of one axis, from ``start`` up to but not including ``end``."""
    start: int
    end: int


class Tile(NamedTuple):
    """A part of an image: its position in the grid, and its pixels."""
    row: int
    column: int
    y: Span
    x: Span


@dataclass(frozen=True)
class Tiling:
    """Tiles of one size that cover an image evenly.

    Args:
        tile: Width and height of a tile in pixels; in a narrower image, tiles are as wide as the image.
        overlap: The least share of a tile that the next one covers too: at least 0, below 1.

    Raises:
        ConfigError: A value is invalid.
    """
    tile: int
    overlap: float = OVERLAP

    def __post_init__(self):
        if isinstance(self.tile, bool) or not isinstance(self.tile, int) or self.tile < 1:
            raise ConfigError(f'tile (--tile) must be a whole number of pixels, at least 1, got {self.tile!r}. Try '
                              '1024')
        if not 0 <= self.overlap < 1:
            raise ConfigError(f'overlap (--overlap) must be a share of a tile, at least 0 and below 1, got '
                              f'{self.overlap!r}. Try {OVERLAP}')

    def check(self, smallest: int):
        """Raise `ConfigError` if a tile is smaller than the smallest image that a model accepts, in pixels."""
        if self.tile < smallest:
            raise ConfigError(f'tile (--tile) is {self.tile}, but the model needs images of at least {smallest} x '
                              f'{smallest} pixels. Use {smallest} or more')

    def fits(self, height: int, width: int) -> bool:
        """Whether an image fits into one tile."""
        return max(height, width) <= self.tile

    def spans(self, length: int) -> list:
        """Return the `Span`s of the tiles along an axis of ``length`` pixels, all of one length."""
        if length <= self.tile:
            return [Span(0, length)]
        step = max(int(self.tile * (1 - self.overlap) + 1e-9), 1)
        gaps = -(-(length - self.tile) // step)
        starts = [i * (length - self.tile) // gaps for i in range(gaps + 1)]
        return [Span(start, start + self.tile) for start in starts]

    def tiles(self, height: int, width: int) -> list:
        """Return the `Tile`s of an image, row by row."""
        return [Tile(row, column, y, x) for row, y in enumerate(self.spans(height))
                for column, x in enumerate(self.spans(width))]


def tiling_of(tile, overlap) -> Tiling | None:
    """Return the `Tiling` that options ask for, or None if ``tile`` is None.

    Raises:
        ConfigError: A value is invalid, or ``overlap`` is given without ``tile``.
    """
    if tile is None:
        if overlap is not None:
            raise ConfigError(f'overlap (--overlap) {overlap!r} needs tile (--tile). Set it too, for example to 1024')
        return None
    return Tiling(tile, OVERLAP if overlap is None else overlap)
