"""The other configs of dense models: their start weights, schedules, classes and heads, each written out.

Those for fine-tuning are compared with the recipe of the same size.
"""
import pytest
from mmengine.optim import build_optim_wrapper

from helpers.recipes import DENSE, RECIPES, build, path_of
from xcit_dense.config.loading import load_config
from xcit_dense.weights import zoo

OTHERS = sorted({*DENSE} - {path_of(*recipe).stem for recipe in RECIPES})
FINETUNE = [name for name in OTHERS if name.endswith('_finetune')]


def warm_up(start_factor, end):
    return dict(type='LinearLR', start_factor=start_factor, by_epoch=False, begin=0, end=end)


def steps(end, *milestones):
    return dict(type='MultiStepLR', by_epoch=True, begin=0, end=end, milestones=list(milestones), gamma=0.1)


def poly(end):
    return dict(type='PolyLR', power=1.0, eta_min=0., by_epoch=False, begin=0, end=end)


def cosine(end, **how):
    return dict(type='CosineAnnealingLR', begin=0, end=end, eta_min=1e-6, **how)


def epochs(number):
    return dict(type='DenseEpochLoop', max_epochs=number, val_interval=1)


def iterations(number, val_interval):
    return dict(type='DenseIterLoop', max_iters=number, val_interval=val_interval)


SMALL_12 = dict(type='XCiT', arch='small_12_p16', drop_path_rate=0.05,
                init_cfg=dict(type='Pretrained', checkpoint='xcit://small_12_p16_384_dist'))
NANO_12 = dict(type='XCiT', arch='nano_12_p16')  # from random weights
LARGE_24 = dict(type='XCiT', arch='large_24_p8', drop_path_rate=0.2,
                init_cfg=dict(type='Pretrained', checkpoint='xcit://large_24_p8_384_dist'))
COCO = epochs(36), [warm_up(0.001, 500), steps(36, 27, 33)]
ADE20K = iterations(160000, 16000), [warm_up(1e-6, 1500), poly(160000)]

#: Backbone; loop and schedule of the learning rate; rate, weight decay and clipping; images a step and a process;
#: epochs or iterations from one checkpoint to the next.
WANTED = {
    'cascade_maskrcnn_xcit_s12_p16_coco': (SMALL_12, COCO, (1e-4, 0.05, None), (16, 2), 1),
    'fasterrcnn_xcit_n12_p16_small': (
        NANO_12, (epochs(6), [warm_up(0.01, 50), cosine(6, by_epoch=True, convert_to_iter_based=True)]),
        (1e-3, 0.05, 5.), (8, 8), 1),
    'fasterrcnn_xcit_s12_p16_custom': (
        SMALL_12, (epochs(12), [warm_up(0.001, 500), steps(12, 8, 11)]), (1e-4, 0.05, None), (16, 2), 1),
    'maskrcnn_xcit_l24_p8_coco_fsdp': (LARGE_24, COCO, (1e-4, 0.05, None), (16, 2), 1),
    'maskrcnn_xcit_n12_p16_small': (
        NANO_12, (epochs(6), [warm_up(0.01, 50), cosine(6, by_epoch=True, convert_to_iter_based=True)]),
        (1e-3, 0.05, 5.), (8, 8), 1),
    'maskrcnn_xcit_s12_p16_custom': (
        SMALL_12, (epochs(12), [warm_up(0.001, 500), steps(12, 8, 11)]), (1e-4, 0.05, None), (16, 2), 1),
    'retinanet_xcit_s12_p16_coco': (
        SMALL_12 | dict(out_indices=(5, 7, 11), out_strides=(8, 16, 32)), COCO, (1e-4, 0.05, None), (16, 2), 1),
    'segformer_xcit_s12_p16_ade20k': (SMALL_12, ADE20K, (6e-5, 0.01, None), (16, 2), 8000),
    'semfpn_xcit_n12_p16_small': (
        NANO_12, (iterations(700, 175), [warm_up(0.01, 50), cosine(700, by_epoch=False)]), (2e-3, 0.01, 5.), (8, 8),
        175),
    'semfpn_xcit_s12_p16_custom': (
        SMALL_12, (iterations(20000, 2000), [warm_up(1e-6, 1500), poly(20000)]), (6e-5, 0.01, None), (16, 2), 2000),
    'upernet_xcit_s12_p16_feature2pyramid_ade20k': (
        SMALL_12 | dict(out_strides=None), ADE20K, (6e-5, 0.01, None), (16, 2), 8000),
}


def test_every_other_config_is_written_out_here():
    """One for fine-tuning for each task and size class."""
    assert [f'{family}_xcit_{size}_p16_finetune' for family in ('maskrcnn', 'semfpn')
            for size in ('m24', 's12', 't12')] == FINETUNE
    assert sorted([*WANTED, *FINETUNE]) == OTHERS


