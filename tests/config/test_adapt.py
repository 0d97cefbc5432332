"""XCiT in the place of the backbone of stock configs, and from there to the report on own data."""
import json

import pytest
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope

from helpers.refusals import stock
from helpers.tools import run_tool
from xcit_dense.config.adapt import _channels_of, _check_last_map_counts, _levels, _schedule, adapt
from xcit_dense.config.options import drop_pretrained
from xcit_dense.data.demo import make_demo_data
from xcit_dense.errors import ConfigError

pytestmark = pytest.mark.skipif(not stock('mmdet').is_dir(), reason='the maintained forks ship no stock configs')
CLASSES = 'disc', 'square', 'star'
#: One of each kind of head.
STOCK = [f'mmdet::{name}.py' for name in (
    'faster_rcnn/faster-rcnn_r50_fpn_1x_coco', 'cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco',
    'gn+ws/mask-rcnn_r50_fpn_gn-ws-all_2x_coco', 'fcos/fcos_r50-caffe_fpn_gn-head_1x_coco', 'tood/tood_r50_fpn_1x_coco',
    'centernet/centernet_r18_8xb16-crop512-140e_coco', 'yolox/yolox_s_8xb8-300e_coco',
    'rtmdet/rtmdet-ins_tiny_8xb32-300e_coco', 'solov2/solov2_r50_fpn_1x_coco',
    'deformable_detr/deformable-detr_r50_16xb2-50e_coco', 'dino/dino-4scale_r50_8xb2-12e_coco',
    'mask2former/mask2former_r50_8xb2-lsj-50e_coco')]
STOCK += [f'mmseg::{name}-512x512.py' for name in (
    'upernet/upernet_r50_4xb4-80k_ade20k', 'sem_fpn/fpn_r50_4xb4-160k_ade20k',
    'deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k', 'pspnet/pspnet_r50-d8_4xb4-80k_ade20k',
    'segformer/segformer_mit-b0_8xb2-160k_ade20k', 'ocrnet/ocrnet_hr18_4xb4-80k_ade20k',
    'knet/knet-s3_r50-d8_upernet_8xb2-adamw-80k_ade20k', 'psanet/psanet_r50-d8_4xb4-80k_ade20k',
    'dmnet/dmnet_r50-d8_4xb4-80k_ade20k', 'fastfcn/fastfcn_r50-d32_jpu_psp_4xb4-80k_ade20k',
    'segmenter/segmenter_vit-s_fcn_8xb1-160k_ade20k', 'mask2former/mask2former_swin-t_8xb2-160k_ade20k')]


def adapted(name, arch='nano_12_p16'):
    cfg = Config.fromstring(adapt(name, arch), '.py')
    drop_pretrained(cfg.model)
    return cfg


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
    assert cfg.auto_scale_lr == dict(enable=False, base_batch_size=16)  # mmsegmentation's has none
    assert cfg.model.backbone.out_strides is None  # the ResNet's are 4, 8, 8, 8


def test_the_warm_up_of_a_config_is_not_doubled():
    """And the header names the strides, and a factor that stays beside the authors' rates."""
    name = 'mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py'
    text = adapt(name, 'nano_12_p16')
    assert text.startswith(f'# XCiT nano_12_p16 in {name}: with strides 4, 8, 16, 32.\n')
    assert "authors' for 16 images a step, bias_lr_mult 2.\n" in text and 'A training step' not in text
    assert [step.type for step in Config.fromstring(text, '.py').param_scheduler] == ['ConstantLR', 'MultiStepLR']


