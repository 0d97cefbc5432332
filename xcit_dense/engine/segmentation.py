"""What mmseg lacks: a data set of plain image folders, pictures of test results, and large images in little memory.

Imported by the segmentation configs; needs mmseg.
"""
from pathlib import Path

import mmcv
from mmengine.hooks import Hook
from mmengine.structures import PixelData
from mmseg.datasets import BaseSegDataset
from mmseg.models import EncoderDecoder
from mmseg.registry import DATASETS, HOOKS, MODELS

from ..data.datasets import find_images
from ..errors import DataError


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


@MODELS.register_module()
class LowMemoryEncoderDecoder(EncoderDecoder):
    """mmseg's segmentor, which predicts a large image with some classes at a time.

    The scores of 150 classes for a photograph of 6000 x 4000 pixels take 14 GB, and mmseg holds them twice. Here only
    the best score and its class are kept, and samples of such images have no ``seg_logits``. Others are mmseg's.
    """

    #: Scores at a time: 1 GB in float32.
    SCORES = 2**28

    def predict(self, inputs, data_samples=None):
        """Predict images (B, 3, H, W); arguments and result as in mmseg."""
        classes, slide = self.decode_head.out_channels, self.test_cfg.mode == 'slide'
        sizes = [sample.ori_shape for sample in data_samples or []] + [tuple(inputs.shape[2:])]
        count = -(-classes * len(inputs) * max(height * width for height, width in sizes) // self.SCORES)
        count = min(count, classes // 2)  # mmseg takes a single class for a foreground
        if data_samples is None or slide or count < 2:
            return super().predict(inputs, data_samples)
        metas = [sample.metainfo for sample in data_samples]
        logits = self.decode_head(self.extract_feat(inputs))
        best, first = [None] * len(inputs), 0
        for part in logits.tensor_split(count, dim=1):
            samples = self.postprocess_result(self.decode_head.predict_by_feat(part, metas), data_samples)
            for i, sample in enumerate(samples):
                score, label = sample.seg_logits.data.max(0, keepdim=True)
                del sample.seg_logits
                label += first
                if best[i] is not None:
                    better = score > best[i][0]
                    score, label = score.where(better, best[i][0]), label.where(better, best[i][1])
                best[i] = score, label
            first += part.shape[1]
        for sample, (_, label) in zip(data_samples, best, strict=True):
            sample.pred_sem_seg = PixelData(data=label)
        return data_samples
