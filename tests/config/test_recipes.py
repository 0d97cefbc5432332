"""Every config holds the published recipe, and runs through its whole model."""
import itertools
import json

import pytest
import torch
from mmdet.testing import demo_mm_inputs
from mmengine.optim import build_optim_wrapper
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from helpers.paths import ROOT
from helpers.recipes import DENSE, FAMILIES, HEADS, PUBLISHED, RECIPES, build, for_small_images, path_of
from xcit_dense import arch_names, get_arch
from xcit_dense.config.loading import load_config

ARCHITECTURES = json.loads((ROOT / 'tests/golden/architectures.json').read_text())['archs']
OTHERS = sorted({*DENSE} - {path_of(*recipe).stem for recipe in RECIPES})


@pytest.mark.parametrize('family, arch', RECIPES)
def test_recipe(family, arch):
    path, row = path_of(family, arch), PUBLISHED.get((family, arch))
    cfg = load_config(path)
    backbone, channels = cfg.model.backbone, get_arch(arch).embed_dims
    rate = backbone.pop('drop_path_rate', 0.)  # the norm type is the default
    assert backbone == dict(type='XCiT', arch=arch, init_cfg=dict(
        type='Pretrained', checkpoint=f'xcit://{arch}_384_dist'))
    optimizer = cfg.optim_wrapper.optimizer
    assert optimizer.type == 'AdamW' and cfg.optim_wrapper.type == 'OptimWrapper'
    assert 'clip_grad' not in cfg.optim_wrapper
    assert cfg.auto_scale_lr.base_batch_size == 16 and cfg.train_dataloader.batch_size == 2
    warm_up, decay = cfg.param_scheduler
    assert (warm_up.type, warm_up.begin, warm_up.by_epoch, decay.begin) == ('LinearLR', 0, False, 0)
    if family == 'maskrcnn':
        assert (optimizer.lr, optimizer.weight_decay) == (1e-4, 0.05)
        assert (warm_up.start_factor, warm_up.end) == (0.001, 500)
        assert (decay.type, decay.milestones, decay.gamma, decay.by_epoch) == ('MultiStepLR', [27, 33], 0.1, True)
        assert cfg.train_cfg.max_epochs == 36
        assert cfg.model.neck == dict(type='FPN', in_channels=[channels] * 4, out_channels=256, num_outs=5)
        assert cfg.model.rpn_head.anchor_generator.strides == [4, 8, 16, 32, 64]
        assert cfg.model.roi_head.bbox_head.num_classes == cfg.model.roi_head.mask_head.num_classes == 80
    else:
        iterations = dict(semfpn=80000, upernet=160000)[family]
        assert (optimizer.lr, optimizer.weight_decay) == (6e-5, 0.01)
        assert (warm_up.start_factor, warm_up.end) == (1e-6, 1500)
        assert (decay.type, decay.power, decay.eta_min, decay.end) == ('PolyLR', 1.0, 0, iterations)
        assert cfg.train_cfg.max_iters == iterations and cfg.model.test_cfg.mode == 'whole'
        head = cfg.model.decode_head
        assert head.in_channels == [channels] * 4 and head.num_classes == 150 and head.norm_cfg.type == 'SyncBN'
        if family == 'semfpn':
            assert cfg.model.neck == dict(type='FPN', in_channels=[channels] * 4, out_channels=channels, num_outs=4)
            assert (head.type, head.channels, head.dropout_ratio) == ('FPNHead', 128, 0.1)
            assert head.feature_strides == [4, 8, 16, 32]
        else:
            auxiliary = cfg.model.auxiliary_head
            assert (head.type, head.channels, head.dropout_ratio) == ('UPerHead', 512, 0.1)
            assert (auxiliary.type, auxiliary.channels, auxiliary.in_channels) == ('FCNHead', 256, channels)
            assert (auxiliary.in_index, auxiliary.loss_decode.loss_weight) == (2, 0.4)
            assert (auxiliary.norm_cfg.type, auxiliary.num_classes) == ('SyncBN', 150)
        assert head.in_index == [0, 1, 2, 3]
    preprocessor = cfg.model.data_preprocessor  # ImageNet's, as the start weights were trained with
    assert (preprocessor.mean, preprocessor.std) == ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375])
    assert preprocessor.bgr_to_rgb
    text = path.read_text()
    assert text.count('\n') <= 15
    header = text[:text.index('_base_')]
    if row is None:
        assert 'No result is published' in header
    else:
        assert (optimizer.lr, optimizer.weight_decay, rate) == (
            row['lr'], row['weight_decay'], row['drop_path_rate'])
        assert (list(get_arch(arch).out_indices), get_arch(arch).eta) == (row['out_indices'], row['eta'])
        figure = 'box AP {box_ap}, mask AP {mask_ap}.' if family == 'maskrcnn' else 'mIoU {miou}.'
        assert 'Published by the authors, not measured here: ' + figure.format(**row) in header
    size, patch = arch.rsplit('_', 1)
    parameters = build(cfg, 'meta').backbone.parameters()
    assert sum(p.numel() for p in parameters) == ARCHITECTURES[size]['dense_params'][patch]


def test_there_is_a_config_for_every_published_result():
    assert set(PUBLISHED) <= set(RECIPES) and len(PUBLISHED) == 24


