"""What options change in a config, which loggers can be used, and what losses of validation data load."""
import sys
from pathlib import Path

import pytest
from mmcv.transforms import LoadImageFromFile
from mmdet.engine.hooks import DetVisualizationHook
from mmengine.config import Config

from helpers.paths import MAIN_CONFIG, TINY_SEG_CONFIG
from helpers.recipes import DENSE, VALIDATED
from xcit_dense._utils import machine
from xcit_dense.config import options
from xcit_dense.config.loading import load_config
from xcit_dense.config.options import loss_dataloader, set_val_loss
from xcit_dense.errors import ConfigError, SetupError

IMAGE, RESIZE, PACK = dict(type='LoadImageFromFile'), dict(type='Resize', scale=(32, 32)), dict(type='PackDetInputs')
BOXES = dict(type='LoadAnnotations', with_bbox=True)
MASKS = dict(type='LoadAnnotations', with_bbox=True, with_mask=True, poly2mask=False)


def test_auto_scale_lr_needs_a_base():
    cfg = load_config(MAIN_CONFIG)
    options.set_auto_scale_lr(cfg)
    assert cfg.auto_scale_lr.enable
    for none in (dict(a=1), dict(auto_scale_lr=None), dict(auto_scale_lr=dict(enable=False))):
        with pytest.raises(ConfigError, match='base_batch_size'):
            options.set_auto_scale_lr(Config(none))


def test_hooks_are_added_behind_those_that_are_there():
    """One that is there already is replaced."""
    for before in ({}, dict(custom_hooks=None), dict(custom_hooks=[dict(type='A'), dict(type='B', y=3)])):
        cfg = Config(dict(a=1, **before))
        options.add_hook(cfg, 'B', x=2)
        assert cfg.custom_hooks == [*(before.get('custom_hooks') or [])[:1], dict(type='B', x=2)]


def test_a_run_stops_by_the_first_of_several_metrics():
    cfg = load_config(TINY_SEG_CONFIG)
    cfg.default_hooks.checkpoint.update(save_best=['aAcc', 'mIoU'], rule=['less', 'greater'])
    options.set_best(cfg, patience=3)
    hook = cfg.custom_hooks[-1]
    assert (hook.monitor, hook.rule, hook.patience, hook.min_delta) == ('aAcc', 'less', 3, 1e-6)


def test_start_weights_are_taken_out_wherever_they_are():
    loads = dict(type='Pretrained', checkpoint='x')
    draws = dict(type='Normal', std=0.1)
    model = dict(init_cfg=draws, backbone=dict(init_cfg=loads), neck=[dict(a=({'init_cfg': [draws, loads]}, ))],
                 head=dict(init_cfg=[draws, draws]), mask=dict(init_cfg=None), checkpoint='kept')
    options.drop_pretrained(model)
    assert model == dict(init_cfg=draws, backbone=dict(init_cfg=None), neck=[dict(a=({'init_cfg': None}, ))],
                         head=dict(init_cfg=[draws, draws]), mask=dict(init_cfg=None), checkpoint='kept')


def test_pictures_go_to_the_folder_asked_for(tmp_path, monkeypatch):
    """The hooks of the frameworks do not draw into it: they overwrite files, and mmseg's has no option for a folder."""
    monkeypatch.chdir(tmp_path)
    cfg, own = load_config(TINY_SEG_CONFIG), type('OwnHook', (), {})  # of a user, who knows what it takes
    options.set_show_dir(cfg, 'shown')
    assert cfg.default_hooks.checkpoint and cfg.default_hooks.visualization == dict(
        type='DrawingHook', draw=True, test_out_dir=str(tmp_path / 'shown'), overwrite=False)
    for hook in (dict(type='mmdet.DetVisualizationHook', score_thr=0.5), dict(type='SegVisualizationHook'),
                 dict(type=DetVisualizationHook), dict(type=own), None):
        cfg = Config(dict(model=1) if hook is None else dict(default_hooks=dict(visualization=hook)))
        options.set_show_dir(cfg, tmp_path, overwrite=True)
        wanted = dict(hook or {}, draw=True, test_out_dir=str(tmp_path))
        if wanted.get('type') is not own:
            wanted.update(type='DrawingHook', overwrite=True)
        assert cfg.default_hooks.visualization == wanted


