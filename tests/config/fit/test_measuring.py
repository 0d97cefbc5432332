"""What objects of a COCO file, label maps, anchors and resizing measure; anchors that fit boxes."""
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.boxes import RETINA, SEG, band, config_for, write_boxes, write_maps
from xcit_dense.config.fit import geometry
from xcit_dense.config.fit.detection import fit_anchors, share_of_rare
from xcit_dense.config.fit.geometry import anchors_of, are_poor, best_ious, mean_zoom, measure_objects, resize_of, zooms
from xcit_dense.config.fit.maps import measure_maps

FOUR = ((100, 80, [('a', 10, 10), ('a', 20, 5), ('b', 4, 1)]), (100, 80, [('a', 10, 10)]), (8, 60, []),
        (6, 90, [('b', 5, 5)]))
RPN = dict(type='AnchorGenerator', scales=[8], ratios=[0.5, 1.0, 2.0], strides=[4, 8, 16, 32, 64])


@pytest.fixture
def root(tmp_path):
    return write_boxes(tmp_path, *FOUR)


def change(root, edit):
    path = root / 'annotations/instances_train2017.json'
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_what_is_counted(root, monkeypatch):
    """Classes that the config leaves out do not count. Of many boxes a sample is kept."""
    cfg = config_for(root)
    found, part = measure_objects(cfg), cfg.train_dataloader.dataset
    assert found.images.tolist() == [[8, 60, 1], [100, 80, 2]] and found.count == 2
    assert found.too_small == found.empty == 1  # below the min_size of 8; without objects
    assert found.classes == dict(a=[3, 2], b=[1, 1])
    assert found.per_image.tolist() == [[1, 1], [3, 1]] and found.total == 4 and found.most_beside == 3
    assert sorted(zip(found.labels.tolist(), found.boxes[:, 2].tolist(), strict=True)) == [
        (0, 10), (0, 10), (0, 20), (1, 4)]
    assert [found.most(percent) for percent in (50, 60, 99, 100)] == [1, 3, 3, 3]
    many = replace(found, per_image=np.array([[1, 8], [7, 2], [30, 1]]))  # objects, and images with as many
    assert [many.most(percent) for percent in (50, 80, 99)] == [1, 7, 30]
    assert sorted(found.boxes.tolist()) == [[100, 80, 4, 1], [100, 80, 10, 10], [100, 80, 10, 10], [100, 80, 20, 5]]
    cfg.train_dataloader.dataset = dict(part, metainfo=dict(classes=('b', )))
    assert measure_objects(cfg).classes == dict(b=[1, 1])
    monkeypatch.setattr(geometry, '_SAMPLE', 3)
    cfg.train_dataloader.dataset = dict(part, filter_cfg={})
    found = measure_objects(cfg)
    assert (found.total, len(found.boxes), found.too_small, found.empty) == (5, 3, 0, 0)


@pytest.mark.parametrize('fault', (dict(iscrowd=1), dict(ignore=1), dict(area=0), dict(bbox=[0, 0, 0.5, 9]),
                                   dict(image_id=77), dict(category_id=77)))
def test_what_a_detector_does_not_learn_does_not_count(fault, root):
    change(root, lambda content: content['annotations'][1].update(fault))
    assert measure_objects(config_for(root)).classes['a'] == [2, 2]


