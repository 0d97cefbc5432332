"""Images that are predicted tile by tile: in memory, or read strip by strip if pyvips is installed."""
from pathlib import Path

import cv2
import numpy as np

from ..errors import DataError
from ..text import first_line
from .reading import picture_of
from .tiling import Tiling


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
        if (strips := _strips_of(image, self._reader)) and not self._tiling.fits(strips.height, strips.width):
            return BigImage(strips, self._reader, self._tiling, image_id)
        loaded = self._reader.open(image, image_id)
        if self._tiling.fits(*loaded['img'].shape[:2]):
            return self._reader.prepare(loaded, image_id)
        return BigImage(_Loaded(loaded), self._reader, self._tiling, image_id)


class BigImage:
    """An image that is larger than a tile.

    Args:
        source: A `_Loaded` or a `_Strips`.
        reader: The `ImageReader` that prepares tiles.
        tiling: The tiles.
        image_id: The id of the image.
    """

    def __init__(self, source, reader, tiling, image_id):
        self._source, self._reader = source, reader
        self.height, self.width, self.id = source.height, source.width, image_id
        self.tiles = tiling.tiles(self.height, self.width)
        self.margin = max(2, tiling.tile // 100)

    def read(self):
        """Yield pairs of a `Tile` and its `ReadImage`, row by row."""
        rows = {}
        for tile in self.tiles:
            rows.setdefault(tile.y, []).append(tile)
        for (span, tiles), (first, loaded) in zip(rows.items(), self._source.rows(list(rows)), strict=True):
            for tile in tiles:
                cut = np.s_[span.start - first:span.end - first, tile.x.start:tile.x.end]
                part = loaded['img'][cut].copy()  # steps of the pipeline may work in place
                yield tile, self._reader.prepare(dict(loaded, img=part, img_shape=part.shape[:2],
                                                      ori_shape=part.shape[:2]), self.id)

    def picture(self, longest: int = None) -> np.ndarray:
        """Return the image as RGB (H, W, 3) uint8, reduced if a side is longer than ``longest``."""
        height, width = size_within(self.height, self.width, longest)
        return self._source.picture(height, width)


def size_within(height: int, width: int, longest: int = None) -> tuple:
    """Return height and width, reduced so that neither is longer than ``longest``."""
    share = min(1, (longest or max(height, width)) / max(height, width))
    return max(round(height * share), 1), max(round(width * share), 1)


class _Loaded:
    """An image in memory, as the config's loader returns it."""

    def __init__(self, loaded):
        self._loaded = loaded
        self.height, self.width = loaded['img'].shape[:2]

    def rows(self, spans):
        """Yield, for each span, the first row and the loader's output for at least the rows of the span."""
        for _ in spans:
            yield 0, self._loaded

    def picture(self, height, width):
        """Return the image at a size."""
        picture = picture_of(self._loaded)
        return picture if picture.shape[:2] == (height, width) else cv2.resize(
            picture, (width, height), interpolation=cv2.INTER_AREA)


class _Strips:
    """A file that is read from top to bottom, once for the tiles and once for the drawing; memory holds a row of tiles.

    Args:
        path: The file.
        image: The file as pyvips opens it.
        reader: The `ImageReader`.
    """

    def __init__(self, path, image, reader):
        self._path, self._image, self._reader = path, image, reader
        self.height, self.width = image.height, image.width

    def rows(self, spans):
        """Yield, for each span, the first row and the loader's output for its rows."""
        import pyvips
        region, done, strip = pyvips.Region.new(_opened(self._path)), 0, None
        for span in spans:
            try:
                new = _pixels(region.fetch(0, done, self.width, span.end - done), span.end - done, self._image)
            except pyvips.Error as error:
                raise DataError(f'{self._path} cannot be read beyond row {done}: {first_line(error)}') from error
            strip = new if strip is None else np.concatenate([strip[len(strip) - (done - span.start):], new])
            done = span.end
            yield span.start, self._reader.open(strip, 0)

    def picture(self, height, width):
        """Return the image at a size."""
        import pyvips
        image = (_opened(self._path) if (height, width) == (self.height, self.width) else
                 pyvips.Image.thumbnail(str(self._path), width, height=height, size='force', no_rotate=True))
        picture = _pixels(image.write_to_memory(), image.height, image)
        return picture if picture.ndim == 3 else picture[..., None].repeat(3, 2)


def _strips_of(image, reader):
    """Return the `_Strips` of a file; None if it is no file, or if strips would differ from what the reader returns."""
    if isinstance(image, np.ndarray) or not isinstance(image, (str, Path)) or not reader.reads_plainly:
        return None
    try:
        import pyvips
    except (ImportError, OSError):  # OSError: the package is installed, its C library is not
        return None
    try:
        opened = _opened(image)
    except pyvips.Error:  # the other reader reads it, or reports what is wrong
        return None
    turned = opened.get_typeof('orientation') and opened.get('orientation') > 1
    plain = (opened.format, opened.bands, opened.interpretation) in (('uchar', 3, 'srgb'), ('uchar', 1, 'b-w'))
    return _Strips(image, opened, reader) if plain and not turned else None


def _opened(path):
    import pyvips
    return pyvips.Image.new_from_file(str(path), access='sequential', fail_on='truncated')


def _pixels(data, height, image):
    """Return the bytes of a pyvips image as an array (H, W, 3) or (H, W)."""
    array = np.frombuffer(data, np.uint8).reshape(height, image.width, image.bands)
    return array[..., 0] if image.bands == 1 else array