IN_HALF = dict(type='Bfloat16OptimWrapper')
SCALED = dict(type='AmpOptimWrapper', loss_scale='dynamic')
OWN_SCALE = dict(loss_scale=512., dtype='float16')
#: GPU, whether the device multiplies in bfloat16, --amp, what the config has, that of the resumed run, what it gets.
MIXED = (
    (True, True, 'auto', {}, None, IN_HALF), (True, False, 'auto', {}, None, SCALED),
    (True, True, 'float16', {}, None, SCALED), (True, True, 'float16', dict(loss_scale=8.), None, SCALED | dict(
        loss_scale=8.)), (True, True, 'bfloat16', OWN_SCALE, None, IN_HALF),
    (True, True, 'auto', OWN_SCALE, None, dict(type='AmpOptimWrapper', **OWN_SCALE)),
    (True, True, 'auto', dict(type='mmengine.AmpOptimWrapper', dtype='bfloat16'), None, dict(
        type='mmengine.AmpOptimWrapper', dtype='bfloat16')),
    (True, True, 'auto', {}, SCALED, SCALED), (True, False, 'auto', OWN_SCALE, IN_HALF, IN_HALF),
    (True, True, 'auto', {}, dict(type='OptimWrapper'), IN_HALF),
    (False, True, 'auto', OWN_SCALE, None, IN_HALF), (False, True, 'auto', {}, SCALED, IN_HALF),
    (False, False, 'auto', OWN_SCALE, None, dict(type='OptimWrapper')), (False, False, 'auto', {}, IN_HALF, IN_HALF))


@pytest.mark.parametrize('gpu, multiplies, dtype, own, before, wanted', MIXED)
def test_mixed_precision(gpu, multiplies, dtype, own, before, wanted, monkeypatch):
    """In bfloat16 where the device multiplies in it, unless the config or the resumed run has another kind."""
    monkeypatch.setattr(options.torch.cuda, 'is_available', lambda: gpu)
    for module in (machine, options):
        monkeypatch.setattr(module, 'has_bfloat16', lambda device: multiplies)
    cfg = Config(dict(optim_wrapper=dict(dict(type='OptimWrapper', accumulative_counts=2), **own)))
    options.set_amp(cfg, dtype, before and dict(optim_wrapper=before))
    assert cfg.optim_wrapper == dict(wanted, accumulative_counts=2)


def test_float16_needs_a_gpu():
    with pytest.raises(ConfigError, match='--amp float16 needs a GPU'):
        options.set_amp(Config(dict(optim_wrapper=dict(type='OptimWrapper'))), 'float16')


def test_a_data_root_moves_what_lies_below_the_old_one_alone(tmp_path):
    cfg = Config(dict(
        data_root='old/', train_dataloader=dict(dataset=dict(type='x', data_root='old/', ann_file='a.json')),
        val_dataloader=dict(dataset=dict(type='x', data_root='other')), test_dataloader=None,
        val_evaluator=[dict(ann_file='old/b/c.json', number=3, format='old'), dict(ann_file='other/d.json')],
        test_evaluator=dict(ann_file='elsewhere/old/e.json', prefix='older/f', metrics=[dict(ann_file='old/g')])))
    options.set_data_root(cfg, tmp_path)
    root = str(tmp_path)
    assert cfg.train_dataloader.dataset == dict(type='x', data_root=root, ann_file='a.json')
    assert cfg.val_dataloader.dataset.data_root == root and cfg.data_root == root
    assert cfg.val_evaluator == [dict(ann_file=f'{root}/b/c.json', number=3, format=root),
                                 dict(ann_file=f'{root}/d.json')]
    assert cfg.test_evaluator == dict(ann_file='elsewhere/old/e.json', prefix='older/f',
                                      metrics=[dict(ann_file=f'{root}/g')])
    cfg = Config(dict(train_dataloader=dict(dataset=dict(type='x'))))  # no root before, and no variable of that name
    options.set_data_root(cfg, '~/data')
    assert cfg.train_dataloader.dataset.data_root == str(Path.home() / 'data') and 'data_root' not in cfg


def test_an_evaluator_is_in_the_inner_of_two_data_roots(tmp_path, monkeypatch):
    """Data sets that become the same are told by the check of the data."""
    monkeypatch.chdir(tmp_path)
    for roots in (('data', 'data/coco'), ('data/coco', 'data')):
        train, val = (dict(dataset=dict(type='ConcatDataset', datasets=[
            dict(type='CocoDataset', data_root=root, ann_file='x')])) for root in roots)
        cfg = Config(dict(train_dataloader=train, val_dataloader=val, val_evaluator=dict(
            type='CocoMetric', ann_file='data/coco/annotations/a.json')))
        options.set_data_root(cfg, 'new')
        assert cfg.val_evaluator.ann_file == f'{tmp_path}/new/annotations/a.json'  # for tests from any folder


