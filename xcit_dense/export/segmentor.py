"""The graph of a segmentor: from images to labels, with layers whose sizes stay open when they are traced."""
import copy
from contextlib import contextmanager
from fractions import Fraction

import torch
import torch.nn.functional as F
from mmengine.model import revert_sync_batchnorm
from mmseg.models import utils as mmseg_utils
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import ConfigError
from ..models.trunk import fuse_backbones
from .preprocessing import IMAGE, Preprocessing


class SegmentorGraph(nn.Module):
    """The prediction of mmseg's ``EncoderDecoder`` as one graph for images of any size, for `exporting.trace`.

    With ``scores`` it also outputs the probabilities of the labels. The model is not changed. `ConfigError` if it
    predicts windows, or its images are prepared in a way that cannot be exported.
    """

    def __init__(self, model, scores: bool = False):
        super().__init__()
        if (mode := (model.test_cfg or {}).get('mode', 'whole')) != 'whole':
            raise ConfigError(f'model.test_cfg has mode={mode!r}, but an exported model predicts whole images. Export '
                              'it with --cfg-options model.test_cfg.mode=whole (results differ from those of windows)')
        self.preprocessing = Preprocessing(model.data_preprocessor)
        #: As for `xcit_dense.export.exporting.graph_of`.
        self.inputs = dict(image=IMAGE, size=(torch.zeros(2, dtype=torch.int64), None))
        self.outputs, self.translations = ('labels', 'scores')[:1 + scores], TRANSLATIONS
        self.threshold = getattr(model.decode_head, 'threshold', None)
        self.align_corners = model.align_corners
        model = copy.deepcopy(model).cpu().eval().requires_grad_(False)
        model.auxiliary_head = model.data_preprocessor = None
        self.model = fuse_backbones(revert_sync_batchnorm(model))
        for module in self.model.modules():
            if type(module) is mmseg_utils.Upsample:
                module.__class__ = OpenUpsample
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
            logits = self.model.decode_head.predict(self.model.extract_feat(images), metas, self.model.test_cfg)
        logits = self._resized(logits.permute(0, 2, 3, 1), image, images, size)
        if logits.shape[3] == 1:
            found = logits[..., 0].sigmoid()
            labels = found > self.threshold
            scores = torch.where(labels, found, 1 - found)
        else:
            labels = logits.argmax(3)
            scores = logits.softmax(3).amax(3)
        labels = labels.to(torch.uint8 if logits.shape[3] <= 256 else torch.int32)
        return (labels, scores) if len(self.outputs) > 1 else labels

    def _resized(self, logits, image, images, size):
        """Resize logits (B, h, w, C) to the size of ``images``, remove the padding, and resize them to ``size``."""
        given = size_of(image)
        size = torch.where(size > 0, size, given)
        if self.preprocessing.pad_divisor > 1:
            height, width = image.shape[1:3]
            whole = resize(logits, size_of(images.permute(0, 2, 3, 1)), self.align_corners)
            return resize(whole[:, :height, :width], size, self.align_corners)
        # if ``size`` is that of the image, one resize is enough: the first then changes nothing, on the small maps
        first = torch.where((size == given).all(), size_of(logits), given)
        return resize(resize(logits, first, self.align_corners), size, self.align_corners)


class OpenUpsample(mmseg_utils.Upsample):
    """mmseg's layer, without the ``int`` that makes the size a constant."""

    def forward(self, x):
        """Resize maps (B, C, H, W)."""
        by = Fraction(self.scale_factor or 1)
        size = self.size or [length * by.numerator // by.denominator for length in x.shape[-2:]]
        return F.interpolate(x, size, None, self.mode, self.align_corners)


@contextmanager
def sizes_left_open():
    """Context in which necks and heads can be traced."""
    defaults = mmseg_utils.resize.__defaults__
    mmseg_utils.resize.__defaults__ = (*defaults[:-1], False)  # ``warning``: its check makes the sizes constants
    try:
        with AnySize():
            yield
    finally:
        mmseg_utils.resize.__defaults__ = defaults


@torch.library.custom_op('xcit_dense::resize', mutates_args=())
def resize(maps: Tensor, size: Tensor, align_corners: bool) -> Tensor:
    """Resize maps (B, h, w, C), bilinearly, to ``size``: height and width, int64 (2, ).

    It is a custom op because the size may depend on data. Channels are last because onnxruntime then needs a sixth of
    the time, for resizing and also for the argmax after it.
    """
    maps = F.interpolate(maps.permute(0, 3, 1, 2), size.tolist(), mode='bilinear', align_corners=align_corners)
    return maps.permute(0, 2, 3, 1).contiguous()


@resize.register_fake
def _(maps, size, align_corners):
    height, width = (torch.library.get_ctx().new_dynamic_size(min=1) for _ in range(2))
    return maps.new_empty(maps.shape[0], height, width, maps.shape[3])


def _resize_in_onnx(maps, size, align_corners: bool):
    from onnxscript import opset20 as op
    how = 'align_corners' if align_corners else 'half_pixel'
    return op.Resize(maps, None, None, size, axes=[1, 2], mode='linear', coordinate_transformation_mode=how)


#: The ops of this file in ONNX: for ``custom_translation_table`` of `torch.onnx.export`.
TRANSLATIONS = {torch.ops.xcit_dense.resize.default: _resize_in_onnx}


def size_of(maps: Tensor) -> Tensor:
    """Return height and width of maps (B, H, W, C) as a tensor."""
    return torch.stack([torch.scalar_tensor(length, dtype=torch.int64) for length in maps.shape[1:3]])


class AnySize(TorchFunctionMode):
    """Mode in which adaptive average pooling works with unknown sizes: torch's own export needs multiples."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = adaptive_mean if function is F.adaptive_avg_pool2d else function
        return function(*args, **kwargs or {})


def adaptive_mean(input: Tensor, output_size) -> Tensor:
    """Do `torch.nn.functional.adaptive_avg_pool2d` on maps (..., H, W) as a product with two small matrices."""
    height, width = output_size if isinstance(output_size, (list, tuple)) else (output_size, output_size)
    if height is not None:
        input = _means(input.shape[-2], height, input) @ input
    if width is not None:
        input = input @ _means(input.shape[-1], width, input).T
    return input


def _means(length, count, like):
    """Return the matrix (count, length) that computes the means of ``count`` parts of a row."""
    parts = torch.arange(count, device=like.device).unsqueeze(1)
    start, end = parts * length // count, ((parts + 1) * length + count - 1) // count
    places = torch.arange(length, device=like.device)
    return ((places >= start) & (places < end)).to(like.dtype) / (end - start).to(like.dtype)
