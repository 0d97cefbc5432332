"""Parts of exported graphs against those of mmdet, mmcv, mmseg and PyTorch: images, boxes, pooling and resizing."""
import pytest
import torch
import torch.nn.functional as F
from export.exported import export
from export.exported_detectors import build, config_of
from mmcv.ops import batched_nms
from mmdet.models import DetDataPreprocessor
from mmdet.structures import DetDataSample
from mmengine.model import BaseDataPreprocessor
from mmseg.models import SegDataPreProcessor
from mmseg.models.utils import Upsample
from mmseg.structures import SegDataSample
from torch.export import Dim

from xcit_dense.errors import ConfigError
from xcit_dense.export import boxes as ops
from xcit_dense.export import segmentor
from xcit_dense.export.boxes import ANY, MISSING, Align, decode, suppress, suppress_groups, top
from xcit_dense.export.detector import DetectorGraph
from xcit_dense.export.preprocessing import Preprocessing
from xcit_dense.export.segmentor import AnySize, OpenUpsample, resize

NORM = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])


@pytest.mark.parametrize('kind, options', [
    (SegDataPreProcessor, dict(NORM, bgr_to_rgb=True, size=(512, 512))),
    (SegDataPreProcessor, dict(NORM, pad_val=-1.5, test_cfg=dict(size_divisor=32))), (SegDataPreProcessor, {}),
    (DetDataPreprocessor, dict(NORM, bgr_to_rgb=True, pad_size_divisor=32, pad_value=3, pad_mask=True)),
    (DetDataPreprocessor, dict(mean=[100], std=[50], rgb_to_bgr=True)),
    (DetDataPreprocessor, dict(pad_size_divisor=16))])
def test_images_are_as_the_framework_makes_them(kind, options):
    """Mean and deviation are told of red, green and blue."""
    preprocessor = kind(**options)
    ours = Preprocessing(preprocessor)
    sizes = ({1: Dim.DYNAMIC, 2: Dim.DYNAMIC}, )
    traced = torch.export.export(ours, (torch.zeros(2, 50, 41, 3, dtype=torch.uint8), ), dynamic_shapes=sizes).module()
    for size in ((1, 1), (31, 64), (64, 65), (70, 33)):
        image = torch.randint(0, 256, (2, *size, 3), dtype=torch.uint8)
        inputs = [x.flip(2).permute(2, 0, 1) for x in image]  # as mmcv reads them
        samples = [(SegDataSample if kind is SegDataPreProcessor else DetDataSample)(metainfo=dict(
            img_shape=x.shape[1:])) for x in inputs]
        wanted = preprocessor(dict(inputs=inputs, data_samples=samples))['inputs']
        assert torch.equal(ours(image), wanted)
        assert torch.equal(traced(image), wanted)
    for name, fresh in (('mean', 0), ('std', 1)):
        values = options.get(name, [fresh])
        values = values * 3 if len(values) == 1 else values if 'bgr_to_rgb' in options else values[::-1]
        assert getattr(ours, name).flatten().tolist() == pytest.approx(values)


class Own(SegDataPreProcessor):
    def forward(self, data, training=False):
        return super().forward(data, training)


@pytest.mark.parametrize('preprocessor, words', (
    (BaseDataPreprocessor(), 'data_preprocessor.*BaseDataPreprocessor'), (Own(), 'data_preprocessor.*Own'),
    (None, 'data_preprocessor.*NoneType'), (SegDataPreProcessor(test_cfg=dict(size=(64, 48))), 'size=.64, 48'),
    (SegDataPreProcessor(mean=[0.] * 4, std=[1.] * 4), '4 channels')))
def test_one_of_another_kind_is_named(preprocessor, words):
    with pytest.raises(ConfigError, match=words):
        Preprocessing(preprocessor)


def some_boxes(count, size=100):
    corners = torch.rand(count, 4) * size
    return torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:] * 0.5], 1)


def test_decoding_with_deltas_that_are_too_large():
    coder = build(config_of('maskrcnn')).roi_head.bbox_head.bbox_coder
    boxes, deltas = some_boxes(50), torch.randn(50, 4) * 20
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


