"""Mistakes planted in configs: each is found before a run starts, and nothing is found in a config without one."""
import re

import pytest
from mmengine.config import Config
from torch import nn

from helpers.paths import ROOT, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.recipes import LOADABLE, build
from xcit_dense.config import check
from xcit_dense.config.check import check_config, check_paramwise, check_schedule
from xcit_dense.config.check.keys import concerns
from xcit_dense.config.check.top_level import check_top_level
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError

CONFIGS = dict(det=TINY_CONFIG, seg=TINY_SEG_CONFIG, retina=ROOT / 'configs/retinanet_xcit_s12_p16_coco.py',
               cascade=ROOT / 'configs/cascade_maskrcnn_xcit_s12_p16_coco.py',
               upernet=ROOT / 'configs/upernet_xcit_s12_p16_ade20k.py', cls='xcit_n12_p16_imagenet',
               dino='xcit_n12_p16_dino_small')


@pytest.fixture
def findings(mistakes):
    """A function that plants values by dotted key (``__`` for a dot) in a config and returns the lines of the error."""
    def plant(kind, **options):
        if kind in ('cls', 'dino'):
            pytest.importorskip('mmpretrain')
        cfg = load_config(CONFIGS[kind])
        cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
        return mistakes(cfg)
    return plant


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=() if re.search('_n12_|cascade|retinanet|segformer|feature2pyramid|_dist', name)
                 else pytest.mark.slow) for name in LOADABLE])
def test_no_finding_in_any_config_and_in_what_its_run_dumps(name, hints, logged, tmp_path):
    """Of the dump, only the text, which shows what uses a name, differs."""
    cfg, said = load_config(name), logged(check)
    check_config(cfg)
    check_schedule(cfg)
    cfg.dump(tmp_path / 'dumped.py')
    again = load_config(tmp_path / 'dumped.py')
    assert again._cfg_dict == cfg._cfg_dict and not [*check_top_level(again), *hints, *said]


def test_no_finding_in_what_users_write(own, hints):
    check_config(load_config(own("""
my_note = 'a helper that nothing uses'
optimizer = dict(type='SGD', lr=1e-4, momentum=0.9, nesterov=True)
models = dict(with_cp=True)  # nearly a key, but used below
seed = 3
randomness = dict(seed=seed, deterministic=True)
optim_wrapper = dict(_delete_=True, type='OptimWrapper', optimizer=optimizer, clip_grad=dict(max_norm=35, norm_type=2),
                     paramwise_cfg=dict(norm_decay_mult=0., bypass_duplicate=True,
                                        custom_keys={'backbone': dict(lr_mult=0.1, decay_mult=1., momentum=0.8)}))
param_scheduler = [dict(type='CosineAnnealingLR', convert_to_iter_based=True, T_max=2)]
model = dict(backbone=dict(**models, norm_cfg=dict(type='BN', requires_grad=True, eps=1e-3)),
             test_cfg=dict(rcnn=dict(nms=dict(type='soft_nms', iou_threshold=0.5, min_score=0.05))))
train_dataloader = dict(pin_memory=True, collate_fn=dict(type='pseudo_collate'), dataset=dict(
    _delete_=True, type='RepeatDataset', times=2, dataset=dict(
        type='CocoDataset', metainfo=dict(classes=('a', 'b'), palette=[(1, 2, 3), (4, 5, 6)]), data_root='here',
        ann_file='a.json', data_prefix=dict(img=''), filter_cfg=dict(filter_empty_gt=True), pipeline=[
            dict(type='LoadImageFromFile', backend_args=None), dict(type='LoadAnnotations', with_bbox=True),
            dict(type='RandomApply', transforms=[dict(type='RandomFlip', prob=0.5)], prob=0.3),
            dict(type='mmdet.PackDetInputs')])))
custom_hooks = [dict(type='EMAHook', momentum=1e-3, priority='ABOVE_NORMAL', ema_type='ExponentialMovingAverage')]
default_hooks = dict(timer=None, my_own=dict(type='EmptyCacheHook', after_iter=True))
val_evaluator = [dict(type='CocoMetric', ann_file='a.json', metric='bbox'),
                 dict(type='mmdet.DumpDetResults', out_file_path='x.pkl')]
train_cfg = dict(_delete_=True, by_epoch=True, max_epochs=3, val_interval=1, dynamic_intervals=[(2, 1)])
find_unused_parameters = True""")))
    assert not hints


