"""Boxes of a detector in a graph: custom ops for what depends on data, and boxes in fixed numbers.

In PyTorch, the output shapes of the ops follow from the input shapes, so that a detector is traced without guards on
data; they compute what mmcv does. In the file they are standard ONNX ops. Unused places of boxes have the score -1.
"""
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

#: The score of a place without a box; boxes have scores of at least 0.
MISSING = -1.
#: A threshold between `MISSING` and the scores of boxes.
ANY = -0.5


def decode(coder, boxes: Tensor, deltas: Tensor, limits: Tensor) -> Tensor:
    """Apply deltas (..., 4) to boxes (..., 4) as mmdet's ``DeltaXYWHBBoxCoder`` does, and clip them to the image.

    Its width, height, width and height are the ``limits`` (4, ).
    """
    deltas = deltas * torch.tensor(coder.stds) + torch.tensor(coder.means)
    first, last = boxes[..., :2], boxes[..., 2:]
    sizes = last - first
    longest = abs(math.log(16 / 1000))
    centres = (first + last) * 0.5 + sizes * deltas[..., :2]
    halves = sizes * deltas[..., 2:].clamp(-longest, longest).exp() * 0.5
    corners = torch.cat([centres - halves, centres + halves], -1)
    return torch.minimum(corners.clamp(min=0), limits)


class Align(nn.Module):
    """mmdet's ``SingleRoIExtractor``: RoIAlign for each box, on the level that fits its size."""

    def __init__(self, extractor):
        super().__init__()
        layer = extractor.roi_layers[0]
        self.strides = [float(stride) for stride in extractor.featmap_strides]
        self.size, self.sampling_ratio, self.aligned = list(layer.output_size), layer.sampling_ratio, layer.aligned
        self.finest = extractor.finest_scale

    def forward(self, maps, boxes: Tensor) -> Tensor:
        """Return features (B * n, C, h, w) of boxes (B, n, 4)."""
        images = torch.arange(boxes.shape[0])[:, None, None].expand(-1, boxes.shape[1], 1).to(boxes.dtype)
        rois = torch.cat([images, boxes], -1).flatten(0, 1)
        sizes = rois[:, 3:] - rois[:, 1:3]
        # floor(log2(scale)) without a logarithm, which differs between runtimes
        scale = sizes.prod(1).sqrt() / self.finest + 1e-6
        places = torch.zeros_like(scale, dtype=torch.int64)
        for level in range(1, len(self.strides)):
            places = places + (scale >= 2**level)
        return align_rois(list(maps[:len(self.strides)]), rois, places, self.strides, self.size, self.sampling_ratio,
                          self.aligned)


def top(scores: Tensor, count: int):
    """Return the ``count`` best scores (B, count) of (B, N), descending, and their indices, 0 where there is none."""
    best, index = pad(scores, (0, count), value=MISSING).topk(count)
    return best, index.where(best > ANY, 0)


