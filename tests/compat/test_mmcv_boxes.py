"""What the stand-in for mmcv's compiled ops does with boxes and regions, against explicit arithmetic."""
import math
from itertools import product

import pytest
import torch
from mmcv.ops import bbox_overlaps, border_align, deform_roi_pool, nms, nms_match, roi_align, roi_pool, soft_nms
from mmcv.ops.info import get_compiler_version

STAND_IN = 'torchvision' in get_compiler_version()


def iou(a, b, offset):
    width = max(min(a[2], b[2]) - max(a[0], b[0]) + offset, 0)
    height = max(min(a[3], b[3]) - max(a[1], b[1]) + offset, 0)
    areas = [(box[2] - box[0] + offset) * (box[3] - box[1] + offset) for box in (a, b)]
    return width * height / (sum(areas) - width * height)


def random_boxes(count, size=60.):
    corner = torch.rand(count, 2) * size
    return torch.cat([corner, corner + 4 + torch.rand(count, 2) * size / 2], dim=1)


@pytest.mark.skipif(not STAND_IN, reason='mmcv with compiled ops is installed')
def test_op_that_is_not_there_says_so_when_called():
    with pytest.raises(NotImplementedError, match="not 'border_align_forward', which none.*pip install .*no-build-iso"):
        border_align(torch.randn(1, 4, 8, 8), torch.zeros(1, 64, 4), 2)


@pytest.mark.parametrize('threshold, offset', ((0.3, 0), (0.7, 1)))
def test_nms_keeps_the_boxes_of_the_definition_in_order_of_score(threshold, offset):
    """Of equal scores the first goes first."""
    boxes, scores = random_boxes(120), (torch.rand(120) * 20).round() / 20
    dets, kept = nms(boxes, scores, iou_threshold=threshold, offset=offset)
    wanted = []
    for i in sorted(range(120), key=lambda i: (-scores[i], i)):
        if all(iou(boxes[i].tolist(), boxes[j].tolist(), offset) <= threshold for j in wanted):
            wanted.append(i)
    assert kept.tolist() == wanted
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
    if STAND_IN:
        assert nms(pair.half(), scores.half(), iou_threshold=0.3)[1].tolist() == [0]


ROIS = torch.tensor([
    [0., 4., 6., 30., 27.], [1., 0., 0., 47.875, 39.875],
    [0., 11.25, 2.75, 12.125, 3.125],  # smaller than a cell
    [1., -20., -13., 15., 11.],  # half outside
    [0., 100., 100., 140., 150.],  # wholly outside
    [1., 30., 20., 90., 80.]])


@pytest.mark.parametrize('method', ('naive', 'linear', 'gaussian'))
@pytest.mark.parametrize('offset', (0, 1))
def test_soft_nms_lowers_scores_by_overlap(method, offset):
    boxes, scores = random_boxes(80), torch.rand(80)
    left, wanted = dict(enumerate(scores.tolist())), []
    while left:
        best = max(left, key=left.get)
        wanted.append((best, left.pop(best)))
        for other in [*left]:
            overlap = iou(boxes[best].tolist(), boxes[other].tolist(), offset)
            if method == 'gaussian':
                left[other] *= math.exp(-overlap**2 / 0.5)
            elif overlap >= 0.3:
                left[other] *= 1 - overlap if method == 'linear' else 0
            if left[other] < 0.02:
                del left[other]
    dets, kept = soft_nms(boxes, scores, 0.3, 0.5, 0.02, method, offset)
    assert kept.tolist() == [index for index, _ in wanted] and 5 < len(kept) < 80
    torch.testing.assert_close(dets, torch.cat([boxes[kept], torch.tensor([[score] for _, score in wanted])], 1))


def test_nms_match_names_what_each_box_suppresses():
    dets = torch.cat([random_boxes(40), torch.rand(40, 1)], 1)
    left, wanted = sorted(range(40), key=lambda index: -dets[index, 4]), []
    while left:
        group = [left[0], *(one for one in left[1:] if iou(dets[left[0]].tolist(), dets[one].tolist(), 0) >= 0.3)]
        wanted.append(group)
        left = [one for one in left if one not in group]
    assert [one.tolist() for one in nms_match(dets, 0.3)] == wanted and len(wanted) < 40


@pytest.mark.parametrize('offset', (0, 1))
def test_overlaps_of_boxes(offset):
    first, second = random_boxes(6), random_boxes(6)
    wanted = torch.tensor([[iou(a, b, offset) for b in second.tolist()] for a in first.tolist()])
    torch.testing.assert_close(bbox_overlaps(first, second, offset=offset), wanted)
    torch.testing.assert_close(bbox_overlaps(first, second, aligned=True, offset=offset), wanted.diag())
    inside, whole = torch.tensor([[2., 2., 4., 4.]]), torch.tensor([[0., 0., 10., 3.]])
    assert bbox_overlaps(inside, whole, mode='iof').item() == 0.5


def at(maps, y, x):
    """Return maps (C, H, W) at a place between pixels: the edge's value up to a pixel outside, then zero."""
    height, width = maps.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return maps.new_zeros(len(maps))
    y, x, total = min(max(y, 0), height - 1), min(max(x, 0), width - 1), 0
    for row, column in product(*({math.floor(one), math.ceil(one)} for one in (y, x))):
        total = total + maps[:, row, column] * (1 - abs(y - row)) * (1 - abs(x - column))
    return total


