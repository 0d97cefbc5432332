"""The predictions of a loaded model for an image, as NumPy arrays."""
from collections import Counter
from dataclasses import dataclass

import numpy as np

from ..errors import SetupError
from ..text import counted, listed
from .cut_masks import CutMasks


@dataclass(frozen=True, eq=False, repr=False)
class Objects:
    """The objects that a detector finds in an image, highest score first.

    Args:
        boxes: (n, 4) float32: left, top, right, bottom in pixels of the image.
        scores: (n,) float32, from 0 to 1.
        labels: (n,) int64: indices into ``classes`` of the model.
        names: The class names of the n objects.
        masks: (n, H, W) bool, or None if the model has none. For an image that was predicted in tiles, a
            `xcit_dense.predict.cut_masks.CutMasks`: ``masks[i]`` is one mask, ``numpy.asarray(masks)`` all of them.
    """
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    names: tuple
    masks: np.ndarray | CutMasks | None
    _draw: callable = None

    def __len__(self):
        return len(self.scores)

    def __repr__(self):
        found = [f'{count} {name}' for name, count in Counter(self.names).most_common()]
        masks = 'without masks' if self.masks is None else 'with masks'
        return f'<{counted(len(self), "objects")} {masks}{": " if found else ""}{listed(found)}>'

    def draw(self) -> np.ndarray:
        """Return the image with all these objects drawn: RGB (H, W, 3) uint8."""
        return self._draw()

    def to_supervision(self):
        """Return ``supervision.Detections``, with the names as ``data['class_name']``.

        Raises:
            SetupError: The package supervision is not installed.
        """
        try:
            import supervision
        except ImportError as error:
            raise SetupError('to_supervision needs the package supervision: pip install supervision') from error
        masks = None if self.masks is None else np.asarray(self.masks)
        return supervision.Detections(xyxy=self.boxes.reshape(-1, 4), mask=masks, confidence=self.scores,
                                      class_id=self.labels, data=dict(class_name=np.array(self.names, dtype=str)))


@dataclass(frozen=True, eq=False, repr=False)
class Regions:
    """The prediction of a segmentor for each pixel of an image.

    Args:
        labels: (H, W) int64: indices into ``classes`` of the model.
        scores: (H, W) float32: the probability of the label by softmax. None if not requested, or if the image is so
            large that the model does not keep the scores of all classes.
    """
    labels: np.ndarray
    scores: np.ndarray | None
    _draw: callable = None

    def __repr__(self):
        height, width = self.labels.shape
        return f'<labels of {height} x {width} pixels: {counted(len(np.unique(self.labels)), "classes")}>'

    def draw(self) -> np.ndarray:
        """Return the image with the colours of the classes over it: RGB (H, W, 3) uint8."""
        return self._draw()
