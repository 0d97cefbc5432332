"""Anchors against cases computed by hand, and anchors that fit boxes."""
from types import SimpleNamespace

import numpy as np
import pytest
from config.fit.boxes import RETINA, config_for, write_boxes

from xcit_dense.config.fit.detection import fit_anchors
from xcit_dense.config.fit.geometry import anchors_of, are_poor, best_ious, mean_zoom, resize_of, zooms

RPN = dict(type='AnchorGenerator', scales=[8], ratios=[0.5, 1.0, 2.0], strides=[4, 8, 16, 32, 64])


def test_ious_by_hand():
    """10 x 10 in 20 x 20 is a quarter; 20 x 10 across 10 x 20 has 100 of 300 in common."""
    boxes = [[10, 10], [20, 10], [20, 20]]
    assert best_ious(boxes, [[20, 20]]).tolist() == [0.25, 0.5, 1]
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


def test_fitted_anchors_fit():
    for box in ((9, 9), (12, 24), (60, 20), (300, 280)):
        boxes = np.array(box) * np.exp(np.random.default_rng(0).normal(scale=0.15, size=(500, 2)))
        found = fit_anchors(boxes, dict(RPN, scales=[40]))
        assert np.median(best_ious(boxes, found[1])) > 0.75, box
        assert len(found[0]['scales']) * len(found[0]['ratios']) <= 9
        assert fit_anchors(boxes, dict(RPN, **found[0])) is None
    retina = dict(type='mmdet.AnchorGenerator', octave_base_scale=4, scales_per_octave=3, ratios=[1.0],
                  strides=[(8, 8), (16, 16)])
    assert fit_anchors(np.full((50, 2), 9.), retina)[0]['octave_base_scale'] < 2
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
