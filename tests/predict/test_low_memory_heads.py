"""Every decode head of mmseg in the segmentor for large images: the labels are mmseg's."""
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope
from mmseg.models import EncoderDecoder, decode_heads
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch.nn.functional import interpolate

from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.for_mmseg import LowMemoryEncoderDecoder

CLASSES, SIZE, SHAPES = 41, (64, 96), ((80, 121), (57, 80))
ONE = dict(in_channels=32, in_index=3, channels=16, num_classes=CLASSES)
FOUR = dict(in_channels=[32] * 4, in_index=[0, 1, 2, 3], channels=16, num_classes=CLASSES)
DILATED = dict(ONE, dilations=(1, 2))
#: Of mmdet's heads for masks: layers of attention.
LAYER = dict(self_attn_cfg=dict(embed_dims=32, num_heads=2), cross_attn_cfg=dict(embed_dims=32, num_heads=2),
             ffn_cfg=dict(embed_dims=32, feedforward_channels=32))
MASKS = dict(num_classes=CLASSES, in_channels=[32] * 4, feat_channels=32, out_channels=32, num_queries=9,
             positional_encoding=dict(num_feats=16, normalize=True), transformer_decoder=dict(
                 return_intermediate=True, num_layers=1, layer_cfg=LAYER),
             loss_cls=dict(type='mmdet.CrossEntropyLoss', class_weight=[1.] * (CLASSES + 1)),
             loss_mask=dict(type='mmdet.FocalLoss'), loss_dice=dict(type='mmdet.DiceLoss'))
UPDATE = dict(type='KernelUpdateHead', num_classes=CLASSES, in_channels=16, out_channels=16, num_heads=2, num_ffn_fcs=2,
              feedforward_channels=16, num_mask_fcs=1, conv_kernel_size=1, kernel_updator_cfg=dict(
                  type='KernelUpdator', in_channels=16, feat_channels=16, out_channels=16))
HEADS = dict(
    ANNHead=dict(FOUR, in_channels=[32, 32], in_index=[2, 3], project_channels=8),
    APCHead=ONE,
    ASPPHead=DILATED,
    CCHead=ONE,
    DAHead=dict(ONE, pam_channels=8),
    DDRHead=ONE,
    DMHead=ONE,
    DNLHead=ONE,
    DPTHead=dict(FOUR, input_transform='multiple_select', embed_dims=32, post_process_channels=[8] * 4),
    DepthwiseSeparableASPPHead=dict(DILATED, c1_in_channels=32, c1_channels=8),
    DepthwiseSeparableFCNHead=ONE,
    EMAHead=dict(ONE, ema_channels=16, num_bases=4, num_stages=2),
    EncHead=dict(FOUR, num_codes=4),
    FCNHead=ONE,
    FPNHead=dict(FOUR, feature_strides=[4, 8, 16, 32]),
    GCHead=ONE,
    ISAHead=dict(ONE, isa_channels=8),
    IterativeDecodeHead=dict(num_stages=1, kernel_update_head=[UPDATE], kernel_generate_head=dict(
        ONE, type='FCNHead')),
    LRASPPHead=dict(FOUR, in_channels=[32] * 3, in_index=[0, 0, 0], input_transform='multiple_select',
                    branch_channels=(8, 8)),
    LightHamHead=dict(FOUR, ham_channels=16, ham_kwargs=dict(MD_R=4)),
    Mask2FormerHead=dict(
        MASKS, strides=[4, 8, 16, 32], num_transformer_feat_level=3, enforce_decoder_input_project=False,
        pixel_decoder=dict(
            type='mmdet.MSDeformAttnPixelDecoder', num_outs=3, norm_cfg=dict(type='GN', num_groups=4),
            positional_encoding=dict(num_feats=16, normalize=True), encoder=dict(num_layers=1, layer_cfg=dict(
                self_attn_cfg=dict(embed_dims=32, num_heads=2, num_levels=3), ffn_cfg=LAYER['ffn_cfg'])))),
    MaskFormerHead=dict(MASKS, pixel_decoder=dict(type='mmdet.PixelDecoder', norm_cfg=dict(type='GN', num_groups=4))),
    NLHead=ONE,
    PIDHead=ONE,
    PSPHead=ONE,
    SETRMLAHead=dict(FOUR, in_index=[2] * 4, channels=32, mla_channels=8),
    SETRUPHead=ONE,
    STDCHead=ONE,
    SegformerHead=FOUR,
    SegmenterMaskTransformerHead=dict(ONE, num_layers=1, num_heads=2, embed_dims=16),
    UPerHead=FOUR,
)
#: Heads that do not take the four maps of a pyramid as they are.
MAPS = dict(
    DDRHead=lambda maps: maps[-1],
    DMHead=lambda maps: [x.contiguous() for x in maps],
    DPTHead=lambda maps: [(maps[2], None)] * 4,
    LRASPPHead=lambda maps: [interpolate(maps[0], scale_factor=4)],
    PIDHead=lambda maps: maps[-1],
)
#: Those that mmseg's EncoderDecoder does not take, or that cannot run here.
LEFT_OUT = dict(
    KernelUpdateHead='a part of IterativeDecodeHead',
    KernelUpdator='a part of it',
    OCRHead='in CascadeEncoderDecoder alone',
    PSAHead="needs mmcv's compiled ops",
    PointHead='in CascadeEncoderDecoder alone',
    SideAdapterCLIPHead='in MultimodalEncoderDecoder alone',
    VPDDepthHead='in DepthEstimator alone',
)
#: Those with a prediction of their own.
WHOLE = ('DAHead', 'EncHead', 'Mask2FormerHead', 'MaskFormerHead')


