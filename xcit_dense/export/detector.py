"""The graph of an exported detector: mmdet's ``predict`` with fixed numbers of boxes, using the trained weights."""
import copy

import torch
from mmengine.model import revert_sync_batchnorm
from torch import Tensor, nn

from ..errors import ConfigError
from ..models.trunk import fuse_backbones
from .boxes import ANY, MISSING, TRANSLATIONS, Align, decode, pad_to, rows, suppress_groups, top
from .preprocessing import IMAGE, Preprocessing

#: Supported keys of ``nms``; ``split_thr``, from which mmcv works class by class, changes nothing here,
#: unless classes suppress each other.
_NMS_KEYS = {'type', 'iou_threshold', 'iou_thr', 'split_thr', 'class_agnostic'}
#: By attribute of a detector, the classes of mmdet that the graph supports.
_KINDS = {
    'model': ('FasterRCNN', 'MaskRCNN', 'CascadeRCNN', 'TwoStageDetector', 'RetinaNet', 'ATSS', 'SingleStageDetector'),
    'model.rpn_head': ('RPNHead', ),
    'model.bbox_head': ('RetinaHead', 'ATSSHead'),
    'model.roi_head': ('StandardRoIHead', 'CascadeRoIHead'),
    'model.roi_head.bbox_head': ('Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead', 'ConvFCBBoxHead'),
    'model.roi_head.mask_head': ('FCNMaskHead', ),
    **{f'model.roi_head.{part}_roi_extractor': ('SingleRoIExtractor', ) for part in ('bbox', 'mask')},
    **{f'model.{key}.bbox_coder': ('DeltaXYWHBBoxCoder', ) for key in ('rpn_head', 'bbox_head', 'roi_head.bbox_head')}}


