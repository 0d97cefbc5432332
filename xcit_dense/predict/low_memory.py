"""A segmentor for large images in little memory; imported by the segmentation configs, needs mmseg."""
from mmengine.structures import PixelData
from mmseg.models import EncoderDecoder
from mmseg.registry import MODELS


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