#: Keys that configs may have; planted without their last letter.
KEYS = dict(det="""
    model.backbone.drop_path_rate model.roi_head.bbox_head.loss_cls.use_sigmoid
    model.rpn_head.anchor_generator.ratios model.train_cfg.rpn.assigner.pos_iou_thr model.train_cfg.rpn.allowed_border
    model.test_cfg.rcnn.nms.iou_threshold train_dataloader.batch_size train_dataloader.sampler.shuffle
    train_dataloader.dataset.ann_file train_dataloader.dataset.filter_cfg.min_size
    train_dataloader.dataset.pipeline.2.keep_ratio optim_wrapper.optimizer.weight_decay
    optim_wrapper.accumulative_counts optim_wrapper.clip_grad.max_norm optim_wrapper.paramwise_cfg.norm_decay_mult
    optim_wrapper.paramwise_cfg.custom_keys.norm.decay_mult param_scheduler.1.T_max train_cfg.max_epochs
    val_evaluator.metric default_hooks.checkpoint.max_keep_ckpts visualizer.save_dir log_processor.window_size
    env_cfg.cudnn_benchmark env_cfg.mp_cfg.mp_start_method randomness.seed auto_scale_lr.enable""", seg="""
    model.decode_head.loss_decode.loss_weight model.test_cfg.crop_size model.data_preprocessor.bgr_to_rgb
    val_evaluator.iou_metrics train_dataloader.dataset.reduce_zero_label""", cls="""
    model.backbone.drop_path_rate model.data_preprocessor.to_rgb train_dataloader.dataset.split
    train_dataloader.dataset.pipeline.3.magnitude_level val_evaluator.topk""", dino="""
    model.head.num_prototypes train_dataloader.dataset.pipeline.1.num_local custom_hooks.0.momentum""")
#: Others by what is planted: the value, the place that is reported, and the most similar name.
OTHER_KEYS = {
    'model.bakbone.arch': ('x', 'model.bakbone', 'backbone'),
    'model.backbone.norm_cfg': (dict(type='BN', epss=1), 'model.backbone.norm_cfg.epss', 'eps'),
    'train_dataloader.dataset.metainfo': (dict(CLASSES=('a', )), 'train_dataloader.dataset.metainfo.CLASSES', None),
    'param_scheduler.1.eta_minimum': (0., 'param_scheduler.1.eta_minimum', None),
    'randomness.generator': (1, 'randomness.generator', None),
    'default_hooks.visualization': (None, 'default_hooks.visualization', None)}


@pytest.mark.parametrize('kind', KEYS)
def test_keys_that_nothing_takes(kind, findings):
    """All at once, each reported once and with the most similar name."""
    planted = {key[:-1]: (1, key[:-1], key.rpartition('.')[2]) for key in KEYS[kind].split()}
    planted |= OTHER_KEYS if kind == 'det' else {}
    lines = findings(kind, **{key: value for key, (value, *_) in planted.items()})
    told = {line.partition(' = ')[0]: line for line in lines}
    assert told.keys() == {place for _, place, _ in planted.values()} and len(lines) == len(planted)
    for _, place, nearest in planted.values():
        assert nearest is None or told[place].endswith(f'did you mean {nearest}?'), told[place]
    assert kind != 'det' or told['randomness.generator'].endswith('; allowed: deterministic, diff_rank_seed, seed')