def test_a_class_decides_from_one_percent_of_the_objects_on(tmp_path):
    """The images with a class may have more objects than 99% of all images."""
    crowd = [('a', 9, 9)] * 50 + [('b', 4, 4)] * 3
    for count, large, most in ((150, 'ab', 53), (400, 'a', 1)):
        found = measure_objects(config_for(write_boxes(tmp_path, (99, 99, crowd), *[(99, 99, [('a', 9, 9)])] * count)))
        assert [*found.of_classes] == [f' of the class {name!r}' for name in large] and found.most_beside == most
        assert found.ranked(found.boxes[:, 2])[0] == (f' of the class {large[-1]!r}', 4 if 'b' in large else 9)
    some = replace(found, labels=np.arange(len(found.labels)) % 500, classes={'most': (200, 9)} | {
        str(i): (1, 1) for i in range(499)}, per_image=np.array([[1, 699]]))
    assert [*some.of_classes] == [" of the class 'most'", ' of the other classes']  # which have enough together
    assert (some.of_classes[' of the other classes'] == (some.labels > 0)).all()
    none = replace(found, labels=np.arange(len(found.labels)), classes={str(i): (1, 1) for i in range(500)})
    assert none.ranked(found.boxes[:, 2]) == [('', 9)] and none.of_classes[''].all()  # of many classes all are small


def test_it_is_read_once_until_it_changes(root, monkeypatch):
    cfg, reads = config_for(root), []
    read = geometry.read_coco
    monkeypatch.setattr(geometry, 'read_coco', lambda *args: reads.append(1) or read(*args))
    first, again = measure_objects(cfg), measure_objects(cfg)
    assert reads == [1] and first.classes == again.classes and np.array_equal(first.boxes, again.boxes)
    change(root, lambda content: content['annotations'].pop())
    assert measure_objects(cfg).classes['b'] == [1, 1] and reads == [1, 1]


@pytest.mark.parametrize('break_it', (
    lambda cfg, path: cfg.train_dataloader.dataset.update(data_root='s3://bucket/'), lambda cfg, path: path.unlink(),
    lambda cfg, path: path.write_text('{'), lambda cfg, path: cfg.train_dataloader.dataset.update(type='XMLDataset'),
    lambda cfg, path: change(path.parents[1], lambda content: content['annotations'][1].update(bbox='none')),
    lambda cfg, path: change(path.parents[1], lambda content: content.update(annotations=[]))))
def test_data_that_cannot_be_measured(break_it, root):
    cfg = config_for(root)
    break_it(cfg, root / 'annotations/instances_train2017.json')
    assert measure_objects(cfg) is None


def test_the_width_of_a_band_and_of_what_is_around_it(tmp_path):
    for width in (2, 3, 4, 8):
        found = measure_maps(config_for(write_maps(tmp_path, band(width), band(width)), SEG))
        assert found.widths == pytest.approx(dict(a=60 - width, b=width))
        assert found.images.tolist() == [[60, 40, 2]] and found.count == 2


def test_pixels_and_images_of_classes_without_those_that_are_ignored(tmp_path):
    root = write_maps(tmp_path, band(6), band(6, 2, void=10), band(0, void=60), names=('a', 'b', 'c', 'd'))
    cfg = config_for(root, SEG)
    found, total = measure_maps(cfg), 60 + 50
    assert found.classes == dict(a=(pytest.approx(98 / total), 2), b=(pytest.approx(6 / total), 1),
                                 c=(pytest.approx(6 / total), 1), d=(0, 0))
    assert found.widths.keys() == {*'abc'}
    cfg.train_dataloader.dataset.reduce_zero_label = True  # the first class is 1
    assert {name: images for name, (_, images) in measure_maps(cfg).classes.items()} == dict(a=1, b=1, c=0, d=0)
    cfg = config_for(write_maps(tmp_path / 'two', band(6)), SEG)
    cfg.model.decode_head.ignore_index = 1  # a label that the config leaves out
    assert measure_maps(cfg).classes == dict(a=(1, 1))


def test_maps_that_cannot_be_measured(tmp_path):
    elsewhere, gone, colour = (config_for(write_maps(tmp_path / str(i), band(3)), SEG) for i in range(3))
    elsewhere.train_dataloader.dataset.data_root = 's3://bucket/'
    (tmp_path / '1/annotations/training/0.png').unlink()
    write_maps(tmp_path / '2', np.zeros((9, 9, 3)))
    assert [measure_maps(cfg) for cfg in (elsewhere, gone, colour)] == [None] * 3


