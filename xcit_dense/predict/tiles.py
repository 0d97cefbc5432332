"""How an image is cut into tiles, and its labels from the scores of the tiles, which count less towards the border."""
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from mmengine.structures import PixelData

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


class Tiling(NamedTuple):
    """Tiles of one size that cover an image evenly."""
    tile: int  # width and height in pixels; in a narrower image, tiles are as wide as the image
    overlap: float = OVERLAP  # the least share of a tile that the next one covers too: at least 0, below 1

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
    overlap = OVERLAP if overlap is None else overlap
    if not isinstance(tile, int) or tile < 1:
        raise ConfigError(f'tile (--tile) must be a whole number of pixels, at least 1, got {tile!r}. Try 1024')
    if not 0 <= overlap < 1:
        raise ConfigError(f'overlap (--overlap) must be a share of a tile, at least 0 and below 1, got {overlap!r}. '
                          f'Try {OVERLAP}')
    return Tiling(tile, overlap)


def label_in_tiles(predict, image, threshold: float = None, scores: bool = False):
    """Predict the pixels of a `BigImage`; ``predict`` is as for `find_in_tiles`, the threshold as for `blend`.

    Returns:
        A data sample of mmseg. Its ``pred_sem_seg`` is an array of uint16; ``label_scores`` is only there if it is
        wanted and the model keeps scores.
    """
    from mmseg.structures import SegDataSample
    labels, found = np.empty(image.size, np.uint16), None
    for place, outputs, means in blend((predict(part) for _, part in image.read()), image.tiles, threshold, scores):
        labels[place] = outputs
        if means is not None:
            found = np.empty(image.size, np.float32) if found is None else found
            found[place] = scores_of(means, torch.from_numpy(outputs)[None])
    sample = SegDataSample(pred_sem_seg=PixelData(data=labels[None]))
    if found is not None:
        sample.label_scores = PixelData(data=torch.from_numpy(found)[None])
    return sample


def scores_of(logits, labels):
    """Return the probabilities (H, W) of labels (1, H, W); a single output is already the probability of label 1."""
    if len(logits) == 1:
        found = torch.where(labels > 0, logits, 1 - logits)[0]
    else:
        best = logits.max(0).values
        found = 1 / (logits - best).exp_().sum(0)
    return found.float().cpu().numpy()


def blend(samples, tiles, threshold: float = None, scores: bool = False):
    """Yield the finished parts of an image, each pixel once.

    Where tiles overlap, the score of a class is a weighted mean: the weight of a tile is highest in its middle and
    falls linearly to its border. If a tile is so large that the model keeps no class scores, a pixel gets the label of
    the tile whose middle is nearest. Memory holds the scores of one tile; what the tiles of a row share with those of
    the next row is in temporary files.

    Args:
        samples: Iterable of a data sample for each of ``tiles``, on the CPU, in the order of `Tiling.tiles`.
        threshold: For a model with a single output: the probability above which the label is 1.

    Yields:
        Rows and columns of the part, as slices; the model's outputs (h, w) int64; and the mean scores (C, h, w)
        float32, or None if they are not wanted or the tiles keep none.
    """
    rows, columns = ([span for _, span in sorted(set(pairs))] for pairs in (
        [(tile.row, tile.y) for tile in tiles], [(tile.column, tile.x) for tile in tiles]))
    sums = [torch.zeros(spans[-1].end) for spans in (rows, columns)]  # of the weights
    for total, spans in zip(sums, (rows, columns), strict=True):
        for span in spans:
            total[slice(*span)] += _weights(span)
    with TemporaryDirectory() as folder:
        rest = None  # of the tile to the left
        for tile, sample in zip(tiles, samples, strict=True):
            logits = sample.get('seg_logits')
            if logits is None:
                yield _nearest(tile, sample, rows, columns)
                continue
            bottom, right = (spans[place + 1].start if place + 1 < len(spans) else spans[place].end
                             for spans, place in ((rows, tile.row), (columns, tile.column)))
            total = logits.data.float()
            total *= _weights(tile.y)[:, None] * _weights(tile.x)
            file = Path(folder, f'{tile.column}.npy')
            if tile.row:
                above = torch.from_numpy(np.load(file))
                total[:, :above.shape[1]] += above
            if bottom < tile.y.end:
                np.save(file, total[:, bottom - tile.y.start:].numpy())
            total = total[:, :bottom - tile.y.start]
            if tile.column:
                total[:, :, :rest.shape[2]] += rest
            rest = total[:, :, right - tile.x.start:].clone()
            total = total[:, :, :right - tile.x.start]
            y, x = slice(tile.y.start, bottom), slice(tile.x.start, right)
            if scores or len(total) == 1:
                total /= sums[0][y, None] * sums[1][x]
            labels = total.argmax(0) if len(total) > 1 else (total[0] > threshold).long()
            yield (y, x), labels.numpy(), total if scores else None


def _weights(span):
    """Return the weights along an axis of a tile: 1 in the middle, above 0 at the borders."""
    places = torch.arange(span.end - span.start)
    weights = torch.minimum(places + 1, places.flip(0) + 1).float()
    return weights / weights.max()


def _nearest(tile, sample, rows, columns):
    """Return the part of the image that is nearer to the middle of this tile than to that of any other."""
    y, x = (slice((spans[place - 1].end + span.start) // 2 if place else 0,
                  (span.end + spans[place + 1].start) // 2 if place + 1 < len(spans) else span.end)
            for spans, place, span in ((rows, tile.row, tile.y), (columns, tile.column, tile.x)))
    inside = tuple(slice(part.start - span.start, part.stop - span.start) for part, span in ((y, tile.y), (x, tile.x)))
    return (y, x), sample.pred_sem_seg.data[0].long().numpy()[inside], None
