"""Errors that are not due to the config, and what users write that the frameworks accept: no finding. A trial of the
model has no lasting effects. One that fails is only a warning."""
import random
import warnings

import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.hooks import LoggerHook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from mmengine.registry import DATASETS, HOOKS, LOOPS, MODELS, OPTIM_WRAPPERS, DefaultScope
from mmengine.runner import ValLoop

from helpers.boxes import RETINA
from helpers.models import assert_equal
from helpers.paths import ROOT, TINY_CONFIG
from helpers.refusals import stock
from xcit_dense.config.check import check_config, trial
from xcit_dense.config.check.keys import arguments_of
from xcit_dense.config.check.trial import _compare_strides, warn_of
from xcit_dense.config.loading import load_config
from xcit_dense.train.resuming import random_state


def test_what_is_not_the_configs_fault_is_no_finding(register, mistakes):
    """Constructors that miss a package, a file, the network or other processes: the run itself reports it."""
    class Fails(torch.nn.Module):
        def __init__(self):
            raise errors[-1]

    register(Fails, MODELS)
    cfg = load_config(TINY_CONFIG)
    cfg.model.neck = dict(type='Fails')
    errors = [ValueError('three are needed'), ValueError('Default process group has not been initialized'),
              AssertionError('please install x'), FileNotFoundError('x'), ImportError('No module named x')]
    while len(errors) > 1:
        check_config(cfg)
        errors.pop()
    assert mistakes(cfg)[0].startswith('model: Fails: three are needed')


class OwnNeck(torch.nn.Module):
    """Has an ``embed_dim`` of its own meaning."""
    def __init__(self, embed_dim):
        super().__init__()
        self.maps = torch.nn.ModuleList([torch.nn.Conv2d(32, 32, 1) for _ in range(4)])

    def forward(self, maps):
        maps = [layer(x) for layer, x in zip(self.maps, maps, strict=True)]
        return [*maps, torch.nn.functional.max_pool2d(maps[-1], 2)]


class ReadingNeck(OwnNeck):
    """Reads a tensor that has no memory in the check: the model is not built there, and keys are all that is found."""
    def __init__(self, embed_dim):
        super().__init__(embed_dim)
        self.rates = [float(x) for x in torch.empty(4).fill_(0.1)]


class OwnLoop(ValLoop):
    def __init__(self, *args, own, **kwargs):
        super().__init__(*args, **kwargs)


class OwnLoggerHook(LoggerHook):
    def __init__(self, **kwargs):
        self.own = kwargs.pop('intervals', None)
        super().__init__(**kwargs)


@pytest.fixture
def with_neck(register):
    """A function that returns the tiny config with a user-defined neck; others read keys of their own meaning."""
    owns = [type(f'Own{kind.__name__}', (kind, ), {}) for kind in (BaseDataset, OptimWrapper)]
    for kind, registry in zip([OwnNeck, ReadingNeck, OwnLoggerHook, *owns],
                              [MODELS, MODELS, HOOKS, DATASETS, OPTIM_WRAPPERS], strict=True):
        register(kind, registry)

    def load(neck='OwnNeck'):
        cfg = load_config(TINY_CONFIG)
        cfg.model.neck = dict(type=neck, embed_dim=48)
        return cfg
    return load


def test_users_own_classes_and_findings_behind_them(with_neck, hints, mistakes):
    cfg = with_neck()
    cfg.custom_hooks = [dict(type='OwnLoggerHook', intervals=3)]
    cfg.param_scheduler = [dict(type='LinearParamScheduler', param_name='eps', start_factor=0.5)]
    check_config(cfg)
    assert not hints
    cfg.model.rpn_head.in_channels = 64
    assert 'model.rpn_head.in_channels = 64: the neck returns 32; set it to 32' in mistakes(cfg)
    check_config(cfg := with_neck('ReadingNeck'))
    cfg.model.rpn_head.in_chanels = 3
    line, = mistakes(cfg)
    assert 'in_chanels' in line


def test_types_of_another_framework_and_others_than_the_default(register, hints, mistakes):
    register(OwnLoop, LOOPS)
    pytest.importorskip('mmseg')
    cfg = load_config(TINY_CONFIG)
    cfg.val_cfg = dict(type='OwnLoop', own=1)
    cfg.custom_hooks = [dict(type='SegVisualizationHook', _scope_='mmseg')]
    check_config(cfg)
    assert not hints
    del cfg.custom_hooks[0]['_scope_']
    line, = mistakes(cfg)
    assert 'SegVisualizationHook' in line


def test_roi_heads_on_one_map(mistakes):
    cfg = load_config(TINY_CONFIG)
    for part in ('bbox', 'mask'):
        cfg.model.roi_head[f'{part}_roi_extractor'].featmap_strides = [4]
    check_config(cfg)
    cfg.model.roi_head.bbox_roi_extractor.featmap_strides = [8]
    line, = mistakes(cfg)
    assert 'bbox_roi_extractor.featmap_strides' in line