def test_maps_of_a_list(tmp_path):
    root = write_maps(tmp_path, band(3), band(5), band(5))
    cfg = config_for(root, SEG)
    for kind, suffix in (('BaseSegDataset', ''), ('ImageFolderDataset', '.jpg')):
        (root / 'train.txt').write_text(f'0{suffix}\n2{suffix}\n')
        cfg.train_dataloader.dataset.update(type=kind, ann_file='train.txt')
        assert measure_maps(cfg).count == 2


@pytest.mark.parametrize('images, classes, share, rarest', (
    (300, dict(a=300, b=9, c=8, d=9, gone=0), 0.2397, 'c'), (300, dict(a=300, b=10), None, ''),
    (1000, dict(a=1000, b=19), 0.1708, 'b'), (1000, dict(a=1000, b=20), None, ''),
    (300, dict(a=80, b=8), None, ''), (300, dict(a=81, b=8), 0.2397, 'b'),
    (70_000, dict(a=70_000, b=3), 0.0003853, 'b'), (50, dict(b=4, a=50), 0.3, 'b')))
def test_rare_are_classes_of_few_images_beside_frequent_ones(images, classes, share, rarest, root):
    cfg = config_for(root)
    found = share_of_rare(cfg, replace(measure_objects(cfg), images=np.array([[9, 8, images - 7], [9, 9, 8]]), classes={
        name: (1000, count) for name, count in classes.items()}))
    assert (found[1] == share and repr(rarest) in found[2]) if share else found is None
    assert not share or math.ceil(math.sqrt(share / (classes[rarest] / images))) <= 3  # times, as mmengine counts them


def test_ious_by_hand():
    """10 x 10 in 20 x 20 is a quarter, and 8 pixels from its centre they have 7 x 7 of 451 in common; 20 x 10 across
    10 x 20 has 100 of 300."""
    boxes = [[10, 10], [20, 10], [20, 20]]
    assert best_ious(boxes, [[20, 20]]).tolist() == [0.25, 0.5, 1]
    assert best_ious(boxes, [[20, 20]] * 2, [[16], [8]]).tolist() == pytest.approx([49 / 451, 84 / 516, 144 / 656])
    assert best_ious(boxes, [[10, 20]]).tolist() == pytest.approx([0.5, 1 / 3, 0.5])
    assert best_ious(boxes, [[20, 20], [10, 20]]).tolist() == [0.5, 0.5, 1]


def test_the_anchors_of_a_config(tmp_path):
    root = write_boxes(tmp_path, (192, 192, [('a', 20, 20)]))
    found = anchors_of(config_for(root, model__rpn_head__anchor_generator__ratios=[1.0, 4.0]))
    sides = np.array([24, 48, 96, 192, 384])
    wanted = np.concatenate([np.stack([sides, sides], 1), np.stack([sides / 2, sides * 2], 1)])  # 4 is height by width
    assert {tuple(shape) for shape in found.shapes.round(3)} == {tuple(map(float, shape)) for shape in wanted}
    assert (found.key, found.positive, found.least) == ('model.rpn_head.anchor_generator', 0.7, 0.3)
    cfg = config_for(root, model__train_cfg__rpn__assigner__match_low_quality=False)
    assert anchors_of(cfg).least == 0.7
    found = anchors_of(config_for(root, RETINA, classes_from_data=True))
    assert len(found.shapes) == 45 and [32, 32] in found.shapes[:9].round(3).tolist()  # 4 strides of 8
    assert (found.key, found.positive, found.least) == ('model.bbox_head.anchor_generator', 0.5, 0)
    for key, value in (('train_cfg__rpn__assigner__type', 'ATSSAssigner'), ('rpn_head__anchor_generator', None),
                       ('rpn_head__anchor_generator__strides', None)):
        assert anchors_of(config_for(root, **{f'model__{key}': value})) is None


