"""XCiT in the place of the backbone of stock configs."""
import re

import pytest
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from stock_configs import run

from helpers.refusals import stock
from helpers.tools import run_tool
from xcit_dense.config.adapt import adapt
from xcit_dense.config.options import drop_pretrained
from xcit_dense.errors import ConfigError

pytestmark = pytest.mark.skipif(not stock('mmdet').is_dir(),
                                reason='the maintained forks ship no stock configs')
#: Ten of each framework, one for each kind of head.
STOCK = [f'mmdet::{name}.py' for name in (
    'faster_rcnn/faster-rcnn_r50_fpn_1x_coco', 'cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco',
    'dyhead/atss_r50_fpn_dyhead_1x_coco', 'fcos/fcos_r50-caffe_fpn_gn-head_1x_coco', 'tood/tood_r50_fpn_1x_coco',
    'yolox/yolox_s_8xb8-300e_coco', 'rtmdet/rtmdet-ins_tiny_8xb32-300e_coco',
    'deformable_detr/deformable-detr_r50_16xb2-50e_coco', 'ddq/ddq-detr-4scale_r50_8xb2-12e_coco',
    'mask2former/mask2former_swin-t-p4-w7-224_8xb2-lsj-50e_coco')] + [f'mmseg::{name}.py' for name in (
        'upernet/upernet_r50_4xb4-80k_ade20k-512x512', 'sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512',
        'deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512', 'pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512',
        'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512', 'ocrnet/ocrnet_hr18_4xb4-80k_ade20k-512x512',
        'knet/knet-s3_r50-d8_upernet_8xb2-adamw-80k_ade20k-512x512', 'psanet/psanet_r50-d8_4xb4-80k_ade20k-512x512',
        'beit/beit-base_upernet_8xb2-160k_ade20k-640x640',
        'mask2former/mask2former_swin-t_8xb2-160k_ade20k-512x512')]


def adapted(name, arch='nano_12_p16'):
    """Return the adapted config, without weights."""
    cfg = Config.fromstring(adapt(name, arch), '.py')
    drop_pretrained(cfg.model)
    return cfg


@pytest.mark.slow
@pytest.mark.parametrize('name', STOCK)
def test_a_stock_config_trains_and_predicts_with_xcit(name):
    cfg = adapted(name)
    assert cfg.model.backbone.type == 'XCiT'
    (_, result), = run({name: (name[:5], cfg.default_scope, cfg.model)})
    assert result['step'] == 'done', result['error']
    norms = [one for one in rates(cfg) if re.search(r'norm[123]\.(weight|bias)$', one)]
    assert norms and all(one.startswith('backbone.') for one in norms)  # with the rate of the backbone in some


def rates(cfg):
    """Return the factor of the learning rate and the decay of each parameter by name."""
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    return {names[id(p)]: (group['lr'], group['weight_decay'])
            for group in wrapper.optimizer.param_groups for p in group['params']}


def test_rates_of_a_config_with_sgd_are_those_of_the_authors():
    """Also the least rate of a schedule, which is no factor: mmsegmentation's is above AdamW's first rate."""
    cfg = adapted('mmseg::deeplabv3plus/deeplabv3plus_r18-d8_4xb2-80k_cityscapes-512x1024.py')
    found = rates(cfg)
    assert found['backbone.blocks.3.norm1.weight'] == (6e-5, 0)
    assert found['backbone.blocks.3.attn.qkv.weight'] == found['decode_head.conv_seg.weight'] == (6e-5, 0.01)
    warm_up, decay = cfg.param_scheduler
    assert (warm_up.type, warm_up.end) == ('LinearLR', 1500)
    assert decay.eta_min == pytest.approx(1e-4 * 6e-5 / 0.01)
    assert cfg.auto_scale_lr.base_batch_size == 16  # mmsegmentation's has none
    assert cfg.model.backbone.out_strides is None  # the ResNet's are 4, 8, 8, 8


def test_the_warm_up_of_a_config_is_not_doubled():
    """And the header names a factor that stays beside the authors' rates."""
    name = 'mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py'
    text = adapt(name, 'nano_12_p16')
    assert "authors' for 16 images a step, bias_lr_mult 2.\n" in text
    assert [step.type for step in Config.fromstring(text, '.py').param_scheduler] == ['ConstantLR', 'MultiStepLR']


def test_rates_of_a_config_with_adamw_stay():
    """Without the factors for parts of the old backbone; norms of the new one do not decay."""
    cfg = adapted(STOCK[9])
    found = rates(cfg)
    assert found['backbone.blocks.11.norm3.bias'] == (1e-5, 0)
    assert found['backbone.blocks.11.mlp.fc1.weight'] == (1e-5, 0.05)
    assert found['panoptic_head.query_embed.weight'] == (1e-4, 0)
    assert found['panoptic_head.cls_embed.weight'] == (1e-4, 0.05)
    keys = cfg.optim_wrapper.paramwise_cfg.custom_keys
    assert not [key for key in keys if not any(key in name for name in found)]


def test_images_are_normalised_as_for_the_weights():
    cfg = adapted(STOCK[5])
    assert cfg.model.data_preprocessor.mean == [123.675, 116.28, 103.53] and cfg.model.data_preprocessor.bgr_to_rgb
    assert cfg.model.data_preprocessor.batch_augments  # the rest stays
    assert cfg.optim_wrapper.optimizer.lr == 4e-4  # of 64 images a step


