"""The stand-in for mmcv's compiled ops, against explicit arithmetic."""
import math

import pytest
import torch
from mmcv.ops import RoIAlign, nms, sigmoid_focal_loss, soft_nms
from mmcv.ops.info import get_compiler_version

STAND_IN = 'torchvision' in get_compiler_version()


def iou(a, b, offset):
    width = max(min(a[2], b[2]) - max(a[0], b[0]) + offset, 0)
    height = max(min(a[3], b[3]) - max(a[1], b[1]) + offset, 0)
    areas = [(box[2] - box[0] + offset) * (box[3] - box[1] + offset) for box in (a, b)]
    return width * height / (sum(areas) - width * height)


def plain_nms(boxes, scores, threshold, offset=0):
    kept = []
    for i in sorted(range(len(scores)), key=lambda i: (-scores[i], i)):
        if all(iou(boxes[i], boxes[j], offset) <= threshold for j in kept):
            kept.append(i)
    return kept


def random_boxes(count, size=60.):
    corner = torch.rand(count, 2) * size
    return torch.cat([corner, corner + 4 + torch.rand(count, 2) * size / 2], dim=1)


@pytest.mark.parametrize('threshold', (0.3, 0.7))
@pytest.mark.parametrize('offset', (0, 1))
def test_nms_keeps_the_boxes_of_the_definition_in_order_of_score(threshold, offset):
    """Of equal scores the first goes first."""
    boxes, scores = random_boxes(120), (torch.rand(120) * 20).round() / 20
    dets, kept = nms(boxes, scores, iou_threshold=threshold, offset=offset)
    assert kept.tolist() == plain_nms(boxes.tolist(), scores.tolist(), threshold, offset)
    assert len(kept) < 120 and torch.equal(dets, torch.cat([boxes[kept], scores[kept, None]], dim=1))


def test_nms_at_its_limits():
    """A pair of 50 of 150 pixels, with an offset 66 of 176; a pair at the threshold; no boxes; a least score."""
    pair, scores = torch.tensor([[0., 0., 10., 10.], [0., 5., 10., 15.]]), torch.tensor([0.9, 0.8])
    assert [len(nms(pair, scores, iou_threshold=0.35, offset=offset)[1]) for offset in (0, 1)] == [2, 1]
    half = torch.tensor([[0., 0., 2., 1.], [0., 0., 1., 1.]])
    assert [nms(half, scores, iou_threshold=limit)[1].tolist() for limit in (0.5, 0.49)] == [[0, 1], [0]]
    dets, kept = nms(torch.zeros(0, 4), torch.zeros(0), iou_threshold=0.5)
    assert dets.shape == (0, 5) and kept.shape == (0, ) and kept.dtype == torch.int64
    assert nms(pair, scores, iou_threshold=0.5, score_threshold=0.85)[1].tolist() == [0]


def plain_roi_align(features, rois, size, scale, ratio, aligned):
    """RoIAlign as Mask R-CNN's paper and Detectron define it; differentiable."""

    def interpolation(low, high, bins, length):
        """Return the weight of each pixel of a side in each bin."""
        extent = high - low if aligned else max(high - low, 1.)
        count = ratio or math.ceil(extent / bins)
        places = low + (torch.arange(bins * count).double() + 0.5) / count * extent / bins
        inside = (places >= -1) & (places <= length)
        distance = (places.clamp(0, length - 1)[:, None] - torch.arange(length)).abs()
        return ((1 - distance).clamp(min=0) * inside[:, None]).view(bins, count, length).mean(1)

    pooled = []
    for image, *box in rois.tolist():
        x1, y1, x2, y2 = (side * scale - aligned / 2 for side in box)
        rows = interpolation(y1, y2, size[0], features.shape[2])
        columns = interpolation(x1, x2, size[1], features.shape[3])
        pooled.append(rows @ features[int(image)] @ columns.T)
    return torch.stack(pooled)


ROIS = torch.tensor([
    [0., 4., 6., 30., 27.],
    [1., 0., 0., 47.9, 39.9],
    [0., 11.3, 2.7, 12.1, 3.1],  # smaller than a cell
    [1., -20., -13., 15., 11.],  # half outside
    [0., 100., 100., 140., 150.],  # wholly outside
    [1., 30., 20., 90., 80.]])


@pytest.mark.parametrize('aligned', (True, False))
@pytest.mark.parametrize('ratio', (0, 2))
@pytest.mark.parametrize('size', ((3, 3), (2, 4)))
def test_roi_align_forward_and_backward(aligned, ratio, size):
    features = torch.randn(2, 3, 10, 12, requires_grad=True)
    out = RoIAlign(size, spatial_scale=0.25, sampling_ratio=ratio, aligned=aligned)(features, ROIS)
    double = features.detach().double().requires_grad_()
    wanted = plain_roi_align(double, ROIS.double(), size, 0.25, ratio, aligned)
    assert out.dtype == torch.float32 and out.shape == wanted.shape
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)
    weight = torch.randn(out.shape)
    (out * weight).sum().backward()
    (wanted * weight.double()).sum().backward()
    torch.testing.assert_close(features.grad.double(), double.grad, rtol=1e-5, atol=1e-5)
    assert out[4].abs().max() == 0


def test_roi_align_of_no_boxes_and_of_half_types():
    """Half types sum in float32."""
    features, rois = torch.randn(1, 3, 64, 64, requires_grad=True), torch.tensor([[0., 3., 5., 201., 187.]])
    out = RoIAlign(7)(features, torch.zeros(0, 5))
    assert out.shape == (0, 3, 7, 7)
    out.sum().backward()
    assert features.grad.abs().max() == 0
    if STAND_IN:
        got = RoIAlign(7, 0.25)(features.half(), rois.half())
        assert got.dtype == torch.float16
        torch.testing.assert_close(got.float(), RoIAlign(7, 0.25)(features, rois), rtol=2e-3, atol=1e-3)


@pytest.mark.skipif(not STAND_IN, reason='mmcv with compiled ops is installed')
def test_op_that_is_not_there_says_so_when_called():
    with pytest.raises(NotImplementedError, match='softnms.*pip install .*--no-build-isolation'):
        soft_nms(random_boxes(3), torch.rand(3))
    with pytest.raises(NotImplementedError, match='max'):
        RoIAlign(7, pool_mode='max')(torch.randn(1, 1, 8, 8), torch.zeros(1, 5))
    assert 'torchvision' in get_compiler_version()


@pytest.mark.parametrize('gamma, alpha, weight', (
    (2., 0.25, None), (1.5, 0.6, torch.tensor([0.5, 2., 1.], dtype=torch.double))))
def test_focal_loss_and_its_gradient(gamma, alpha, weight):
    logits = (torch.randn(6, 3, dtype=torch.double) * 3).requires_grad_()
    target = torch.tensor([0, 1, 2, 3, 3, 1])  # 3 is the background
    loss = sigmoid_focal_loss(logits, target, gamma, alpha, weight, 'none')
    p, hit = logits.sigmoid(), target[:, None] == torch.arange(3)
    wanted = torch.where(hit, -alpha * (1 - p)**gamma * p.log(), -(1 - alpha) * p**gamma * (1 - p).log())
    factors = 1 if weight is None else torch.cat([weight, torch.ones(1)])[target, None]
    torch.testing.assert_close(loss, factors * wanted, rtol=1e-9, atol=0)
    assert torch.autograd.gradcheck(
        lambda x: sigmoid_focal_loss(x, target, gamma, alpha, weight, 'mean'), (logits, ))
