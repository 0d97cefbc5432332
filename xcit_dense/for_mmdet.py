"""Modules that mmdet lacks. Import: ``custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmdet'])``."""
import torch
from mmcv.ops import batched_nms
from mmdet.engine.optimizers import LearningRateDecayOptimizerConstructor
from mmdet.models import BatchFixedSizePad, DetDataPreprocessor, DetTTAModel
from mmdet.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.structures import InstanceData

from ._utils.text import counted
from .compat.masks import RunLengths
from .errors import ConfigError
from .train.hooks import RatesByDepth

__all__ = ['BatchCanvasPad', 'ChannelsDetDataPreprocessor', 'MaskTTAModel']

#: The dimensions of a mask (n, H, W) to flip.
_FLIPS = dict(horizontal=(2, ), vertical=(1, ), diagonal=(1, 2))


@OPTIM_WRAPPER_CONSTRUCTORS.register_module('LearningRateDecayOptimizerConstructor', force=True)
class LayerDecayConstructor(RatesByDepth, LearningRateDecayOptimizerConstructor):
    """Learning rates by layer, for XCiT too: ``paramwise_cfg=dict(decay_rate=0.8)``."""


@MODELS.register_module()
class ChannelsDetDataPreprocessor(DetDataPreprocessor):
    """mmdet's data preprocessor, for images with any number of channels; mmdet's own accepts three or one.

    Args:
        mean, std: The mean and the standard deviation of each channel, in the order of the file.

    Other arguments are those of `mmdet.models.DetDataPreprocessor`, except those that swap BGR and RGB.
    """

    def __init__(self, mean, std, **options):
        if len(mean) != len(std):
            raise ConfigError('mean and std of the data_preprocessor must have one number for each channel, got '
                              f'{counted(len(mean), "numbers")} in mean and {len(std):,} in std')
        super().__init__(mean=[0.], std=[1.], **options)
        for name, values in (('mean', mean), ('std', std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).view(-1, 1, 1), False)


@MODELS.register_module()
class BatchCanvasPad(BatchFixedSizePad):
    """Pads the batches of a training to one size, wide or upright as the images are, so that one CUDA graph does.

    A batch with both is padded to a square, and one that is larger stays as it is. Other arguments are those of
    `mmdet.models.BatchFixedSizePad`.

    Args:
        size: The longer and the shorter side in pixels.
    """

    def __init__(self, size, **options):
        super().__init__(None, **options)
        self.sides = sorted(size)

    def forward(self, inputs, data_samples=None):
        """Pad images (B, C, H, W) and the masks of their data samples."""
        (height, width), (short, long) = inputs.shape[-2:], self.sides
        if max(height, width) > long:
            return inputs, data_samples
        self.size = (long, long) if min(height, width) > short else (long, short) if height > width else (short, long)
        return super().forward(inputs, data_samples)


@MODELS.register_module()
class MaskTTAModel(DetTTAModel):
    """mmdet's model for test-time augmentation, also for detectors with masks.

    Boxes are merged as in mmdet: NMS over those of all views. Each box that is kept has the mask that its view
    predicted for it. Arguments are those of `mmdet.models.DetTTAModel`.
    """

    def merge_preds(self, data_samples_list):
        """Merge the predictions of the views; arguments and result are as in mmdet."""
        return [self._merge(samples) for samples in data_samples_list]

    def _merge(self, samples):
        views, merged = [sample.pred_instances for sample in samples], samples[0]
        if not sum(map(len, views)):
            return merged
        boxes, scores = self.merge_aug_bboxes([view.bboxes for view in views], [view.scores for view in views],
                                              [sample.metainfo for sample in samples])
        labels = torch.cat([view.labels for view in views])
        found, kept = batched_nms(boxes, scores, labels, self.tta_cfg['nms'])
        found, kept = (values[:self.tta_cfg['max_per_img']] for values in (found, kept))
        objects = InstanceData(bboxes=found[:, :-1], scores=found[:, -1], labels=labels[kept])
        if 'masks' in views[0]:
            objects.masks = _masks(samples, kept)
        merged.pred_instances = objects
        return merged


def _masks(samples, kept):
    """Return the masks of some objects by their place among those of all views, as in the image that is not flipped."""
    views = [RunLengths.of(sample.pred_instances.masks) for sample in samples]
    found = [(sample, mask) for sample, masks in zip(samples, views, strict=True) for mask in masks]
    masks = []
    for sample, mask in map(found.__getitem__, kept.tolist()):
        masks += RunLengths.of(mask.tensor()[None].flip(_FLIPS[sample.flip_direction])) if sample.flip else [mask]
    return RunLengths(masks, *views[0].shape[1:], sum(view.seconds for view in views))