@pytest.mark.parametrize('base, parts', (
    (RETINA, "type='FCOS', bbox_head=dict(_delete_=True, type='FCOSHead', num_classes=80, in_channels=256, "
     'strides=[8, 16, 32, 64, 128])'),  # an assigner is left over
    (stock('mmdet', 'faster_rcnn/faster-rcnn_r50-caffe-c4_ms-1x_coco.py'), ''),  # that of a shared head
    (ROOT / 'configs/semfpn_xcit_n12_p16_small.py', 'decode_head=dict(feature_strides=[8, 16, 32, 64], '
     'in_index=[0, 1, 2, -1])'),  # strides that relate as those of the maps
    (stock('mmseg', 'maskformer/maskformer_r50-d32_8xb2-160k_ade20k-512x512.py'),  # indices that nothing reads
     "backbone=dict(_delete_=True, type='XCiT', arch='nano_12_p16'), "
     'decode_head=dict(in_channels=[128] * 4, in_index=[1, 2, 3, 4])')))
def test_heads_that_take_what_they_get(base, parts, own, hints):
    if not base.is_file():
        pytest.skip(f'there is no {base}')
    check_config(load_config(own(f'model = dict({parts})', base)))
    assert not hints


def test_strides_may_be_those_of_any_size_of_image():
    maps = [torch.empty(1, 1, 1, 256 // stride) for stride in (8, 16, 32, 64, 128)]
    for strides, right in (([8, 16, 32, 64, 128], True), ([4.2, 15.9, 32, 64, 70], True),
                           ([4, 16, 32, 64, 128], False), ([8, 16, 64, 64, 128], False), ([8, 16, 32, 64], False)):
        assert bool(_compare_strides(strides, maps, 'strides', 'the neck')) != right


def test_what_frameworks_leave_out_is_a_hint_at_most(hints, with_neck):
    cfg = load_config(TINY_CONFIG)
    cfg.merge_from_dict({
        'env_cfg.of_mine': 1, 'auto_scale_lr.of_mine': 1, 'default_hooks.timer2': dict(type='IterTimerHook'),
        'optim_wrapper.paramwise_cfg.custom_keys.norm.wd_mult': 2})
    check_config(cfg)
    assert sorted(line.partition(' = ')[0] for line in hints) == [
        'auto_scale_lr.of_mine', 'env_cfg.of_mine', 'optim_wrapper.paramwise_cfg.custom_keys.norm.wd_mult']
    hints.clear()
    cfg = with_neck()
    cfg.train_dataloader.dataset = dict(type='OwnBaseDataset', filter_cfg=dict(min_sizes=3),
                                        metainfo=dict(CLASSES=['a']))
    cfg.optim_wrapper = dict(type='OwnOptimWrapper', optimizer=dict(type='SGD', lr=1), clip_grad=dict(max_normal=3))
    cfg.model.test_cfg.rcnn.score_thrs = 3
    check_config(cfg)
    assert [line.partition(' = ')[0] for line in hints] == ['model.test_cfg.rcnn.score_thrs']


def test_a_trial_that_fails_is_told_and_has_no_findings(mistakes, monkeypatch, logged):
    """Findings of the other checks stay."""
    warned = logged(trial)
    monkeypatch.setattr(trial, 'warn_of', warn_of)  # which fails other tests
    monkeypatch.setattr(trial, '_on_trial', lambda *args: 1 / 0)
    cfg = load_config(TINY_CONFIG)
    cfg.train_dataloader.batch_size = 0
    line, = mistakes(cfg)
    assert 'batch_size' in line and len(warned) == 1
    assert all(word in warned[0] for word in ('checked only in part', 'ZeroDivisionError: division', __file__))


def test_a_trial_leaves_nothing(capfd, register):
    class Noisy(OwnNeck):
        def __init__(self, embed_dim):
            super().__init__(embed_dim)
            print(torch.rand(1), np.random.rand(), random.random())
            warnings.warn('said by the neck', stacklevel=1)
            print_log('said by the neck', logger='current')

    register(Noisy, MODELS)
    cfg, scope, state = load_config(TINY_CONFIG), DefaultScope.get_current_instance(), random_state()
    cfg.model.neck = dict(type='Noisy', embed_dim=48)
    check_config(cfg)
    assert DefaultScope.get_current_instance() is scope
    assert_equal(random_state(), state)
    print_log('said by the test', logger='current')
    said = ''.join(capfd.readouterr())
    assert 'tensor' not in said and 'said by the neck' not in said and 'said by the test' in said


def test_arguments_of_classes_that_are_made_in_another_way_are_unknown():
    meta = type('Meta', (type, ), dict(__call__=lambda cls, *args, **kwargs: object()))
    made_by_new = type('MadeByNew', (), dict(__new__=lambda cls, **kwargs: object.__new__(cls)))
    for kind, wanted in ((meta('MadeByMeta', (), {}), False), (made_by_new, False), (type('Own', (), {}), True)):
        assert arguments_of(kind)[1] == wanted
