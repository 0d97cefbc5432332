"""Configs, and what the tools' options do to them."""
import json

import pytest
import torch
from conftest import MAIN_CONFIG, SMALL_CONFIG, run_tool
from mmengine.registry import MODELS, init_default_scope

from xcit_dense import get_arch
from xcit_dense.engine import config
from xcit_dense.errors import ConfigError, DataError


@pytest.fixture
def main():
    return config.load_config(MAIN_CONFIG)


def test_main_config_is_the_published_recipe(main):
    backbone = main.model.backbone
    assert (backbone.type, backbone.arch, backbone.drop_path_rate) == ('XCiT', 'small_12_p8', 0.05)
    assert backbone.init_cfg == dict(type='Pretrained', checkpoint='xcit://small_12_p8_384_dist')
    assert main.model.neck.in_channels == [get_arch(backbone.arch).embed_dims] * 4
    assert main.model.neck.out_channels == 256 and main.model.neck.num_outs == 5
    assert main.model.rpn_head.anchor_generator.strides == [4, 8, 16, 32, 64]
    assert main.model.roi_head.bbox_head.num_classes == main.model.roi_head.mask_head.num_classes == 80
    optimizer = main.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ('AdamW', 1e-4, 0.05)
    assert 'clip_grad' not in main.optim_wrapper
    warm_up, steps = main.param_scheduler
    assert (warm_up.type, warm_up.start_factor, warm_up.begin, warm_up.end, warm_up.by_epoch) == \
        ('LinearLR', 0.001, 0, 500, False)
    assert (steps.type, steps.milestones, steps.gamma) == ('MultiStepLR', [27, 33], 0.1)
    assert main.train_cfg.max_epochs == 36
    assert main.auto_scale_lr.base_batch_size == 16 and main.train_dataloader.batch_size == 2
    assert main.model.data_preprocessor.pad_size_divisor == 32
    assert main.test_dataloader.dataset.pipeline[1] == dict(type='Resize', scale=(1333, 800), keep_ratio=True)
    _, _, _, choice, _ = main.train_dataloader.dataset.pipeline
    multi_scale = [(side, 1333) for side in (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)]
    assert choice.transforms[0][0].scales == choice.transforms[1][2].scales == multi_scale
    assert choice.transforms[1][0].scales == [(400, 1333), (500, 1333), (600, 1333)]
    assert choice.transforms[1][1].crop_size == (384, 600)


def test_weight_decay_spares_the_layer_norms_of_the_blocks_only(main):
    from mmengine.optim import build_optim_wrapper
    init_default_scope('mmdet')
    main.model.backbone.arch = 'nano_12_p8'
    main.model.neck.in_channels = [128] * 4
    model = MODELS.build(main.model)
    groups = build_optim_wrapper(model, main.optim_wrapper).param_groups
    spared = {id(p) for g in groups if g['weight_decay'] == 0 for p in g['params']}
    names = {name for name, p in model.named_parameters() if id(p) in spared}
    assert names == {f'backbone.blocks.{i}.norm{k}.{part}' for i in range(12) for k in (1, 2, 3)
                     for part in ('weight', 'bias')}
    assert {g['weight_decay'] for g in groups} == {0., 0.05}


def test_data_root_reaches_all_loaders_and_evaluators(tmp_path):
    cfg = config.load_config(MAIN_CONFIG, data_root=tmp_path)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert loader.dataset.data_root == str(tmp_path)
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        assert evaluator.ann_file == str(tmp_path / 'annotations/instances_val2017.json')
    assert 'data/coco' not in cfg.pretty_text.replace("data_root = 'data/coco/'", '')


