"""Large images predicted tile by tile, with memory for a tile instead of the whole image.

Objects of the tiles are merged; scores of pixels are blended, with weights that fall towards the border of a tile.
"""
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import NamedTuple

import numpy as np
import torch
from mmengine.structures import InstanceData, PixelData

from .merging import finds_in, merge
from .predictor import SegmentationPredictor, write_png
from .tiles import BigImage, TiledReader

#: The longer side of the drawing of an image that is predicted in tiles: the frameworks need hundreds of bytes per
#: pixel to draw.
DRAWN = 2048


class Tiled:
    """Wraps a predictor: predicts images larger than a tile in tiles, and other images as the predictor does.

    Args:
        predictor: A `xcit_dense.predict.predictor.Predictor`, which predicts each tile like an image of that size.
        tiling: The `Tiling`.

    Raises:
        ConfigError: The tiles are smaller than the smallest image that the model accepts.
    """

    def __init__(self, predictor, tiling):
        tiling.check(getattr(_part_of(predictor, 'backbone'), 'min_size', 1))
        self._predictor, self.reader = predictor, TiledReader(predictor.reader, tiling)

    def __getattr__(self, name):
        return getattr(self._predictor, name)

    def write(self, image, name, out_dir):
        """Predict one image and write the files of `files_of`; a large image is drawn smaller."""
        if not isinstance(image, BigImage):
            self._predictor.write(image, name, out_dir)
        elif isinstance(self._predictor, SegmentationPredictor):
            self._write_regions(image, name, out_dir)
        else:
            self._write_objects(image, name, out_dir)

    def _write_objects(self, image, name, out_dir):
        finds, has_masks = find_objects(self._predictor, image)
        picture = image.picture(DRAWN)
        size = image.height, image.width
        shown = [find for find in finds if find.score > self._predictor.score_thr]
        draw_objects(self._predictor.drawing, picture, shown, size, Path(out_dir, self.files_of(name)[0]))
        masks = [find.mask.rle(*size) for find in finds] if has_masks else None
        self._predictor.records += self._predictor.records_of(
            [find.box for find in finds], [find.score for find in finds], [find.label for find in finds], masks,
            image_id=image.id, file_name=str(name))

    def _write_regions(self, image, name, out_dir):
        predictor, (drawn, file) = self._predictor, self.files_of(name)
        size, picture = (image.height, image.width), image.picture(DRAWN)
        with TemporaryFile() as outputs, TemporaryFile() as final:
            labels = np.memmap(outputs, np.uint16, 'w+', shape=size)
            fill_labels(predictor, image, labels)
            predictor.drawing.write(picture, sample_of_labels(labels, picture), Path(out_dir, drawn))
            bands = np.array_split(labels, max(len(labels) // 256, 1))  # for little memory
            for rows in bands:
                rows[:] = predictor.labels_of(rows)
            written = np.memmap(final, predictor.label_type(labels.max()), 'w+', shape=size)
            for rows, band in zip(np.array_split(written, len(bands)), bands, strict=True):
                rows[:] = band
            write_png(written, Path(out_dir, file))
        predictor.count += 1


def find_objects(predictor, image) -> tuple:
    """Return the objects of a `BigImage` as `Find`s, highest score first, and whether the model has masks."""
    size, finds, found = (image.height, image.width), {}, {}
    for tile, part in image.read():
        found = dict(predictor(part).pred_instances.numpy().items())
        finds[tile] = finds_in(tile, found, size, image.margin)
    return merge(finds, image.margin), 'masks' in found


def fill_labels(predictor, image, labels, scores=None) -> bool:
    """Predict the pixels of a `BigImage`.

    Args:
        predictor: A `SegmentationPredictor`.
        image: The `BigImage`.
        labels: Array (H, W) that the model's outputs are written to.
        scores: Array (H, W) that the scores of the labels are written to.

    Returns:
        Whether there were scores.
    """
    threshold = getattr(_part_of(predictor, 'decode_head'), 'threshold', None)
    samples, scored = (predictor(part) for _, part in image.read()), False
    for patch in blend(samples, image.tiles, threshold, scores is not None):
        labels[patch.y, patch.x] = patch.labels
        if patch.scores is not None:
            scores[patch.y, patch.x] = scores_of(patch.scores, torch.from_numpy(patch.labels)[None])
            scored = True
    return scored


def scores_of(logits, labels):
    """Return the probabilities (H, W) of labels (1, H, W); a single output is already the probability of label 1."""
    if len(logits) == 1:
        found = torch.where(labels > 0, logits, 1 - logits)[0]
    else:
        best = logits.max(0).values
        found = 1 / (logits - best).exp_().sum(0)
    return found.float().cpu().numpy()


def draw_objects(drawing, picture, finds, size, file=None):
    """Draw `Find`s into a picture, whose masks are read one by one if they are drawn in the look of this package.

    Args:
        drawing: The `Drawing`.
        picture: RGB (h, w, 3) uint8; it may be smaller than the image of the finds.
        finds: The objects.
        size: Height and width of the image of the finds.
        file: File to write the picture to.

    Returns:
        The picture, or None if ``file`` is given.
    """
    from mmdet.structures import DetDataSample
    height, width = picture.shape[:2]
    boxes = np.array([find.box for find in finds], np.float32).reshape(-1, 4)
    boxes *= np.array([width / size[1], height / size[0]] * 2, np.float32)
    found = InstanceData(bboxes=torch.from_numpy(boxes), labels=torch.tensor([find.label for find in finds]).long(),
                         scores=torch.tensor([find.score for find in finds]))
    if finds and finds[0].mask is not None:
        rows, columns = (_places(*lengths) for lengths in zip(size, (height, width), strict=True))
        found.masks = [partial(find.mask.sampled, rows, columns) for find in finds]
    draw = drawing.draw if file is None else partial(drawing.write, file=file)
    return draw(picture, DetDataSample(pred_instances=found), pred_score_thr=-1.)


def sample_of_labels(labels, picture):
    """Return labels (H, W) as mmseg's data sample, at the size of a picture."""
    from mmseg.structures import SegDataSample
    rows, columns = (_places(*lengths) for lengths in zip(labels.shape, picture.shape, strict=False))
    drawn = torch.from_numpy(labels[np.ix_(rows, columns)].astype(np.int64))
    return SegDataSample(pred_sem_seg=PixelData(data=drawn[None]))


def _part_of(predictor, name):
    """Return a part of the predictor's model, or None if it has no such part."""
    return getattr(getattr(predictor, 'model', None), name, None)


def _places(length, reduced):
    """Return the pixels along an axis that represent it in a smaller picture."""
    return ((np.arange(reduced) + 0.5) * (length / reduced)).astype(np.int64)


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
