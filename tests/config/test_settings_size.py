"""Another image size, in every pipeline and everywhere else that pixels are counted."""
from pathlib import Path

import numpy as np
import pytest
import torch
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.structures import InstanceData

from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.config import settings
from xcit_dense.config.fit.fitting import use_fit
from xcit_dense.config.image_size import box_of, set_image_size
from xcit_dense.config.image_size import test_size_of as size_of_test
from xcit_dense.config.loading import load_config, read_config
from xcit_dense.config.settings import Settings
from xcit_dense.config.testing import find_resolution, set_test_size
from xcit_dense.errors import ConfigError
from xcit_dense.weights import newest_checkpoint, read_checkpoint

DETECTOR = 'maskrcnn_xcit_s12_p16_coco'


def config(train, **more):
    return Config(dict(default_scope='mmdet', **more, **{
        f'{name}_dataloader': dict(dataset=dict(type='A', pipeline=steps))
        for name, steps in dict(train=list(train), test=[dict(type='Resize', scale=(800, 800))]).items()}))


def steps_of(cfg, loader='train'):
    return cfg[f'{loader}_dataloader'].dataset.pipeline


def test_the_recipe_for_detection():
    """Loaders that share a pipeline are changed once, and nothing changes for a test but its own loader."""
    cfg, before = read_config(DETECTOR), read_config(DETECTOR)
    cfg.test_dataloader = cfg.val_dataloader
    set_image_size(cfg, 640)
    (large, ), (small, crop, again) = steps_of(cfg)[3].transforms
    assert large.scales == again.scales and large.scales[0] == (384, 384) and large.scales[-1] == (640, 640)
    assert small.scales == [(320, 320), (400, 400), (480, 480)] and crop.crop_size == (224, 360)
    assert steps_of(cfg, 'test')[1].scale == steps_of(cfg, 'val')[1].scale == (640, 640)
    cfg = read_config(DETECTOR)
    set_image_size(cfg, (1333, 800))
    assert cfg._cfg_dict == before._cfg_dict and size_of_test(cfg) == [1333, 800]
    cfg, before = (read_config('upernet_xcit_s12_p16_ade20k') for _ in range(2))
    set_image_size(cfg, 320, ['test_dataloader'])
    assert size_of_test(cfg) == [320]
    assert all(cfg[key] == before[key] for key in ('train_dataloader', 'val_dataloader', 'model'))


@pytest.mark.parametrize('name, size, scale, crop', (
    ('upernet_xcit_s12_p16_ade20k', 640, (2560, 640), (640, 640)),
    ('upernet_xcit_s12_p16_ade20k', (1024, 512), (1024, 512), (512, 1024)),
    ('semfpn_xcit_n12_p16_small', 384, (384, 384), (320, 320))))
def test_the_recipes_for_segmentation(name, size, scale, crop):
    cfg = read_config(name)
    steps_of(cfg).append(dict(type='Pad', size=steps_of(cfg)[3].crop_size))  # as VOC's in mmseg
    set_image_size(cfg, size)
    assert steps_of(cfg)[2].scale == steps_of(cfg, 'val')[1].scale == steps_of(cfg, 'test')[1].scale == scale
    assert steps_of(cfg)[3].crop_size == cfg.model.data_preprocessor.size == crop
    assert steps_of(cfg)[-1]['size'] == crop[::-1]


def test_classification_keeps_the_crop_ratio():
    cfg = read_config('xcit_s12_p16_custom')
    for loader in ('val', 'test'):
        steps_of(cfg, loader)[1].scale = 256
    set_image_size(cfg, 384)
    assert steps_of(cfg)[1].scale == 384
    assert [steps_of(cfg, 'test')[1].scale, steps_of(cfg, 'test')[2].crop_size] == [439, 384]
    with pytest.raises(ConfigError, match='one side'):
        set_image_size(cfg, (384, 256))
    steps_of(cfg, 'test')[:] = [dict(type='Resize', scale=256), dict(type='CenterCrop', crop_size=224)]
    set_image_size(cfg, 112)  # that of the last step
    assert [*steps_of(cfg, 'test')] == [dict(type='Resize', scale=128), dict(type='CenterCrop', crop_size=112)]