def test_a_neck_without_channels_of_its_own_and_rates_of_adamw_stay(own):
    """A factor for the backbone needs keys for its norms, which keep it and do not decay."""
    size = 'dict(embed_dims=8, num_layers=4, num_heads=1, out_indices=(0, 1, 2, 3), img_size=(64, 64))'
    path = own(f'''
model = dict(backbone={size}, neck=dict(embed_dim=8), decode_head=dict(in_channels=[8] * 4, channels=16),
             auxiliary_head=dict(in_channels=8))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=0.5), rel_pos=dict(decay_mult=0.))))
''', 'mmseg::mae/mae-base_upernet_8xb2-amp-160k_ade20k-512x512.py')
    text = adapt(path, 'nano_12_p16')
    cfg = Config.fromstring(text, '.py')
    assert cfg.model.neck.embed_dim == 128 and cfg.model.decode_head.in_channels == [128] * 4
    assert 'the stride of the patch, 16, as its pyramid has no strides 16, 16, 16, 16.\n' in text
    assert 'Learning rates are those of the base.\n' in text and 'Norms' not in text
    drop_pretrained(cfg.model)
    found, keys = rates(cfg), cfg.optim_wrapper.paramwise_cfg.custom_keys
    assert found['backbone.blocks.3.norm1.weight'] == found['backbone.blocks.3.norm3.bias'] == (5e-5, 0)
    assert found['backbone.blocks.3.attn.qkv.weight'] == (5e-5, 0.05) and 'rel_pos' not in keys
    changes, notes = _schedule(Config.fromfile(path), None, [*found, 'decode_head.norm2.weight'])
    assert changes['optim_wrapper']['paramwise_cfg']['custom_keys'] == dict(backbone=dict(lr_mult=0.5))
    assert 'Norms of XCiT decay, as a key for them would also be for norms of a head' in notes


def test_images_are_normalised_as_for_the_weights_and_maps_are_the_last_ones():
    cfg = adapted('mmdet::yolox/yolox_s_8xb8-300e_coco.py')
    assert (cfg.model.backbone.out_indices, cfg.model.backbone.out_strides) == ((5, 7, 11), (8, 16, 32))
    assert cfg.model.data_preprocessor.mean == [123.675, 116.28, 103.53] and cfg.model.data_preprocessor.bgr_to_rgb
    assert cfg.model.data_preprocessor.batch_augments  # the rest stays
    assert cfg.optim_wrapper.optimizer.lr == 4e-4 and cfg.auto_scale_lr.base_batch_size == 64  # images a step
    assert [step.eta_min for step in cfg.param_scheduler if 'eta_min' in step] == [pytest.approx(2e-5)]  # of 0.01: 5e-4


def test_the_rest_of_an_optimizer_wrapper_and_images_of_four_channels_stay(own):
    """Rates by layer, for the old backbone, are left out. A head of a map that the neck passes on gets its channels."""
    wrapper = dict(type='AmpOptimWrapper', loss_scale=512., dtype='bfloat16', accumulative_counts=2,
                   constructor='LayerDecayOptimizerConstructor',
                   paramwise_cfg=dict(decay_rate=0.9, num_layers=12, bypass_duplicate=True,
                                      custom_keys=dict(norm=dict(lr_mult=0.5), head=dict(lr_mult=10.))))
    model = dict(backbone=dict(in_channels=4, depth=18), neck=dict(in_channels=(128, 256, 512), mid_channels=8),
                 decode_head=dict(in_channels=32, channels=8), auxiliary_head=dict(in_channels=256, channels=8),
                 data_preprocessor=dict(mean=[1.] * 4, std=[2.] * 4, bgr_to_rgb=False))
    text = adapt(own(f"custom_imports = dict(imports='json')\noptim_wrapper = {wrapper!r}\nmodel = {model!r}",
                     'mmseg::fastfcn/fastfcn_r50-d32_jpu_psp_4xb4-80k_ade20k-512x512.py'), 'nano_12_p16')
    cfg = Config.fromstring(text, '.py')
    assert cfg.model.backbone.in_channels == 4 and cfg.model.data_preprocessor.mean == [1.] * 4
    assert cfg.model.auxiliary_head.in_channels == 128 and 'A training step' not in text
    assert cfg.custom_imports.imports == ['xcit_dense', 'xcit_dense.for_mmseg', 'json']
    assert all(cfg.optim_wrapper[key] == wrapper[key] for key in ('type', 'loss_scale', 'dtype', 'accumulative_counts'))
    assert isinstance(cfg.optim_wrapper.loss_scale, float)  # mmengine takes no int
    assert cfg.optim_wrapper.paramwise_cfg == dict(bypass_duplicate=True, custom_keys=dict(
        norm=dict(lr_mult=0.5, decay_mult=0.), head=dict(lr_mult=10.)))
    assert 'LayerDecayOptimizerConstructor, with rates for the old backbone, is left out' in text