@pytest.fixture(scope='module')
def model():
    """The tiny segmentor without its neck."""
    cfg = load_config(TINY_SEG_CONFIG, pretrained=False)
    init_default_scope('mmseg')
    cfg.model.update(neck=None, auxiliary_head=None)
    return MODELS.build(cfg.model).eval()


def put_head(model, name, kwargs):
    """Give a segmentor a head."""
    init_default_scope('mmseg')
    model.decode_head = MODELS.build(ConfigDict(kwargs, type=name)).eval()
    model.out_channels, model.align_corners = model.decode_head.out_channels, model.decode_head.align_corners
    maps = MAPS.get(name, list)
    model.extract_feat = lambda images: maps(EncoderDecoder.extract_feat(model, images))


def let_many_classes_win(model, images):
    """Give every class the same mean score, where a head has weights for each."""
    layer = getattr(model.decode_head, 'conv_seg', None)
    if layer is not None:
        torch.nn.init.normal_(layer.weight)
        with torch.no_grad():
            scores = model.decode_head.predict(model.extract_feat(images), [dict(img_shape=SIZE)], None)
            layer.bias -= scores.mean((0, 2, 3))


def samples_of(count):
    return [SegDataSample(metainfo=dict(ori_shape=SHAPES[i], img_shape=SIZE, pad_shape=SIZE, flip=bool(i),
                                        flip_direction='horizontal')) for i in range(count)]


def predict(kind, model, images):
    """Predict with the code of a class; some heads draw random numbers."""
    torch.manual_seed(0)
    with torch.no_grad():
        return kind.predict(model, images, samples_of(len(images)))


def check_same(got, wanted, split):
    for a, b in zip(got, wanted, strict=True):
        assert ('seg_logits' in a) != split
        assert torch.equal(a.pred_sem_seg.data, b.pred_sem_seg.data)
        assert a.pred_sem_seg.data.dtype == b.pred_sem_seg.data.dtype


def test_no_head_of_mmseg_is_forgotten():
    assert {*HEADS, *LEFT_OUT} == set(decode_heads.__all__)


@pytest.mark.filterwarnings('ignore:torch.meshgrid')
@pytest.mark.parametrize('name', HEADS)
def test_every_head_predicts_as_in_mmseg(name, model, monkeypatch):
    put_head(model, name, HEADS[name])
    images = torch.randn(2, 3, *SIZE)
    let_many_classes_win(model, images)
    wanted = predict(EncoderDecoder, model, images)
    if hasattr(model.decode_head, 'conv_seg'):
        assert len(torch.cat([sample.pred_sem_seg.data.view(-1) for sample in wanted]).unique()) > 1
    for at_a_time in (1, 20, CLASSES):
        monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', at_a_time * 2 * SHAPES[0][0] * SHAPES[0][1])
        found = predict(LowMemoryEncoderDecoder, model, images)
        check_same(found, wanted, split=at_a_time < CLASSES and name not in WHOLE)