def test_when_anchors_are_poor():
    assert not are_poor(np.full(100, 0.55), 0.3) and are_poor(np.full(100, 0.54), 0.3)
    some = np.full(100, 0.9)
    some[:15] = 0.29
    assert not are_poor(some, 0)
    some[15] = 0.29
    assert are_poor(some, 0)
    some[:16] = 0.45  # none if an anchor needs more
    assert are_poor(some, 0.5) and not are_poor(some, 0.4)


def test_fitted_anchors_fit():
    for box in ((9, 9), (12, 24), (60, 20), (300, 280)):
        boxes = np.array(box) * np.exp(np.random.default_rng(0).normal(scale=0.15, size=(500, 2)))
        found = fit_anchors(boxes, dict(RPN, scales=[40]))
        assert np.median(best_ious(boxes, found[1])) > 0.75, box
        assert len(found[0]['scales']) * len(found[0]['ratios']) <= 9
        assert fit_anchors(boxes, dict(RPN, **found[0])) is None
    assert fit_anchors(np.full((50, 2), (12., 42.)), dict(RPN, scales=[40]))[0] == dict(scales=[6.], ratios=[3.5])
    # 96 pixels are 1.5 times the coarsest stride, too: few boxes would have such an anchor near
    assert fit_anchors(np.full((50, 2), 96.), dict(RPN, scales=[40]))[0] == dict(scales=[12.], ratios=[1.])
    assert fit_anchors([(40, 28), (33, 33), (28, 40)] * 20, dict(RPN, scales=[40]))[0]['ratios'] == [0.7, 1., 1.43]
    retina = dict(type='mmdet.AnchorGenerator', octave_base_scale=4, scales_per_octave=3, ratios=[1.0],
                  strides=[(8, 8), (16, 16)])
    found, _ = fit_anchors(np.full((50, 2), 9.), retina)
    assert found == dict(octave_base_scale=1.5, ratios=[1.])
    assert fit_anchors(np.full((50, 2), 9.), retina | found) is None
    for other in (dict(RPN, type='YOLOAnchorGenerator'), dict(RPN, base_sizes=[3, 4, 5, 6, 7]), dict(strides=[4])):
        assert fit_anchors(np.full((50, 2), 9.), other) is None


def test_by_how_much_an_image_of_200_by_100_is_enlarged(tmp_path):
    for step, zoom in (
            ({}, [1, 1]), (dict(scale_factor=0.5), [0.5, 0.5]), (dict(scale_factor=(2., 3.)), [2, 3]),
            (dict(scale=(100, 40)), [0.5, 0.4]), (dict(scale=(100, 100), keep_ratio=True), [0.5, 0.5]),
            (dict(scale=(1333, 80), keep_ratio=True), [0.8, 0.8]),
            (dict(scale=(80, 160), keep_ratio=True), [0.8, 0.8]), (dict(scale=50), [0.25, 0.5])):
        assert zooms(step, [[200, 100]]).tolist() == [zoom], step
    three = SimpleNamespace(images=np.array([[200, 100, 1], [100, 400, 2]]))  # one image of this size, two of that
    assert mean_zoom(dict(scale=(100, 40)), three) == pytest.approx((0.45 + 2 * 0.55) / 3)
    cfg = config_for(write_boxes(tmp_path, (192, 192, [('a', 20, 20)])))
    assert resize_of(cfg)['scale'] == (192, 192)
    cfg.val_dataloader = None  # a run without validation
    cfg.train_dataloader.dataset.pipeline[2].scale = (64, 64)
    assert resize_of(cfg)['scale'] == (64, 64)
    cfg.train_dataloader.dataset.pipeline[2].type = 'mmdet.FixShapeResize'
    assert resize_of(cfg) is None
    del cfg.train_dataloader.dataset.pipeline[2]
    assert resize_of(cfg) == {}