def rows(values: Tensor, index: Tensor) -> Tensor:
    """Return the rows (B, K, D) of values (B, N, D) at indices (B, K)."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))


def suppress_groups(boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float, score_threshold: float,
                    limit: int) -> Tensor:
    """Return scores (B, G, N) with `MISSING` for all boxes except those that mmcv's ``batched_nms`` keeps.

    Args:
        boxes: (B, G, N, 4), or (B, 1, N, 4) for the same in each group; groups share no labels.
        scores: (B, G, N).
        labels: (G, 1) or (B, G, N). Boxes with different labels do not suppress each other: they are moved apart,
            with the same rounding as in mmcv.
        iou_threshold: A box is dropped if its IoU with a better one is above this.
        score_threshold: Boxes with this score or less are dropped.
        limit: The largest number of boxes kept per group.
    """
    candidates = scores > score_threshold
    # clipped boxes are not below 0
    largest = torch.where(candidates[..., None], boxes, 0.).amax((1, 2, 3), keepdim=True)
    apart = boxes + labels[..., None].to(boxes.dtype) * (largest + 1)
    keep = suppress(apart.flatten(0, 1), scores.flatten(0, 1), iou_threshold, score_threshold, limit)
    return torch.where(keep.view_as(scores), scores, MISSING)


@torch.library.custom_op('xcit_dense::suppress', mutates_args=())
def suppress(boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float, limit: int) -> Tensor:
    """Return which boxes (G, N) remain after non-maximum suppression within each group.

    Args:
        boxes: (G, N, 4) float32: left, top, right, bottom.
        scores: (G, N) float32; the first of equal scores wins.
        iou_threshold, score_threshold, limit: As for `suppress_groups`; what is dropped by its score costs no time.
    """
    from mmcv.ops import nms
    keep = torch.zeros_like(scores, dtype=torch.bool)
    for group in range(len(scores)):
        index = (scores[group] > score_threshold).nonzero()[:, 0]
        kept = nms(boxes[group, index], scores[group, index], iou_threshold)[1][:limit]
        keep[group, index[kept]] = True
    return keep


@suppress.register_fake
def _(boxes, scores, iou_threshold, score_threshold, limit):
    return torch.empty_like(scores, dtype=torch.bool)


@torch.library.custom_op('xcit_dense::align_rois', mutates_args=())
def align_rois(maps: list[Tensor], rois: Tensor, places: Tensor, strides: list[float], size: list[int],
               sampling_ratio: int, aligned: bool) -> Tensor:
    """Apply mmcv's RoIAlign to each RoI, on the map of its level: return (K, C, *size).

    Args:
        maps: (B, C, h, w) for each level.
        rois: (K, 5): index in the batch; left, top, right, bottom in pixels of the image.
        places: (K, ) int64: the level of each RoI.
        strides: Stride of each level, in pixels of the image.
        size, sampling_ratio, aligned: As for `mmcv.ops.roi_align`.
    """
    from mmcv.ops import roi_align
    out = maps[0].new_zeros(len(rois), maps[0].shape[1], *size)
    for level, (x, stride) in enumerate(zip(maps, strides, strict=True)):
        index = (places == level).nonzero()[:, 0]
        if len(index):
            out[index] = roi_align(x, rois[index], tuple(size), 1 / stride, sampling_ratio, 'avg', aligned)
    return out


@align_rois.register_fake
def _(maps, rois, places, strides, size, sampling_ratio, aligned):
    return maps[0].new_empty(rois.shape[0], maps[0].shape[1], *size)


@torch.library.custom_op('xcit_dense::pad_to', mutates_args=())
def pad_to(x: Tensor, divisor: int, value: float) -> Tensor:
    """Pad (B, C, H, W) at the bottom and at the right to multiples of ``divisor``.

    As a custom op it hides from the tracer how its output size follows from its input size. All later sizes are then
    plain multiples of two unknown numbers, and tracing a detector takes half the time.
    """
    below, right = (-side % divisor for side in x.shape[2:])
    return pad(x, (0, right, 0, below), value=value).clone()


@pad_to.register_fake
def _(x, divisor, value):
    context = torch.library.get_ctx()
    height, width = (divisor * context.new_dynamic_size(min=1) for _ in range(2))
    return x.new_empty(*x.shape[:2], height, width)


def _pad_to(x, divisor: int, value: float):
    from onnxscript import opset18 as op
    less = op.Sub(op.Constant(value_ints=[0]), op.Shape(x, start=2))
    end = op.Mod(less, op.Constant(value_ints=[divisor]))
    return op.Pad(x, op.Concat(op.Constant(value_ints=[0] * 6), end, axis=0), op.Constant(value_float=value))


def _suppress(boxes, scores, iou_threshold: float, score_threshold: float, limit: int):
    from onnxscript import opset18 as op
    found = op.NonMaxSuppression(boxes, op.Unsqueeze(scores, [1]), op.Constant(value_ints=[limit]),
                                 op.Constant(value_floats=[iou_threshold]), op.Constant(value_floats=[score_threshold]))
    index = op.Gather(found, op.Constant(value_ints=[0, 2]), axis=1)  # group and box, without the class between them
    nothing = op.Less(scores, scores)
    true = op.Cast(op.Constant(value_ints=[1]), to=9)
    return op.ScatterND(nothing, index, op.Expand(true, op.Slice(op.Shape(found), [0], [1])))


def _align_rois(maps, rois, places, strides, size, sampling_ratio: int, aligned: bool):
    from onnxscript import opset18 as op
    boxes = op.Slice(rois, [1], [5], [1])
    images = op.Cast(op.Squeeze(op.Slice(rois, [0], [1], [1]), [1]), to=7)
    found, cut = [], []
    for level, (x, stride) in enumerate(zip(maps, strides, strict=True)):
        index = op.Reshape(op.NonZero(op.Equal(places, op.Constant(value_int=level))), [-1])
        found.append(index)
        cut.append(op.RoiAlign(
            x, op.Gather(boxes, index), op.Gather(images, index), spatial_scale=1 / stride, output_height=size[0],
            output_width=size[1], sampling_ratio=sampling_ratio, mode='avg',
            coordinate_transformation_mode='half_pixel' if aligned else 'output_half_pixel'))
    index = op.Concat(*found, axis=0)
    count = op.Shape(index)
    numbers = op.Range(op.Constant(value_int=0), op.Squeeze(count, [0]), op.Constant(value_int=1))
    back = op.ScatterElements(numbers, index, numbers, axis=0)  # the new position of each RoI
    return op.Gather(op.Concat(*cut, axis=0), back)


#: For ``custom_translation_table`` of `torch.onnx.export`.
TRANSLATIONS = {torch.ops.xcit_dense.pad_to.default: _pad_to,
                torch.ops.xcit_dense.suppress.default: _suppress,
                torch.ops.xcit_dense.align_rois.default: _align_rois}
