"""The loader of the validation data for losses: when it loads annotations, and how it makes batches."""
import copy

import pytest
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config

from helpers.recipes import DENSE, VALIDATED
from xcit_dense.config.loading import load_config
from xcit_dense.config.options import loss_dataloader, set_val_loss
from xcit_dense.errors import ConfigError

IMAGE, RESIZE = dict(type='LoadImageFromFile'), dict(type='Resize', scale=(32, 32))
BOXES = dict(type='LoadAnnotations', with_bbox=True)
MASKS = dict(type='LoadAnnotations', with_bbox=True, with_mask=True, poly2mask=False)
PACK = dict(type='PackDetInputs')


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


def test_other_loaders():
    """Data sets inside others."""
    cfg = detection([IMAGE, RESIZE, BOXES, PACK], [IMAGE, MASKS, PACK])
    inner = cfg.val_dataloader.dataset
    cfg.val_dataloader.dataset = dict(type='ConcatDataset', datasets=[
        inner, dict(type='RepeatDataset', times=2, dataset=copy.deepcopy(inner))])
    first, second = loss_dataloader(cfg)['dataset']['datasets']
    assert first['pipeline'] == second['dataset']['pipeline'] == [IMAGE, MASKS, RESIZE, PACK]


def test_the_hook_comes_once_and_needs_validation():
    cfg = detection([IMAGE, BOXES, PACK], [IMAGE, BOXES, PACK])
    cfg.custom_hooks = [dict(type='EMAHook')]
    for _ in range(2):
        set_val_loss(cfg)
    assert cfg.custom_hooks == [dict(type='EMAHook'), dict(type='ValLossHook')]
    for missing in ('val_dataloader', 'val_cfg'):
        with pytest.raises(ConfigError, match='--val-loss needs validation, and this config has none: set val'):
            set_val_loss(Config(dict(cfg._cfg_dict, **{missing: None})))