@pytest.mark.parametrize('name', WANTED)
def test_start_weights_and_schedule(name):
    backbone, (loop, schedule), (rate, decay, clip), images, interval = WANTED[name]
    cfg = load_config(name)
    assert cfg.model.backbone == backbone
    assert cfg.train_cfg == loop and cfg.param_scheduler == schedule
    assert (cfg.val_cfg, cfg.test_cfg) == (dict(type='ValLoop'), dict(type='TestLoop'))
    wrapper = dict(type='OptimWrapper',
                   optimizer=dict(type='AdamW', lr=rate, betas=(0.9, 0.999), weight_decay=decay),
                   paramwise_cfg=dict(custom_keys=dict(norm=dict(decay_mult=0.))))
    assert cfg.optim_wrapper == wrapper | (dict(clip_grad=dict(max_norm=clip)) if clip else {})
    assert cfg.auto_scale_lr == dict(enable=False, base_batch_size=images[0])
    assert cfg.train_dataloader.batch_size == images[1]
    checkpoint = cfg.default_hooks.checkpoint
    assert (checkpoint.interval, checkpoint.get('by_epoch', True)) == (interval, 'max_epochs' in loop)
    assert checkpoint.max_keep_ckpts == (2 if name.endswith('small') else 3)
    assert (cfg.load_from, cfg.resume, cfg.runner_type) == (None, False, 'DenseRunner')


@pytest.mark.parametrize('name', WANTED)
def test_where_classes_come_from(name):
    """Those of the data if it is the user's own, otherwise 80 of COCO or 150 of ADE20k, where 0 is no class."""
    cfg, from_data = load_config(name), name.endswith(('custom', 'small'))
    assert cfg.get('classes_from_data', False) == from_data
    data, model = [cfg[f'{split}_dataloader'].dataset for split in ('train', 'val', 'test')], cfg.model
    if cfg.default_scope == 'mmdet':
        roi_head = model.get('roi_head') or {}
        heads = [model.get('bbox_head'), roi_head.get('bbox_head'), roi_head.get('mask_head')]
        heads = [head for several in heads if several for head in (several if isinstance(several, list) else [several])]
        assert [head.num_classes for head in heads] == [80] * {
            'cascade': 4, 'fasterr': 1, 'maskrcn': 2, 'retinan': 1}[name[:7]]
        assert [each.type for each in data] == ['CocoDataset'] * 3
        has_masks = 'maskrcnn' in name
        assert all(step.get('with_mask', has_masks) == has_masks for each in data for step in each.pipeline)
        assert cfg.val_evaluator.metric == cfg.test_evaluator.metric == (['bbox', 'segm'] if has_masks else 'bbox')
    else:
        heads = [model[head] for head in ('decode_head', 'auxiliary_head') if head in model]
        assert [head.num_classes for head in heads] == [150] * (2 if 'upernet' in name else 1)
        assert [each.type for each in data] == ['ImageFolderDataset' if from_data else 'ADE20KDataset'] * 3
        assert [each.reduce_zero_label for each in data] == [not from_data] * 3
        assert cfg.val_evaluator == cfg.test_evaluator == dict(type='IoUMetric', iou_metrics=['mIoU'])
        assert model.decode_head.in_index == [0, 1, 2, 3]


def test_stages_of_cascade():
    """Each gets boxes with a higher IoU, and moves them by less."""
    model = load_config('cascade_maskrcnn_xcit_s12_p16_coco').model
    assert (model.type, model.roi_head.type) == ('CascadeRCNN', 'CascadeRoIHead')
    assert (model.roi_head.num_stages, model.roi_head.stage_loss_weights) == (3, [1, 0.5, 0.25])
    assert [head.bbox_coder.target_stds for head in model.roi_head.bbox_head] == [
        [0.1, 0.1, 0.2, 0.2], [0.05, 0.05, 0.1, 0.1], [0.033, 0.033, 0.067, 0.067]]
    assert all(head.reg_class_agnostic and head.loss_bbox.type == 'SmoothL1Loss' for head in model.roi_head.bbox_head)
    for stage, overlap in zip(model.train_cfg.rcnn, (0.5, 0.6, 0.7), strict=True):
        assert (stage.assigner.pos_iou_thr, stage.assigner.neg_iou_thr, stage.assigner.min_pos_iou) == (overlap, ) * 3
        assert not stage.assigner.match_low_quality
        assert (stage.sampler.num, stage.sampler.pos_fraction, stage.mask_size) == (512, 0.25, 28)


