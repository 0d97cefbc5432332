"""Parts of exported detectors against those of mmdet and mmcv, to the bit."""
import pytest
import torch
import torch.nn.functional as F
from export.exported import export
from export.exported_detectors import build, config_of
from mmcv.ops import batched_nms
from torch.export import Dim

from xcit_dense.errors import ConfigError
from xcit_dense.export import boxes as ops
from xcit_dense.export import segmentor
from xcit_dense.export.boxes import ANY, MISSING, Align, decode, suppress, suppress_groups, top
from xcit_dense.export.detector import check_detector


@pytest.fixture
def model():
    return build(config_of('maskrcnn'))


def some_boxes(count, size=100):
    corners = torch.rand(count, 4) * size
    return torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:] * 0.5], 1)


def test_decoding_with_deltas_that_are_too_large(model):
    coder, boxes, deltas = model.roi_head.bbox_head.bbox_coder, some_boxes(50), torch.randn(50, 4) * 20
    coder.means = 0.3, -0.2, 0.1, 0.4
    wanted = coder.decode(boxes, deltas, max_shape=(90, 70))
    assert torch.equal(decode(coder, boxes, deltas, torch.tensor([70., 90., 70., 90.])), wanted)


@pytest.mark.parametrize('threshold', (-1., 0.3))
def test_suppression_within_labels(threshold):
    boxes, scores, labels = some_boxes(300), torch.rand(300), torch.randint(3, (300, ))
    scores[:40] = scores[40:80]  # ties
    real = (scores > threshold).nonzero()[:, 0]
    kept = real[batched_nms(boxes[real], scores[real], labels[real], dict(type='nms', iou_threshold=0.5))[1]]
    found = suppress_groups(boxes[None, None], scores[None, None], labels[None, None], 0.5, threshold, 300)
    got, index = top(found.flatten(1), 300)
    index = index[got > ANY]
    # topk of PyTorch gives equal ones in any order
    assert torch.equal(index.sort().values, kept.sort().values) and torch.equal(scores[index], scores[kept])


def test_the_limit_takes_the_best_and_may_be_more_than_there_are():
    boxes = torch.tensor([[0., 0, 1, 1], [2, 0, 3, 1], [4, 0, 5, 1]])[None]
    assert suppress(boxes, torch.tensor([[0.2, 0.9, 0.5]]), 0.5, 0., 2).tolist() == [[False, True, True]]
    scores, index = top(torch.tensor([[0.2, 0.7]]), 4)
    assert scores[0, 2:].tolist() == [MISSING] * 2 and index.tolist() == [[1, 0, 0, 0]]


def test_rois_on_the_level_for_their_size(model):
    extractor = model.roi_head.bbox_roi_extractor
    for layer in extractor.roi_layers:
        layer.output_size, layer.sampling_ratio, layer.aligned = (5, 7), 2, False
    maps = [torch.rand(2, 32, 320 // stride, 640 // stride) for stride in extractor.featmap_strides]
    sides = torch.tensor([0., 10, 55.9, 56, 111.9, 112, 223.9, 224, 448, 600])
    boxes = torch.stack([torch.zeros(10), torch.ones(10), sides * 2, sides / 2 + 1], 1)
    rois = torch.cat([torch.arange(2.).repeat_interleave(10)[:, None], boxes.repeat(2, 1)], 1)
    with torch.no_grad():
        assert torch.equal(Align(extractor)(maps, boxes.expand(2, -1, -1)), extractor(maps, rois))


class Ops(torch.nn.Module):
    """All operators of the package."""

    def forward(self, image, rois, places, scores):
        padded = ops.pad_to(image, 32, 3.)
        maps = [padded, F.avg_pool2d(image, 3)]
        larger = segmentor.size_of(image) * 2 + 1
        return (padded, suppress(rois[None, :, 1:].expand(2, -1, -1), scores, 0.4, 0.2, 5),
                ops.align_rois(maps, rois, places, [1., 3.], [4, 3], 2, True),
                ops.align_rois(maps, rois, places, [1., 3.], [2, 5], 0, False),
                segmentor.resize(image, larger, True), segmentor.resize(image, larger, False))


def test_operators_do_the_same_in_a_file(tmp_path):
    """For any size and number of boxes."""
    def some(height, width, count):
        rois = torch.cat([torch.randint(2, (count, 1)).float(), some_boxes(count, min(height, width))], 1)
        return dict(image=torch.randn(2, 4, height, width), rois=rois, places=torch.randint(2, (count, )),
                    scores=torch.rand(2, count))

    free, names = Dim.DYNAMIC, ('padded', 'kept', 'aligned', 'cut', 'corners', 'centres')
    shapes = {2: free, 3: free}, {0: free}, {0: free}, {1: free}
    run = export(Ops().eval(), tmp_path / 'ops.onnx', some(40, 50, 30), shapes, names,
                 ops.TRANSLATIONS | segmentor.TRANSLATIONS)
    for shape in ((40, 50, 30), (33, 64, 7), (71, 19, 80)):
        given = some(*shape)
        got = run(**{name: value.numpy() for name, value in given.items()})
        for (name, value), wanted in zip(got.items(), Ops()(*given.values()), strict=True):
            torch.testing.assert_close(torch.from_numpy(value), wanted, rtol=1e-4, atol=1e-4, msg=name)


REJECTED = {
    'model.test_cfg.rpn.nms_pre': 0,
    'model.test_cfg.rpn.nms.type': 'soft_nms',
    'model.test_cfg.rcnn.nms.type': 'soft_nms',
    'model.test_cfg.rcnn.nms': dict(type='nms', iou_threshold=0.5, class_agnostic=True, split_thr=100),
    'model.test_cfg.rcnn.max_per_img': -1,
    'model.test_cfg.rcnn.mask_thr_binary': -1,
    'model.rpn_head.bbox_coder.type': 'LegacyDeltaXYWHBBoxCoder',
    'model.roi_head.bbox_roi_extractor.type': 'GenericRoIExtractor',
    'model.test_cfg.min_bbox_size': 4,  # pixels of the original size
}


@pytest.mark.parametrize('key', REJECTED)
def test_what_the_graph_does_not_know(key):
    value = REJECTED[key]
    with pytest.raises(ConfigError, match=key.replace('.', r'\.')) as caught:
        check_detector(build(config_of('retinanet' if 'test_cfg.min' in key else 'maskrcnn', **{key: value})))
    assert str(value.get('split_thr') if isinstance(value, dict) else value) in str(caught.value)


def test_a_class_that_somebody_derived(model):
    model.__class__ = type('MyMaskRCNN', (type(model), ), {})
    with pytest.raises(ConfigError, match='MyMaskRCNN'):
        check_detector(model)