def test_what_is_a_box():
    """Of a short edge with the longest side both, and no canvas."""
    for steps, box in (([dict(type='ResizeShortestEdge', scale=(640, 640), max_size=2560)], (2560, 640)),
                       ([dict(type='Pad', size=(1024, 1024)), dict(type='Resize', scale=(1333, 800))], (1333, 800))):
        assert box_of(Config(dict(test_dataloader=dict(dataset=dict(type='CocoDataset', pipeline=steps))))) == box


@pytest.mark.parametrize('steps, wanted', (
    ([dict(type='RandomResize', scale=(1024, 1024), ratio_range=(0.1, 2.0)),
      dict(type='RandomCrop', crop_type='absolute', crop_size=(1024, 1024)), dict(type='Pad', size=(1024, 1024))],
     [dict(scale=(400, 400)), dict(crop_size=(400, 400)), dict(size=(400, 400))]),
    ([dict(type='Mosaic', img_scale=(640, 640)), dict(type='RandomAffine', border=(-320, -320), scale=(0.1, 2)),
      dict(type='MixUp', img_scale=(512, 512), ratio_range=(0.8, 1.6))],
     [dict(img_scale=(400, 400)), dict(border=(-200, -200)), dict(img_scale=(320, 320))]),
    ([dict(type='RandomResize', scale=[(1333, 640), (1333, 800)])], [dict(scale=[(320, 320), (400, 400)])]),
    ([dict(type='ResizeShortestEdge', scale=800, max_size=1333)], [dict(scale=400, max_size=400)]),
    ([dict(type='FixShapeResize', width=640, height=640)], [dict(width=400, height=400)]),
    ([dict(type='Resize', scale_factor=1.5), dict(type='Resize', scale=(800, 800)),
      dict(type='RandomCrop', crop_type='relative', crop_size=(0.5, 0.5)), dict(type='RandomCrop', crop_size=(32, 96))],
     [dict(scale_factor=1.5), dict(scale=(400, 400)), dict(crop_size=(0.5, 0.5)), dict(crop_size=(32, 64))])))
def test_steps_of_the_frameworks(steps, wanted):
    cfg = config(steps)
    set_image_size(cfg, 400)
    assert steps_of(cfg) == [{**before, **after} for before, after in zip(steps, wanted, strict=True)]


def test_a_crop_of_mmdet_has_the_width_first():
    """That of mmseg the height, as have other sizes of both. Steps name their sides or begin with the width."""
    sides = dict(Mosaic=dict(img_scale=(1024, 1024)), RandomAffine=dict(border=(-512, -512)),
                 ResizeShortestEdge=dict(scale=1024, max_size=1024), FixShapeResize=dict(width=1024, height=1024))
    cfg = config([dict(type=kind, **side) for kind, side in sides.items()])
    set_image_size(cfg, (400, 320))
    assert {step.pop('type'): step for step in steps_of(cfg)} == dict(
        Mosaic=dict(img_scale=(400, 320)), RandomAffine=dict(border=(-200, -160)),
        ResizeShortestEdge=dict(scale=320, max_size=400), FixShapeResize=dict(width=400, height=320))
    for kind, scope, wanted in (('RandomCrop', 'mmdet', (400, 320)), ('RandomCenterCropPad', 'mmdet', (400, 320)),
                                ('RandomCrop', 'mmseg', (320, 400))):
        cfg = config([dict(type='RandomResize', scale=(1024, 1024)), dict(type=kind, crop_size=(1024, 1024))],
                     data_preprocessor=dict(type='P', batch_augments=[dict(size=(1024, 1024))]))
        cfg.default_scope = scope
        set_image_size(cfg, (400, 320))
        assert steps_of(cfg)[1].crop_size == wanted and cfg.data_preprocessor.batch_augments[0].size == (320, 400)