def samples(maps, roi, size, ratio, shift, least, moves=None):
    """Yield bin and samples (C, count) of a RoI on maps at a quarter of the image."""
    image, x1, y1, x2, y2 = roi
    height, width = (max((high - low) / 4, least) for low, high in ((y1, y2), (x1, x2)))
    rows, columns = (ratio if ratio > 0 else math.ceil(side / bins)
                     for side, bins in zip((height, width), size, strict=True))
    for i, j in product(*map(range, size)):
        move = (0, 0) if moves is None else (moves[1, i, j].item() * height, moves[0, i, j].item() * width)
        places = [(y1 / 4 - shift + move[0] + (i + (row + 0.5) / rows) * height / size[0],
                   x1 / 4 - shift + move[1] + (j + (column + 0.5) / columns) * width / size[1])
                  for row, column in product(range(rows), range(columns))]
        yield (i, j), torch.stack([at(maps[int(image)], *place) for place in places], 1)


@pytest.mark.parametrize('mode', ('avg', 'max'))
@pytest.mark.parametrize('ratio, aligned, size', ((0, True, (2, 4)), (2, False, (3, 2))))
def test_roi_align_and_its_gradient(mode, ratio, aligned, size):
    """The average of a bin's samples, or the largest of them."""
    def pool(maps):
        return roi_align(maps, ROIS.to(maps), size, 0.25, ratio, mode, aligned)

    maps = torch.randn(2, 3, 10, 12, dtype=torch.float64, requires_grad=True)
    got = pool(maps)
    for index, roi in enumerate(ROIS.tolist()):
        for (i, j), found in samples(maps.detach(), roi, size, ratio, aligned / 2, 1 - aligned):
            torch.testing.assert_close(got[index, :, i, j], found.mean(1) if mode == 'avg' else found.amax(1))
    assert got[4].abs().max() == 0
    assert torch.autograd.gradcheck(pool, (maps, ), fast_mode=True)
    if STAND_IN:  # half types sum in float32
        half = maps.detach().half().requires_grad_()
        pooled = pool(half)
        pooled.sum().backward()
        assert pooled.dtype == half.grad.dtype == torch.float16 and half.grad.sum() > 0
        torch.testing.assert_close(pooled.float(), pool(half.detach().float()), rtol=2e-3, atol=1e-3)


def test_roi_pool_takes_the_largest_pixel():
    """Bins as in mmcv: from floor to ceiling, and the last pixel of a RoI belongs to it."""
    maps = torch.randn(2, 3, 10, 12, dtype=torch.float64, requires_grad=True)
    got = roi_pool(maps, ROIS.double(), (2, 3), 0.25)
    for index, (image, x1, y1, x2, y2) in enumerate(ROIS.tolist()):
        top, left, height, width = y1 / 4, x1 / 4, (y2 + 1 - y1) / 4, (x2 + 1 - x1) / 4
        for i, j in product(range(2), range(3)):
            rows, columns = (slice(min(max(math.floor(start + k * side / bins), 0), end),
                                   min(max(math.ceil(start + (k + 1) * side / bins), 0), end))
                             for k, start, side, bins, end in ((i, top, height, 2, 10), (j, left, width, 3, 12)))
            window = maps[int(image), :, rows, columns].flatten(1)
            wanted = window.amax(1) if window.numel() else torch.zeros(3, dtype=torch.float64)
            torch.testing.assert_close(got[index, :, i, j], wanted)
    assert got[4].abs().max() == 0
    assert torch.autograd.gradcheck(lambda one: roi_pool(one, ROIS.double(), (2, 3), 0.25), (maps, ), fast_mode=True)


@pytest.mark.parametrize('ratio', (0, 2))
def test_deformable_roi_pooling_moves_each_bin(ratio):
    maps = torch.randn(2, 3, 10, 12, dtype=torch.float64, requires_grad=True)
    moves = torch.randn(6, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    got, unmoved = (deform_roi_pool(maps, ROIS.double(), one, (2, 3), 0.25, ratio, 0.1) for one in (moves, None))
    for index, roi in enumerate(ROIS.tolist()):
        for out, move in ((got, 0.1 * moves[index].detach()), (unmoved, None)):
            for (i, j), found in samples(maps.detach(), roi, (2, 3), ratio, 0.5, 0, move):
                torch.testing.assert_close(out[index, :, i, j], found.mean(1))
    for inputs in ((maps, moves), (maps, )):
        assert torch.autograd.gradcheck(lambda one, move=None: deform_roi_pool(
            one, ROIS.double(), move, (2, 3), 0.25, ratio, 0.1), inputs, fast_mode=True)


@pytest.mark.parametrize('pool', (
    roi_align, roi_pool, lambda maps, rois, size: deform_roi_pool(maps, rois, None, size)))
def test_pooling_of_no_regions(pool):
    maps = torch.randn(2, 3, 10, 12, requires_grad=True)
    pooled = pool(maps, torch.zeros(0, 5), (2, 3))
    assert pooled.shape == (0, 3, 2, 3)
    pooled.sum().backward()
    assert maps.grad.abs().max() == 0
