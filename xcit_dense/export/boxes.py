"""Boxes of a detector in fixed numbers, as an exported graph needs them: unused places have the score -1."""
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from .rois import suppress

#: The score of a place without a box; boxes have scores of at least 0.
MISSING = -1.
#: A threshold between `MISSING` and the scores of boxes.
ANY = -0.5


class Decoder(nn.Module):
    """Applies deltas to boxes as mmdet's ``DeltaXYWHBBoxCoder`` does, and clips them to the image."""

    def __init__(self, coder):
        super().__init__()
        self.register_buffer('means', torch.tensor(coder.means, dtype=torch.float32), persistent=False)
        self.register_buffer('stds', torch.tensor(coder.stds, dtype=torch.float32), persistent=False)

    def forward(self, boxes: Tensor, deltas: Tensor, limits: Tensor) -> Tensor:
        """Return boxes (..., 4) from boxes and deltas (..., 4); ``limits`` (4, ): width, height, width, height."""
        deltas = deltas * self.stds + self.means
        first, last = boxes[..., :2], boxes[..., 2:]
        sizes = last - first
        longest = abs(math.log(16 / 1000))
        centres = (first + last) * 0.5 + sizes * deltas[..., :2]
        halves = sizes * deltas[..., 2:].clamp(-longest, longest).exp() * 0.5
        corners = torch.cat([centres - halves, centres + halves], -1)
        return torch.minimum(corners.clamp(min=0), limits)


class Anchors(nn.Module):
    """The anchors of one level of mmdet's ``AnchorGenerator``."""

    def __init__(self, generator, level):
        super().__init__()
        self.register_buffer('base', generator.base_anchors[level].float(), persistent=False)
        self.register_buffer('strides', torch.tensor(generator.strides[level] * 2, dtype=torch.float32),
                             persistent=False)

    def forward(self, index: Tensor, width) -> Tensor:
        """Return the anchors (..., 4) with the indices ``index`` (...) of a map that is ``width`` wide."""
        count = len(self.base)
        place = index // count
        width = torch.scalar_tensor(width, dtype=torch.int64)  # in onnxscript a graph's number cannot divide a tensor
        x, y = place % width, place // width
        return self.base[index % count] + torch.stack([x, y, x, y], -1) * self.strides


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
    keep = suppress(apart.flatten(0, 1), scores.flatten(0, 1), _below(iou_threshold), score_threshold, limit)
    return torch.where(keep.view_as(scores), scores, MISSING)


def _below(threshold):
    """Return the largest float32 that is not above a threshold: runtimes compare in float32, torchvision in float64."""
    rounded = torch.tensor(threshold, dtype=torch.float32)
    return rounded.item() if rounded.item() <= threshold else torch.nextafter(rounded, -torch.ones(())).item()