def test_data_root_reaches_wrapped_data_sets_and_lists_of_evaluators(tmp_path):
    path = tmp_path / 'wrapped.py'
    path.write_text(f"_base_ = '{SMALL_CONFIG}'\n"
                    "train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=2, dataset=dict("
                    "type='ConcatDataset', datasets=[dict(type='CocoDataset', data_root='data/coco/',"
                    "ann_file='a.json', data_prefix=dict(img='i/'))])))\n"
                    "val_evaluator = [dict(type='CocoMetric', ann_file='data/coco/annotations/v.json')]\n")
    cfg = config.load_config(path, data_root='/elsewhere')
    assert cfg.train_dataloader.dataset.dataset.datasets[0].data_root == '/elsewhere'
    assert cfg.val_evaluator[0].ann_file == '/elsewhere/annotations/v.json'
    config.set_classes(cfg, ['a', 'b'])
    assert cfg.train_dataloader.dataset.dataset.datasets[0].metainfo.classes == ('a', 'b')


def test_no_pretrained_takes_every_start_weight_out():
    cfg = config.load_config(MAIN_CONFIG, pretrained=False)
    assert cfg.model.backbone.init_cfg is None
    assert 'Pretrained' not in cfg.model.__repr__()


def test_missing_data_is_one_error_with_the_layout(main, tmp_path):
    (tmp_path / 'annotations').mkdir()
    (tmp_path / 'annotations/instances_train2017.json').touch()
    cfg = config.load_config(MAIN_CONFIG, data_root=tmp_path)
    with pytest.raises(DataError) as caught:
        config.check_data(cfg)
    text = str(caught.value)
    assert f'found    {tmp_path}/annotations/instances_train2017.json' in text
    for part in ('annotations/instances_val2017.json', 'train2017', 'val2017'):
        assert f'missing  {tmp_path}/{part}' in text
    assert '--data-root' in text


def test_classes_come_from_the_data(demo_data):
    cfg = config.load_config(SMALL_CONFIG, data_root=demo_data)
    classes = config.classes_of_data(cfg)
    assert classes == ('disc', 'square', 'triangle', 'star', 'cross')
    config.set_classes(cfg, classes)
    assert cfg.model.roi_head.bbox_head.num_classes == cfg.model.roi_head.mask_head.num_classes == 5
    assert cfg.val_dataloader.dataset.metainfo.classes == classes
    assert len(set(map(tuple, cfg.val_dataloader.dataset.metainfo.palette))) == 5


def test_classes_keep_the_order_of_the_file_as_mmdet_does(demo_data, tmp_path):
    (tmp_path / 'annotations').mkdir()
    content = json.loads((demo_data / 'annotations/instances_train2017.json').read_text())
    content['categories'].reverse()
    (tmp_path / 'annotations/instances_train2017.json').write_text(json.dumps(content))
    cfg = config.load_config(SMALL_CONFIG, data_root=tmp_path)
    assert config.classes_of_data(cfg) == ('cross', 'star', 'triangle', 'square', 'disc')


def test_file_that_is_no_coco_file(demo_data, tmp_path):
    (tmp_path / 'annotations').mkdir()
    (tmp_path / 'annotations/instances_train2017.json').write_text(json.dumps([1, 2]))
    with pytest.raises(DataError, match='instances_train2017.json is no COCO'):
        config.classes_of_data(config.load_config(SMALL_CONFIG, data_root=tmp_path))


def test_misspelt_config_is_told_the_near_ones():
    with pytest.raises(ConfigError, match='did you mean .*maskrcnn_xcit_s12_p8_coco.py'):
        config.load_config(MAIN_CONFIG.with_name('maskrcn_xcit_s12_p8_coco.py'))


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_amp_without_a_gpu_is_refused(main):
    with pytest.raises(ConfigError, match='--amp needs a GPU'):
        config.set_amp(main)


def test_auto_scale_lr_needs_a_base(main):
    config.set_auto_scale_lr(main)
    assert main.auto_scale_lr.enable
    main._cfg_dict.pop('auto_scale_lr')
    with pytest.raises(ConfigError, match='base_batch_size'):
        config.set_auto_scale_lr(main)


@pytest.mark.parametrize('name', ('train.py', 'test.py', 'predict.py', 'plot_curves.py', 'make_demo_data.py',
                                  'measure.py'))
def test_every_tool_has_help(name, tmp_path):
    assert 'usage:' in run_tool(name, '--help', cwd=tmp_path).stdout
