"""Drawing the data samples of mmdet and mmseg: predictions alone, or those of a test next to the ground truth."""
import os
import threading
import warnings
from functools import partial
from pathlib import Path

import cv2
import mmcv
import numpy as np
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, VISUALIZERS

from .._utils.files import OwnFiles, note_inputs
from .._utils.processes import is_first_process, run_on_first
from ..config.tasks import class_of
from ..data.channels import ARRAY_SUFFIXES
from ..data.datasets import LOADERS, datasets
from ..draw import class_colours, draw_map, draw_objects
from ..draw.classes import WHITE
from .classes import test_dataset
from .reading import ImageReader, picture_of

# mmengine warns of every object that touches the border of the image
warnings.filterwarnings('ignore', r'Warning: The (bbox|polygon) is out of bounds', module=r'mmengine\.visualization')

#: A visualizer holds one picture at a time, and uses the random numbers of the whole process.
_TURN = threading.Lock()
#: mmdet's own.
SCORE_THR = 0.3
_VISUALIZERS = {('mmdet', 'DetLocalVisualizer'), ('mmseg', 'SegLocalVisualizer')}
#: Keys in the config of a visualizer that do not change how something looks.
_NO_LOOK = {'name', 'vis_backends', 'save_dir'}
#: Parts of a sample that only the visualizers can draw.
_OTHERS = ('gt_panoptic_seg', 'pred_panoptic_seg', 'gt_depth_map', 'pred_depth_map')
#: Label maps may have this label for pixels that do not count; -1 is for labels without a class.
_IGNORED = (255, -1)


class Drawing:
    """Draws data samples into images: in the look of this package, or with a visualizer that the config changed.

    The same each time, and without the model. The visualizer draws if it is a user's own or its config has settings, or
    if the sample has what is not drawn here, such as panoptic segmentation. ``meta`` has classes and palette; options
    are those of ``add_datasample``. By default, the ground truth is not drawn.
    """

    def __init__(self, visualizer, meta, **options):
        settings = {**visualizer, 'vis_backends': None}
        kind = class_of(settings.pop('type'), VISUALIZERS, settings.pop('_scope_', None))
        self._is_standard = not settings.keys() - _NO_LOOK and (
            kind.__module__.partition('.')[0], kind.__name__) in _VISUALIZERS
        # not built by mmengine: it would be what others get as the current one of the run
        self.visualizer = kind(**settings)
        self.visualizer.dataset_meta = meta
        self._options = {'draw_gt': False, **options}

    def draw(self, picture, sample, **options) -> np.ndarray:
        """Draw a sample into an image (H, W, 3), RGB, and return it as uint8, the ground truth left of the prediction.

        Its masks may be a list of functions without arguments that return one (H, W) each. ``options`` override those
        of `Drawing`.
        """
        options, drawn, sample = {**self._options, **options}, [], sample.cpu()
        threshold = options.get('pred_score_thr', SCORE_THR)
        sides = self._sides(picture, sample, options['draw_gt'], threshold)
        if sides:
            result, width = np.concatenate(sides, 1), picture.shape[1]
            if len(sides) == 2:
                result[:, width - max(round(width / 300), 1):width] = WHITE
            return result
        found = sample.get('pred_instances')
        if isinstance(getattr(found, 'masks', None), list):  # functions; the best is drawn last, on top
            found = found[found.scores > threshold]  # the others would fill the memory
            found = found[found.scores.argsort()]
            found.masks = np.array([mask() for mask in found.masks], bool).reshape(-1, *picture.shape[:2])
            sample = sample.new()
            sample.pred_instances = found
        with _TURN:
            kept = np.random.get_state()
            np.random.seed(0)  # mmdet varies the colour of each mask randomly
            # without a file, add_datasample calls add_image
            self.visualizer.add_image = lambda name, image, step=0: drawn.append(image)
            try:
                self.visualizer.add_datasample('', picture, sample, **options)
            finally:
                del self.visualizer.add_image
                np.random.set_state(kept)
        return drawn[-1]

    def write(self, picture, sample, file):
        """Draw a sample like `draw` and write the result to a file."""
        mmcv.imwrite(mmcv.rgb2bgr(self.draw(picture, sample)), str(file))

    def _sides(self, picture, sample, with_truth, threshold):
        """Return the pictures in the look of this package, ground truth first; none if the visualizer has to draw."""
        meta = self.visualizer.dataset_meta or {}
        names, palette = meta.get('classes'), meta.get('palette')
        if (not self._is_standard or names is None or isinstance(palette, str) and palette != 'random'
                or any(name in sample for name in _OTHERS)):
            return []
        picture, colours = np.asarray(picture).clip(0, 255).astype(np.uint8), class_colours(names, palette)
        if type(self.visualizer).__name__ == 'SegLocalVisualizer':
            return _maps(picture, sample, with_truth, names, colours)
        return _objects(picture, sample, with_truth, names, colours, threshold)


def _maps(picture, sample, with_truth, names, colours):
    sides = []
    if with_truth and 'gt_sem_seg' in sample:
        labels = np.asarray(sample.gt_sem_seg.data)[0]
        sides.append(draw_map(picture, np.where(labels < len(names), labels, -1), names, colours, _IGNORED))
    if 'pred_sem_seg' in sample:
        sides.append(draw_map(picture, np.asarray(sample.pred_sem_seg.data)[0], names, colours, ()))
    return sides


