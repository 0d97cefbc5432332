"""The pixels of a test of a segmentor, counted image by image in bounded memory."""
import heapq
from typing import NamedTuple

import cv2
import numpy as np
import torch


class ImageFigures(NamedTuple):
    """What is known of an image.

    Args:
        place: Its number in the data set.
        path: The image file.
        miou: Mean IoU of the classes in the ground truth or the prediction, from 0 to 1; None if all is ignored.
        wrong: Share of the labelled pixels with a wrong prediction; None if all is ignored.
        confused: The most frequent mistake: numbers of the true and the predicted class, and its share of the labelled
            pixels; None if there is no mistake.
    """
    place: int
    path: str
    miou: float | None
    wrong: float | None
    confused: tuple | None


class WorstImage(NamedTuple):
    """Figures of an image, and ground truth and prediction as compressed label maps, see `labels_of`."""
    figures: ImageFigures
    truth: bytes
    prediction: bytes


class PixelCounts:
    """Counts pixels by true and predicted class, and keeps the label maps of the worst images.

    Args:
        classes: The number of classes.
        ignored: The label of pixels that do not count.
        kept: How many images to keep.

    Attributes:
        confusion: Pixels by true (row) and predicted (column) class, int64. The last row and column are for labels that
            are no class.
        images_of: For each class, how many images have it in the ground truth.
        images: `ImageFigures` of all images.
    """

    def __init__(self, classes: int, ignored: int, kept: int):
        self.classes, self.ignored, self.kept = classes, ignored, kept
        self.confusion = np.zeros((classes + 1, classes + 1), np.int64)
        self.images_of = np.zeros(classes, np.int64)
        self.images = []
        self._worst = []  # a heap of keys and images, the least bad first

    def add(self, place: int, path: str, truth: torch.Tensor, prediction: torch.Tensor):
        """Count an image.

        Args:
            place: Its number in the data set.
            path: The image file.
            truth: Labels (H, W).
            prediction: Labels of the same shape, on the same device.
        """
        labelled, truth, prediction = truth != self.ignored, self._numbered(truth), self._numbered(prediction)
        size = self.classes + 1
        pairs = (truth * size + prediction)[labelled]
        counts = torch.bincount(pairs, minlength=size * size).reshape(size, size).cpu().numpy()
        self.confusion += counts
        self.images_of += counts[:-1].any(1)
        figures = _figures_of(place, path, counts)
        self.images.append(figures)
        if figures.miou is not None:
            key = -figures.miou, -place
            if len(self._worst) < self.kept or key > self._worst[0][0]:
                maps = [_compressed(torch.where(labelled, labels, size)) for labels in (truth, prediction)]
                self._keep(key, WorstImage(figures, *maps))

    def join(self, other):
        """Add what another process counted."""
        self.confusion += other.confusion
        self.images_of += other.images_of
        self.images += other.images
        for key, image in other._worst:
            self._keep(key, image)

    def worst(self) -> list:
        """Return the kept images, the worst first."""
        return [image for _, image in sorted(self._worst, key=lambda pair: pair[0], reverse=True)]

    def labels_of(self, compressed) -> tuple:
        """Return a label map of a `WorstImage` as an array (H, W), and the label of its ignored pixels."""
        return cv2.imdecode(np.frombuffer(compressed, np.uint8), cv2.IMREAD_UNCHANGED), self.classes + 1

    def _keep(self, key, image):
        if len(self._worst) < self.kept:
            heapq.heappush(self._worst, (key, image))
        else:
            heapq.heappushpop(self._worst, (key, image))

    def _numbered(self, labels):
        labels = labels.long()
        return torch.where((labels >= 0) & (labels < self.classes), labels, self.classes)


def areas_of(confusion) -> list:
    """Return intersection, union, area of the prediction and of the ground truth of each class.

    Args:
        confusion: As in `PixelCounts`.
    """
    truth, prediction, both = (part[:-1] for part in (confusion.sum(1), confusion.sum(0), np.diag(confusion)))
    return [both, truth + prediction - both, prediction, truth]


def _figures_of(place, path, counts):
    total = int(counts.sum())
    if not total:
        return ImageFigures(place, path, None, None, None)
    both, union, *_ = areas_of(counts)
    mistakes = counts.copy()
    np.fill_diagonal(mistakes, 0)
    mistakes[-1, -1] = counts[-1, -1]  # a label that is no class is never right
    pair = np.unravel_index(mistakes.argmax(), mistakes.shape)
    share = mistakes[pair] / total
    return ImageFigures(place, path, float((both[union > 0] / union[union > 0]).mean()) if union.any() else 0.,
                        float(mistakes.sum() / total), (*map(int, pair), float(share)) if share else None)


def _compressed(labels):
    labels = labels.cpu().numpy()
    kind = np.uint8 if labels.max() < 256 else np.uint16
    return cv2.imencode('.png', labels.astype(kind))[1].tobytes()
