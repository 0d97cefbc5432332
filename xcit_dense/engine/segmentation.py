"""What mmseg lacks: a data set of plain image folders, and pictures of test results.

Imported by the segmentation configs; needs mmseg.
"""
from pathlib import Path

import mmcv
from mmengine.hooks import Hook
from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS, HOOKS

from ..errors import DataError
from .data import find_images


@DATASETS.register_module()
class ImageFolderDataset(BaseSegDataset):
    """Images of any usual format, and label maps of the same names in another folder.

    Raises:
        DataError: An image has no label map, or two images have the same name but for the suffix.
    """

    def load_data_list(self):
        """Return one record per image, in the order of their paths, as mmseg's transforms expect it."""
        folder, paths = find_images(self.data_prefix['img_path'])
        records, seen = [], {}
        for path in paths:
            record = dict(img_path=str(path), label_map=self.label_map, reduce_zero_label=self.reduce_zero_label,
                          seg_fields=[])
            if self.data_prefix.get('seg_map_path'):
                name = path.relative_to(folder).with_suffix(self.seg_map_suffix)
                label_map = Path(self.data_prefix['seg_map_path'], name)
                if not label_map.is_file():
                    raise DataError(f'the image {path} has no label map {label_map}')
                if label_map in seen:
                    raise DataError(f'the images {seen[label_map]} and {path} have the same label map {label_map}')
                seen[label_map] = path
                record['seg_map_path'] = str(label_map)
            records.append(record)
        return records


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
