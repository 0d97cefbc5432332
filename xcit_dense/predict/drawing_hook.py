"""Pictures of a segmentor's test results; imported by the segmentation configs, needs mmseg."""
from pathlib import Path

import mmcv
from mmengine.hooks import Hook
from mmseg.registry import HOOKS


@HOOKS.register_module()
class SegDrawingHook(Hook):
    """Draws every tested image, ground truth (left) beside prediction, as mmdet's hook does for detectors.

    Args:
        draw: Whether to draw at all.
        test_out_dir: Folder for the pictures, named like the images, folders below the data set's too.
    """

    def __init__(self, draw: bool = False, test_out_dir: str = None):
        self.draw = draw
        self.test_out_dir = test_out_dir

    def after_test_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Draw the images of a batch."""
        if self.draw:
            root = runner.test_dataloader.dataset.data_prefix['img_path']
            for sample in outputs:
                image = mmcv.imread(sample.img_path, channel_order='rgb')
                runner.visualizer.add_datasample('', image, sample, out_file=str(
                    Path(self.test_out_dir, Path(sample.img_path).relative_to(root))))
