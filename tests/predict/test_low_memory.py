"""Large images, some classes at a time, with decode heads of mmseg; and merging the views of an image."""
import copy

import pytest
import torch
from mmdet.models import DetTTAModel
from mmdet.structures import DetDataSample
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData, PixelData
from mmseg.models import EncoderDecoder, SegTTAModel
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import nn
from torch.nn.functional import interpolate

from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.for_mmdet import MaskTTAModel
from xcit_dense.for_mmseg import LowMemoryEncoderDecoder, LowMemorySegTTAModel, _parts

SIZE = (64, 96)
HEIGHT, WIDTH = 12, 20
CLASSES, SHAPES = 41, ((80, 121), (57, 80))
ONE = dict(in_channels=32, in_index=3, channels=16, num_classes=CLASSES)
FOUR = dict(in_channels=[32] * 4, in_index=[0, 1, 2, 3], channels=16, num_classes=CLASSES)
FPN = dict(FOUR, feature_strides=[4, 8, 16, 32])


def segmentor(classes=24, **head):
    """The tiny segmentor with more classes than are resized at a time at least, 16."""
    cfg = load_config(TINY_SEG_CONFIG, pretrained=False)
    init_default_scope(cfg.default_scope)
    cfg.model.decode_head.update(num_classes=classes, **head)
    return MODELS.build(cfg.model).eval()


def sample_of(shape=SIZE, **meta):
    return SegDataSample(metainfo=dict(dict(ori_shape=shape, img_shape=SIZE, pad_shape=SIZE), **meta))


def predict(model, images, *samples, kind=LowMemoryEncoderDecoder):
    torch.manual_seed(0)  # some heads draw random numbers
    with torch.no_grad():
        return kind.predict(model, images, list(samples))


@pytest.fixture
def split(monkeypatch):
    monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', 1000)


@pytest.mark.parametrize('layout', (torch.contiguous_format, torch.channels_last))
@pytest.mark.parametrize('size', ((120, 181), (40, 60)))
@pytest.mark.parametrize('classes, count', ((35, 1), (41, 20), (150, 40), (24, 17)))
def test_parts_are_resized_to_the_last_bit_as_the_whole(classes, count, size, layout):
    """So that pixels whose best classes differ by the last bit have the class of mmseg."""
    scores = torch.randn(2, classes, 16, 24).contiguous(memory_format=layout)
    parts = _parts(scores, count, small=sum(size) <= 128)
    assert len(parts) > 1 and min(part.shape[1] for part in parts) > 3
    assert max(part.shape[1] for part in parts) < max(count, 16) + 4

    def resize(x):  # once in the head and once to the size of the image
        for one in ((64, 96), size):
            x = interpolate(x, size=one, mode='bilinear')
        return x

    assert torch.equal(torch.cat([resize(part) for part in parts], 1), resize(scores))


@pytest.mark.parametrize('values, label', (
    ([0.] * 15 + [2, 2] + [0] * 7, 15), ([0.] * 23 + [float('nan')], 23), ([0., float('nan')] * 12, 1),
    ([float('-inf')] * 24, 0)))
def test_the_first_of_the_highest_scores_wins_as_in_mmseg(values, label, monkeypatch):
    model = segmentor()
    scores = torch.tensor(values).view(1, 24, 1, 1).repeat(1, 1, 16, 24)
    monkeypatch.setattr(model.decode_head, 'forward', lambda maps: scores)
    for count in (2**28, 3 * 64 * 96):
        monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', count)
        found, = predict(model, torch.zeros(1, 3, *SIZE), sample_of())
        assert ('seg_logits' in found) == (count == 2**28) and (found.pred_sem_seg.data == label).all()


@pytest.mark.parametrize('owner, name', (
    ('head', 'predict'), ('head', 'predict_by_feat'), ('model', 'encode_decode'), ('model', 'whole_inference'),
    ('model', 'inference'), ('model', 'postprocess_result')))
def test_what_somebody_replaced_is_called_as_by_mmseg(owner, name, split):
    """In a subclass or on the object: then all is left to mmseg."""
    model = segmentor()
    changed = model.decode_head if owner == 'head' else model
    theirs, calls = getattr(type(changed), name), []

    def noted(self, *args):
        calls.append(name)
        return theirs(self, *args)

    changed.__class__ = type('Theirs', (type(changed), ), {name: noted})
    found, = predict(model, torch.randn(1, 3, *SIZE), sample_of())
    assert calls == [name] and 'seg_logits' in found


