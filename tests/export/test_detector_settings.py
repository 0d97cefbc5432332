"""Detectors with other settings than the configs, and odd images: the graph compared with mmdet's ``predict``."""
import numpy as np
import pytest

from helpers.exported_detectors import BLANK, assert_same, build, config_of, detector, eager, images, run_graph
from xcit_dense.export.detector import DetectorGraph


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)


def compare(model, batches, **options):
    graph = DetectorGraph(model)
    for batch in batches:
        assert_same(run_graph(graph, batch), eager(model, batch), batch.shape[1:3], **options)


@pytest.mark.parametrize('kind, limit', (('small', 50), ('cascade', 100), ('retinanet', 100)))
def test_narrow_images(kind, limit):
    compare(detector(kind), (noise(1, 1, 2000), noise(2, 2000, 1), noise(1, 1, 1), images(1, 9, 700)), limit=limit)


HEAD, RPN, RCNN = 'model.roi_head.', 'model.test_cfg.rpn.', 'model.test_cfg.rcnn.'


@pytest.mark.parametrize('kind, changes', (
    ('small', {f'{HEAD}bbox_head.num_classes': 1, f'{HEAD}mask_head.num_classes': 1}),
    ('retinanet', {'model.bbox_head.num_classes': 1}),
    ('small', {f'{HEAD}bbox_head.reg_class_agnostic': True, f'{HEAD}mask_head.class_agnostic': True}),
    ('small', {'model.rpn_head.loss_cls.use_sigmoid': False}),
    ('small', {'model.neck.num_outs': 2, 'model.rpn_head.anchor_generator.strides': [8, 16]}),
    ('small', {'model.neck.num_outs': 5, 'model.rpn_head.anchor_generator.strides': [8, 16, 32, 64, 128]}),
    ('small', {'model.rpn_head.anchor_generator.center_offset': 0.5, f'{HEAD}bbox_roi_extractor.finest_scale': 24}),
    ('small', {f'{RPN}max_per_img': 1, f'{RPN}nms_pre': 2}),
    ('small', {f'{RPN}max_per_img': 10000, f'{RPN}nms_pre': 3000, f'{RPN}min_bbox_size': 8}),
    ('small', {f'{RCNN}max_per_img': 1}),
    ('small', {f'{RCNN}max_per_img': 10000}),
    ('small', {f'{RCNN}score_thr': 0.2, f'{RCNN}nms.iou_threshold': 0.3})), ids=str)
def test_settings(kind, changes):
    limit = changes.get(f'{RCNN}max_per_img', 100 if kind == 'retinanet' else 50)
    compare(detector(kind, **changes), (images(3, 61, 83), BLANK), limit=limit,
            threshold=changes.get(f'{RCNN}score_thr', 0.05))


def test_boxes_of_each_class_between_the_stages_of_a_cascade():
    cfg = config_of('cascade')
    for head in cfg.model.roi_head.bbox_head:
        head.reg_class_agnostic = False
    model, other = build(cfg), detector('cascade')
    fitting = {name: value for name, value in other.state_dict().items() if 'fc_reg' not in name}
    model.load_state_dict(fitting, strict=False)
    compare(model, (images(2, 61, 83), ), limit=100)
