"""What mmdet does with boxes and regions in mmcv, from torchvision or in plain torch: see mmcv_layers.py."""
import math

import torch
import torch.nn.functional as F

from .mmcv_layers import add_gradients, single, summing_device


def nms(boxes, scores, iou_threshold, offset):
    """Return the indices of the boxes that stay, best first; of equal scores the first in the input wins.

    Args:
        boxes, scores: (N, 4) as x1, y1, x2, y2, and (N, ).
        iou_threshold: A box is dropped if its IoU with a better one is above this.
        offset: 0, or 1 for boxes whose width is x2 - x1 + 1.
    """
    boxes = single(boxes)
    if offset:  # moving the corner by one gives the same width, and the same overlaps
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    return torch.ops.torchvision.nms(boxes, scores.to(boxes.dtype), iou_threshold)


def softnms(boxes, scores, dets, iou_threshold, sigma, min_score, method, offset):
    """Write boxes with lowered scores into ``dets`` (N, 5), best first, and return the indices of those that stay.

    Args:
        boxes, scores: As for :func:`nms`, on the CPU.
        method: What a score is multiplied with for a better box at this IoU: 0 for zero from iou_threshold on, 1 for
            1 - IoU from there on, 2 for exp(-IoU**2 / sigma) (Bodla et al. 2017).
    """
    scores, left, kept = scores.clone(), torch.ones_like(scores, dtype=torch.bool), []
    while left.any():
        best = int(scores.masked_fill(~left, -math.inf).argmax())
        dets[len(kept), :4], dets[len(kept), 4] = boxes[best], scores[best]
        kept.append(best)
        left[best] = False
        iou = _overlaps(boxes[best], boxes, offset)
        if method == 2:
            scores *= torch.exp(-iou**2 / sigma)
        else:
            scores *= torch.where(iou >= iou_threshold, (1 - iou) * method, 1)
        left &= scores >= min_score
    return torch.tensor(kept, dtype=torch.int64)


def nms_match(dets, iou_threshold):
    """Return for each box that NMS keeps its index and those of the boxes it suppresses, all by score (N, 5)."""
    order, groups = dets[:, 4].sort(descending=True)[1], []
    while len(order):
        hit = _overlaps(dets[order[0], :4], dets[order, :4]) >= iou_threshold
        hit[0] = True
        groups.append(order[hit].tolist())
        order = order[~hit]
    return groups


def bbox_overlaps(bboxes1, bboxes2, ious, mode, aligned, offset):
    """Write the IoU (mode 0), or the intersection over the first box (mode 1), into ``ious``: (N, M), aligned (N, )."""
    first = bboxes1 if aligned else bboxes1[:, None]
    ious.copy_(_overlaps(single(first), single(bboxes2), offset, mode))


def _overlaps(first, second, offset=0, mode=0):
    size = (torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2]) + offset)
    shared = size.clamp(min=0).prod(-1)
    areas = [(boxes[..., 2:] - boxes[..., :2] + offset).prod(-1) for boxes in (first, second)]
    return shared / (areas[0] if mode else areas[0] + areas[1] - shared).clamp(min=offset)


# Regions


def roi_align_forward(input, rois, output, argmax_y, argmax_x, aligned_height, aligned_width, spatial_scale,
                      sampling_ratio, pool_mode, aligned):
    """Write the RoIAlign of (B, C, H, W) at rois (K, 5) into ``output`` (K, C, aligned_height, aligned_width).

    Args:
        pool_mode: 1 for the average of a bin's samples. 0 for the largest, whose place is written into ``argmax_y``
            and ``argmax_x``, shaped as the output.
    """
    if pool_mode:
        output.copy_(torch.ops.torchvision.roi_align(single(input), single(rois), spatial_scale, aligned_height,
                                                     aligned_width, sampling_ratio, aligned))
        return
    points = _points(rois, aligned_height, aligned_width, spatial_scale, sampling_ratio, aligned / 2, 1 - aligned)
    for number, (image, x, y) in enumerate(points):
        output[number], place = _sample(input[image:image + 1], x[None], y[None])[0].max(-1)
        argmax_y[number], argmax_x[number] = (
            one.expand(len(place), -1, -1, -1).gather(-1, place[..., None])[..., 0] for one in (y, x))


def roi_align_backward(grad_output, rois, argmax_y, argmax_x, grad_input, aligned_height, aligned_width, spatial_scale,
                       sampling_ratio, pool_mode, aligned):
    """Add the gradient of RoIAlign's input to ``grad_input`` (B, C, H, W)."""
    if pool_mode:
        device = summing_device(grad_output)
        grad_input += torch.ops.torchvision._roi_align_backward(
            single(grad_output).to(device), single(rois).to(device), spatial_scale, aligned_height, aligned_width,
            *grad_input.shape, sampling_ratio, aligned).to(grad_input.device)
        return
    for image, maps in enumerate(grad_input):
        x, y, grad = (one[rois[:, 0] == image].transpose(0, 1) for one in (argmax_x, argmax_y, grad_output))
        add_gradients([maps], lambda one, x=x, y=y: _sample(one[:, None], x.to(one.device), y.to(one.device))[:, 0],
                      [maps], grad)


