"""--augment light and strong: boxes, masks and labels stay on the objects, and a run with it resumes exactly."""
import json

import cv2
import numpy as np
import pytest
from mmdet.registry import TRANSFORMS
from mmengine.registry import DATASETS, init_default_scope

from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import At, assert_same_run, make_config, terminate, train
from xcit_dense.config.loading import load_config, read_config
from xcit_dense.config.settings import Settings, apply_settings
from xcit_dense.data.classes import take_classes
from xcit_dense.data.datasets import dicts_in
from xcit_dense.errors import ConfigError, Stopped

#: A detector that reads no masks.
NO_MASKS = {f'{loader}.dataset.pipeline.{place}.with_mask': False
            for loader, place in (('train_dataloader', 1), ('val_dataloader', 2), ('test_dataloader', 2))}


@pytest.fixture(scope='module')
def bright(tmp_path_factory):
    """Dark images with one bright rectangle each, in COCO's layout and as label maps."""
    root, draw = tmp_path_factory.mktemp('bright'), np.random.default_rng(0)
    for name in ('train2017', 'images', 'annotations/training'):
        (root / name).mkdir(parents=True)
    images, objects = [], []
    for number in range(6):
        (w, h), (x, y) = draw.integers(30, 60, 2).tolist(), draw.integers(5, 40, 2).tolist()
        picture, labels = np.full((100, 120, 3), 20, np.uint8), np.zeros((100, 120), np.uint8)
        picture[y:y + h, x:x + w], labels[y:y + h, x:x + w] = 220, 1
        cv2.imwrite(str(root / f'train2017/{number}.png'), picture)
        cv2.imwrite(str(root / f'annotations/training/{number}.png'), labels)
        images.append(dict(id=number, file_name=f'{number}.png', width=120, height=100))
        objects.append(dict(id=number, image_id=number, category_id=1, bbox=[x, y, w, h], area=w * h, iscrowd=0,
                            segmentation=[[x, y, x + w, y, x + w, y + h, x, y + h]]))
    (root / 'annotations/instances_train2017.json').write_text(json.dumps(dict(
        images=images, annotations=objects, categories=[dict(id=1, name='thing')])))
    (root / 'classes.txt').write_text('ground\nthing\n')
    for source, copy in (('train2017', 'val2017'), ('train2017', 'images/training'), ('train2017', 'images/validation'),
                         ('annotations/training', 'annotations/validation'),
                         ('annotations/instances_train2017.json', 'annotations/instances_val2017.json')):
        (root / copy).symlink_to(root / source)  # without it some of the images would be held out
    return root


def samples(config, root, strength, count=4, **changes):
    """Inputs and annotations of the training data, some for each image, in the colours of the files."""
    cfg = load_config(config, data_root=str(root), cfg_options=changes,
                      settings=Settings(augment=strength, image_size=96))
    if cfg.get('classes_from_data'):
        take_classes(cfg, loaders=['train_dataloader'])
    init_default_scope(cfg.default_scope)
    for node in dicts_in(cfg.train_dataloader):
        if 'pipeline' in node:
            node['pipeline'] = [step for step in node['pipeline'] if step['type'] != 'PhotoMetricDistortion']
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    found = [dataset[index] for _ in range(count) for index in range(len(dataset))]
    assert len(found) == 6 * count
    return [(sample['inputs'].permute(1, 2, 0).numpy(), sample['data_samples']) for sample in found]


@pytest.mark.parametrize('options', ({}, NO_MASKS))
@pytest.mark.parametrize('strength', ('light', 'strong'))
def test_objects_lie_in_their_boxes_and_masks(strength, options, bright):
    """Bright pixels are neither background nor the grey of areas that no image covers."""
    several, shapes = 0, set()
    for picture, sample in samples(TINY_CONFIG, bright, strength, **options):
        objects, light = sample.gt_instances, picture.mean(2) > 165
        inside, several = np.zeros(light.shape, bool), several + (len(objects) > 1)
        shapes.add(light.shape)
        assert set(objects.labels.tolist()) <= {0} and len(objects.labels) == len(objects.bboxes)
        boxes = objects.bboxes.tensor.numpy() if hasattr(objects.bboxes, 'tensor') else objects.bboxes.numpy()
        for place, (x0, y0, x1, y1) in enumerate(boxes):
            inside[max(int(y0) - 2, 0):int(y1) + 3, max(int(x0) - 2, 0):int(x1) + 3] = True
            assert light[int(y0):int(np.ceil(y1)), int(x0):int(np.ceil(x1))].any()
            if not options:
                mask = objects.masks.masks[place].astype(bool)
                ys, xs = np.nonzero(mask)
                assert light[mask].mean() > 0.8 and ys.min() >= y0 - 2 and xs.max() <= x1 + 2
        assert (light & ~inside).sum() <= 0.01 * max(light.sum(), 1)
    assert (several > 0) == (strength == 'strong')  # pasted, or four in one
    assert len(shapes) > 1 or strength == 'strong' and shapes == {(96, 96)}


