"""Labels of the pixels of an image from the scores of its tiles, which are weighted down towards a tile's border."""
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch


class Patch(NamedTuple):
    """A finished part of an image.

    Args:
        y: The rows, as a slice.
        x: The columns.
        labels: (h, w) int64: outputs of the model.
        scores: (C, h, w) float32: the mean scores, or None if the tiles keep none.
    """
    y: slice
    x: slice
    labels: np.ndarray
    scores: torch.Tensor | None


def blend(samples, tiles, threshold: float = None, scores: bool = False):
    """Yield the `Patch`es of an image, each pixel once.

    Where tiles overlap, the score of a class is a weighted mean: the weight of a tile is highest in its middle and
    falls linearly to its border. If a tile is so large that the model keeps no class scores, a pixel gets the label of
    the tile whose middle is nearest. Memory holds the scores of one tile; what the tiles of a row share with those of
    the next row is in temporary files.

    Args:
        samples: Iterable of a data sample for each of ``tiles``, on the CPU, in the same order.
        tiles: The `Tile`s of `Tiling.tiles`.
        threshold: For a model with a single output: the probability above which the label is 1.
        scores: Whether the patches have scores.
    """
    rows, columns = ([span for _, span in sorted(set(pairs))] for pairs in (
        [(tile.row, tile.y) for tile in tiles], [(tile.column, tile.x) for tile in tiles]))
    sums = [_sum_of_weights(spans) for spans in (rows, columns)]
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
            yield Patch(y, x, labels.numpy(), total if scores else None)


def _weights(span):
    """Return the weights along an axis of a tile: 1 in the middle, above 0 at the borders."""
    places = torch.arange(span.end - span.start)
    weights = torch.minimum(places + 1, places.flip(0) + 1).float()
    return weights / weights.max()


def _sum_of_weights(spans):
    total = torch.zeros(spans[-1].end)
    for span in spans:
        total[span.start:span.end] += _weights(span)
    return total


def _nearest(tile, sample, rows, columns):
    """Return the patch of the pixels that are nearer to the middle of this tile than to that of any other."""
    y, x = (slice((spans[place - 1].end + span.start) // 2 if place else 0,
                  (span.end + spans[place + 1].start) // 2 if place + 1 < len(spans) else span.end)
            for spans, place, span in ((rows, tile.row, tile.y), (columns, tile.column, tile.x)))
    inside = tuple(slice(part.start - span.start, part.stop - span.start) for part, span in ((y, tile.y), (x, tile.x)))
    return Patch(y, x, sample.pred_sem_seg.data[0].long().numpy()[inside], None)
