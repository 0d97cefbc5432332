"""Find anchors that fit boxes."""
from typing import NamedTuple

import numpy as np

from .geometry import best_ious

#: Sizes of the anchors of the finest level, in strides; and how many sizes there are per level.
_SCALES, _PER_OCTAVE = (1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16), (1, 2, 3)
_USUAL = (0.5, 1.0, 2.0)
#: The gain in mean IoU that one more anchor per position must bring.
_PRICE = 0.008
#: Boxes that are compared at most.
_SAMPLE = 2000


class Fitted(NamedTuple):
    """Anchors: the arguments of their generator, and their shapes."""
    arguments: dict
    shapes: np.ndarray


def fit_anchors(boxes, generator):
    """Return the anchors that fit boxes best.

    Args:
        boxes: Widths and heights (n, 2) in pixels of the resized images.
        generator: The config of an ``AnchorGenerator`` with ``scales`` or ``octave_base_scale``.

    Returns:
        `Fitted`; None if the anchors of the generator are as good, or if it is of another type.
    """
    strides = [stride if isinstance(stride, (int, float)) else stride[0] for stride in generator.get('strides') or ()]
    keys = {'strides', 'ratios', 'scales', 'octave_base_scale', 'scales_per_octave', 'type'}
    if not strides or set(generator) - keys or str(generator.get('type')).rpartition('.')[2] != 'AnchorGenerator':
        return None
    boxes = np.asarray(boxes)[np.unique(np.linspace(0, len(boxes) - 1, min(len(boxes), _SAMPLE)).astype(int))]
    octave = generator.get('octave_base_scale')
    now = [octave * 2 ** (i / generator['scales_per_octave']) for i in range(generator['scales_per_octave'])] \
        if octave else list(generator.get('scales') or ())
    if not now:
        return None
    low, middle, high = (round(float(value), 2) for value in np.percentile(boxes[:, 1] / boxes[:, 0], (10, 50, 90)))
    # ratios of the usual box and of higher and wider ones, unless boxes hardly differ
    own = (middle, ) if high / low < 1.5 else (low, middle, high)
    counts = (generator['scales_per_octave'], ) if octave else _PER_OCTAVE
    best = None
    for scale in _SCALES:
        for count in counts:
            for ratios in dict.fromkeys((own, (1.0, ), _USUAL)):
                scales = [round(scale * 2 ** (i / count), 2) for i in range(count)]
                score, shapes = _judge(boxes, scales, ratios, strides)
                if best is None or score > best[0]:
                    best = score, scales, ratios, shapes
    before, _ = _judge(boxes, now, generator['ratios'], strides)
    if best[0] < before + 0.03:
        return None
    scales = dict(octave_base_scale=best[1][0]) if octave else dict(scales=best[1])
    return Fitted(dict(scales, ratios=list(best[2])), best[3])


def _judge(boxes, scales, ratios, strides):
    """Return the score of anchors, and their shapes (n, 2)."""
    sides = np.multiply.outer(strides, scales).ravel()
    shapes = np.concatenate([np.stack([sides / ratio ** 0.5, sides * ratio ** 0.5], 1) for ratio in ratios])
    return best_ious(boxes, shapes).mean() - _PRICE * len(scales) * len(ratios), shapes
