"""Drawing the data samples of mmdet and mmseg: predictions alone, or next to the ground truth."""
import inspect
import threading
import warnings
from uuid import uuid4

import cv2
import mmcv
import numpy as np
from mmengine.registry import VISUALIZERS

from ..draw import class_colours, draw_map, draw_objects
from ..draw.classes import WHITE

# mmengine warns of every object that touches the border of the image
warnings.filterwarnings('ignore', r'Warning: The (bbox|polygon) is out of bounds', module=r'mmengine\.visualization')

#: A visualizer holds one picture at a time, and uses the random numbers of the whole process.
_TURN = threading.Lock()
#: How many bytes of masks a visualizer of a config gets at a time.
_MASKS = 2**28
#: mmdet's own.
SCORE_THR = 0.3
_VISUALIZERS = {('mmdet', 'DetLocalVisualizer'), ('mmseg', 'SegLocalVisualizer')}
#: Arguments of visualizers that do not change how something looks.
_NO_LOOK = ('self', 'name', 'image', 'vis_backends', 'save_dir', 'classes', 'palette', 'dataset_name', 'kwargs')
#: Parts of a sample that only the visualizers can draw.
_OTHERS = ('gt_panoptic_seg', 'pred_panoptic_seg', 'gt_depth_map', 'pred_depth_map')
#: Label maps may have this label for pixels that do not count; -1 is for labels without a class.
_IGNORED = (255, -1)


class Drawing:
    """Draws data samples into images: in the look of this package, or with a visualizer that the config changed.

    The same each time, and without the model.

    Args:
        visualizer: Config of the visualizer.
        meta: Classes and palette.
        **options: Arguments of its ``add_datasample``.
    """

    def __init__(self, visualizer, meta, **options):
        # mmengine returns the same object for the same name, with the classes of the last one
        self.visualizer = VISUALIZERS.build({**visualizer, 'vis_backends': None, 'name': uuid4().hex})
        self.visualizer.dataset_meta = meta
        self._options = {'draw_gt': False, **options}

    def draw(self, picture, sample, **options) -> np.ndarray:
        """Draw a sample into an image (H, W, 3), RGB, uint8, and return it; ``options`` override those of `Drawing`.

        Its masks may be a list of functions without arguments that return one (H, W) each.
        """
        options, drawn = {**self._options, **options}, []
        own = self._own(picture, sample, options)
        if own is not None:
            return own
        # without a file, add_datasample calls add_image
        self._add(picture, sample, options, lambda name, image, step=0: drawn.append(image))
        return drawn[-1]

    def write(self, picture, sample, file, **options):
        """Draw a sample like `draw` and write the result to a file."""
        options = {**self._options, **options}
        own = self._own(picture, sample, options)
        if own is None:
            self._add(picture, sample, dict(options, out_file=str(file)))
        else:
            mmcv.imwrite(mmcv.rgb2bgr(own), str(file))

    def _own(self, picture, sample, options):
        return draw_sample(self.visualizer, picture, sample, options['draw_gt'],
                           options.get('pred_score_thr', SCORE_THR))

    def _add(self, picture, sample, options, add_image=None):
        found, parts = sample.get('pred_instances'), [None]
        if isinstance(getattr(found, 'masks', None), list):  # functions: as many as memory holds, and the best on top
            found, count = found[found.scores.argsort()], max(_MASKS // picture[..., 0].size, 1)
            parts = [slice(start, start + count) for start in range(0, len(found), count)] or [slice(0)]
        with _TURN:
            kept = np.random.get_state()
            np.random.seed(0)  # mmdet varies the colour of each mask randomly
            if add_image:
                self.visualizer.add_image = add_image
            try:
                for part in parts:
                    if part is not None:
                        sample.pred_instances = found[part]
                        if len(found):
                            sample.pred_instances.masks = np.stack([mask() for mask in found[part].masks])
                    shown = options if part is parts[-1] else {**options, 'out_file': None}
                    self.visualizer.add_datasample('', picture, sample, **shown)
                    picture = self.visualizer.get_image() if len(parts) > 1 else picture
            finally:
                vars(self.visualizer).pop('add_image', None)
                np.random.set_state(kept)


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
    truth, found = sample.get('gt_instances') if with_truth else None, sample.get('pred_instances')
    if (any(part is not None and not _is_simple(part) for part in (truth, found))
            or 'gt_sem_seg' in sample or 'pred_sem_seg' in sample):
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


def _draw(picture, part, names, colours):
    masks = _Masks(part.masks) if 'masks' in part else None
    boxes = _array(getattr(part.bboxes, 'tensor', part.bboxes)) if 'bboxes' in part else np.zeros((len(part), 4))
    if masks is not None and not boxes.any():  # some models predict only masks
        boxes = [cv2.boundingRect(masks[index].astype(np.uint8)) for index in range(len(part))]
        boxes = np.array([(x, y, x + width, y + height) for x, y, width, height in boxes])
    scores = _array(part.scores) if 'scores' in part else None
    return draw_objects(picture, boxes, _array(part.labels), names, colours, masks, scores)


class _Masks:
    """Masks of mmdet, or functions that return them, one by one, because those of all objects would fill the memory."""

    def __init__(self, masks):
        self._masks = masks

    def __getitem__(self, index):
        mask = self._masks[index]
        mask = mask() if callable(mask) else mask.to_ndarray()[0] if hasattr(mask, 'to_ndarray') else mask
        return _array(mask).astype(bool)


def _array(values):
    return values.detach().cpu().numpy() if hasattr(values, 'detach') else np.asarray(values)
