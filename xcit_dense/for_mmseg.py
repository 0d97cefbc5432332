"""Modules that mmseg lacks. Import: ``custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmseg'])``."""
import torch
from mmengine.structures import PixelData
from mmseg.engine.optimizers import LearningRateDecayOptimizerConstructor
from mmseg.models import EncoderDecoder, SegTTAModel
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.losses import LovaszLoss
from mmseg.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS
from torch.nn import MaxPool2d

from .data.image_folders import ImageFolderDataset
from .models.pyramid import MaxPool
from .train.hooks import RatesByDepth

__all__ = ['ImageFolderDataset', 'LabelledLovaszLoss', 'LowMemoryEncoderDecoder', 'LowMemorySegTTAModel']


@OPTIM_WRAPPER_CONSTRUCTORS.register_module(
    ['LearningRateDecayOptimizerConstructor', 'LayerDecayOptimizerConstructor'], force=True)
class LayerDecayConstructor(RatesByDepth, LearningRateDecayOptimizerConstructor):
    """Learning rates by layer, for XCiT too: ``paramwise_cfg=dict(decay_rate=0.8)``."""


@MODELS.register_module()
class LowMemoryEncoderDecoder(EncoderDecoder):
    """mmseg's segmentor, which predicts large images a few classes at a time.

    The scores of 150 classes for a photo of 6000 x 4000 pixels take 14 GB, and mmseg holds them twice. Here only the
    best score and its class are kept, and samples of such images have no ``seg_logits``. The labels are those of mmseg.

    Everything else is predicted as in mmseg: smaller images, windows (``mode='slide'``), the views of
    `LowMemorySegTTAModel`, which needs the scores, and heads with their own prediction, such as MaskFormer's. If your
    own metric, or mmseg's `SegTTAModel`, reads ``seg_logits`` of large images, use ``type='EncoderDecoder'``.
    """

    #: How many scores are held at a time: 1 GB in float32.
    SCORES = 2**28
    #: Whether all scores are needed. `LowMemorySegTTAModel` sets it.
    keeps_scores = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for pool in self.neck.modules() if self.with_neck else ():  # Feature2Pyramid's, for strips
            if type(pool) is MaxPool2d and isinstance(pool.kernel_size, int) and repr(pool) == repr(
                    MaxPool2d(pool.kernel_size)):
                pool.__class__ = MaxPool

    def predict(self, inputs, data_samples=None):
        """Predict images (B, 3, H, W); arguments and result are as in mmseg."""
        if data_samples is None or self.keeps_scores or not self._predicts_as_mmseg():
            return super().predict(inputs, data_samples)
        sizes = [sample.ori_shape for sample in data_samples] + [tuple(inputs.shape[2:])]
        pixels = len(inputs) * max(height * width for height, width in sizes)
        if self.out_channels * pixels <= self.SCORES:
            return super().predict(inputs, data_samples)
        metas = [sample.metainfo for sample in data_samples]
        logits = self.decode_head.forward(self.extract_feat(inputs))
        parts = _parts(logits, self.SCORES // pixels, small=min(map(sum, sizes)) <= 128)
        if len(parts) == 1:
            return self.postprocess_result(self.decode_head.predict_by_feat(logits, metas), data_samples)
        best, first = [None] * len(inputs), 0
        for part in parts:
            samples = self.postprocess_result(self.decode_head.predict_by_feat(part, metas), data_samples)
            for i, sample in enumerate(samples):
                score, label = sample.seg_logits.data.max(0, keepdim=True)
                del sample.seg_logits
                best[i] = _better(best[i], (score, label + first))
            first += part.shape[1]
        for sample, (_, label) in zip(data_samples, best, strict=True):
            sample.pred_sem_seg = PixelData(data=label)
        return data_samples

    def _predicts_as_mmseg(self):
        """Whether the scores are the resized outputs of the head's forward, as in mmseg, also in derived classes."""
        return ((self.test_cfg or {}).get('mode') == 'whole'
                and _has_methods_of(EncoderDecoder, self, 'inference', 'whole_inference', 'encode_decode',
                                    'postprocess_result')
                and _has_methods_of(BaseDecodeHead, self.decode_head, 'predict', 'predict_by_feat'))


def _has_methods_of(kind, owner, *names):
    return all(getattr(getattr(owner, name, None), '__func__', None) is getattr(kind, name) for name in names)


def _parts(logits, count, small=False):
    """Split scores (B, C, H, W) by classes, about ``count`` at a time, so that resizing is exact to the last bit.

    torch resizes fewer than four channels in another way than more. With channels-last tensors, or if height plus width
    of the result is at most 128 (``small``), it also resizes channels that do not fill a whole vector (up to 16) in
    another way.
    """
    last = logits.is_contiguous(memory_format=torch.channels_last)
    unit, classes = 16 if last or small else 4, logits.shape[1]
    count = max(count // unit, 1) * unit
    starts = list(range(0, max(classes - 3, 1), count))  # a short rest joins the part before it
    parts = [logits[:, start:end] for start, end in zip(starts, [*starts[1:], classes], strict=True)]
    return [part.contiguous(memory_format=torch.channels_last) for part in parts] if last else parts


def _better(old, new):
    """Return the higher of two scores (1, H, W) with its label for each pixel; the first if equal, like argmax."""
    if old is None:
        return new
    score, which = torch.cat([old[0], new[0]]).max(0, keepdim=True)
    return score, torch.cat([old[1], new[1]]).gather(0, which)


@MODELS.register_module()
class LowMemorySegTTAModel(SegTTAModel):
    """mmseg's model for test-time augmentation, which adds the scores of each view as soon as it has them.

    mmseg holds the scores of all views; for 12 views of 150 classes and a photo of 2000 x 1500 pixels they take 21 GB.
    The result is that of mmseg.
    """

    def test_step(self, data):
        """Predict the views of each image and merge them; arguments and result are as in mmseg."""
        self.module.keeps_scores = True
        sums, first = None, None
        for place, inputs in enumerate(data['inputs']):
            samples = self.module.test_step(dict(inputs=inputs, data_samples=data['data_samples'][place]))
            first = first or samples
            sums = sums or [torch.zeros_like(sample.seg_logits.data) for sample in samples]
            for total, sample in zip(sums, samples, strict=True):
                logits = sample.seg_logits.data
                total += logits.softmax(dim=0) if self.module.out_channels > 1 else logits.sigmoid()
                if samples is first:
                    del sample.seg_logits
        for total, sample in zip(sums, first, strict=True):
            total /= len(data['inputs'])
            sample.seg_logits = PixelData(data=total)
            labels = total.argmax(dim=0, keepdim=True) if self.module.out_channels > 1 else (
                total > self.module.decode_head.threshold).to(total)
            sample.pred_sem_seg = PixelData(data=labels)
        return first


@MODELS.register_module()
class LabelledLovaszLoss(LovaszLoss):
    """mmseg's `LovaszLoss`, also for batches in which nothing is labelled: their mean is NaN in mmseg.

    Arguments are as in mmseg.
    """

    def forward(self, cls_score, label, weight=None, ignore_index=255, **kwargs):
        """Return the loss of scores (B, C, H, W) and labels (B, H, W); 0 if less than two pixels have one."""
        if (label != ignore_index).sum() < 2:  # of a single one mmseg drops an axis
            return cls_score.sum() * 0
        return super().forward(cls_score, label, weight, ignore_index=ignore_index, **kwargs)