class DetectorGraph(nn.Module):
    """A trained detector of mmdet, images in, objects out, for `exporting.trace`; the model is not changed.

    `ConfigError` if a part of the model cannot be exported.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        check_detector(model)
        model = fuse_backbones(revert_sync_batchnorm(copy.deepcopy(model)))
        self.preprocessing = Preprocessing(model.data_preprocessor)
        self.backbone = model.backbone
        self.neck = model.neck if model.with_neck else nn.Identity()
        two_stage = hasattr(model, 'roi_head')
        self.dense = DenseHead(model.rpn_head if two_stage else model.bbox_head, by_level=two_stage)
        self.rois = RoIHead(model.roi_head) if two_stage else None
        #: As for `xcit_dense.export.exporting.graph_of`.
        self.inputs, self.translations = dict(image=IMAGE), TRANSLATIONS
        self.outputs = ('dets', 'labels', *(['masks'] if two_stage and model.roi_head.with_mask else []), 'num')
        self.eval()

    def forward(self, image: Tensor) -> tuple:
        """Predict images (B, H, W, 3), uint8, RGB.

        Returns:
            ``dets`` (B, n, 5): left, top, right, bottom in pixels of ``image``, and score, descending; ``labels``
            (B, n) int64; for models with masks ``masks`` (B, n, h, w), probabilities; ``num`` (B, ) int64, the number
            of real objects. n is the largest ``num``, at least 1. Entries after ``num`` have score 0 and label -1.
        """
        height, width = image.shape[1:3]
        limits = torch.stack([torch.scalar_tensor(side, dtype=torch.float32) for side in (width, height)] * 2)
        before = self.preprocessing
        images = pad_to(before.normalised(image), before.pad_divisor, float(before.pad_value))
        maps = self.neck(self.backbone(images))
        boxes, scores, labels = self.dense(maps, limits)
        if self.rois is not None:
            boxes, scores, labels = self.rois(maps, boxes, scores > ANY, limits)
        num = (scores > ANY).sum(1)
        boxes, scores, labels = (x[:, :_longest(num, scores.shape[1])] for x in (boxes, scores, labels))
        real = scores > ANY
        boxes = torch.where(real[..., None], boxes, 0.)
        dets = torch.cat([boxes, torch.where(real, scores, 0.)[..., None]], -1)
        masks = (self.rois.masks(maps, boxes, labels), ) if 'masks' in self.outputs else ()
        return dets, torch.where(real, labels, -1), *masks, num


class DenseHead(nn.Module):
    """An ``RPNHead``, a ``RetinaHead`` or an ``ATSSHead``: the best boxes from the anchors.

    NMS is done per class or, as for proposals, ``by_level``.
    """

    def __init__(self, head, by_level):
        super().__init__()
        self.head, cfg = head, head.test_cfg
        self.in_one = cfg.nms.get('class_agnostic', False)
        self.by_level = by_level and not self.in_one
        self.count, self.limit, self.iou_threshold = cfg.nms_pre, cfg.max_per_img, iou_threshold_of(cfg)
        self.smallest = cfg.get('min_bbox_size', -1)
        self.score_threshold = ANY if by_level else max(cfg.get('score_thr', 0), ANY)

    def forward(self, maps, limits: Tensor):
        """Return boxes (B, n, 4), scores (B, n), descending and `MISSING` where there is none, and labels (B, n)."""
        levels = [*zip(*self.head(maps), strict=True)]
        has_factors = len(levels[0]) > 2
        found = [self._of_level(number, limits, *level) for number, level in enumerate(levels)]
        boxes, scores, labels = (torch.stack(parts, 1) for parts in zip(*found, strict=True))  # (B, levels, count)
        if self.by_level:
            marks = torch.arange(len(found))[:, None]
        else:
            boxes, scores, labels = (x.flatten(1, 2)[:, None] for x in (boxes, scores, labels))
            marks = labels * (not self.in_one)
        scores = suppress_groups(boxes, scores, marks, self.iou_threshold, ANY if has_factors else self.score_threshold,
                                 self.limit)
        scores, index = top(scores.flatten(1), min(self.limit, self.count * len(found)))
        return rows(boxes.flatten(1, 2), index), scores, labels.flatten(1).gather(1, index)

    def _of_level(self, number, limits, logits, deltas, centerness=None):
        """Return the ``count`` best boxes of a level, with scores and labels."""
        # as tensors: in onnxscript a graph's number cannot divide a tensor
        size = [torch.scalar_tensor(side, dtype=torch.int64) for side in logits.shape[2:]]
        logits = _by_anchor(logits, self.head.cls_out_channels)
        scores = logits.sigmoid() if self.head.use_sigmoid_cls else logits.softmax(-1)[..., :-1]
        classes = scores.shape[-1]
        scores, index = top(scores.flatten(1), self.count)
        place = index // classes
        anchors = self.head.prior_generator.sparse_priors(place.flatten(), size, number, device='cpu')
        boxes = decode(self.head.bbox_coder, anchors.view(*place.shape, 4), rows(_by_anchor(deltas, 4), place), limits)
        if self.smallest >= 0:
            scores = torch.where((boxes[..., 2:] - boxes[..., :2] > self.smallest).all(-1), scores, MISSING)
        if centerness is not None:  # mmdet compares scores with the threshold before it multiplies them
            factors = _by_anchor(centerness, 1).sigmoid().flatten(1).gather(1, place)
            scores = torch.where(scores > self.score_threshold, scores * factors, MISSING)
        return boxes, scores, index % classes


class RoIHead(nn.Module):
    """A ``StandardRoIHead``, treated as a cascade of one stage, or a ``CascadeRoIHead``."""

    def __init__(self, roi_head):
        super().__init__()
        self.aligns = nn.ModuleList(map(Align, each(roi_head.bbox_roi_extractor)))
        self.heads = nn.ModuleList(each(roi_head.bbox_head))
        if roi_head.with_mask:
            self.mask_align = nn.ModuleList(map(Align, each(roi_head.mask_roi_extractor)))
            self.mask_heads = nn.ModuleList(each(roi_head.mask_head))
        cfg = roi_head.test_cfg
        self.limit, self.iou_threshold = cfg.max_per_img, iou_threshold_of(cfg)
        self.score_threshold, self.in_one = max(cfg.score_thr, ANY), cfg.nms.get('class_agnostic', False)

    def forward(self, maps, boxes: Tensor, is_real: Tensor, limits: Tensor):
        """Return boxes, scores and labels like `DenseHead`, from proposals (B, P, 4); ``is_real`` (B, P) marks them."""
        total = 0
        for number, (align, head) in enumerate(zip(self.aligns, self.heads, strict=True), 1):
            logits, deltas = (values.unflatten(0, boxes.shape[:2]) for values in head(align(maps, boxes)))
            deltas, total = deltas.unflatten(2, (-1, 4)), total + logits  # (B, P, classes or 1, 4), (B, P, classes + 1)
            if number < len(self.heads):  # the deltas of the best class
                if deltas.shape[2] > 1:
                    deltas = deltas.gather(2, logits[..., :-1].argmax(-1)[..., None, None].expand(-1, -1, 1, 4))
                boxes = decode(head.bbox_coder, boxes, deltas[:, :, 0], limits)
        scores = (total / float(len(self.heads))).softmax(-1)[..., :-1]
        scores = torch.where(is_real[..., None], scores, MISSING)
        boxes = decode(head.bbox_coder, boxes[:, :, None], deltas, limits)
        classes = scores.shape[-1]
        if self.in_one:  # (B, 1, P * classes, 4)
            groups, scores = boxes.expand(-1, -1, classes, -1).flatten(1, 2)[:, None], scores.flatten(1)[:, None]
        else:  # (B, classes or 1, P, 4)
            groups, scores = boxes.transpose(1, 2), scores.transpose(1, 2)
        marks = torch.arange(scores.shape[1])[:, None]
        scores = suppress_groups(groups, scores, marks, self.iou_threshold, self.score_threshold, self.limit)
        # by proposal, then by class, so that with equal scores the first one is the one that mmdet keeps
        scores, index = top(scores.transpose(1, 2).flatten(1), min(self.limit, scores.shape[1] * scores.shape[2]))
        labels, place = index % classes, index // classes
        if boxes.shape[2] > 1:
            place = place * classes + labels
        return rows(boxes.flatten(1, 2), place), scores, labels

    def masks(self, maps, boxes: Tensor, labels: Tensor) -> Tensor:
        """Return the probabilities (B, n, h, w) that the pixels of boxes (B, n, 4) belong to the object in the box."""
        found = []
        for align, head in zip(self.mask_align, self.mask_heads, strict=True):
            logits = head(align(maps, boxes))
            if logits.shape[1] > 1:
                place = labels.flatten()[:, None, None, None].expand(-1, 1, *logits.shape[2:])
                logits = logits.gather(1, place)
            found.append(logits[:, 0].sigmoid())
        masks = found[0] if len(found) == 1 else torch.stack(found).mean(0)
        return masks.unflatten(0, boxes.shape[:2])


def _longest(num, limit):
    """Return the largest of ``num``, at least 1, as a size that tracing accepts."""
    longest = num.max().clamp(min=1).item()
    torch._check(longest >= 1)
    torch._check(longest <= limit)
    return longest


def _by_anchor(values, channels):
    """Reshape (B, anchors * channels, h, w) to (B, h * w * anchors, channels)."""
    return values.permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, channels))


def iou_threshold_of(cfg) -> float:
    """Return the IoU threshold of a ``test_cfg``."""
    return cfg.nms.get('iou_threshold', cfg.nms.get('iou_thr'))


def each(part):
    """Return the parts of all stages as a list, also if there is only one."""
    return part if isinstance(part, nn.ModuleList) else [part]


def check_detector(model: nn.Module):
    """Raise `ConfigError`, with key, value and fix, unless the graph supports the parts of a detector.

    What is in them shows when the file is compared.
    """
    for key, names in _KINDS.items():
        parts = [model]
        for name in key.split('.')[1:]:
            parts = [inner for part in parts if hasattr(part, name) for inner in each(getattr(part, name))]
        for kind in map(type, parts):
            # exactly these classes: a derived one may do anything
            _check(kind.__name__ in names and kind.__module__.startswith('mmdet.'), f'{key}.type', kind.__name__,
                   f'export supports {" or ".join(names)}, and --backbone exports only the backbone')
    if hasattr(model, 'roi_head'):
        _check_test_cfg(model.rpn_head.test_cfg, 'model.test_cfg.rpn', ('max_per_img', 'nms_pre'))
        _check_test_cfg(cfg := model.roi_head.test_cfg, 'model.test_cfg.rcnn', ('max_per_img', ))
        _check(cfg.get('mask_thr_binary', 0) >= 0, 'model.test_cfg.rcnn.mask_thr_binary', cfg.get('mask_thr_binary'),
               'a negative value means masks with 256 levels instead of binary ones. Set it to 0.5')
    else:
        _check_test_cfg(cfg := model.bbox_head.test_cfg, 'model.test_cfg', ('max_per_img', 'nms_pre'))
        _check(cfg.get('min_bbox_size', -1) <= 0, 'model.test_cfg.min_bbox_size', cfg.get('min_bbox_size'),
               'it counts pixels of the image before resizing, but the graph only has the image after it. Set it to 0')


def _check_test_cfg(cfg, key, counts):
    nms = cfg.get('nms') or {}
    _check(nms.get('type', 'nms' if nms else None) == 'nms', f'{key}.nms.type', nms.get('type'), "ONNX has only plain "
           "NMS. Use dict(type='nms', iou_threshold=0.5), and compare the AP of both with `test`")
    known = _NMS_KEYS - ({'split_thr'} if nms.get('class_agnostic') else set())
    for name, value in nms.items():
        _check(name in known, f'{key}.nms.{name}', value, 'the graph does not support it. Remove it')
    for name in counts:
        _check(cfg.get(name, -1) > 0, f'{key}.{name}', cfg.get(name), 'a graph needs a fixed number of boxes. Set it, '
               'for example to 1000')


def _check(fits, key, value, remedy):
    if not fits:
        raise ConfigError(f'{key}={value!r} cannot be exported: {remedy}')