def test_windows_and_one_score_for_a_foreground_are_left_to_mmseg(split):
    model = segmentor()
    model.test_cfg.update(mode='slide', crop_size=(32, 32), stride=(32, 32))
    found, = predict(model, torch.randn(1, 3, *SIZE), sample_of((60, 90)))
    assert 'seg_logits' in found and found.pred_sem_seg.data.shape == (1, 60, 90)
    model = segmentor(2, out_channels=1, threshold=0.4)
    model.decode_head.forward = lambda maps: torch.linspace(-2, 2, 24).expand(1, 1, 16, 24)
    found, = predict(model, torch.randn(1, 3, *SIZE), sample_of())
    assert found.pred_sem_seg.data.unique().tolist() == [0, 1]
    assert torch.equal(found.pred_sem_seg.data, (found.seg_logits.data > 0.4).float())


def test_test_time_augmentation_has_the_scores_that_it_merges(split):
    images, model = [torch.randint(0, 256, (3, *SIZE), dtype=torch.uint8)], segmentor()
    data = dict(inputs=[images, images], data_samples=[[sample_of(img_path='a')], [sample_of(img_path='a')]])
    with torch.no_grad():
        merged, = LowMemorySegTTAModel(module=model).test_step(data)
    assert merged.pred_sem_seg.data.shape[-2:] == SIZE
    assert model.keeps_scores and not segmentor().keeps_scores


@pytest.fixture(scope='module')
def model():
    cfg = load_config(TINY_SEG_CONFIG, pretrained=False)
    init_default_scope('mmseg')
    cfg.model.update(neck=None, auxiliary_head=None)
    return MODELS.build(cfg.model).eval()


@pytest.mark.parametrize('name, head', dict(  # others of mmseg differ from these only in their layers
    **dict.fromkeys(('FCNHead', 'PSPHead', 'SETRUPHead'), ONE), **dict.fromkeys(('SegformerHead', 'UPerHead'), FOUR),
    DAHead=dict(ONE, pam_channels=8), EncHead=dict(FOUR, num_codes=4), FPNHead=FPN,
    **{'FPNHead with aligned corners': dict(FPN, align_corners=True)},
    SegmenterMaskTransformerHead=dict(ONE, num_layers=1, num_heads=2, embed_dims=16)).items())
def test_heads_predict_as_in_mmseg(name, head, model, monkeypatch):
    """Some classes at a time, through padding, a flip and both resizes. Heads that predict by themselves do all."""
    init_default_scope('mmseg')
    head = model.decode_head = MODELS.build(ConfigDict(head, type=name.split()[0])).eval()
    model.out_channels, model.align_corners = head.out_channels, head.align_corners
    images = torch.randn(2, 3, *SIZE)
    if hasattr(head, 'conv_seg'):  # give every class the same mean score, so that many win
        nn.init.normal_(head.conv_seg.weight)
        with torch.no_grad():
            scores = head.predict(model.extract_feat(images), [dict(img_shape=SIZE)], None)
            head.conv_seg.bias -= scores.mean((0, 2, 3))

    def predicted(kind):
        return predict(model, images, *(sample_of(shape, img_shape=(60, 90), img_padding_size=(0, 6, 0, 4), flip=flip,
                                                  flip_direction='horizontal')
                                        for shape, flip in zip(SHAPES, (False, True), strict=True)), kind=kind)

    wanted = predicted(EncoderDecoder)
    if hasattr(head, 'conv_seg'):
        assert len(torch.cat([sample.pred_sem_seg.data.view(-1) for sample in wanted]).unique()) > 1
    assert isinstance(model, LowMemoryEncoderDecoder)
    for at_a_time in (1, 20, CLASSES):
        monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', at_a_time * 2 * SHAPES[0][0] * SHAPES[0][1])
        for a, b in zip(predicted(LowMemoryEncoderDecoder), wanted, strict=True):
            assert ('seg_logits' in a) == (at_a_time == CLASSES or name in ('DAHead', 'EncHead'))
            assert torch.equal(a.pred_sem_seg.data, b.pred_sem_seg.data)
            assert a.pred_sem_seg.data.dtype == b.pred_sem_seg.data.dtype


class Given(nn.Module):
    """A model that returns samples that it was given, view by view."""
    out_channels = 3

    def __init__(self, *views):
        super().__init__()
        self.views, self.decode_head = list(views), ConfigDict(threshold=0.4)

    def test_step(self, data):
        return copy.deepcopy(self.views[data['inputs']])


def merged(kind, *views, **options):
    with torch.no_grad():
        return kind(module=Given(*views), **options).test_step(
            dict(inputs=list(range(len(views))), data_samples=[None] * len(views)))


