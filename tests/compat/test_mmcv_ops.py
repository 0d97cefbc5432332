"""The stand-in for mmcv's compiled ops, against explicit arithmetic."""
import math

import pytest
import torch
from mmcv.ops import RoIAlign, batched_nms, nms, sigmoid_focal_loss, soft_nms
from mmcv.ops.info import get_compiler_version

from xcit_dense.compat.mmcv_ops import is_stand_in

needs_stand_in = pytest.mark.skipif(not is_stand_in(), reason='mmcv with compiled ops is installed')


def iou(a, b, offset):
    width = max(min(a[2], b[2]) - max(a[0], b[0]) + offset, 0)
    height = max(min(a[3], b[3]) - max(a[1], b[1]) + offset, 0)
    areas = [(box[2] - box[0] + offset) * (box[3] - box[1] + offset) for box in (a, b)]
    return width * height / (sum(areas) - width * height)


def plain_nms(boxes, scores, threshold, offset=0):
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    kept = []
    for i in order:
        if all(iou(boxes[i], boxes[j], offset) <= threshold for j in kept):
            kept.append(i)
    return kept


def random_boxes(count, size=60.):
    corner = torch.rand(count, 2) * size
    return torch.cat([corner, corner + 4 + torch.rand(count, 2) * size / 2], dim=1)


@pytest.mark.parametrize('threshold', (0.3, 0.5, 0.7))
@pytest.mark.parametrize('offset', (0, 1))
def test_nms_keeps_the_boxes_of_the_definition_in_order_of_score(threshold, offset):
    boxes, scores = random_boxes(120), torch.rand(120)
    dets, kept = nms(boxes, scores, iou_threshold=threshold, offset=offset)
    assert kept.tolist() == plain_nms(boxes.tolist(), scores.tolist(), threshold, offset)
    assert len(kept) < 120
    assert torch.equal(dets, torch.cat([boxes[kept], scores[kept, None]], dim=1))


def test_nms_offset_matters():
    boxes = torch.tensor([[0., 0., 10., 10.], [0., 5., 10., 15.]])
    scores = torch.tensor([0.9, 0.8])
    # intersections 50 of 150 and 66 of 176
    assert len(nms(boxes, scores, iou_threshold=0.35, offset=0)[1]) == 2
    assert len(nms(boxes, scores, iou_threshold=0.35, offset=1)[1]) == 1


def test_nms_of_equal_scores_prefers_the_first():
    boxes = random_boxes(40)
    scores = torch.full((40, ), 0.5)
    assert nms(boxes, scores, iou_threshold=0.2)[1].tolist() == plain_nms(boxes.tolist(), scores.tolist(), 0.2)


def test_nms_at_the_threshold_keeps():
    boxes = torch.tensor([[0., 0., 2., 1.], [0., 0., 1., 1.]])  # IoU exactly 0.5
    scores = torch.tensor([0.9, 0.8])
    assert nms(boxes, scores, iou_threshold=0.5)[1].tolist() == [0, 1]
    assert nms(boxes, scores, iou_threshold=0.49)[1].tolist() == [0]


def test_nms_of_nothing():
    dets, kept = nms(torch.zeros(0, 4), torch.zeros(0), iou_threshold=0.5)
    assert dets.shape == (0, 5) and kept.shape == (0, ) and kept.dtype == torch.int64


def test_nms_score_threshold_and_max_num():
    boxes, scores = random_boxes(80), torch.rand(80)
    wanted = [i for i in plain_nms(boxes.tolist(), scores.tolist(), 0.5) if scores[i] > 0.4]
    assert nms(boxes, scores, iou_threshold=0.5, score_threshold=0.4)[1].tolist() == wanted
    assert nms(boxes, scores, iou_threshold=0.5, score_threshold=0.4, max_num=5)[1].tolist() == wanted[:5]


def test_batched_nms_keeps_classes_apart():
    boxes, scores, labels = random_boxes(60), torch.rand(60), torch.arange(60) % 3
    kept = batched_nms(boxes, scores, labels, dict(type='nms', iou_threshold=0.4))[1].tolist()
    wanted = []
    for label in range(3):
        own = (labels == label).nonzero().flatten()
        wanted += [own[i].item() for i in plain_nms(boxes[own].tolist(), scores[own].tolist(), 0.4)]
    assert kept == sorted(wanted, key=lambda i: -scores[i])


def plain_roi_align(features, rois, size, scale, ratio, aligned):
    """RoIAlign as Mask R-CNN's paper and Detectron define it, sample by sample; differentiable."""
    out = features.new_zeros(len(rois), features.shape[1], *size)
    shift = 0.5 if aligned else 0.
    for k, (image, *box) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (side * scale - shift for side in box)
        width, height = x2 - x1, y2 - y1
        if not aligned:
            width, height = max(width, 1.), max(height, 1.)
        bins = height / size[0], width / size[1]
        counts = [ratio if ratio > 0 else math.ceil(side) for side in bins]
        for i in range(size[0]):
            for j in range(size[1]):
                samples = [
                    _bilinear(features[int(image)], y1 + (i + (a + 0.5) / counts[0]) * bins[0],
                              x1 + (j + (b + 0.5) / counts[1]) * bins[1])
                    for a in range(counts[0]) for b in range(counts[1])
                ]
                if samples:
                    out[k, :, i, j] = torch.stack(samples).mean(0)
    return out


