"""Large images predicted tile by tile, with memory for a tile instead of the whole image."""
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import torch
from mmengine.structures import InstanceData, PixelData

from .big_images import BigImage, TiledReader
from .blending import blend
from .label_png import write_png
from .merging import finds_in, merge
from .predictor import SegmentationPredictor

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
        drawn, file = self.files_of(name)
        with TemporaryFile() as disk:
            labels = np.memmap(disk, np.uint16, 'w+', shape=(image.height, image.width))
            fill_labels(self._predictor, image, labels)
            picture = image.picture(DRAWN)
            self._predictor.drawing.write(picture, sample_of_labels(labels, picture), Path(out_dir, drawn))
            highest = 0
            for rows in _bands(labels):
                rows[:] = self._predictor.labels_of(rows)
                highest = max(highest, int(rows.max()))
            write_png(Path(out_dir, file), labels, self._predictor.label_type(highest))
        self._predictor.count += 1


def find_objects(predictor, image) -> tuple:
    """Return the objects of a `BigImage` as `Find`s, highest score first, and whether the model has masks."""
    size, finds, found = (image.height, image.width), {}, {}
    for tile, part in image.read():
        found = dict(predictor(part).pred_instances.numpy().items())
        finds[tile] = finds_in(tile, found, size, image.margin)
    return merge(finds, image.margin), 'masks' in found


def fill_labels(predictor, image, labels, to_scores=None, scores=None):
    """Predict the pixels of a `BigImage`.

    Args:
        predictor: A `SegmentationPredictor`.
        image: The `BigImage`.
        labels: Array (H, W) that the model's outputs are written to.
        to_scores: Function that returns the scores (h, w) of labels (1, h, w) from class scores (C, h, w).
        scores: Array (H, W) that the scores are written to.

    Returns:
        Whether there were scores.
    """
    threshold = getattr(_part_of(predictor, 'decode_head'), 'threshold', None)
    samples, scored = (predictor(part) for _, part in image.read()), False
    for patch in blend(samples, image.tiles, threshold, scores is not None):
        labels[patch.y, patch.x] = patch.labels
        if patch.scores is not None:
            scores[patch.y, patch.x] = to_scores(patch.scores, torch.from_numpy(patch.labels)[None])
            scored = True
    return scored


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


def _bands(array, rows: int = 256):
    """Yield parts of a memory-mapped array."""
    for start in range(0, len(array), rows):
        yield array[start:start + rows]
