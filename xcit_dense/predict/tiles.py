"""How an image is cut into tiles, and images that are read so: in memory, or in parts if pyvips is installed."""
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from mmengine.structures import InstanceData, PixelData

from .._utils.text import first_line
from ..errors import ConfigError, DataError
from .reading import picture_of

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


class TiledReader:
    """Reads images that fit into one tile as another reader does, and larger ones as `BigImage`.

    Args:
        reader: An `ImageReader`, or an object with its ``open``, ``prepare`` and ``reads_plainly``.
        tiling: The tiles.
    """

    def __init__(self, reader, tiling: Tiling):
        self._reader, self._tiling = reader, tiling

    def read(self, image, image_id):
        """Read an image like `ImageReader.read`; return a `ReadImage` or a `BigImage`."""
        if (opened := _opened(image, self._reader)) and not self._tiling.fits(opened.height, opened.width):
            return BigFile(image, opened, self._reader, self._tiling, image_id)
        loaded = self._reader.open(image, image_id)
        if self._tiling.fits(*loaded['img'].shape[:2]):
            return self._reader.prepare(loaded, image_id)
        return BigImage(loaded, loaded['img'].shape[:2], self._reader, self._tiling, image_id)


class BigImage:
    """An image that is larger than a tile, in memory.

    Args:
        source: What the config's loader returns.
        size: Height and width.
        reader: The `ImageReader` that prepares tiles.
        tiling: The tiles.
        image_id: The id of the image.
    """

    def __init__(self, source, size, reader, tiling, image_id):
        self._source, self.size, self._reader, self.id = source, tuple(size), reader, image_id
        self.tiles, self.margin = tiling.tiles(*self.size), max(2, tiling.tile // 100)

    def read(self):
        """Yield pairs of a `Tile` and its `ReadImage`, row by row."""
        for tile in self.tiles:
            yield tile, self._reader.prepare(self._part(tile), self.id)

    def _part(self, tile):
        """Return the loader's output for a tile."""
        part = self._source['img'][slice(*tile.y), slice(*tile.x)].copy()  # steps of the pipeline may work in place
        return dict(self._source, img=part, img_shape=part.shape[:2], ori_shape=part.shape[:2])

    def shown(self, sample, longest: int = None) -> tuple:
        """Return what to draw: the image as RGB (h, w, 3) uint8, and its sample, at the same size.

        Args:
            sample: The sample of the image. Its masks are read one by one if they are drawn in the look of this
                package.
            longest: Both are reduced if a side is longer.
        """
        share = min(1, (longest or max(self.size)) / max(self.size))
        height, width = (max(round(length * share), 1) for length in self.size)
        # the pixels of the image that represent it in the picture
        rows, columns = (((np.arange(reduced) + 0.5) * (length / reduced)).astype(np.int64)
                         for length, reduced in zip(self.size, (height, width), strict=True))
        if 'pred_sem_seg' in sample:
            labels = torch.from_numpy(sample.pred_sem_seg.data[0][np.ix_(rows, columns)].astype(np.int64))
            return self._picture(height, width), type(sample)(pred_sem_seg=PixelData(data=labels[None]))
        found = sample.pred_instances
        scale = torch.tensor([width / self.size[1], height / self.size[0]] * 2, dtype=torch.float32)
        small = InstanceData(bboxes=found.bboxes * scale, labels=found.labels, scores=found.scores)
        if 'masks' in found:
            small.masks = [partial(mask.sampled, rows, columns) for mask in found.masks]
        return self._picture(height, width), type(sample)(pred_instances=small)

    def _picture(self, height, width):
        picture = picture_of(self._source)
        return picture if picture.shape[:2] == (height, width) else cv2.resize(
            picture, (width, height), interpolation=cv2.INTER_AREA)


class BigFile(BigImage):
    """A file that pyvips reads in parts: it decodes a large one into a temporary file.

    Args:
        path: The file.
        opened: The file as pyvips opens it.
        reader, tiling, image_id: As for `BigImage`.
    """

    def __init__(self, path, opened, reader, tiling, image_id):
        super().__init__(path, (opened.height, opened.width), reader, tiling, image_id)
        self._opened = opened

    def _part(self, tile):
        left, top, width, height = tile.x.start, tile.y.start, tile.x.end - tile.x.start, tile.y.end - tile.y.start
        return self._reader.open(self._pixels(self._opened.crop(left, top, width, height)), self.id)

    def _picture(self, height, width):
        image = self._opened
        if (height, width) != self.size:
            image = image.thumbnail_image(width, height=height, size='force', no_rotate=True)
        return np.broadcast_to(self._pixels(image).reshape(height, width, -1), (height, width, 3))

    def _pixels(self, image):
        """Return a pyvips image as an array (H, W, 3) or (H, W)."""
        import pyvips
        try:
            array = np.frombuffer(image.write_to_memory(), np.uint8).reshape(image.height, image.width, image.bands)
        except pyvips.Error as error:
            raise DataError(f'{self._source} cannot be read: {first_line(error)}') from error
        return array[..., 0] if image.bands == 1 else array


def _opened(image, reader):
    """Return a file as pyvips opens it; None if it is no file, or would differ from what the reader returns."""
    if not isinstance(image, (str, Path)) or not reader.reads_plainly:
        return None
    try:
        import pyvips
    except (ImportError, OSError):  # OSError: the package is installed, its C library is not
        return None
    try:
        opened = pyvips.Image.new_from_file(str(image), fail_on='truncated')
    except pyvips.Error:  # the other reader reads it, or reports what is wrong
        return None
    turned = opened.get_typeof('orientation') and opened.get('orientation') > 1
    plain = (opened.format, opened.bands, opened.interpretation) in (('uchar', 3, 'srgb'), ('uchar', 1, 'b-w'))
    return opened if plain and not turned else None