def _objects(picture, sample, with_truth, names, colours, threshold):
    truth, found = sample.get('gt_instances') if with_truth else None, sample.get('pred_instances')
    if 'gt_sem_seg' in sample or 'pred_sem_seg' in sample:
        return []
    if found is not None:
        found = found[found.scores > threshold]
    parts = [truth, found] if with_truth else [found]
    return [picture if part is None or not len(part) else _draw(picture, part, names, colours) for part in parts]


def _draw(picture, part, names, colours):
    def mask_of(index):
        mask = part.masks[index]
        mask = mask() if callable(mask) else mask.to_ndarray()[0] if hasattr(type(mask), 'to_ndarray') else mask
        return np.asarray(mask).astype(bool)

    boxes = np.asarray(getattr(part.bboxes, 'tensor', part.bboxes)) if 'bboxes' in part else np.zeros((len(part), 4))
    if 'masks' in part and not boxes.any():  # some models predict only masks
        boxes = [cv2.boundingRect(mask_of(index).astype(np.uint8)) for index in range(len(part))]
        boxes = np.array([(x, y, x + width, y + height) for x, y, width, height in boxes])
    scores = np.asarray(part.scores) if 'scores' in part else None
    masks = mask_of if 'masks' in part else None
    return draw_objects(picture, boxes, np.asarray(part.labels), names, colours, masks, scores)


@HOOKS.register_module()
class DrawingHook(Hook):
    """Draws every tested image, ground truth left and prediction right.

    Where the config changed the visualizer of mmdet or mmseg, or has its own, that one draws.

    Args:
        draw: Whether to draw at all.
        test_out_dir: Folder for the pictures. They keep the names of the images and the subfolders of the data set;
            those of arrays (``.npy``) get ``.png`` added. Without it they go where the visualizer keeps pictures.
        score_thr: Objects with a lower score are not drawn. Default: that of mmdet's visualizer, 0.3.
        interval: In validation, draw every this many iterations.
        show: Whether to show each picture in a window.
        wait_time: Seconds until the next picture; 0 waits for a key.
        backend_args: Ignored, as in configs of the frameworks' hooks: the loader of the test data reads the images.
        overwrite: Whether to replace files that no earlier test drew.
    """

    def __init__(self, draw: bool = False, test_out_dir: str = None, score_thr: float = None, interval: int = 50,
                 show: bool = False, wait_time: float = 0., backend_args: dict = None, overwrite: bool = False):
        self.draw, self.test_out_dir, self.interval, self.drawn = draw, test_out_dir, interval, 0
        self.window = dict(wait_time=wait_time) if show else None
        self.options = {} if score_thr is None else dict(pred_score_thr=score_thr)  # mmseg's visualizer has none
        self._reader = self._drawing = None
        self._own = OwnFiles(test_out_dir, 'test', overwrite) if draw and test_out_dir else None

    def before_test(self, runner):
        """Claim all pictures; raise `OutputError` if files that no earlier test drew would be overwritten."""
        dataset = runner.test_dataloader.dataset
        if self._own and hasattr(dataset, 'get_data_info'):  # a user's own may give paths only with each image
            files = [*filter(None, (dataset.get_data_info(i).get('img_path') for i in range(len(dataset))))]
            note_inputs(*files)
            run_on_first(self._own.claim, *map(partial(_place, _folder_of_images(runner.cfg)), files))

    def close(self, runner=None):
        """Record what was drawn, also after a test that failed."""
        if self._own and is_first_process():
            self._own.close()

    after_test = close

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Draw the first image of some batches to where the visualizer keeps pictures."""
        step = runner.iter + batch_idx
        if self.draw and step % self.interval == 0:
            self._draw(runner, 'val_img', outputs[0], step)

    def after_test_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Draw the images of a batch."""
        for sample in outputs if self.draw else ():
            self.drawn += 1
            path = None
            if self._own:
                path = _place(_folder_of_images(runner.cfg), sample.img_path)
                if not hasattr(runner.test_dataloader.dataset, 'get_data_info'):
                    self._own.claim(path)
            self._draw(runner, 'test_img', sample, self.drawn, path and Path(self.test_out_dir, path))

    def _draw(self, runner, name, sample, step, path=None):
        self._reader = self._reader or ImageReader(test_dataset(runner.cfg), on_disk=False)
        image = picture_of(self._reader.load(sample.img_path))
        if not is_first_process():  # as visualizers do
            return
        self._drawing = self._drawing or Drawing(runner.cfg.visualizer, runner.visualizer.dataset_meta, draw_gt=True,
                                                 **self.options)
        drawn = self._drawing.draw(image, sample)
        if self.window:
            name = os.path.basename(sample.img_path)
            runner.visualizer.show(drawn, win_name=name, **self.window)
        if path:
            mmcv.imwrite(mmcv.rgb2bgr(drawn), str(path))
        else:
            runner.visualizer.add_image(name, drawn, step)


def _folder_of_images(cfg):
    """Return the folder that all images of a test are in."""
    # the keys of mmseg and of mmdet; other data sets only have a root
    return os.path.commonpath([os.path.abspath(part.folder('img_path' if part.prefixes.get('img_path') else 'img'))
                               for part in datasets(cfg, LOADERS[-1:])])


def _place(folder, file):
    """Return the path of an image's picture relative to the folder of all pictures: as in the folder of all images, so
    that different images get different pictures, also when several data sets are tested as one."""
    path = Path(os.path.abspath(file))
    path = path.relative_to(folder if path.is_relative_to(folder) else path.anchor)  # a list may name files anywhere
    return path.with_name(f'{path.name}.png') if path.suffix.lower() in ARRAY_SUFFIXES else path
