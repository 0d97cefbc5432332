"""Exported detectors and their graphs against mmdet's ``predict``: sizes, batches, settings, odd and blank images."""
import copy

import numpy as np
import pytest
import torch
from export.exported_detectors import KINDS, Exported, assert_same, build, config_of, detector, eager, images, shift

from xcit_dense.export.detector import DetectorGraph

BLANK = np.full((1, 96, 128, 3), 120, np.uint8)


def compare(run, model, *batches):
    """Compare a file with its model; returns the numbers of objects in all images."""
    return [count for batch in batches for count in assert_same(run(batch), model, batch)]


def compare_graph(model, *batches):
    graph = DetectorGraph(model)

    def run(batch):
        with torch.no_grad():
            return dict(zip(graph.outputs, (x.numpy() for x in graph(torch.from_numpy(batch))), strict=True))

    return compare(run, model, *batches)


@pytest.mark.parametrize('kind', KINDS)
def test_the_graph_finds_what_mmdet_finds(kind):
    model = detector(kind)
    state = copy.deepcopy(model.state_dict())
    assert sum(compare_graph(model, images(3, 61, 83), BLANK))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize('kind', ('small', 'retinanet'))
def test_narrow_images(kind):
    batches = (np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
               for shape in ((1, 1, 1500), (2, 1500, 1), (1, 1, 1)))
    assert sum(compare_graph(detector(kind), *batches, images(1, 9, 700)))


HEAD, RPN, RCNN = 'model.roi_head.', 'model.test_cfg.rpn.', 'model.test_cfg.rcnn.'
ANCHORS = 'model.rpn_head.anchor_generator.'


@pytest.mark.parametrize('kind, changes', (
    ('small', {f'{HEAD}bbox_head.num_classes': 1, f'{HEAD}mask_head.num_classes': 1}),
    ('retinanet', {'model.bbox_head.num_classes': 1}),
    ('small', {f'{HEAD}bbox_head.reg_class_agnostic': True, f'{HEAD}mask_head.class_agnostic': True}),
    ('small', {f'{RCNN}nms.class_agnostic': True, f'{RPN}nms.class_agnostic': True}),
    ('cascade', {f'{RCNN}nms.class_agnostic': True}), ('retinanet', {'model.test_cfg.nms.class_agnostic': True}),
    ('small', {'model.rpn_head.loss_cls.use_sigmoid': False}),
    ('small', {'model.neck.num_outs': 2, f'{ANCHORS}strides': [8, 16]}),
    ('small', {'model.neck.num_outs': 5, f'{ANCHORS}strides': [8, 16, 32, 64, 128]}),
    ('small', {f'{ANCHORS}center_offset': 0.5, f'{HEAD}bbox_roi_extractor.finest_scale': 24}),
    ('small', {f'{RPN}max_per_img': 1, f'{RPN}nms_pre': 2}),
    ('small', {f'{RPN}max_per_img': 10000, f'{RPN}nms_pre': 300, f'{RPN}min_bbox_size': 8}),
    ('small', {f'{RCNN}max_per_img': 1}), ('small', {f'{RCNN}max_per_img': 10000}),
    ('small', {f'{RCNN}score_thr': 0.2, f'{RCNN}nms': dict(_delete_=True, type='nms', iou_thr=0.3)}),
    *((kind, {'model.test_cfg.max_per_img': 7, 'model.test_cfg.score_thr': 0.1, 'model.test_cfg.nms_pre': 30})
      for kind in ('retinanet', 'atss'))), ids=str)
def test_settings(kind, changes):
    assert sum(compare_graph(detector(kind, **changes), images(3, 61, 83), BLANK))


def test_boxes_of_each_class_between_the_stages_of_a_cascade():
    cfg = config_of('cascade')
    for head in cfg.model.roi_head.bbox_head:
        head.reg_class_agnostic = False
    model, other = build(cfg), detector('cascade')
    fitting = {name: value for name, value in other.state_dict().items() if 'fc_reg' not in name}
    model.load_state_dict(fitting, strict=False)
    assert sum(compare_graph(model, images(2, 61, 83)))


def assert_finds_nothing(exported, batch):
    got = exported(batch)
    assert got['num'].tolist() == [0] and got['dets'].tolist() == [[[0] * 5]] and got['labels'].tolist() == [[-1]]
    assert 'masks' not in got or got['masks'].shape == (1, 1, 28, 28)


@pytest.mark.slow
def test_images_without_objects(tmp_path):
    exported = Exported(detector('small'), tmp_path / 'small.onnx')
    compare(exported, exported.model, BLANK)
    assert_finds_nothing(exported.shifted(100), BLANK)
    batch = images(3, 96, 128)
    quiet = copy.deepcopy(exported.model)
    shift(quiet, 9)  # so that the background alone counts, and a shift changes the logits of scores by as much
    quiet.roi_head.test_cfg.score_thr = 0
    highest = sorted(objects.scores[0].logit().item() + 9 for objects in eager(quiet, batch))
    some = exported.shifted(sum(highest[1:]) / 2 + 2.95)  # 0.05 has the logit -2.95
    assert sorted(map(bool, compare(some, some.model, batch))) == [False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize('kind, fused', (('fasterrcnn', True), ('cascade', False), ('retinanet', True)))
def test_other_kinds_in_a_file(kind, fused, tmp_path):
    """ATSS and Mask R-CNN as configs have them are in test_every_config.py."""
    model = detector(kind)
    if fused:
        model.backbone.fuse()
    exported = Exported(model, tmp_path / 'model.onnx')
    for shape in ((1, 61, 83), (3, 133, 97), (1, 224, 160)):  # the trace saw 2, 96 and 128
        assert sum(compare(exported, model, images(*shape)))
    compare(exported, model, BLANK)
    assert_finds_nothing(exported.shifted(100), BLANK)