def test_only_what_takes_the_maps_gets_their_channels():
    """The second neck takes those of the first, which are as many as a level of the ResNet had."""
    fpn, bfp = adapted('mmdet::libra_rcnn/libra-retinanet_r50_fpn_1x_coco.py').model.neck
    assert fpn.in_channels == [128] * 4 and bfp.in_channels == fpn.out_channels == 256
    inner = dict(in_channels=96, inner=dict(in_channels=64, in_index=0))
    head = dict(in_channels=[64, 96], c1_in_channels=64, inner=inner)
    assert _channels_of(head, [64, 96, 128], 5) == dict(
        in_channels=[5, 5], c1_in_channels=5, inner=dict(inner=dict(in_channels=5)))
    assert not _channels_of(dict(in_channels=[64, 96, 7], channels=64), [64, 96], 5)
    one = dict(in_channels=64, channels=9, num_convs=0)  # which predicts from the map itself
    new = dict(one, in_channels=5, channels=5)
    assert (_channels_of([one, one.copy()], [64], 5), _channels_of([one, one.copy()], [64], 5, is_heads=False)) == (
        [new, new], [new, one])


def test_the_config_is_written_but_never_over_another(tmp_path):
    """Both files can be moved together."""
    out, own = tmp_path / 'here/new/mine.py', tmp_path / 'here/own.py'
    own.parent.mkdir()
    own.write_text("_base_ = 'xcit_dense::maskrcnn_xcit_n12_p16_small.py'\n")
    assert "arch='nano_12_p8'" in run_tool('adapt', own, '--arch', 'nano_12_p8').stdout
    run_tool('adapt', own, '--arch', 'nano_12_p8', '--out', out)
    own.parent.rename(tmp_path / 'there')
    out = tmp_path / 'there/new/mine.py'
    assert Config.fromfile(out).model.backbone.arch == 'nano_12_p8'
    before = out.read_text()
    assert 'there is no folder' in run_tool('adapt', own, '--data-root', out, check=False).message  # but a file
    done = run_tool('adapt', 'maskrcnn_xcit_n12_p16_small', '--out', out, check=False)
    assert done.returncode == 1 and 'mine.py already exists: give another name' in done.message
    assert out.read_text() == before


@pytest.mark.parametrize('name, words', (
    ('atss_r50_fpn_1x_coco', 'a config of mmdet, without XCiT: `python -m xcit_dense adapt mmdet::atss/atss_r50'),
    ('mmgone::atss.py', 'there is no config atss.py in mmgone, which has no configs here'),
    ('mmdet::atss_r50_fpn_1x_coco', 'in mmdet; did you mean mmdet::atss/atss_r50_fpn_1x_coco.py?'),
    ('mmdet::bytetrack/bytetrack_yolox_x_8xb4-amp-80e_crowdhuman-mot17halftrain_test-mot17halfval.py',
     'ByteTrack has no model.backbone that XCiT could replace: adapt the config of its detector'),
    ('mmdet::detectors/detectors_htc-r50_1x_coco.py', 'model.neck.rfp_backbone is a second backbone'),
    ('xcit_s12_p16_custom', "default_scope must be one of mmdet, mmseg, got 'mmpretrain'"),
    ('mmseg::ddrnet/ddrnet_23-slim_in1k-pre_2xb6-120k_cityscapes-1024x1024.py', 'does not run: DDRHead: TypeError: '),
    ('mmseg::bisenetv1/bisenetv1_r18-d32_4xb4-160k_cityscapes-1024x1024.py', 'model.decode_head.in_index=2'),
    ('mmdet::faster_rcnn/faster-rcnn_r50-caffe-c4_ms-1x_coco.py', 'the last stage of a ResNet on each region')))
def test_what_cannot_be_adapted(name, words):
    with pytest.raises(ConfigError, match=words):
        adapt(name)
    with pytest.raises(ConfigError, match='there is no arch n12_p16: choose one of nano_12_p8, nano_12_p16, '):
        adapt(name, 'n12_p16')


