"""Mistakes planted in configs: each is found before a run starts, and nothing is found in a config without one."""
import pytest
from mmengine.config import Config
from mmengine.registry import OPTIMIZERS

from helpers.paths import ROOT, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.recipes import LOADABLE
from xcit_dense.config.check import check_config
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError

CONFIGS = dict(det=TINY_CONFIG, seg=TINY_SEG_CONFIG, retina=ROOT / 'configs/retinanet_xcit_s12_p16_coco.py',
               cascade=ROOT / 'configs/cascade_maskrcnn_xcit_s12_p16_coco.py',
               upernet=ROOT / 'configs/upernet_xcit_s12_p16_ade20k.py',
               pyramid=ROOT / 'configs/upernet_xcit_s12_p16_feature2pyramid_ade20k.py')


def findings(kind, **options):
    """Plant values by dotted key (``__`` for a dot) in a config and return the lines of the error."""
    cfg = load_config(CONFIGS[kind])
    cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
    return raised(check_config, cfg)


def raised(function, *args):
    with pytest.raises(ConfigError) as caught:
        function(*args)
    title, *lines = str(caught.value).splitlines()
    assert title == f'{len(lines)} mistake{"s" * (len(lines) > 1)} in the config:'
    return [line.strip() for line in lines]


@pytest.mark.parametrize('name', [
    TINY_CONFIG, TINY_SEG_CONFIG,
    *(pytest.param(name, marks=() if '_n12_' in name or '_s12_' in name else pytest.mark.slow)
      for name in LOADABLE)])
def test_no_finding_in_any_config(name, hints):
    check_config(load_config(name))
    assert not hints