def test_types_that_are_not_there(findings):
    """All at once, and they do not hide what else is wrong: an argument, and shapes that do not fit."""
    first = {
        'model.neck.type': ('FPNN', 'FPN'), 'train_dataloader.dataset.type': ('CocoDatset', 'CocoDataset'),
        'param_scheduler.0.type': ('LinerLR', 'LinearLR'), 'val_evaluator.type': ('CocoMetrics', 'CocoMetric'),
        'default_hooks.timer.type': ('IterTimerHok', 'IterTimerHook'),
        'model.rpn_head.anchor_generator.type': ('AnchorGeneratr', 'AnchorGenerator')}
    second = {'optim_wrapper.constructor': ('DefaultOptimWrapperConstruct', 'DefaultOptimWrapperConstructor'),
              'optim_wrapper.type': ('OptimWraper', 'OptimWrapper'),
              'model.backbone.init_cfg.type': ('Pretraind', 'Pretrained')}
    for types, more, other in ((first, dict(model__roi_head__in_chanels=4), 'model.roi_head.in_chanels = 4: '),
                               (second, dict(model__neck__out_channels=64),
                                'model.rpn_head.in_channels = 32: the neck returns 64')):
        lines = findings('det', **{key: wrong for key, (wrong, _) in types.items()}, **more)
        told = {line.partition(' = ')[0]: line for line in lines}
        assert told.keys() >= {*types} and len(told) == len(lines) and any(line.startswith(other) for line in lines)
        assert all(told[key].endswith(f'did you mean {nearest}?') for key, (_, nearest) in types.items())


def test_hooks_and_loops_and_what_is_missing(findings, mistakes):
    lines = findings('det', default_hooks__chekpoint=dict(type='CheckpointHook'), train_cfg__by_epoch=True,
                     custom_hooks=[dict(type='FuseHook', a=1)], val_cfg=dict(_delete_=True, fp15=True),
                     test_cfg=dict(_delete_=True, fp15=True))
    told = {line.partition(' = ')[0].partition(':')[0]: line for line in lines}
    for place, words in (
            ('default_hooks.chekpoint', 'did you mean checkpoint?'), ('val_cfg.fp15', 'ValLoop'),
            ('custom_hooks.0.a', 'custom_hooks.0.a = 1: FuseHook'), ('test_cfg.fp15', 'TestLoop'),
            ('train_cfg.by_epoch', 'DenseEpochLoop does not accept it')):
        assert words in told.pop(place)
    assert not told
    line, = findings('det', train_cfg=dict(_delete_=True, max_epochs=3))
    assert line.startswith('train_cfg') and 'has no type' in line
    line, = findings('dino', custom_hooks=[dict(type='FuseHook')])  # which it does not need
    assert "nothing would move the teacher without dict(type='DINOHook')" in line
    check_config(load_config(CONFIGS['dino'], cfg_options=dict(custom_hooks=[dict(type='DINOHook')])))
    line, = mistakes(Config(dict(default_scope='mmdet', train_cfg=dict(by_epoch=True, max_epochs=1))))
    assert line.startswith('model, train_dataloader, optim_wrapper: missing;') and '_base_' in line


#: What is planted, the words of its finding, and the place and value that it names if they are not those planted.
SHAPES = (
    ('det', dict(model__neck__in_channels=[32] * 3), '[32, 32, 32, 32]'),
    ('det', dict(model__neck__num_outs=3), 'FPN: .*num_outs >= self.num_ins - start_level', 'model: '),
    ('det', dict(model__neck__num_outs=4), 'neck.*[4, 8, 16, 32]',
     'model.rpn_head.anchor_generator.strides = [4, 8, 16, 32, 64]'),
    ('det', dict(model__rpn_head__anchor_generator__strides=[8, 16, 32, 64, 128]), 'neck.*[4, 8, 16, 32, 64]'),
    ('det', dict(model__roi_head__bbox_roi_extractor__featmap_strides=[8, 16, 32, 64]), 'neck.*[4, 8, 16, 32]'),
    ('det', dict(model__roi_head__bbox_head__in_channels=64), 'RoI extractor.*32'),
    ('det', dict(model__roi_head__mask_head__in_channels=64), 'RoI extractor.*32'),
    ('det', dict(model__backbone__out_strides=[8, 16, 32]), 'XCiT: .*out_indices.*(0, 1, 2, 3)', 'model: '),
    ('det', dict(model__backbone__arch__num_heads=5), 'Arch: .*embed_dims.*num_heads.*32.*5', 'model: '),
    ('retina', dict(model__neck__start_level=1, model__neck__num_outs=4), 'neck.*[16, 32, 64, 128]',
     'model.bbox_head.anchor_generator.strides = [8, 16, 32, 64, 128]'),
    ('cascade', {'model.roi_head.bbox_head.1.in_channels': 64}, 'RoI extractor.*256'),
    ('seg', dict(model__decode_head__feature_strides=[4, 8, 16, 16]), '[4, 8, 16, 32]'),
    ('upernet', dict(model__auxiliary_head__in_channels=256), 'backbone.*384'),
    ('upernet', dict(model__decode_head__in_index=[0, 1, 2, 4]), 'backbone.*4 maps.*3'),
    ('upernet', dict(model__backbone__arch='tiny_12_p16'), 'backbone.*[192, 192, 192, 192]',
     'model.decode_head.in_channels = [384, 384, 384, 384]'),
    ('seg', dict(model__pretrained='torchvision://x'), "XCiT.__init__() got an unexpected.*'pretrained'", 'model: '),
    ('cls', dict(model__head__loss__label_smooth=0.1), 'label_smooth_val'),
    ('cls', {'model.train_cfg.augments.0.alfa': 1.}, 'Mixup', 'model'),
    ('cls', dict(model__head__type='LogitHead'), 'LogitsHead', 'model.head.type = '),
    ('cls', dict(model__backbone__num_classes=10), 'the backbone returns 10', 'model.data_preprocessor.num_classes = '))