def test_preprocessors_windows_wrapped_data_sets_and_switched_pipelines():
    model = dict(type='Mine', data_preprocessor=dict(type='P', size_divisor=32, batch_augments=[
        dict(type='BatchFixedSizePad', size=(800, 800)), dict(type='BatchSyncRandomResize', interval=10,
                                                              size_divisor=32, random_size_range=(480, 800))]),
                 test_cfg=dict(mode='slide', crop_size=(800, 800), stride=(512, 512)))
    resize = dict(type='Resize', scale=(800, 800))
    cfg = config([dict(type='Mosaic', img_scale=(800, 800))], model=model, custom_hooks=[
        dict(type='PipelineSwitchHook', switch_epoch=3, switch_pipeline=[dict(resize)])])
    cfg.train_dataloader.dataset.dataset = dict(type='RepeatDataset', dataset=dict(type='A', pipeline=[dict(resize)]))
    set_image_size(cfg, 400)
    pad, change = cfg.model.data_preprocessor.batch_augments
    assert pad.size == (400, 400) and change.random_size_range == (256, 384) and change.size_divisor == 32
    assert cfg.model.test_cfg == dict(mode='slide', crop_size=(400, 400), stride=(256, 256))
    assert cfg.train_dataloader.dataset.dataset.dataset.pipeline[0].scale == (400, 400)
    assert cfg.custom_hooks[0].switch_pipeline[0].scale == steps_of(cfg)[0].img_scale == (400, 400)


def test_a_checkpoint_of_another_size_is_told_and_used(own, capsys):
    cfg, other = read_config('semfpn_xcit_n12_p16_small'), read_config('semfpn_xcit_n12_p16_small')
    set_image_size(other, 256)
    checkpoint = dict(meta=dict(cfg=other.pretty_text))
    for each, saved, given in ((other, checkpoint, ()), (cfg, None, ()), (cfg, dict(meta=dict(cfg='what is this')), ()),
                               (cfg, checkpoint, ['--image-size'])):
        use_fit(each, saved, given, source='run')
    assert not capsys.readouterr().out and box_of(cfg) == (192, 192)
    mine = load_config(own('_base_.test_dataloader.dataset.pipeline[1].scale = (192, 192)', cfg.filename))
    whole = Path(mine.filename).with_name('whole.py')  # based on no config of this package
    whole.write_text(mine.pretty_text)
    whole = Config.fromfile(whole)
    for each, size, run in ((mine, 192, 'run'), (whole, 192, 'other'), (cfg, 256, 'run')):
        use_fit(each, checkpoint, source=run)
        said = capsys.readouterr().out
        assert f'{run} was trained to be tested at 256' in said and '192' in said and box_of(each) == (size, size)
        assert ('Use --image-size 256' in said) == (size == 192)


def data(scale=80, crop_size=64, **resize):
    """The data set of a classifier."""
    return dict(pipeline=[dict(type='LoadImageFromFile'), dict(type='ResizeEdge', scale=scale, **resize),
                          dict(type='mmpretrain.CenterCrop', crop_size=crop_size)])


def test_the_resolution_of_a_classifier():
    for crop_size in (64, (64, 64), [64, 64]):
        assert find_resolution(data(crop_size=crop_size)) == (64, 0.8)
        for size, ratio, wanted in ((32, None, (40, 32)), (None, 1., (64, 64)), (32, 0.5, (64, 32))):
            cfg = Config(dict(test_dataloader=dict(dataset=data(crop_size=crop_size))))
            set_test_size(cfg, size, ratio)
            assert (steps_of(cfg, 'test')[1].scale, steps_of(cfg, 'test')[2].crop_size) == wanted
    assert find_resolution(data(scale=50)) == (64, 1.)
    for dataset in (data(crop_size=(64, 32)), data(edge='long'), data(scale=(80, 80)), data(scale=0), {}):
        assert find_resolution(dataset) == (None, 1.) and find_resolution(dataset, 5, 0.5) == (5, 0.5)
        with pytest.raises(ConfigError, match='for classifiers, whose test pipeline'):
            set_test_size(Config(dict(test_dataloader=dict(dataset=dataset))), 32)
    for options, words in ((dict(size=0), 'got 0'), (dict(crop_ratio=0.), 'got 0'),
                           (dict(crop_ratio=1.5), 'at most 1.*1.5')):
        with pytest.raises(ConfigError, match=words):
            find_resolution(data(), **options)


