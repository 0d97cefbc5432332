"""The hook that draws the images of a test: predictions next to the ground truth."""
import os
from pathlib import Path

import mmcv
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from .._utils.files import OwnFiles
from .._utils.processes import is_first_process, run_on_first
from ..data.channels import ARRAY_SUFFIXES
from .classes import test_dataset
from .drawing import SCORE_THR, draw_sample
from .reading import ImageReader, picture_of

#: Where data sets keep their images: keys of mmseg and of mmdet; for other data sets the root is used.
_IMAGE_FOLDERS = ('img_path', 'img')


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
        backend_args: Ignored; accepted for configs of the frameworks' hooks. Images are read by the loader of the test
            data.
        overwrite: Whether to replace files that no earlier test drew.
    """

    def __init__(self, draw: bool = False, test_out_dir: str = None, score_thr: float = None, interval: int = 50,
                 show: bool = False, wait_time: float = 0., backend_args: dict = None, overwrite: bool = False):
        self.draw, self.test_out_dir, self.interval, self.drawn = draw, test_out_dir, interval, 0
        self.options = dict(show=show, wait_time=wait_time)
        if score_thr is not None:  # mmseg's visualizer has none
            self.options['pred_score_thr'] = score_thr
        self._reader = None
        self._own = OwnFiles(test_out_dir, 'test', overwrite) if draw and test_out_dir else None

    def before_test(self, runner):
        """Claim all pictures.

        Raises:
            OutputError: Files that no earlier test drew would be overwritten.
        """
        dataset = runner.test_dataloader.dataset
        if self._own and hasattr(dataset, 'get_data_info'):  # a user's own may give paths only with each image
            run_on_first(self._claim, dataset)

    def after_test(self, runner):
        """Record what was drawn."""
        self.close()

    def close(self):
        """Record what was drawn, also after a test that failed."""
        if self._own and is_first_process():
            self._own.close()

    def _claim(self, dataset):
        files = [dataset.get_data_info(i).get('img_path') for i in range(len(dataset))]
        folder = _common_folder(dataset)  # once for all
        self._own.claim(*(_place(folder, file) for file in filter(None, files)))

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Draw the first image of some batches to where the visualizer keeps pictures."""
        step = runner.iter + batch_idx
        if self.draw and step % self.interval == 0:
            self._draw(runner, 'val_img', outputs[0], step)

    def after_test_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Draw the images of a batch."""
        for sample in outputs if self.draw else ():
            self.drawn += 1
            dataset = runner.test_dataloader.dataset
            if self._own and not hasattr(dataset, 'get_data_info'):
                self._own.claim(_place(_common_folder(dataset), sample.img_path))
            self._draw(runner, 'test_img', sample, self.drawn, self.path_of(runner, sample))

    def _draw(self, runner, name, sample, step, path=None):
        self._reader = self._reader or ImageReader(test_dataset(runner.cfg), on_disk=False)
        image = picture_of(self._reader.load(sample.img_path, 0))
        name = os.path.basename(sample.img_path) if self.options['show'] else name
        visualizer, file = runner.visualizer, None if path is None else str(path)
        if not is_first_process():  # as visualizers do
            return
        drawn = draw_sample(visualizer, image, sample, threshold=self.options.get('pred_score_thr', SCORE_THR))
        if drawn is None:
            visualizer.add_datasample(name, image, sample, step=step, out_file=file, **self.options)
            return
        if self.options['show']:
            visualizer.show(drawn, win_name=name, wait_time=self.options['wait_time'])
        if file:
            mmcv.imwrite(mmcv.rgb2bgr(drawn), file)
        else:
            visualizer.add_image(name, drawn, step)

    def path_of(self, runner, sample):
        """Return the path of the picture of a sample, or None without a folder for pictures.

        Images with different paths get different pictures, also when several data sets are tested as one.
        """
        if self.test_out_dir is None:
            return None
        return Path(self.test_out_dir, _place(_common_folder(runner.test_dataloader.dataset), sample.img_path))


def _place(folder, file):
    """Return the path of an image's picture relative to the folder of all pictures; ``folder`` holds all images."""
    path = Path(os.path.abspath(file))
    if folder is None or not path.is_relative_to(folder):
        folder = path.anchor  # a list may name files anywhere
    path = path.relative_to(folder)
    return path.with_name(f'{path.name}.png') if path.suffix.lower() in ARRAY_SUFFIXES else path


def _common_folder(dataset):
    """Return the folder that holds all images of a data set or of those inside it, or None if none is known."""
    folders = {os.path.abspath(folder) for folder in _image_folders(dataset)}
    return os.path.commonpath(folders) if folders else None


def _image_folders(dataset):
    inner = [*getattr(dataset, 'datasets', ()), *filter(None, [getattr(dataset, 'dataset', None)])]
    prefixes = getattr(dataset, 'data_prefix', None) or {}
    folder = next(filter(None, map(prefixes.get, _IMAGE_FOLDERS)), None) or getattr(dataset, 'data_root', None)
    if inner:
        return [folder for part in inner for folder in _image_folders(part)]
    return [folder] if folder else []
