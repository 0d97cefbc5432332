"""The other configs of dense models: their start weights, schedules, classes and heads, each written out."""
import pytest

from helpers.paths import ROOT
from helpers.recipes import DENSE, RECIPES, path_of
from xcit_dense import get_arch
from xcit_dense.config.loading import load_config
from xcit_dense.weights import zoo

#: Those of fine-tuning have their own test.
OTHERS = sorted(name for name in {*DENSE} - {path_of(*recipe).stem for recipe in RECIPES} if 'finetune' not in name)


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
    assert list(WANTED) == OTHERS


@pytest.mark.parametrize('name', WANTED)
def test_start_weights_and_schedule(name):
    backbone, (loop, schedule), (rate, decay, clip), images, interval = WANTED[name]
    cfg = load_config(ROOT / f'configs/{name}.py')
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


@pytest.mark.parametrize('name, from_data', [
    (name, name.endswith(('custom', 'small'))) for name in OTHERS])
def test_where_classes_come_from(name, from_data):
    """Those of the data if it is the user's own, otherwise 80 of COCO or 150 of ADE20k, where 0 is no class."""
    cfg = load_config(ROOT / f'configs/{name}.py')
    assert cfg.get('classes_from_data', False) == from_data
    data = cfg.train_dataloader.dataset, cfg.val_dataloader.dataset, cfg.test_dataloader.dataset
    if 'rcnn' in name or 'retinanet' in name:
        heads = [cfg.model.bbox_head] if 'retinanet' in name else [cfg.model.roi_head.mask_head]
        heads = [head for head in heads if head]
        if 'roi_head' in cfg.model:
            boxes = cfg.model.roi_head.bbox_head
            heads += boxes if isinstance(boxes, list) else [boxes]
        assert [head.num_classes for head in heads] == [80] * len(heads)
        assert len(heads) == {'cascade': 4, 'fasterr': 1, 'maskrcn': 2, 'retinan': 1}[name[:7]]
        assert [each.type for each in data] == ['CocoDataset'] * 3
        has_masks = 'maskrcnn' in name
        metrics = ['bbox', 'segm'] if has_masks else 'bbox'
        assert all(step.get('with_mask', has_masks) == has_masks for each in data for step in each.pipeline)
        assert cfg.val_evaluator.metric == cfg.test_evaluator.metric == metrics
    else:
        heads = [cfg.model[head] for head in ('decode_head', 'auxiliary_head') if head in cfg.model]
        assert [head.num_classes for head in heads] == [150] * (2 if 'upernet' in name else 1)
        assert [each.type for each in data] == ['ImageFolderDataset' if from_data else 'ADE20KDataset'] * 3
        assert [each.reduce_zero_label for each in data] == [not from_data] * 3
        assert cfg.val_evaluator == cfg.test_evaluator == dict(type='IoUMetric', iou_metrics=['mIoU'])


@pytest.mark.parametrize('path', [ROOT / f'configs/{name}.py' for name in DENSE], ids=lambda path: path.stem)
def test_start_weights_are_published_ones_of_the_same_arch(path):
    """And neck or heads accept the channels of the backbone, whose maps they use in order."""
    cfg = load_config(path)
    backbone, channels = cfg.model.backbone, get_arch(cfg.model.backbone.arch).embed_dims
    if 'init_cfg' in backbone:
        assert zoo.get_weights(backbone.init_cfg.checkpoint).arch == backbone.arch
        assert backbone.init_cfg.checkpoint.endswith('_384_dist')
    assert ('init_cfg' in backbone) == (not path.stem.endswith(('_small', '_finetune')))
    strides = backbone.get('out_strides') or (4, 8, 16, 32)
    neck = cfg.model.get('neck')
    if neck and neck.type == 'Feature2Pyramid':
        assert (neck.embed_dim, neck.rescales, neck.norm_cfg) == (channels, [4, 2, 1, 0.5], dict(type='SyncBN'))
    elif neck:
        assert (neck.type, neck.in_channels) == ('FPN', [channels] * len(strides))
    else:
        assert cfg.model.decode_head.in_channels == [channels] * len(strides)
    if 'decode_head' in cfg.model:
        assert cfg.model.decode_head.get('feature_strides', [4, 8, 16, 32]) == list(strides)
        assert cfg.model.decode_head.in_index == [0, 1, 2, 3]
    else:
        head = cfg.model.get('rpn_head', cfg.model.get('bbox_head'))
        assert head.anchor_generator.strides == [strides[0] * 2**level for level in range(5)]


def test_stages_of_cascade():
    """Each gets boxes with a higher IoU, and moves them by less."""
    model = load_config(ROOT / 'configs/cascade_maskrcnn_xcit_s12_p16_coco.py').model
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
    retinanet = load_config(ROOT / 'configs/retinanet_xcit_s12_p16_coco.py').model
    assert (retinanet.type, retinanet.neck.add_extra_convs, retinanet.neck.num_outs) == ('RetinaNet', 'on_input', 5)
    anchors, loss = retinanet.bbox_head.anchor_generator, retinanet.bbox_head.loss_cls
    assert (anchors.octave_base_scale, anchors.scales_per_octave, anchors.ratios) == (4, 3, [0.5, 1.0, 2.0])
    assert (loss.type, loss.gamma, loss.alpha) == ('FocalLoss', 2.0, 0.25)
    assigner = retinanet.train_cfg.assigner
    assert (assigner.pos_iou_thr, assigner.neg_iou_thr, assigner.min_pos_iou) == (0.5, 0.4, 0)
    segformer = load_config(ROOT / 'configs/segformer_xcit_s12_p16_ade20k.py').model
    head = segformer.decode_head
    assert (head.type, head.channels, head.dropout_ratio, head.norm_cfg.type) == ('SegformerHead', 256, 0.1, 'SyncBN')
    assert 'neck' not in segformer and 'auxiliary_head' not in segformer
    boxes = load_config(ROOT / 'configs/maskrcnn_xcit_n12_p16_small.py').model
    assert boxes.rpn_head.anchor_generator.scales == [6]
    assert (boxes.neck.out_channels, boxes.rpn_head.in_channels, boxes.roi_head.mask_head.in_channels) == (64, ) * 3
    masks = load_config(ROOT / 'configs/semfpn_xcit_n12_p16_small.py').model
    assert (masks.neck.out_channels, masks.decode_head.in_channels, masks.decode_head.channels) == (64, [64] * 4, 64)
    assert masks.data_preprocessor.size == (160, 160)  # as crop_size


def test_shares_change_nothing_but_how_the_model_is_wrapped():
    plain, shared = (load_config(ROOT / f'configs/maskrcnn_xcit_l24_p8_coco{end}.py') for end in ('', '_fsdp'))
    wrapper = shared.pop('model_wrapper_cfg')
    assert wrapper == dict(type='MMFullyShardedDataParallel', auto_wrap_policy='xcit_blocks')
    assert shared.to_dict() == plain.to_dict()