def canvas_config(**changes):
    return load_config(TINY_CONFIG, cfg_options=changes, settings=Settings(canvas=(96, 64)), pretrained=False)


@pytest.mark.parametrize('sizes, wanted', (
    (((40, 80), (64, 30)), (64, 96)), (((96, 64), (50, 50)), (96, 64)), (((70, 40), (40, 70)), (96, 96)),
    (((64, 64), ), (64, 96)), (((100, 40), ), (100, 40))))
def test_a_canvas_is_wide_upright_or_square(sizes, wanted):
    """Images and masks are padded with zeros; those that are larger are not, and predictions are not."""
    cfg = canvas_config(**{'model.data_preprocessor.pad_size_divisor': 1})
    preprocessor = MODELS.build(cfg.model.data_preprocessor)
    data = dict(inputs=[torch.full((3, *size), 255, dtype=torch.uint8) for size in sizes], data_samples=[
        DetDataSample(metainfo=dict(img_shape=size), gt_instances=InstanceData(
            bboxes=torch.tensor([[0., 0., 9., 9.]]), masks=BitmapMasks(np.ones((1, *size), np.uint8), *size)))
        for size in sizes])
    found = preprocessor(data, training=True)
    assert found['inputs'].shape == (len(sizes), 3, *wanted)
    for image, sample, (height, width) in zip(found['inputs'], found['data_samples'], sizes, strict=True):
        assert image[:, :height, :width].all() and image.count_nonzero() == 3 * height * width
        assert sample.gt_instances.masks.masks.shape == (1, *wanted) and sample.batch_input_shape == wanted
        assert sample.gt_instances.masks.masks.sum() == height * width
    batch = [max(sides) for sides in zip(*sizes, strict=True)]
    assert list(preprocessor(data, training=False)['inputs'].shape[2:]) == batch


def test_a_canvas_is_part_of_the_config(logged):
    """The module that pads is imported with it, also where a user's config has none; one before is replaced."""
    said, cfg = logged(settings), read_config(TINY_CONFIG)
    cfg.custom_imports = dict(imports='xcit_dense')
    cfg.model.data_preprocessor.batch_augments = [dict(type='BatchFixedSizePad', size=(9, 9)), dict(type='Own')]
    settings.apply_settings(cfg, Settings(canvas=(96, 64)))
    assert cfg.model.data_preprocessor.batch_augments == [
        dict(type='Own'), dict(type='BatchCanvasPad', size=(96, 64), pad_mask=True)]
    assert cfg.custom_imports.imports == ['xcit_dense', 'xcit_dense.for_mmdet']
    assert any('--canvas 96 64' in line for line in said)
    cfg = load_config(DETECTOR, settings=Settings(canvas=(1333, 800)), pretrained=False)
    assert cfg.model.data_preprocessor.batch_augments[0]['size'] == (1344, 800)  # multiples of 32
    with pytest.raises(ConfigError, match='--canvas must hold the images .* 1333 x 800'):
        load_config(DETECTOR, settings=Settings(canvas=(800, 800)), pretrained=False)
    for path in (TINY_SEG_CONFIG, TINY_CLS_CONFIG):
        with pytest.raises(ConfigError, match='--canvas pads the batches of a detector'):
            load_config(path, settings=Settings(canvas=(96, 64)), pretrained=False)


def test_a_detector_trains_on_a_canvas(demo_data, tmp_path):
    run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--no-pretrained', '--canvas',
             128, 96, '--cfg-options', 'train_cfg.max_epochs=1')
    assert 'BatchCanvasPad' in read_checkpoint(newest_checkpoint(tmp_path))['meta']['cfg']
    run_tool('test.py', tmp_path, '--data-root', demo_data)
