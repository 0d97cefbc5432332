"""A segmentor for large images in little memory; imported by the segmentation configs, needs mmseg."""
import torch
from mmengine.model import BaseTTAModel
from mmengine.structures import PixelData
from mmseg.models import EncoderDecoder
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.registry import MODELS
from torch.nn.modules.module import register_module_module_registration_hook


@MODELS.register_module()
class LowMemoryEncoderDecoder(EncoderDecoder):
    """mmseg's segmentor, which predicts a large image with some classes at a time.

    The scores of 150 classes for a photograph of 6000 x 4000 pixels take 14 GB, and mmseg holds them twice. Here only
    the best score and its class are kept, and samples of such images have no ``seg_logits``; the labels are mmseg's.
    Others are predicted as in mmseg: smaller images, windows (``mode='slide'``), models inside one for test-time
    augmentation, which needs the scores, and heads with a prediction of their own, such as MaskFormer's. For a metric
    of your own that reads ``seg_logits`` of large images, take ``type='EncoderDecoder'``.
    """

    #: Scores at a time: 1 GB in float32.
    SCORES = 2**28
    #: Whether somebody needs all of them.
    keeps_scores = False

    def predict(self, inputs, data_samples=None):
        """Predict images (B, 3, H, W); arguments and result as in mmseg."""
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
        """Whether scores are what the head's forward gives, resized, as in mmseg, whoever wrote head and segmentor."""
        return ((self.test_cfg or {}).get('mode') == 'whole'
                and _has_methods_of(EncoderDecoder, self, 'inference', 'whole_inference', 'encode_decode',
                                    'postprocess_result')
                and _has_methods_of(BaseDecodeHead, self.decode_head, 'predict', 'predict_by_feat'))


def _has_methods_of(kind, owner, *names):
    return all(getattr(getattr(owner, name, None), '__func__', None) is getattr(kind, name) for name in names)


def _parts(logits, count, small=False):
    """Split scores (B, C, H, W) by classes, about ``count`` at a time, so that resizing gives the same to the last bit.

    torch resizes fewer than four channels otherwise than more. Of channels-last tensors, and to sizes whose height and
    width make 128 or less (``small``), it resizes channels that fill no whole vector, up to 16, otherwise than others.
    """
    last = logits.is_contiguous(memory_format=torch.channels_last)
    unit, classes = 16 if last or small else 4, logits.shape[1]
    count = max(count // unit, 1) * unit
    starts = list(range(0, max(classes - 3, 1), count))  # what is left over at the end goes with those before
    parts = [logits[:, start:end] for start, end in zip(starts, [*starts[1:], classes], strict=True)]
    return [part.contiguous(memory_format=torch.channels_last) for part in parts] if last else parts


def _better(old, new):
    """Return the higher of two scores (1, H, W) with its label, pixel by pixel; of equal ones the first, as argmax."""
    if old is None:
        return new
    score, which = torch.cat([old[0], new[0]]).max(0, keepdim=True)
    return score, torch.cat([old[1], new[1]]).gather(0, which)


def _keep_scores(parent, name, child):
    if isinstance(parent, BaseTTAModel) and isinstance(child, LowMemoryEncoderDecoder):
        child.keeps_scores = True


# mmengine's TTA models tell nobody that they read the scores of the model in them
register_module_module_registration_hook(_keep_scores)