def _bilinear(feature, y, x):
    height, width = feature.shape[1:]
    if y < -1 or y > height or x < -1 or x > width:
        return feature.new_zeros(feature.shape[0])
    y, x = min(max(y, 0.), height - 1), min(max(x, 0.), width - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    dy, dx = y - top, x - left
    return ((1 - dy) * ((1 - dx) * feature[:, top, left] + dx * feature[:, top, right])
            + dy * ((1 - dx) * feature[:, bottom, left] + dx * feature[:, bottom, right]))


ROIS = torch.tensor([
    [0., 4., 6., 30., 27.],
    [1., 0., 0., 47.9, 39.9],
    [0., 11.3, 2.7, 12.1, 3.1],  # smaller than a cell
    [1., -20., -13., 15., 11.],  # half outside
    [0., 100., 100., 140., 150.],  # wholly outside
    [1., 30., 20., 90., 80.],
])


@pytest.mark.parametrize('aligned', (True, False))
@pytest.mark.parametrize('ratio', (0, 2))
@pytest.mark.parametrize('size', ((3, 3), (2, 4)))
def test_roi_align_forward_and_backward(aligned, ratio, size):
    features = torch.randn(2, 3, 10, 12, requires_grad=True)
    layer = RoIAlign(size, spatial_scale=0.25, sampling_ratio=ratio, aligned=aligned)
    out = layer(features, ROIS)
    double = features.detach().double().requires_grad_()
    wanted = plain_roi_align(double, ROIS.double(), size, 0.25, ratio, aligned)
    assert out.dtype == torch.float32 and out.shape == wanted.shape
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)
    weight = torch.randn(out.shape)
    (out * weight).sum().backward()
    (wanted * weight.double()).sum().backward()
    torch.testing.assert_close(features.grad.double(), double.grad, rtol=1e-5, atol=1e-5)
    assert out[4].abs().max() == 0


def test_roi_align_of_no_boxes():
    features = torch.randn(1, 3, 8, 8, requires_grad=True)
    out = RoIAlign(7)(features, torch.zeros(0, 5))
    assert out.shape == (0, 3, 7, 7)
    out.sum().backward()
    assert features.grad.abs().max() == 0


@needs_stand_in
def test_roi_align_of_half_types_sums_in_float32():
    features = torch.randn(1, 3, 64, 64)
    rois = torch.tensor([[0., 3., 5., 201., 187.]])
    wanted = RoIAlign(7, 0.25)(features, rois)
    got = RoIAlign(7, 0.25)(features.half(), rois.half())
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.float(), wanted, rtol=2e-3, atol=1e-3)


@needs_stand_in
def test_op_that_is_not_there_says_so_when_called():
    with pytest.raises(NotImplementedError, match='softnms.*pip install .*--no-build-isolation'):
        soft_nms(random_boxes(3), torch.rand(3))


@needs_stand_in
def test_max_pooling_is_refused():
    with pytest.raises(NotImplementedError, match='max'):
        RoIAlign(7, pool_mode='max')(torch.randn(1, 1, 8, 8), torch.zeros(1, 5))


@needs_stand_in
def test_compiler_version_names_the_stand_in():
    assert 'torchvision' in get_compiler_version()


@pytest.mark.parametrize('weighted', (False, True))
@pytest.mark.parametrize('gamma, alpha', ((2., 0.25), (1.5, 0.6)))
def test_focal_loss_and_its_gradient(weighted, gamma, alpha):
    logits = (torch.randn(6, 3, dtype=torch.double) * 3).requires_grad_()
    target = torch.tensor([0, 1, 2, 3, 3, 1])  # 3 is the background
    weight = torch.tensor([0.5, 2., 1.], dtype=torch.double) if weighted else None
    loss = sigmoid_focal_loss(logits, target, gamma, alpha, weight, 'none')
    for n in range(6):
        factor = weight[target[n]].item() if weighted and target[n] < 3 else 1
        for c in range(3):
            p = 1 / (1 + math.exp(-logits[n, c].item()))
            wanted = -alpha * (1 - p)**gamma * math.log(p) if target[n] == c else \
                -(1 - alpha) * p**gamma * math.log(1 - p)
            assert loss[n, c].item() == pytest.approx(factor * wanted, rel=1e-9)
    assert torch.autograd.gradcheck(
        lambda x: sigmoid_focal_loss(x, target, gamma, alpha, weight, 'mean'), (logits, ))