def test_a_missing_package_is_one_sentence(tmp_path, monkeypatch):
    for name in ('wandb', 'tensorboard'):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SetupError) as error:
        options.check_loggers(['wandb', 'tensorboard', 'wandb'])
    assert str(error.value) == 'packages for --log are not installed: pip install wandb tensorboard'
    (tmp_path / 'mlruns').mkdir()  # no package, but a folder of that name
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SetupError, match='pip install mlruns'):
        options.check_loggers(['mlruns'])


@pytest.mark.parametrize('name', [name for name in VALIDATED if '_n12_p16' in name])
def test_every_config_loads_annotations_right_after_the_image(name):
    cfg = load_config(name)
    before = cfg.to_dict()
    loader = loss_dataloader(cfg)
    assert cfg.to_dict() == before  # predictions are evaluated as ever
    steps, validation = loader['dataset']['pipeline'], cfg.val_dataloader.dataset.pipeline
    assert sorted(map(repr, steps)) == sorted(map(repr, validation))
    if name in DENSE:
        assert [step['type'] for step in steps[:2]] == ['LoadImageFromFile', 'LoadAnnotations']
    else:
        assert steps == validation
    assert loader['batch_size'] == (1 if name in DENSE else cfg.val_dataloader.batch_size)
    assert steps[-1] == validation[-1] and loader['num_workers'] == cfg.val_dataloader.num_workers


def detection(validation, training):
    loaders = [dict(batch_size=4, dataset=dict(type='CocoDataset', pipeline=pipeline))
               for pipeline in (training, validation)]
    return Config(dict(default_scope='mmdet', model=dict(type='MaskRCNN'), val_cfg=dict(),
                       train_dataloader=loaders[0], val_dataloader=loaders[1]))


@pytest.mark.parametrize(('validation', 'training', 'wanted'), [
    # masks are needed if the training has them
    ([IMAGE, RESIZE, BOXES, PACK], [IMAGE, MASKS, RESIZE, PACK], [IMAGE, MASKS, RESIZE, PACK]),
    # no annotations at all
    ([IMAGE, RESIZE, dict(type='LoadEmptyAnnotations'), PACK], [IMAGE, BOXES, PACK],
     [IMAGE, BOXES, RESIZE, dict(type='LoadEmptyAnnotations'), PACK]),
    # several steps, classes and scopes
    ([dict(type=LoadImageFromFile), RESIZE, dict(type='mmdet.LoadAnnotations', box_type='hbox'), PACK],
     [IMAGE, MASKS, PACK],
     [dict(type=LoadImageFromFile), MASKS, RESIZE, PACK]),
    # steps inside others stay
    ([IMAGE, dict(type='RandomChoice', transforms=[[RESIZE, BOXES]]), PACK], [IMAGE, MASKS, PACK],
     [IMAGE, dict(type='RandomChoice', transforms=[[RESIZE, BOXES]]), PACK])])
def test_steps_of_other_configs(validation, training, wanted):
    assert loss_dataloader(detection(validation, training))['dataset']['pipeline'] == wanted


def test_the_hook_comes_once_and_needs_validation():
    cfg = detection([IMAGE, BOXES, PACK], [IMAGE, BOXES, PACK])
    cfg.custom_hooks = [dict(type='EMAHook')]
    for _ in range(2):
        set_val_loss(cfg)
    assert cfg.custom_hooks == [dict(type='EMAHook'), dict(type='ValLossHook')]
    for missing in ('val_dataloader', 'val_cfg'):
        with pytest.raises(ConfigError, match='--val-loss needs validation, and this config has none: set val'):
            set_val_loss(Config(dict(cfg._cfg_dict, **{missing: None})))


@pytest.mark.parametrize('gpu, enabled, kept', ((True, True, True), (True, False, False), (False, False, True)))
def test_graphs_are_for_gpus_and_can_be_turned_off(gpu, enabled, kept, monkeypatch):
    """Also those that a config asks for; without a GPU the config stays as it is."""
    monkeypatch.setattr(options.torch.cuda, 'is_available', lambda: gpu)
    hooks = [dict(type='CUDAGraphHook'), dict(type='FuseHook')]
    cfg, other = Config(dict(custom_hooks=hooks)), Config({})
    options.set_graphs(cfg, enabled)
    options.set_graphs(other, enabled)
    assert (hooks[0] in cfg.custom_hooks) == kept and hooks[1] in cfg.custom_hooks
    assert (other.get('custom_hooks') or []) == [hooks[0]] * (gpu and enabled)
