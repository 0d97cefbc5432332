"""Drawing the data samples of mmdet and mmseg in the look of this package."""
import inspect

import cv2
import numpy as np

from ..draw import class_colours, draw_map, draw_objects
from ..draw.colours import WHITE

#: mmdet's own.
SCORE_THR = 0.3
_VISUALIZERS = {('mmdet', 'DetLocalVisualizer'), ('mmseg', 'SegLocalVisualizer')}
#: Arguments of visualizers that do not change how something looks.
_NO_LOOK = ('self', 'name', 'image', 'vis_backends', 'save_dir', 'classes', 'palette', 'dataset_name', 'kwargs')
#: Parts of a sample that only the visualizers can draw.
_OTHERS = ('gt_panoptic_seg', 'pred_panoptic_seg', 'gt_depth_map', 'pred_depth_map')
#: Label maps may have this label for pixels that do not count; -1 is for labels without a class.
_IGNORED = (255, -1)


def draw_sample(visualizer, picture, sample, with_truth: bool = True, threshold: float = SCORE_THR):
    """Draw a data sample in the look of this package.

    Args:
        visualizer: The visualizer of the config, which knows classes and palette.
        picture: RGB (H, W, 3).
        sample: The data sample.
        with_truth: Whether to draw the ground truth, to the left of the prediction.
        threshold: Objects with a score up to this one are not drawn.

    Returns:
        RGB (H, W, 3) uint8, or None if the visualizer has to draw: it is a user's own or has other settings than by
        default, or the sample has what is not drawn here, such as panoptic segmentation.
    """
    meta = visualizer.dataset_meta or {}
    names, palette = meta.get('classes'), meta.get('palette')
    if (not _is_standard(visualizer) or names is None or isinstance(palette, str) and palette != 'random'
            or any(name in sample for name in _OTHERS)):
        return None
    picture, colours = np.asarray(picture).clip(0, 255).astype(np.uint8), class_colours(names, palette)
    if type(visualizer).__name__ == 'SegLocalVisualizer':
        sides = _maps(picture, sample, with_truth, names, colours)
    else:
        sides = _objects(picture, sample, with_truth, names, colours, threshold)
    if not sides:
        return None
    drawn, width = np.concatenate(sides, 1), picture.shape[1]
    if len(sides) == 2:
        drawn[:, width - max(round(width / 300), 1):width] = WHITE
    return drawn


def _is_standard(visualizer):
    kind = type(visualizer)
    if (kind.__module__.partition('.')[0], kind.__name__) not in _VISUALIZERS:
        return False
    defaults = inspect.signature(kind.__init__).parameters
    return all(getattr(visualizer, name, found.default) == found.default for name, found in defaults.items()
               if name not in _NO_LOOK)


def _maps(picture, sample, with_truth, names, colours):
    sides = []
    if with_truth and 'gt_sem_seg' in sample:
        labels = _array(sample.gt_sem_seg.data)[0]
        sides.append(draw_map(picture, np.where(labels < len(names), labels, -1), names, colours, _IGNORED))
    if 'pred_sem_seg' in sample:
        sides.append(draw_map(picture, _array(sample.pred_sem_seg.data)[0], names, colours, ()))
    return sides


def _objects(picture, sample, with_truth, names, colours, threshold):
    truth = sample.gt_instances if with_truth and 'gt_instances' in sample else None
    found = sample.pred_instances if 'pred_instances' in sample else None
    if any(part is not None and not _is_simple(part) for part in (truth, found)) or _has_map(sample):
        return []
    if found is not None:
        found = found[found.scores > threshold]
    parts = [truth, found] if with_truth else [found]
    return [picture if part is None or not len(part) else _draw(picture, part, names, colours) for part in parts]


def _is_simple(part):
    """Whether the objects have classes of the data set and upright boxes, or masks."""
    boxes = getattr(part.bboxes, 'tensor', part.bboxes) if 'bboxes' in part else None
    return 'labels' in part and 'label_names' not in part and ('masks' in part if boxes is None else
                                                               boxes.shape[-1] == 4)


def _has_map(sample):
    return 'gt_sem_seg' in sample or 'pred_sem_seg' in sample


def _draw(picture, part, names, colours):
    masks = _Masks(part.masks) if 'masks' in part else None
    boxes = _array(getattr(part.bboxes, 'tensor', part.bboxes)) if 'bboxes' in part else np.zeros((len(part), 4))
    if masks is not None and not boxes.any():  # some models predict only masks
        boxes = np.array([_box_of(masks[index]) for index in range(len(part))])
    scores = _array(part.scores) if 'scores' in part else None
    return draw_objects(picture, boxes, _array(part.labels), names, colours, masks, scores)


def _box_of(mask):
    x, y, width, height = cv2.boundingRect(mask.astype(np.uint8))
    return x, y, x + width, y + height


class _Masks:
    """Masks of mmdet, or functions that return them, one by one, because those of all objects would fill the memory."""

    def __init__(self, masks):
        self._masks = _array(masks) if hasattr(masks, 'detach') else getattr(masks, 'masks', masks)
        if hasattr(masks, 'to_ndarray') and not isinstance(self._masks, np.ndarray):
            self._masks = masks  # polygons

    def __getitem__(self, index):
        mask = self._masks[index]
        mask = mask() if callable(mask) else mask.to_ndarray()[0] if hasattr(mask, 'to_ndarray') else mask
        return mask.astype(bool)


def _array(values):
    return values.detach().cpu().numpy() if hasattr(values, 'detach') else np.asarray(values)