def _points(rois, height, width, scale, ratio, shift, least=0.):
    """Yield the image of each RoI, and x and y (height, width, samples) of what is sampled in each of its bins."""
    kind = dict(device=rois.device, dtype=single(rois).dtype)
    for image, x1, y1, x2, y2 in rois.tolist():
        axes = []
        for low, high, bins in ((x1, x2, width), (y1, y2, height)):
            side = max((high - low) * scale, least)
            count = ratio if ratio > 0 else max(math.ceil(side / bins), 1)
            steps = (torch.arange(bins * count, **kind) + 0.5) / (bins * count)
            axes.append((low * scale - shift + side * steps).view(bins, count))
        x, y = torch.broadcast_tensors(axes[0][None, :, None], axes[1][:, None, :, None])
        yield int(image), x.flatten(2), y.flatten(2)


def _sample(maps, x, y):
    """Return maps (N, C, H, W) at x and y (N, ...) in pixels as (N, C, ...): zero from a pixel outside on."""
    maps, x, y, (height, width) = single(maps), single(x), single(y), maps.shape[2:]
    inside = (x >= -1) & (x <= width) & (y >= -1) & (y <= height)
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1).flatten(1, -2)[:, None]
    found = F.grid_sample(maps, grid.to(maps.dtype), padding_mode='border', align_corners=False)
    return found.view(*maps.shape[:2], *x.shape[1:]) * inside[:, None]


def deform_roi_pool_forward(input, rois, offset, output, **kwargs):
    """Write the average of each bin of rois (K, 5), moved by its own offset, into ``output`` (Dai et al. 2017).

    Args:
        offset: (K, 2, pooled_height, pooled_width), x first, in gamma times the sides of the RoI; or empty.
    """
    output.copy_(_deform_roi_pool(rois, input, offset, **kwargs))


def deform_roi_pool_backward(grad_output, input, rois, offset, grad_input, grad_offset, **kwargs):
    """Add the gradients of input and offset."""
    if not len(rois):
        return
    moved = offset.numel() > 0
    add_gradients([grad_input, grad_offset][:1 + moved], lambda *inputs: _deform_roi_pool(rois, *inputs, **kwargs),
                  [input, offset][:1 + moved], grad_output)


def _deform_roi_pool(rois, input, offset=None, *, pooled_height, pooled_width, spatial_scale, sampling_ratio, gamma):
    rois = rois.to(input.device)
    if offset is None or not offset.numel():
        offset = input.new_zeros(len(rois), 2, pooled_height, pooled_width)
    sides = (rois[:, 3:] - rois[:, 1:3]) * spatial_scale * gamma
    moves = (single(offset) * sides[:, :, None, None])[..., None]
    points = _points(rois, pooled_height, pooled_width, spatial_scale, sampling_ratio, 0.5)
    pooled = [_sample(input[image:image + 1], x + move[:1], y + move[1:]).mean(-1)
              for move, (image, x, y) in zip(moves, points, strict=True)]
    return torch.cat([*pooled, input.new_zeros(0, input.shape[1], pooled_height, pooled_width)])


def roi_pool_forward(input, rois, output, argmax, pooled_height, pooled_width, spatial_scale):
    """Write the largest value of each bin of rois (K, 5) into ``output``, its place into ``argmax``, -1 for no pixel.

    Bins are those of mmcv, not those of torchvision, which rounds the corners of a RoI first.
    """
    corner, end = single(rois)[:, 1:3] * spatial_scale, (single(rois)[:, 3:] + 1) * spatial_scale
    edges = []
    for side, (bins, limit) in enumerate(((pooled_width, input.shape[3]), (pooled_height, input.shape[2]))):
        steps = torch.arange(bins + 1, device=rois.device)
        places = corner[:, side, None] + (end - corner)[:, side, None] / bins * steps
        edges.append((places[:, :-1].floor().clamp(0, limit), places[:, 1:].ceil().clamp(0, limit)))
    (x1, x2), (y1, y2) = edges
    x1, y1, x2, y2 = torch.broadcast_tensors(x1[:, None], y1[:, :, None], x2[:, None], y2[:, :, None])
    boxes = torch.stack([rois[:, 0, None, None].expand_as(x1), x1, y1, x2 - 1, y2 - 1], -1).flatten(0, 2)
    empty = ((x2 <= x1) | (y2 <= y1) | (end <= corner).any(1)[:, None, None])[:, None]
    for into, found, nothing in zip(
            (output, argmax), torch.ops.torchvision.roi_pool(single(input), boxes, 1., 1, 1), (0, -1), strict=True):
        found = found.view(*x1.shape, input.shape[1])  # each bin was a RoI
        into.copy_(found.permute(0, 3, 1, 2).masked_fill(empty, nothing))


def roi_pool_backward(grad_output, rois, argmax, grad_input, pooled_height, pooled_width, spatial_scale):
    """Add the gradient of RoIPool's input to ``grad_input`` (B, C, H, W)."""
    device = summing_device(grad_output)
    grad_input += torch.ops.torchvision._roi_pool_backward(
        single(grad_output).to(device), single(rois).to(device), argmax.to(device), spatial_scale, pooled_height,
        pooled_width, *grad_input.shape).to(grad_input.device)