def changed(tmp_path, base, **changes):
    """Return the adapted config of one with these top-level changes, as text."""
    config = tmp_path / 'own.py'
    config.write_text(f'_base_ = {base!r}\n' + ''.join(f'{key} = {value!r}\n' for key, value in changes.items()))
    return adapt(config, 'nano_12_p16')


def test_the_rest_of_an_optimizer_wrapper_stays(tmp_path):
    """Of rates by layer, which the old backbone had, the new config says that they are left out."""
    wrapper = dict(type='AmpOptimWrapper', loss_scale=512., dtype='bfloat16', accumulative_counts=2,
                   constructor='LayerDecayOptimizerConstructor',
                   paramwise_cfg=dict(decay_rate=0.9, num_layers=12, bypass_duplicate=True,
                                      custom_keys=dict(norm=dict(lr_mult=0.5), head=dict(lr_mult=10.))))
    base = 'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py'
    text = changed(tmp_path, base, optim_wrapper=wrapper)
    cfg = Config.fromstring(text, '.py')
    assert {key: cfg.optim_wrapper[key] for key in ('type', 'loss_scale', 'dtype', 'accumulative_counts')} == {
        key: wrapper[key] for key in ('type', 'loss_scale', 'dtype', 'accumulative_counts')}
    assert isinstance(cfg.optim_wrapper.loss_scale, float)  # mmengine takes no int
    assert cfg.optim_wrapper.paramwise_cfg == dict(bypass_duplicate=True, custom_keys=dict(
        norm=dict(lr_mult=0.5, decay_mult=0.), head=dict(lr_mult=10.)))
    assert 'LayerDecayOptimizerConstructor, with rates for the old backbone, is left out' in text


def test_images_of_four_channels_keep_their_normalisation(tmp_path):
    model = dict(backbone=dict(in_channels=4), data_preprocessor=dict(mean=[1.] * 4, std=[2.] * 4, bgr_to_rgb=False))
    cfg = Config.fromstring(changed(tmp_path, 'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py', model=model),
                            '.py')
    assert cfg.model.backbone.in_channels == 4 and cfg.model.data_preprocessor.mean == [1.] * 4


def test_only_what_takes_the_maps_gets_their_channels():
    """The second neck takes those of the first, which are as many as a level of the ResNet had."""
    fpn, dyhead = adapted(STOCK[2]).model.neck
    assert fpn.in_channels == [128] * 4 and dyhead.in_channels == fpn.out_channels == 256


def test_the_config_is_written_but_never_over_another(tmp_path):
    out = tmp_path / 'new/mine.py'
    run_tool('adapt', 'maskrcnn_xcit_n12_p16_small', '--arch', 'nano_12_p8', '--out', out)
    assert Config.fromfile(out).model.backbone.arch == 'nano_12_p8'
    before = out.read_text()
    done = run_tool('adapt', 'maskrcnn_xcit_n12_p16_small', '--out', out, check=False)
    assert done.returncode == 1 and 'mine.py already exists: give another name' in done.message
    assert out.read_text() == before


def test_an_arch_is_one_of_those():
    with pytest.raises(ConfigError, match='there is no arch n12_p16: choose one of nano_12_p8, nano_12_p16, '):
        adapt('mmdet::atss/atss_r50_fpn_1x_coco.py', 'n12_p16')


@pytest.mark.parametrize('name, words', (
    ('atss_r50_fpn_1x_coco', 'a config of mmdet, without XCiT: `python -m xcit_dense adapt mmdet::atss/atss_r50'),
    ('mmgone::atss.py', 'there is no config atss.py in mmgone, which has no configs here'),
    ('mmdet::atss_r50_fpn_1x_coco', 'in mmdet; did you mean mmdet::atss/atss_r50_fpn_1x_coco.py?'),
    ('mmdet::bytetrack/bytetrack_yolox_x_8xb4-amp-80e_crowdhuman-mot17halftrain_test-mot17halfval.py',
     'ByteTrack has no model.backbone that XCiT could replace: adapt the config of its detector'),
    ('mmseg::bisenetv1/bisenetv1_r18-d32_4xb4-160k_cityscapes-1024x1024.py', 'model.decode_head.in_index=2'),
    ('mmdet::faster_rcnn/faster-rcnn_r50-caffe-c4_ms-1x_coco.py', 'the last stage of a ResNet on each region')))
def test_what_cannot_be_adapted(name, words):
    with pytest.raises(ConfigError, match=words):
        adapt(name)


@pytest.mark.slow
def test_the_printed_config_trains(tmp_path):
    """On data with other classes than COCO, from random weights."""
    data, config = tmp_path / 'data', tmp_path / 'mine.py'
    run_tool('make_demo_data', data, '--train', 4, '--val', 2, '--size', 64)
    config.write_text(run_tool('adapt', 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', '--arch', 'nano_12_p8').stdout)
    run_tool('train', config, '--data-root', data, '--work-dir', tmp_path / 'run', '--image-size', 64,
             '--batch-size', 2, '--workers', 0, '--epochs', 1, '--cfg-options', 'model.backbone.init_cfg=None',
             'classes_from_data=True')
    run_tool('predict', config, tmp_path / 'run', data / 'val2017', '--out', tmp_path / 'shown', '--image-size', 64,
             '--cfg-options', 'classes_from_data=True')
    assert len([*(tmp_path / 'shown').glob('*.jpg')]) == 2