def test_heads_of_the_other_families():
    retinanet = load_config('retinanet_xcit_s12_p16_coco').model
    assert (retinanet.type, retinanet.neck.add_extra_convs, retinanet.neck.num_outs) == ('RetinaNet', 'on_input', 5)
    anchors, loss = retinanet.bbox_head.anchor_generator, retinanet.bbox_head.loss_cls
    assert (anchors.octave_base_scale, anchors.scales_per_octave, anchors.ratios) == (4, 3, [0.5, 1.0, 2.0])
    assert (loss.type, loss.gamma, loss.alpha) == ('FocalLoss', 2.0, 0.25)
    assigner = retinanet.train_cfg.assigner
    assert (assigner.pos_iou_thr, assigner.neg_iou_thr, assigner.min_pos_iou) == (0.5, 0.4, 0)
    pyramid = load_config('upernet_xcit_s12_p16_feature2pyramid_ade20k').model.neck
    assert (pyramid.type, pyramid.rescales, pyramid.norm_cfg) == (
        'Feature2Pyramid', [4, 2, 1, 0.5], dict(type='SyncBN'))
    segformer = load_config('segformer_xcit_s12_p16_ade20k').model
    head = segformer.decode_head
    assert (head.type, head.channels, head.dropout_ratio, head.norm_cfg.type) == ('SegformerHead', 256, 0.1, 'SyncBN')
    assert 'neck' not in segformer and 'auxiliary_head' not in segformer
    boxes = load_config('maskrcnn_xcit_n12_p16_small').model
    assert boxes.rpn_head.anchor_generator.scales == [6]
    assert (boxes.neck.out_channels, boxes.rpn_head.in_channels, boxes.roi_head.mask_head.in_channels) == (64, ) * 3
    masks = load_config('semfpn_xcit_n12_p16_small').model
    assert (masks.neck.out_channels, masks.decode_head.in_channels, masks.decode_head.channels) == (64, [64] * 4, 64)
    assert masks.data_preprocessor.size == (160, 160)  # as crop_size


def test_shares_change_nothing_but_how_the_model_is_wrapped():
    plain, shared = (load_config(f'maskrcnn_xcit_l24_p8_coco{end}') for end in ('', '_fsdp'))
    wrapper = shared.pop('model_wrapper_cfg')
    assert wrapper == dict(type='MMFullyShardedDataParallel', auto_wrap_policy='xcit_blocks')
    assert shared.to_dict() == plain.to_dict()


@pytest.mark.parametrize('name', FINETUNE)
def test_fine_tuning_starts_from_the_whole_published_model(name):
    """And differs from the recipe that trained these weights only in length, rates and data."""
    cfg = load_config(name, check=True)
    recipe = load_config(name.replace('finetune', 'coco' if 'maskrcnn' in name else 'ade20k'), pretrained=False)
    weights = zoo.get_weights(cfg.init_from)
    assert cfg.init_from.startswith(f'xcit://{name.partition("_")[0]}_') and weights.arch == cfg.model.backbone.arch
    del recipe.model.backbone['init_cfg']
    assert cfg.model == recipe.model and cfg.load_from is None
    assert cfg.classes_from_data and not recipe.get('classes_from_data')
    assert cfg.auto_scale_lr == recipe.auto_scale_lr and cfg.train_dataloader.batch_size == 2
    assert cfg.optim_wrapper.optimizer == {**recipe.optim_wrapper.optimizer,
                                           'lr': recipe.optim_wrapper.optimizer.lr / 2}
    length = 'max_epochs' if 'maskrcnn' in name else 'max_iters'
    assert cfg.train_cfg[length] <= recipe.train_cfg[length] / 3
    assert cfg.param_scheduler[1].end == cfg.train_cfg[length] and cfg.param_scheduler[0].end <= 200
    assert load_config(name, pretrained=False).init_from is None
    assert load_config(name, pretrained=False, init_from='mine.pth').init_from == 'mine.pth'


@pytest.mark.parametrize('name, rate', (
    ('maskrcnn_xcit_t12_p16_finetune', 5e-5), ('semfpn_xcit_t12_p16_finetune', 3e-5)))
def test_rates_shrink_with_the_depth_where_that_is_asked_for(name, rate):
    assert 'constructor' not in load_config(name).optim_wrapper
    cfg = load_config(name, check=True, cfg_options={
        'optim_wrapper.constructor': 'LayerDecayConstructor', 'optim_wrapper.paramwise_cfg.layer_decay_rate': 0.9})
    model = build(cfg)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {names[id(group['params'][0])]: group
              for group in build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups}
    assert groups['neck.lateral_convs.0.conv.weight']['lr'] == groups['backbone.fpn1.0.weight']['lr'] == rate
    assert groups['backbone.blocks.11.gamma1']['lr'] == pytest.approx(rate * 0.9)
    assert groups['backbone.patch_embed.proj.0.0.weight']['lr'] == pytest.approx(rate * 0.9**13)
    assert groups['backbone.blocks.0.norm1.weight']['weight_decay'] == 0
    assert groups['backbone.blocks.0.gamma1']['weight_decay'] == cfg.optim_wrapper.optimizer.weight_decay