def test_data_of_coco_and_ade20k():
    cfg = load_config(path_of('maskrcnn', 'small_12_p8'))
    assert cfg.model.data_preprocessor.pad_size_divisor == 32
    assert cfg.test_dataloader.dataset.pipeline[1] == dict(type='Resize', scale=(1333, 800), keep_ratio=True)
    _, _, flip, choice, _ = cfg.train_dataloader.dataset.pipeline
    assert flip.prob == 0.5
    multi_scale = [(side, 1333) for side in (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)]
    assert choice.transforms[0][0].scales == choice.transforms[1][2].scales == multi_scale
    assert choice.transforms[1][0].scales == [(400, 1333), (500, 1333), (600, 1333)]
    assert choice.transforms[1][1].crop_size == (384, 600)
    data = [cfg[f'{split}_dataloader'].dataset for split in ('train', 'val', 'test')]
    assert [each.type for each in data] == ['CocoDataset'] * 3 and not cfg.get('classes_from_data')
    assert cfg.val_evaluator.metric == cfg.test_evaluator.metric == ['bbox', 'segm']
    assert cfg.train_cfg == dict(type='DenseEpochLoop', max_epochs=36, val_interval=1)
    assert (cfg.val_cfg, cfg.test_cfg) == (dict(type='ValLoop'), dict(type='TestLoop'))
    checkpoint = cfg.default_hooks.checkpoint
    assert (checkpoint.interval, checkpoint.get('by_epoch', True), checkpoint.max_keep_ckpts) == (1, True, 3)
    assert cfg.optim_wrapper.optimizer.betas == (0.9, 0.999)
    assert (cfg.load_from, cfg.resume, cfg.runner_type, cfg.auto_scale_lr.enable) == (None, False, 'DenseRunner', False)
    cfg = load_config(path_of('upernet', 'small_12_p8'))
    _, _, resize, crop, flip, distortion, _ = cfg.train_dataloader.dataset.pipeline
    assert (resize.type, resize.scale, resize.ratio_range) == ('RandomResize', (2048, 512), (0.5, 2.0))
    assert (crop.crop_size, crop.cat_max_ratio) == ((512, 512), 0.75)
    assert (flip.prob, distortion.type) == (0.5, 'PhotoMetricDistortion')
    assert cfg.test_dataloader.dataset.pipeline[1] == dict(type='Resize', scale=(2048, 512), keep_ratio=True)
    data = [cfg[f'{split}_dataloader'].dataset for split in ('train', 'val', 'test')]
    assert [(each.type, each.reduce_zero_label) for each in data] == [('ADE20KDataset', True)] * 3
    assert cfg.val_evaluator == cfg.test_evaluator == dict(type='IoUMetric', iou_metrics=['mIoU'])
    assert cfg.train_cfg == dict(type='DenseIterLoop', max_iters=160000, val_interval=16000)
    assert (cfg.default_hooks.checkpoint.interval, cfg.default_hooks.checkpoint.by_epoch) == (8000, False)


@pytest.mark.parametrize('family', FAMILIES)
def test_weight_decay_spares_the_layer_norms_of_the_blocks_only(family):
    cfg = load_config(path_of(family, 'nano_12_p16'))
    model = build(cfg, 'meta')
    groups = build_optim_wrapper(model, cfg.optim_wrapper).param_groups
    spared = {id(p) for g in groups if g['weight_decay'] == 0 for p in g['params']}
    assert {name for name, p in model.named_parameters() if id(p) in spared} == {
        f'backbone.blocks.{i}.norm{k}.{part}' for i in range(12) for k in (1, 2, 3) for part in ('weight', 'bias')}
    assert {g['weight_decay'] for g in groups} == {0., cfg.optim_wrapper.optimizer.weight_decay}


@pytest.mark.parametrize('name', [
    *(pytest.param(path_of(family, arch).stem, marks=pytest.mark.slow if '_24_' in arch else ())
      for family, arch in zip(itertools.cycle(FAMILIES), arch_names(), strict=False)),  # each arch once
    *(pytest.param(name, marks=pytest.mark.slow if any(
        word in name for word in ('cascade', '_custom', '_finetune')) or name in HEADS and 's12_p8' in name else ())
      for name in OTHERS)])
def test_a_whole_model_learns_and_predicts(name):
    """A loss, a step back, and a prediction of one small random image."""
    cfg = for_small_images(load_config(name, pretrained=False))
    if cfg.default_scope == 'mmseg':
        cfg.model.data_preprocessor.size = (64, 96)  # or it pads to 512 x 512
        sample = SegDataSample(metainfo=dict(img_shape=(64, 96), ori_shape=(64, 96), img_padding_size=(0, 0, 0, 0)))
        sample.gt_sem_seg = PixelData(data=torch.randint(0, 4, (1, 64, 96)))
        batch = dict(inputs=[torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8)] * 2, data_samples=[sample] * 2)
    else:
        if 'roi_head' in cfg.model:
            for proposals in (cfg.model.train_cfg.rpn_proposal, cfg.model.test_cfg.rpn):
                proposals.update(nms_pre=100, max_per_img=50)  # for time: random weights keep all
        batch = demo_mm_inputs(2, [(3, 64, 96)] * 2, num_items=[1, 2], num_classes=80, with_mask=True)
    model = build(cfg)
    model.init_weights()  # some of mmdet's parameters are undefined before
    losses, _ = model.parse_losses(model(**model.data_preprocessor(batch, training=True), mode='loss'))
    losses.backward()
    assert torch.isfinite(losses)
    lacking = [name for name, p in model.named_parameters() if p.grad is None]
    assert not lacking, lacking[:5]
    with torch.no_grad():
        found, *_ = model.eval().test_step({key: value[:1] for key, value in batch.items()})
    if cfg.default_scope == 'mmdet':
        limits = cfg.model.test_cfg.get('rcnn', cfg.model.test_cfg)
        assert len(found.pred_instances.bboxes) <= limits.get('max_per_img', limits.get('max_per_image'))
    else:
        assert found.pred_sem_seg.data.shape == (1, 64, 96) and found.pred_sem_seg.data.max() < 150