@pytest.mark.parametrize('kind, options, words, start', [(*row, None)[:4] for row in SHAPES])
def test_shapes_that_do_not_fit(kind, options, words, start, findings):
    (key, value), *_ = options.items()
    start = start or f'{key.replace("__", ".")} = {value}: '
    lines = findings(kind, **options)
    rest = next((line.removeprefix(start) for line in lines if line.startswith(start)), '')
    for word in words.split('.*'):
        assert word in rest, lines
        rest = rest.partition(word)[2]


@pytest.fixture
def told(hints):
    """A function that returns the keys of a config that errors are about, and those of hints."""
    def tell(rules, model, **options):
        hints.clear()
        errors = []
        try:
            check_paramwise(Config(dict(optim_wrapper=dict(paramwise_cfg=rules), **options)), model)
        except ConfigError as error:
            errors = str(error).splitlines()[1:]
        return tuple([line.partition(': ')[0].rpartition('paramwise_cfg.')[2].partition(' = ')[0] for line in lines]
                     for lines in (errors, hints))
    return tell


def test_keys_are_parts_of_names(told):
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    for rules, wanted in (
            (dict(norm_decay_mult=0.), []), (dict(custom_keys={'1.': dict(lr_mult=2), '.0.': {}}), []),
            (dict(custom_keys={'0.weight': {}, '2.weight': {}}), ['custom_keys.2.weight'])):
        assert told(rules, model) == ([], wanted)
    wrapped = nn.ModuleDict(dict(module=model))  # of a distributed run
    assert told(dict(custom_keys={'module': {}}), wrapped) == ([], ['custom_keys.module'])
    model.requires_grad_(False)  # freezing makes no rule wrong
    assert told(dict(norm_decay_mult=0., custom_keys={'0.': {}}), model) == ([], [])


def test_a_key_with_a_slip_is_an_error_and_a_key_of_another_model_is_none(told):
    model = build(load_config('semfpn_xcit_n12_p16_ade20k', pretrained=False), 'meta')
    for key in ('backbone.blok', 'gama', 'atn.qkv', 'decod_head'):
        assert told(dict(custom_keys={key: dict(lr_mult=0.1)}), model) == ([f'custom_keys.{key}'], [])
        assert told(dict(custom_keys={key: {}}), model, config_findings='warn') == ([], [f'custom_keys.{key}'])
    for key in ('backbone.block', 'norm', 'blocks.1.', 'pos_embed'):
        assert told(dict(custom_keys={key: dict(lr_mult=0.1)}), model) == ([], [])
    for key in ('absolute_pos_embed', 'query_embed', 'norm9', 'backbone.stages.0.blocks.3.norm', 'backbone.unet'):
        assert told(dict(custom_keys={key: dict(lr_mult=0.1)}), model) == ([], [f'custom_keys.{key}'])


@pytest.mark.parametrize('key, other, wanted', (
    ('model', 'model.neck', True), ('model.neck.out', 'model.neck', True), ('model.neck', 'model.neck', True),
    ('model.neck', 'model.neck_2', False), ('model.neck_2', 'model.neck', False)))
def test_a_key_concerns_what_contains_it_and_not_what_begins_alike(key, other, wanted):
    assert concerns(key, ['optim_wrapper', other]) == wanted