def test_no_finding_in_what_users_write(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(f"""_base_ = '{CONFIGS['det']}'
from math import sqrt
my_note = 'a helper that nothing uses'
lr = 1e-4
optimizer = dict(type='SGD', lr=lr, momentum=0.9, nesterov=True)
models = dict(with_cp=True)  # nearly a key, but used below
seed = 3
randomness = dict(seed=seed, deterministic=True)
optim_wrapper = dict(_delete_=True, type='OptimWrapper', optimizer=optimizer, accumulative_counts=2,
                     clip_grad=dict(max_norm=35, norm_type=2),
                     paramwise_cfg=dict(norm_decay_mult=0., bypass_duplicate=True,
                                        custom_keys={{'backbone': dict(lr_mult=0.1, decay_mult=1., momentum=0.8)}}))
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, T_max=2, eta_min=0.)]
model = dict(backbone=dict(**models, norm_cfg=dict(type='BN', requires_grad=True, eps=1e-3)),
             rpn_head=dict(loss_bbox=dict(type='SmoothL1Loss', beta=0.1)),
             test_cfg=dict(rcnn=dict(nms=dict(type='soft_nms', iou_threshold=0.5, min_score=0.05))))
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None), dict(type='LoadAnnotations', with_bbox=True, poly2mask=False),
    dict(type='RandomResize', scale=(64, 64), ratio_range=(0.5, 2.), keep_ratio=True),
    dict(type='RandomApply', transforms=[dict(type='RandomFlip', prob=0.5)], prob=0.3),
    dict(type='mmdet.PackDetInputs')]
train_dataloader = dict(pin_memory=True, collate_fn=dict(type='pseudo_collate'), dataset=dict(
    _delete_=True, type='RepeatDataset', times=2, dataset=dict(
        type='CocoDataset', metainfo=dict(classes=('a', 'b'), palette=[(1, 2, 3), (4, 5, 6)]), data_root='here',
        ann_file='a.json', data_prefix=dict(img=''), filter_cfg=dict(filter_empty_gt=True), pipeline=train_pipeline)))
custom_hooks = [dict(type='EMAHook', momentum=1e-3, priority='ABOVE_NORMAL', ema_type='ExponentialMovingAverage'),
                dict(type='EarlyStoppingHook', monitor='coco/bbox_mAP')]
default_hooks = dict(timer=None, my_own=dict(type='EmptyCacheHook', after_iter=True))
val_evaluator = [dict(type='CocoMetric', ann_file='a.json', metric='bbox'), dict(type='mmdet.DumpDetResults',
                                                                                   out_file_path='x.pkl')]
train_cfg = dict(_delete_=True, by_epoch=True, max_epochs=3, val_interval=1, dynamic_intervals=[(2, 1)])
find_unused_parameters = True
""")
    check_config(load_config(path))


KEYS = (
    ('det', 'model.backbone.drop_path_rat', 0.1, 'drop_path_rate'),
    ('det', 'model.bakbone.arch', 'x', 'backbone'),
    ('det', 'model.neck.num_out', 4, 'num_outs'),
    ('det', 'model.roi_head.bbox_head.fc_out_channel', 4, 'fc_out_channels'),  # two classes up, through **kwargs
    ('det', 'model.roi_head.bbox_head.loss_cls.use_sigmoide', True, 'use_sigmoid'),
    ('det', 'model.rpn_head.anchor_generator.ratio', [1], 'ratios'),
    ('det', 'model.roi_head.bbox_roi_extractor.roi_layer.sampling_ration', 1, 'sampling_ratio'),
    ('det', 'model.train_cfg.rpn.assigner.pos_iou_th', 0.5, 'pos_iou_thr'),
    ('det', 'model.train_cfg.rpn.alowed_border', 0, 'allowed_border'),
    ('det', 'model.train_cfg.rpn_proposal.max_per_imgs', 7, 'max_per_img'),
    ('det', 'model.test_cfg.rcnn.score_thrr', 0.5, 'score_thr'),
    ('det', 'model.test_cfg.rcnn.nms.iou_thresold', 0.5, 'iou_threshold'),
    ('det', 'model.backbone.norm_cfg', dict(type='BN', epss=1), 'eps'),
    ('det', 'train_dataloader.batchsize', 4, 'batch_size'),
    ('det', 'train_dataloader.sampler.shufle', True, 'shuffle'),
    ('det', 'train_dataloader.dataset.ann_files', 'x', 'ann_file'),
    ('det', 'train_dataloader.dataset.filter_cfg.min_sise', 8, 'min_size'),
    ('det', 'train_dataloader.dataset.metainfo', dict(CLASSES=('a', )), 'classes'),
    ('det', 'train_dataloader.dataset.pipeline.2.keep_ration', True, 'keep_ratio'),
    ('det', 'optim_wrapper.optimizer.weight_decai', 0.1, 'weight_decay'),
    ('det', 'optim_wrapper.acumulative_counts', 2, 'accumulative_counts'),
    ('det', 'optim_wrapper.clip_grad.max_nrm', 2, 'max_norm'),
    ('det', 'optim_wrapper.paramwise_cfg.norm_decay_mul', 0., 'norm_decay_mult'),
    ('det', 'optim_wrapper.paramwise_cfg.custom_keys.norm.decay_mul', 0., 'decay_mult'),
    ('det', 'param_scheduler.1.eta_minimum', 0., None),
    ('det', 'param_scheduler.1.T_maxx', 0., 'T_max'),
    ('det', 'train_cfg.max_epoch', 3, 'max_epochs'),
    ('det', 'val_evaluator.metrik', 'bbox', 'metric'),
    ('det', 'default_hooks.checkpoint.max_keep_ckpt', 3, 'max_keep_ckpts'),  # would end the run at its first checkpoint
    ('det', 'default_hooks.logger.intervall', 3, 'interval'),
    ('det', 'visualizer.save_dirs', 'x', 'save_dir'),
    ('det', 'log_processor.window_sizes', 3, 'window_size'),
    ('det', 'env_cfg.cudnn_benchmarks', True, 'cudnn_benchmark'),
    ('det', 'randomness.sed', 1, 'seed'),
    ('det', 'auto_scale_lr.enabel', True, 'enable'),
    ('seg', 'model.decode_head.dropout_ration', 0.1, 'dropout_ratio'),
    ('seg', 'model.decode_head.loss_decode.loss_weigth', 0.1, 'loss_weight'),
    ('seg', 'model.test_cfg.crop_sise', (2, 2), 'crop_size'),
    ('seg', 'model.data_preprocessor.bgr_2_rgb', True, 'bgr_to_rgb'),
    ('seg', 'val_evaluator.iou_metric', ['mIoU'], 'iou_metrics'),  # mmseg's metric takes any key in silence
    ('seg', 'train_dataloader.dataset.reduce_zero_labels', True, 'reduce_zero_label'),
    ('seg', 'train_dataloader.dataset.pipeline.2.ratio_rang', (1, 2), 'ratio_range'),
)


@pytest.mark.parametrize('kind', ('det', 'seg'))
def test_keys_that_nothing_takes(kind):
    """All at once, each reported once and with the most similar name."""
    planted = {key: (value, nearest) for of_kind, key, value, nearest in KEYS if of_kind == kind}
    lines = findings(kind, **{key: value for key, (value, _) in planted.items()})
    told = {line.partition(' = ')[0]: line for line in lines}
    below = {'model.bakbone.arch': 'model.bakbone', 'model.backbone.norm_cfg': 'model.backbone.norm_cfg.epss',
             'train_dataloader.dataset.metainfo': 'train_dataloader.dataset.metainfo.CLASSES'}
    assert told.keys() == {below.get(key, key) for key in planted} and len(lines) == len(planted)
    for key, (_, nearest) in planted.items():
        line = told[below.get(key, key)]
        assert nearest is None or line.endswith(f'did you mean {nearest}?'), line


@pytest.mark.parametrize('key, value, nearest', [
    ('model.neck.type', 'FPNN', 'FPN'), ('train_dataloader.dataset.type', 'CocoDatset', 'CocoDataset'),
    ('train_dataloader.dataset.pipeline.3.type', 'RandomFlipp', 'RandomFlip'),
    ('optim_wrapper.optimizer.type', 'AdamWW', 'AdamW'), ('optim_wrapper.type', 'OptimWraper', 'OptimWrapper'),
    ('param_scheduler.0.type', 'LinerLR', 'LinearLR'), ('val_evaluator.type', 'CocoMetrics', 'CocoMetric'),
    ('default_hooks.timer.type', 'IterTimerHok', 'IterTimerHook'),
    ('model.rpn_head.anchor_generator.type', 'AnchorGeneratr', 'AnchorGenerator'),
    ('model.backbone.init_cfg', dict(type='Pretraind', checkpoint='x'), 'Pretrained'),
])
def test_type_that_is_not_there(key, value, nearest):
    line, = findings('det', **{key: value})
    assert line.startswith(key) and line.endswith(f'did you mean {nearest}?')


def test_a_type_with_a_slip_does_not_hide_what_else_is_wrong():
    lines = findings('det', model__neck__type='FPNN', model__rpn_head__in_chanels=4)  # built in this order
    assert [line.partition(' = ')[0] for line in lines] == ['model.neck.type', 'model.rpn_head.in_chanels']


def test_hooks_by_name():
    assert 'did you mean checkpoint?' in findings('det', default_hooks__chekpoint=dict(type='CheckpointHook'))[0]
    assert 'can be None' in findings('det', default_hooks__visualization=None)[0]
    assert 'has no type' in findings('det', default_hooks__mine=dict(interval=3))[0]
    assert findings('det', custom_hooks=[dict(type='FuseHook', a=1)])[0].startswith('custom_hooks.0.a = 1: FuseHook')


def test_loops_without_a_type_and_with_two_meanings():
    assert 'has no type' in findings('det', train_cfg=dict(_delete_=True, max_epochs=3))[0]
    assert 'decides that already' in findings('det', train_cfg__by_epoch=True)[0]
    for path, kind in (('val_cfg', 'ValLoop'), ('test_cfg', 'TestLoop')):
        line, = findings('det', **{path: dict(_delete_=True, fp15=True)})
        assert line.startswith(f'{path}.fp15') and kind in line and line.endswith('did you mean fp16?')


def test_optimizer_wrapper_of_another_runner():
    from mmengine.optim import BaseOptimWrapper
    from mmengine.registry import OPTIM_WRAPPERS

    @OPTIM_WRAPPERS.register_module(name='OtherWrapper')
    class OtherWrapper(BaseOptimWrapper):
        pass

    try:
        lines = findings('det', optim_wrapper__type='OtherWrapper')
    finally:
        OPTIM_WRAPPERS.module_dict.pop('OtherWrapper')
    assert any(line.startswith('optim_wrapper.type') and 'FlexibleRunner' in line for line in lines)


def test_all_findings_come_in_one_error():
    lines = findings('det', model__backbone__arhc='x', train_dataloader__batchsize=4, randomness__sed=1,
                     model__neck__out_channels=32)
    assert {line.partition(' = ')[0] for line in lines} >= {'train_dataloader.batchsize', 'model.backbone.arhc',
                                                            'randomness.sed'}
    assert any(line.startswith('model.rpn_head.in_channels = 64: the neck returns 32') for line in lines)


#: What is planted, the beginning of the finding (path and value), and what it must say.
SHAPES = (
    ('det', dict(model__neck__in_channels=[64] * 4), 'model.neck.in_channels = [64, 64, 64, 64]: ', '[32, 32, 32, 32]'),
    ('det', dict(model__neck__in_channels=[32] * 3), 'model.neck.in_channels = [32, 32, 32]: ', '[32, 32, 32, 32]'),
    ('det', dict(model__neck__num_outs=3), 'model.neck.num_outs = 3: ', 'num_outs >= self.num_ins - start_level'),
    ('det', dict(model__neck__num_outs=4), 'model.rpn_head.anchor_generator.strides = [4, 8, 16, 32, 64]: ',
     'neck.*[4, 8, 16, 32]'),
    ('det', dict(model__rpn_head__anchor_generator__strides=[8, 16, 32, 64, 128]),
     'model.rpn_head.anchor_generator.strides = [8, 16, 32, 64, 128]: ', 'neck.*[4, 8, 16, 32, 64]'),
    ('det', dict(model__rpn_head__in_channels=32), 'model.rpn_head.in_channels = 32: ', 'neck.*64'),
    ('det', dict(model__roi_head__bbox_roi_extractor__featmap_strides=[8, 16, 32, 64]),
     'model.roi_head.bbox_roi_extractor.featmap_strides = [8, 16, 32, 64]: ', 'neck.*[4, 8, 16, 32]'),
    ('det', dict(model__roi_head__bbox_head__in_channels=32), 'model.roi_head.bbox_head.in_channels = 32: ',
     'RoI extractor.*64'),
    ('det', dict(model__roi_head__mask_head__in_channels=32), 'model.roi_head.mask_head.in_channels = 32: ',
     'RoI extractor.*64'),
    ('det', dict(model__roi_head__bbox_roi_extractor__roi_layer__output_size=14),
     'model.roi_head.bbox_head.roi_feat_size = 7: ', 'RoI extractor.*14 x 14'),
    ('det', dict(model__backbone__out_strides=[8, 16, 32]), 'model.backbone.out_strides = [8, 16, 32]: ',
     'out_indices.*(0, 1, 2, 3)'),
    ('det', dict(model__backbone__arch__num_heads=5), "model.backbone.arch = {'embed_dims': 32, ",
     'embed_dims.*num_heads.*32.*5'),
    ('retina', dict(model__neck__start_level=1, model__neck__num_outs=4),
     'model.bbox_head.anchor_generator.strides = [8, 16, 32, 64, 128]: ', 'neck.*[16, 32, 64, 128]'),
    ('retina', dict(model__backbone__out_strides=(4, 8, 16)), 'model.bbox_head.anchor_generator.strides = ', 'neck'),
    ('cascade', {'model.roi_head.bbox_head.1.in_channels': 64}, 'model.roi_head.bbox_head.1.in_channels = 64: ',
     'RoI extractor.*256'),
    ('seg', dict(model__decode_head__in_channels=[32] * 4), 'model.decode_head.in_channels = [32, 32, 32, 32]: ',
     'neck.*[64, 64, 64, 64]'),
    ('seg', dict(model__decode_head__feature_strides=[4, 8, 16, 16]),
     'model.decode_head.feature_strides = [4, 8, 16, 16]: ', '[4, 8, 16, 32]'),
    ('upernet', dict(model__auxiliary_head__in_channels=256), 'model.auxiliary_head.in_channels = 256: ',
     'backbone.*384'),
    ('upernet', dict(model__decode_head__in_index=[0, 1, 2, 4]), 'model.decode_head.in_index = [0, 1, 2, 4]: ',
     'backbone.*4 maps.*3'),
    ('upernet', dict(model__backbone__arch='tiny_12_p16'), 'model.decode_head.in_channels = [384, 384, 384, 384]: ',
     'backbone.*[192, 192, 192, 192]'),
    ('pyramid', dict(model__neck__embed_dim=192), 'model.neck.embed_dim = 192: ', 'backbone.*384'),
    ('pyramid', dict(model__neck__rescales=[4, 2, 1]), 'model.neck.rescales = [4, 2, 1]: ', 'backbone.*4 maps'),
)


@pytest.mark.parametrize('kind, options, start, words', SHAPES)
def test_shapes_that_do_not_fit(kind, options, start, words):
    line = next(line for line in findings(kind, **options) if line.startswith(start))
    rest = line.removeprefix(start)
    for word in words.split('.*'):
        assert word in rest, line
        rest = rest.partition(word)[2]


@pytest.mark.parametrize('kind, key, value, words', [
    ('det', 'train_dataloader.batch_size', 'foo', 'a whole number of at least 1'),
    ('det', 'val_dataloader.batch_size', 0, 'a whole number of at least 1'),
    ('det', 'train_dataloader.num_workers', -1, 'a whole number of at least 0'),
    ('det', 'train_cfg.max_epochs', -1, 'a whole number of at least 1'),
    ('seg', 'train_cfg.max_iters', 3.5, 'a whole number of at least 1'),
    ('det', 'train_cfg.val_interval', 0, 'a whole number of at least 1'),
    ('det', 'train_cfg.val_begin', 'first', 'a whole number of at least 0'),
    ('det', 'optim_wrapper.optimizer.lr', 'abc', 'a number of at least 0'),
    ('det', 'optim_wrapper.optimizer.lr', float('nan'), 'a number of at least 0'),
    ('det', 'optim_wrapper.optimizer.weight_decay', True, 'a number of at least 0'),
    ('det', 'optim_wrapper.clip_grad.max_norm', -1, 'a number of at least 0'),
    ('det', 'default_hooks.checkpoint.interval', 'often', 'a whole number of at least -1'),
    ('det', 'auto_scale_lr.base_batch_size', None, 'a whole number of at least 1'),
    ('det', 'param_scheduler.1.end', 'late', 'a number of at least 0'),
    ('retina', 'param_scheduler.1.milestones', 8, 'a list of numbers, such as "[8,11]"'),
])
def test_numbers_out_of_range(kind, key, value, words):
    cfg = load_config(CONFIGS[kind])
    cfg.merge_from_dict({key: value})
    assert raised(check_config, cfg) == [f'{key} = {value!r}: it must be {words}']


def test_a_config_without_a_base():
    line, = raised(check_config, Config(dict(default_scope='mmdet', train_cfg=dict(by_epoch=True, max_epochs=1))))
    assert line.startswith('model, train_dataloader, optim_wrapper: missing;') and '_base_' in line


def test_none_is_a_learning_rate_where_it_is_the_optimizers_default():

    @OPTIMIZERS.register_module(name='OwnPace')
    class OwnPace:
        def __init__(self, params, lr=None, weight_decay=0.):
            pass

    def check(**optimizer):
        cfg = load_config(TINY_CONFIG)
        cfg.optim_wrapper.optimizer = optimizer
        check_config(cfg)

    try:
        check(type='OwnPace', lr=None)
        assert 'weight_decay = None' in raised(lambda: check(type='OwnPace', weight_decay=None))[0]
        assert 'lr = None' in raised(lambda: check(type='SGD', lr=None))[0]
    finally:
        OPTIMIZERS.module_dict.pop('OwnPace')