def test_rois_on_the_level_for_their_size():
    extractor = build(config_of('maskrcnn')).roi_head.bbox_roi_extractor
    for layer in extractor.roi_layers:
        layer.output_size, layer.sampling_ratio, layer.aligned = (5, 7), 2, False
    maps = [torch.rand(2, 32, 320 // stride, 640 // stride) for stride in extractor.featmap_strides]
    sides = torch.tensor([0., 10, 55.9, 56, 111.9, 112, 223.9, 224, 448, 600])
    boxes = torch.stack([torch.zeros(10), torch.ones(10), sides * 2, sides / 2 + 1], 1)
    rois = torch.cat([torch.arange(2.).repeat_interleave(10)[:, None], boxes.repeat(2, 1)], 1)
    with torch.no_grad():
        assert torch.equal(Align(extractor)(maps, boxes.expand(2, -1, -1)), extractor(maps, rois))


class Ops(torch.nn.Module):
    def forward(self, image, rois, places, scores):
        padded = ops.pad_to(image, 32, 3.)
        maps = [padded, F.avg_pool2d(image, 3)]
        larger = segmentor.size_of(image) * 2 + 1
        return (padded, suppress(rois[None, :, 1:].expand(2, -1, -1), scores, 0.4, 0.2, 5),
                ops.align_rois(maps, rois, places, [1., 3.], [4, 3], 2, True),
                ops.align_rois(maps, rois, places, [1., 3.], [2, 5], 0, False),
                segmentor.resize(image, larger, True), segmentor.resize(image, larger, False))


def test_operators_do_the_same_in_a_file(tmp_path):
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
    'model.test_cfg.rpn.nms.type': 'soft_nms', 'model.test_cfg.rcnn.nms.type': 'soft_nms',
    'model.test_cfg.rcnn.nms': dict(type='nms', iou_threshold=0.5, class_agnostic=True, split_thr=100),
    'model.test_cfg.rcnn.max_per_img': -1, 'model.test_cfg.rcnn.mask_thr_binary': -1,
    'model.rpn_head.bbox_coder.type': 'LegacyDeltaXYWHBBoxCoder',
    'model.roi_head.bbox_roi_extractor.type': 'GenericRoIExtractor',
    'model.test_cfg.min_bbox_size': 4,  # pixels of the original size
}


@pytest.mark.parametrize('key', REJECTED)
def test_what_the_graph_does_not_know(key):
    value = REJECTED[key]
    with pytest.raises(ConfigError, match=key.replace('.', r'\.')) as caught:
        DetectorGraph(build(config_of('retinanet' if 'test_cfg.min' in key else 'maskrcnn', **{key: value})))
    assert str(value.get('split_thr') if isinstance(value, dict) else value) in str(caught.value)


def test_a_class_that_somebody_derived():
    model = build(config_of('maskrcnn'))
    model.__class__ = type('MyMaskRCNN', (type(model), ), {})
    with pytest.raises(ConfigError, match='MyMaskRCNN.*--backbone exports only the backbone'):
        DetectorGraph(model)


DYNAMIC = ({2: Dim.DYNAMIC, 3: Dim.DYNAMIC}, )


class Pool(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        with AnySize():
            return F.adaptive_avg_pool2d(x, self.size)


@pytest.mark.parametrize('size', [1, 6, (4, 7), (None, 3), (5, None)], ids=str)
def test_adaptive_pooling(size):
    traced = torch.export.export(Pool(size), (torch.randn(2, 3, 13, 17), ), dynamic_shapes=DYNAMIC).module()
    for height, width in [(n, 27 - n) for n in range(2, 26)] + [(3, 40), (61, 7), (16, 32), (1, 1), (1, 5)]:
        x = torch.randn(2, 3, height, width)
        wanted = F.adaptive_avg_pool2d(x, size)
        assert torch.allclose(Pool(size)(x), wanted, atol=1e-6), (height, width)
        if min(height, width) > 1:  # torch takes a dimension of 1 for a constant
            assert torch.allclose(traced(x), wanted, atol=1e-6), (height, width)


@pytest.mark.parametrize('size, align_corners', [(4, False), (3.25, True), (1.5, False), (0.5, True), ((9, 4), False)])
def test_layers_that_enlarge(size, align_corners):
    option = dict(size=size) if isinstance(size, tuple) else dict(scale_factor=size)
    layer = Upsample(**option, mode='bilinear', align_corners=align_corners)
    wanted = [(x, layer(x)) for x in (torch.randn(1, 2, *size) for size in ((13, 17), (5, 40), (32, 32), (7, 5)))]
    opened = OpenUpsample(**option, mode='bilinear', align_corners=align_corners)
    traced = torch.export.export(opened, (torch.randn(1, 2, 12, 20), ), dynamic_shapes=DYNAMIC).module()
    for x, out in wanted:
        assert torch.equal(opened(x), out), x.shape
        assert torch.allclose(traced(x), out, atol=1e-6), x.shape


@pytest.mark.parametrize('align_corners', [False, True])
def test_resizing(align_corners):
    x = torch.randn(2, 5, 7, 3)
    for size in ((5, 7), (11, 4), (1, 1), (40, 41)):
        wanted = F.interpolate(x.permute(0, 3, 1, 2), size, mode='bilinear', align_corners=align_corners)
        assert torch.equal(resize(x, torch.tensor(size), align_corners), wanted.permute(0, 2, 3, 1))
    torch.library.opcheck(resize, (x, torch.tensor([4, 9]), align_corners))