def detected(flip, *objects, masks=True):
    sample = DetDataSample(metainfo=dict(ori_shape=(HEIGHT, WIDTH), flip=bool(flip), flip_direction=flip))
    boxes = torch.tensor([box for box, *_ in objects], dtype=torch.float).reshape(-1, 4)
    sample.pred_instances = InstanceData(bboxes=boxes, scores=torch.tensor([score for _, score, _ in objects]),
                                         labels=torch.tensor([label for *_, label in objects], dtype=torch.long))
    if masks:
        sample.pred_instances.masks = torch.zeros(len(objects), HEIGHT, WIDTH, dtype=torch.bool)
        for mask, (x1, y1, x2, y2) in zip(sample.pred_instances.masks, boxes.int().tolist(), strict=True):
            mask[y1:y2, x1:x2] = True
    return [sample]


def test_objects_of_all_views_are_merged():
    """The better of two boxes stays, in the place that it has in the image; so does its mask. Boxes are as mmdet's."""
    a, b, c, d = (1, 1, 6, 6), (2, 7, 9, 11), (12, 2, 18, 9), (15, 1, 19, 4)
    views = ((None, (a, 0.6, 0), (b, 0.3, 1)), ('horizontal', ((14, 1, 19, 6), 0.9, 0), ((2, 2, 8, 9), 0.5, 0)),
             (None, ), ('vertical', ((1, 6, 6, 11), 0.8, 1), ((12, 3, 18, 10), 0.1, 0)),
             ('diagonal', ((1, 8, 5, 11), 0.7, 1)))
    tta_cfg = ConfigDict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=4)
    result, = merged(MaskTTAModel, *(detected(*view) for view in views), tta_cfg=tta_cfg)
    found = result.pred_instances
    assert found.bboxes.tolist() == [*map(list, (a, a, d, c))] and found.labels.tolist() == [0, 1, 1, 0]
    assert found.scores.tolist() == pytest.approx([0.9, 0.8, 0.7, 0.5])  # four at most
    for mask, (x1, y1, x2, y2) in zip(found.masks, found.bboxes.int().tolist(), strict=True):
        assert mask.sum() == mask[y1:y2, x1:x2].sum() == (x2 - x1) * (y2 - y1)
    (ours, ), (theirs, ) = (merged(kind, *(detected(*view, masks=False) for view in views), tta_cfg=tta_cfg)
                            for kind in (MaskTTAModel, DetTTAModel))
    for name in ('bboxes', 'scores', 'labels'):
        assert torch.equal(ours.pred_instances[name], theirs.pred_instances[name])
    assert 'masks' not in ours.pred_instances and len(ours.pred_instances) == 4
    result, = merged(MaskTTAModel, detected(None), detected('horizontal'), tta_cfg=tta_cfg)
    assert len(result.pred_instances) == 0 and result.pred_instances.masks.shape == (0, HEIGHT, WIDTH)


@pytest.mark.parametrize('channels', (3, 1))
def test_scores_of_views_are_merged_as_in_mmseg(channels, monkeypatch):
    monkeypatch.setattr(Given, 'out_channels', channels)
    truth = PixelData(data=torch.randint(0, 3, (1, HEIGHT, WIDTH)))
    seen = [[SegDataSample(metainfo=dict(img_path=f'{image}.png', flip=bool(view)),
                           seg_logits=PixelData(data=torch.randn(channels, HEIGHT, WIDTH)),
                           **dict(gt_sem_seg=truth) if not view else {}) for image in range(2)] for view in range(4)]
    ours, theirs = (merged(kind, *seen) for kind in (LowMemorySegTTAModel, SegTTAModel))
    for image, (got, wanted) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.equal(got.pred_sem_seg.data.squeeze().float(), wanted.pred_sem_seg.data.squeeze().float())
        assert got.gt_sem_seg.data is not None and got.img_path == wanted.img_path == f'{image}.png'
        assert len(got.pred_sem_seg.data.unique()) == (channels if channels > 1 else 2)
        assert not got.flip  # what is drawn and judged is the image as it is


def test_strips_pass_through_a_neck_that_pools():
    cfg = load_config(TINY_SEG_CONFIG, pretrained=False)
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.out_strides = None
    cfg.model.neck = dict(type='Feature2Pyramid', embed_dim=32, rescales=[4, 2, 1, 0.5], norm_cfg=dict(type='BN'))
    model = MODELS.build(cfg.model).eval()
    with torch.no_grad():
        assert [tuple(level.shape[2:]) for level in model.extract_feat(torch.randn(1, 3, 9, 70))] == [
            (4, 20), (2, 10), (1, 5), (1, 2)]
