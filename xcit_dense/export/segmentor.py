"""The graph of a segmentor: from images to labels."""
import copy

import torch
from mmengine.model import revert_sync_batchnorm
from mmseg.models import EncoderDecoder
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor, nn

from ..errors import ConfigError
from ..models import XCiT
from ..models.exported_form import to_exported_form
from ..predict.low_memory import LowMemoryEncoderDecoder, has_methods_of
from .heads import sizes_left_open, with_open_sizes
from .image import Preprocessing
from .resizing import resize, size_of

#: Heads that one graph for all image sizes cannot express, with the reason.
_REFUSED = dict(
    DMHead='creates filters whose size depends on the image',
    DPTHead='takes other steps for other image sizes',
    ISAHead='takes other steps for other image sizes',
    LightHamHead='draws random numbers for each prediction',
)


class SegmentorGraph(nn.Module):
    """The prediction of mmseg's ``EncoderDecoder`` as one graph for images of any size.

    For `torch.onnx.export` with `xcit_dense.export.resizing.TRANSLATIONS`.

    Args:
        model: A segmentor with its weights; it is not changed.
        scores: Whether to also output the probabilities of the labels.

    Raises:
        ConfigError: A part of the model cannot be exported.
    """

    def __init__(self, model, scores: bool = False):
        _check(model)
        super().__init__()
        self.preprocessing = Preprocessing(model.data_preprocessor)
        self.scores = scores
        self.threshold = getattr(model.decode_head, 'threshold', None)
        self.align_corners = model.align_corners
        model = copy.deepcopy(model).cpu().eval().requires_grad_(False)
        model.auxiliary_head = model.data_preprocessor = None
        self.model = with_open_sizes(revert_sync_batchnorm(model))
        if isinstance(model.backbone, XCiT):
            self.model.backbone = to_exported_form(self.model.backbone)
        self.model.decode_head.predict_by_feat = lambda logits, metas: logits  # `_resized` does this later
        self.eval()

    def forward(self, image: Tensor, size: Tensor):
        """Label the pixels of images.

        Args:
            image: (B, H, W, 3) uint8, RGB.
            size: Height and width of the labels, int64 (2, ); [0, 0] for those of ``image``.

        Returns:
            Labels (B, h, w), uint8, or int32 with more than 256 classes; with ``scores`` also their probabilities
            (B, h, w) float32.
        """
        images = self.preprocessing(image)
        metas = [dict.fromkeys(('ori_shape', 'img_shape', 'pad_shape'), images.shape[2:])]
        with sizes_left_open():
            features = self.model.extract_feat(images)
            logits = self.model.decode_head.predict(features, metas, self.model.test_cfg)
        logits = self._resized(logits.permute(0, 2, 3, 1), image, images, size)
        if logits.shape[3] == 1:
            found = logits[..., 0].sigmoid()
            labels = found > self.threshold
            scores = torch.where(labels, found, 1 - found)
        else:
            labels = logits.argmax(3)
            scores = logits.softmax(3).amax(3)
        labels = labels.to(torch.uint8 if logits.shape[3] <= 256 else torch.int32)
        return (labels, scores) if self.scores else labels

    def _resized(self, logits, image, images, size):
        """Resize logits (B, h, w, C) to the size of ``images``, remove the padding, and resize them to ``size``."""
        given = size_of(image)
        size = torch.where(size > 0, size, given)
        if self.preprocessing.pads:
            height, width = image.shape[1:3]
            whole = resize(logits, size_of(images.permute(0, 2, 3, 1)), self.align_corners)
            return resize(whole[:, :height, :width], size, self.align_corners)
        # if ``size`` is that of the image, one resize is enough: the first then changes nothing, on the small maps
        first = torch.where((size == given).all(), size_of(logits), given)
        return resize(resize(logits, first, self.align_corners), size, self.align_corners)


def _check(model):
    """Raise `ConfigError` if a model does not predict like `SegmentorGraph`."""
    predictions = EncoderDecoder.predict, LowMemoryEncoderDecoder.predict
    if getattr(type(model), 'predict', None) not in predictions or not has_methods_of(
            EncoderDecoder, model, 'inference', 'whole_inference', 'encode_decode', 'postprocess_result'):
        raise ConfigError(f'model is a {type(model).__name__}, whose own way of predicting cannot be exported. '
                          'EncoderDecoder and LowMemoryEncoderDecoder can')
    if (mode := (model.test_cfg or {}).get('mode', 'whole')) != 'whole':
        raise ConfigError(f'model.test_cfg has mode={mode!r}, but an exported model predicts whole images. Export it '
                          'with --cfg-options model.test_cfg.mode=whole (results differ from those of windows)')
    names = [kind.__name__ for kind in type(model.decode_head).__mro__]
    if reason := next((_REFUSED[name] for name in names if name in _REFUSED), None):
        raise ConfigError(f'model.decode_head is a {names[0]}, which {reason} and cannot be exported. --backbone '
                          'exports only the backbone')
    if not has_methods_of(BaseDecodeHead, model.decode_head, 'predict_by_feat'):
        raise ConfigError(f'model.decode_head is a {type(model.decode_head).__name__}, whose own way of predicting '
                          'cannot be exported. Heads whose forward returns class scores can, such as FPNHead, UPerHead '
                          'and SegformerHead')