@pytest.mark.parametrize('size, width, height', (([1333, 800], 1024, 1024), ([100, 80], 100, 80)))
def test_strong_fills_a_square_in_place_of_a_long_image_and_turns_nothing(size, width, height, bright):
    masks, boxes = ({step['type']: step for step in dicts_in(load_config(
        TINY_CONFIG, data_root=str(bright), cfg_options=changes, settings=Settings(
            augment='strong', image_size=size)).train_dataloader) if 'type' in step} for changes in ({}, NO_MASKS))
    picture = TRANSFORMS.build(masks['RandomCrop'])(dict(img=np.zeros((300, 400, 3), np.uint8)))['img']
    assert picture.shape[:2] == (min(height, 300), min(width, 400))
    assert masks['Pad'].size == (width, height) and masks['Pad'].pad_val.img == (114, 114, 114)
    affine = boxes['RandomAffine']
    assert boxes['Mosaic'].img_scale == (width, height) and affine.border == (-width // 2, -height // 2)
    assert affine.max_rotate_degree == affine.max_shear_degree == 0


@pytest.mark.parametrize('strength', ('light', 'strong'))
def test_labels_lie_on_their_pixels(strength, bright):
    scenes = samples(TINY_SEG_CONFIG, bright, strength)
    for picture, sample in scenes:
        labels, light = sample.gt_sem_seg.data[0].numpy(), picture.mean(2) > 165
        assert labels.shape == light.shape and set(np.unique(labels)) <= {0, 1, 255}
        assert (light == (labels == 1))[labels != 255].mean() > 0.9
    assert len({picture.tobytes() for picture, _ in scenes}) > 6


@pytest.mark.parametrize('strength', ('light', 'strong'))
def test_classes_stay(strength, class_folders):
    pytest.importorskip('mmpretrain')
    cfg = load_config(TINY_CLS_CONFIG, data_root=str(class_folders), settings=Settings(augment=strength, image_size=48))
    init_default_scope('mmpretrain')
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    for index in range(len(dataset)):
        sample = dataset[index]
        assert sample['inputs'].shape == (3, 48, 48)
        assert int(sample['data_samples'].gt_label) == dataset.get_data_info(index)['gt_label']


def test_a_crop_counts_before_what_is_resized_for_it():
    cfg = read_config(TINY_CLS_CONFIG)
    loads, *_, packs = cfg.train_dataloader.dataset.pipeline
    cfg.train_dataloader.dataset.pipeline = [loads, dict(type='ResizeEdge', scale=40),
                                             dict(type='CenterCrop', crop_size=32), packs]
    apply_settings(cfg, Settings(augment='light'))
    assert cfg.train_dataloader.dataset.pipeline[1].scale == 32


@pytest.mark.slow
@pytest.mark.parametrize('config, workers, changes', (
    (TINY_CONFIG, 2, {}), (TINY_SEG_CONFIG, 0, {}), (TINY_CONFIG, 0, {  # masks, and boxes alone
        **NO_MASKS, 'model.roi_head.mask_head': None, 'model.roi_head.mask_roi_extractor': None,
        'val_evaluator.metric': 'bbox'})))
def test_a_run_goes_on_exactly(config, workers, changes, demo_data, tmp_path):
    def run(name, *hooks, **how):
        cfg = make_config(config, demo_data, tmp_path / name, **changes)
        apply_settings(cfg, Settings(augment='strong', image_size=64, workers=workers))
        return train(cfg, *hooks, **how)

    wanted = run('whole')
    with pytest.raises(Stopped):
        run('run', At(2, terminate))
    assert_same_run(run('run', resume=True), wanted)


@pytest.mark.parametrize('config', (TINY_SEG_CONFIG, 'retinanet_xcit_s12_p16_coco', 'xcit_s12_p16_custom'))
@pytest.mark.parametrize('strength', ('light', 'strong'))
def test_given_again_it_changes_nothing(config, strength):
    """But data sets that mix images are refused; and images of the validation are never touched."""
    cfg, before = read_config(config), read_config(config)
    apply_settings(cfg, Settings(augment=strength))
    once = cfg.train_dataloader.to_dict()
    assert cfg.val_dataloader == before.val_dataloader
    same = (config, strength) == ('xcit_s12_p16_custom', 'light')  # which is what it has
    assert (once == before.train_dataloader.to_dict()) == same
    spreads = {value for step in dicts_in(once) for key, value in step.items() if key.endswith('ratio_range')}
    wide = (0.5, 2.) if config == TINY_SEG_CONFIG else (0.5, 1.5)  # of the boxes, of four images in one
    assert config == 'xcit_s12_p16_custom' or spreads == {(0.8, 1.25) if strength == 'light' else wide}
    if once['dataset']['type'] == 'MultiImageMixDataset':
        with pytest.raises(ConfigError, match='mixes images in its own'):
            apply_settings(cfg, Settings(augment=strength))
    else:
        apply_settings(cfg, Settings(augment=strength))
        assert cfg.train_dataloader.to_dict() == once


@pytest.mark.parametrize('change, words', (
    *(({'train_dataloader.dataset.pipeline': [dict(type=name) for name in names]}, 'load and end') for names in (
        ('LoadImageFromFile', 'Mine'), ('Mine', 'PackDetInputs'))),
    (dict(train_dataloader=None), 'train_dataloader'),
    (dict(model=dict(_delete_=True, type='?'), default_scope='own'), 'own')))
def test_configs_that_it_cannot_change(change, words):
    cfg = read_config(TINY_CONFIG)
    cfg.merge_from_dict(change)
    with pytest.raises(ConfigError, match=words):
        apply_settings(cfg, Settings(augment='strong'))
