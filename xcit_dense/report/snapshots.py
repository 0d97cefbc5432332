"""Pictures of a few validation images with their predictions, the same images at every evaluation."""
from pathlib import Path

import cv2
import numpy as np

from ..config.framework import framework_of
from ..data.datasets import datasets
from ..draw import class_colours
from ..draw.classes import chip, text_size
from ..draw.pictures import paste
from ..predict.drawing import Drawing
from ..predict.reading import ImageReader, picture_of

#: How many images are drawn.
HANDFUL = 6
#: Larger pictures are scaled down to this longer side.
_LARGEST = 1600
CAPTION = 'ground truth left, prediction right'


class Snapshots:
    """Draws some images of every validation of a training.

    Args:
        runner: The runner, with its validation data built.
    """

    def __init__(self, runner):
        loader = runner.val_dataloader
        count = len(loader.sampler)  # of this process
        self._places = sorted({round(number * (count - 1) / (HANDFUL - 1)) for number in range(HANDFUL)})
        self._reader = ImageReader(next(iter(datasets(runner.cfg, ['val_dataloader']))), on_disk=False)
        self._meta, self._seen = loader.dataset.metainfo, 0
        self._classifies = framework_of(runner.cfg) == 'mmpretrain'
        self._drawing = None if self._classifies else Drawing(runner.cfg.visualizer, self._meta)

    def restart(self):
        """Begin with the first batch again."""
        self._seen = 0

    def drawn(self, samples) -> list:
        """Return name, picture and caption of each image of a batch that belongs to the handful."""
        first, self._seen = self._seen, self._seen + len(samples)
        found = []
        for place in self._places:
            if first <= place < self._seen:
                sample = samples[place - first].cpu()
                name = f'validation/{self._places.index(place) + 1}_{Path(sample.img_path).stem}'
                found.append((name, *self._draw(sample)))
        return found

    def _draw(self, sample):
        picture = np.ascontiguousarray(picture_of(self._reader.load(sample.img_path, 0)))
        if self._classifies:
            return self._with_names(_scaled(picture, _LARGEST // 2), sample)
        return _scaled(self._drawing.draw(picture, sample, draw_gt=True), _LARGEST), CAPTION

    def _with_names(self, picture, sample):
        """Return a picture with the names of the true and the predicted classes, and both as text."""
        names = self._meta['classes']
        colours, size = class_colours(names, self._meta.get('palette')), text_size(picture)
        truth = [(int(label), '') for label in sample.get('gt_label', ())]
        guessed = [(int(label), f'{float(sample.pred_score[label]):.2f}') for label in sample.pred_label]
        texts, y = [], 0
        for kind, labels in (('truth', truth), ('predicted', guessed)):
            for label, score in labels:
                found = chip(f'{kind}: {names[label]}', size, tuple(colours[label]), picture.shape[1], score)
                paste(picture, found, 0, y)
                y += found.shape[0]
            texts.append(f'{kind}: ' + ', '.join(f'{names[label]} {score}'.strip() for label, score in labels))
        return picture, '; '.join(texts)


def _scaled(picture, largest):
    scale = largest / max(picture.shape[:2])
    if scale >= 1:
        return picture
    return cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
