"""Pictures of the test results of a detector or a segmentor."""
import os
from pathlib import Path

from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ..data.channels import ARRAY_SUFFIXES
from ..files import OwnFiles
from ..processes import is_first_process, run_on_first
from .classes import test_dataset
from .reading import ImageReader, picture_of


@HOOKS.register_module()
class DrawingHook(Hook):
    """Draws every tested image, ground truth (left) beside prediction, by the visualizer of mmdet or mmseg.

    Args:
        draw: Whether to draw at all.
        test_out_dir: Folder for the pictures, named like the images, folders below the data set's too; those of arrays
            (``.npy``) get ``.png`` behind that. Without it they go where the visualizer keeps pictures.
        score_thr: Objects with a lower score are not drawn; by default as the visualizer of mmdet has it, 0.3.
        interval: In a validation, iterations from one picture to the next.
        show: Whether to show each picture in a window.
        wait_time: Seconds until the next; 0 waits for a key.
        backend_args: For configs of the frameworks' hooks; images are read as the test data is, by its own loader.
        overwrite: Whether pictures may take the place of files that no earlier test drew.
    """

    def __init__(self, draw: bool = False, test_out_dir: str = None, score_thr: float = None, interval: int = 50,
                 show: bool = False, wait_time: float = 0., backend_args: dict = None, overwrite: bool = False):
        self.draw = draw
        self.test_out_dir = test_out_dir
        self.options = dict(show=show, wait_time=wait_time)
        if score_thr is not None:  # mmseg's visualizer knows none
            self.options['pred_score_thr'] = score_thr
        self.interval = interval
        self.drawn = 0
        self._reader = None
        self._own = OwnFiles(test_out_dir, 'test', overwrite) if draw and test_out_dir else None

    def before_test(self, runner):
        """Claim all pictures.

        Raises:
            OutputError: Files that no earlier test drew would be overwritten.
        """
        if self._own:
            run_on_first(self._claim, runner.test_dataloader.dataset)

    def after_test(self, runner):
        """Note what was drawn."""
        self.close()

    def close(self):
        """Note what was drawn, also by a test that failed."""
        if self._own and is_first_process():
            self._own.close()

    def _claim(self, dataset):
        if hasattr(dataset, 'get_data_info'):  # one of the user's own may tell with each image alone
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
        runner.visualizer.add_datasample(os.path.basename(sample.img_path) if self.options['show'] else name, image,
                                         sample, step=step, out_file=None if path is None else str(path),
                                         **self.options)

    def path_of(self, runner, sample):
        """Return the path of the picture of a sample, or None where pictures have no folder.

        Images of different paths have different pictures, also those of several data sets that are tested as one.
        """
        if self.test_out_dir is None:
            return None
        return Path(self.test_out_dir, _place(_common_folder(runner.test_dataloader.dataset), sample.img_path))


def _place(folder, file):
    """Return the path of the picture of an image below the folder of all pictures; ``folder`` holds all images."""
    path = Path(os.path.abspath(file))
    if folder is None or not path.is_relative_to(folder):
        folder = path.anchor  # somewhere else: a list may name files of any place
    path = path.relative_to(folder)
    return path.with_name(f'{path.name}.png') if path.suffix.lower() in ARRAY_SUFFIXES else path


#: Of mmseg and of mmdet; other data sets are known by their root.
_IMAGE_FOLDERS = ('img_path', 'img')


def _common_folder(dataset):
    """Return the folder that holds all images of a data set or of those inside it, or None where none is known."""
    folders = {os.path.abspath(folder) for folder in _image_folders(dataset)}
    return os.path.commonpath(folders) if folders else None


def _image_folders(dataset):
    inner = [*getattr(dataset, 'datasets', ()), *filter(None, [getattr(dataset, 'dataset', None)])]
    if inner:
        for part in inner:
            yield from _image_folders(part)
        return
    prefixes = getattr(dataset, 'data_prefix', None) or {}
    folder = next(filter(None, map(prefixes.get, _IMAGE_FOLDERS)), None) or getattr(dataset, 'data_root', None)
    if folder:
        yield folder