def test_maps_that_xcit_has_not(own):
    yolox = own('model = dict(backbone=dict(out_indices=(0, 1, 2, 3, 4)))\ntrain_dataloader = dict(batch=3)',
                'mmdet::yolox/yolox_tiny_8xb8-300e_coco.py')  # a mistake elsewhere is no reason to refuse
    with pytest.raises(ConfigError, match='CSPDarknet returns 5 maps with strides 2, 4, 8, 16, 32, XCiT at most 4'):
        adapt(yolox, 'nano_12_p16')
    tokens = Config(dict(type='mmseg.VisionTransformer', embed_dims=8, num_layers=1, num_heads=1, out_indices=0))
    assert _levels(tokens, 'it') == ([8], [16])
    with pytest.raises(ConfigError, match='VisionTransformer returns more than maps'):
        _levels(Config(dict(tokens, output_cls_token=True, with_cls_token=True)), 'it')
    lists = [dict(in_index=1), dict(in_index=[0, 2])]
    for heads in ([], lists, [dict(in_index=1), {}], dict(in_index=-1)):
        _check_last_map_counts(dict(decode_head=heads), 3, 'it')
    _check_last_map_counts(dict(decode_head=dict(in_index=1), neck=dict(type='JPU')), 3, 'it')
    with pytest.raises(ConfigError, match='from map 1, 0, 2 of 4; .*model.decode_head.in_index=3'):
        _check_last_map_counts(dict(decode_head=lists), 4, 'it')


@pytest.mark.slow
@pytest.mark.parametrize('name', ('fast_rcnn/fast-rcnn_r50_fpn_1x_coco', 'queryinst/queryinst_r50_fpn_1x_coco'))
def test_detectors_that_need_more_to_be_tried(name):
    """Proposals, or masks of boxes that lie outside of the image."""
    assert 'XCiT' in adapt(f'mmdet::{name}.py', 'nano_12_p16')


def test_a_step_that_fails_is_no_reason_to_refuse(monkeypatch, own):
    """The new file names it. A head cannot take maps whose channels are last; only the order of colours differs."""
    def loss_by_feat(self, *args):
        if not self.training_steps:
            self.training_steps.append(1)
            raise RuntimeError('view size is not compatible with')
        raise AssertionError

    monkeypatch.setattr('mmseg.models.decode_heads.FCNHead.training_steps', [], raising=False)
    monkeypatch.setattr('mmseg.models.decode_heads.FCNHead.loss_by_feat', loss_by_feat)
    text = adapt(own("param_scheduler = dict(_delete_=True, type='PolyLR', by_epoch=False)\n"
                     'model = dict(data_preprocessor=dict(bgr_to_rgb=False, rgb_to_bgr=True))',
                     'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py'), 'nano_12_p16')
    assert "which real ones may not: FCNHead: AssertionError: at 'raise AssertionError'.\n" in text
    model, steps = map(Config.fromstring(text, '.py').get, ('model', 'param_scheduler'))
    assert [step.type for step in steps] == ['LinearLR', 'PolyLR']
    assert model.backbone.channels_last is False and 'pretrained' in model and model.pretrained is None
    assert model.data_preprocessor.bgr_to_rgb and model.data_preprocessor.rgb_to_bgr is False


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    make_demo_data(folder := tmp_path_factory.mktemp('data'), num_train=4, num_val=2, size=64, classes=CLASSES)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('name', STOCK)
def test_from_a_stock_config_to_a_report_on_own_data(name, data, tmp_path):
    config, run, shown, finds_objects = tmp_path / 'mine.py', tmp_path / 'run', tmp_path / 'shown', 'mmdet' in name
    run_tool('adapt', name, '--arch', 'nano_12_p16', '--out', config, '--data-root', data)
    assert 'A training step' not in config.read_text()
    options, model = ['train_cfg.val_interval=1'], Config.fromfile(config).model
    if 'score_thr' in model.test_cfg:
        options += ['model.test_cfg.score_thr=0']  # after one step it would find nothing
    if 'num_queries' in model:
        options += ['model.num_queries=16', 'model.test_cfg.max_per_img=16']  # so small images have few tokens
    run_tool('train', config, '--data-root', data, '--work-dir', run, '--image-size', 64, '--batch-size', 2,
             '--workers', 0, '--no-pretrained', '--epochs' if finds_objects else '--iterations', 1, '--cfg-options',
             *options)
    run_tool('test', run, '--report')
    run_tool('predict', run, data / 'val2017', '--out', shown)
    if finds_objects:
        assert {one['category_name'] for one in json.loads((shown / 'results.json').read_text())} <= {*CLASSES}
    else:
        assert [*json.loads((shown / 'classes.json').read_text())['classes'].values()] == ['background', *CLASSES]
    assert len([*shown.glob('*.jpg')]) == 2 and (run / 'report/report.html').exists()
