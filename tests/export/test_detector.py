"""Exported detectors against the checkpoint's ``predict``: sizes, batches, blank and crowded images."""
import copy
from types import SimpleNamespace

import pytest
import torch

from helpers.exported_detectors import BLANK, KINDS, Exported, assert_same, detector, eager, images, run_graph, shift
from xcit_dense.errors import ExportError
from xcit_dense.export import verify
from xcit_dense.export.detector import DetectorGraph

#: Batch, height and width; the trace saw 2, 96 and 128.
SHAPES = ((1, 96, 128), (1, 61, 83), (3, 133, 97), (1, 224, 160), (3, 64, 320), (1, 33, 40))


@pytest.fixture(scope='session')
def exported(tmp_path_factory):
    return Exported(detector('small'), tmp_path_factory.mktemp('export') / 'small.onnx')


def compare(run, model, shape, batch=None, **options):
    batch = images(*shape) if batch is None else batch
    wanted = eager(model, batch)
    assert_same(run(batch), wanted, batch.shape[1:3], **options)
    return [len(objects.scores) for objects in wanted]


@pytest.mark.parametrize('kind', KINDS)
def test_the_graph_finds_what_mmdet_finds(kind):
    model = detector(kind)
    state = copy.deepcopy(model.state_dict())
    graph = DetectorGraph(model)
    assert sum(compare(lambda batch: run_graph(graph, batch), model, (3, 61, 83), limit=100))
    compare(lambda batch: run_graph(graph, batch), model, None, BLANK)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_any_batch_and_size_in_one_file(exported, shape):
    assert sum(compare(exported, exported.model, shape, limit=50))


def test_images_without_objects(exported):
    compare(exported, exported.model, None, BLANK, limit=50)
    assert_finds_nothing(exported.shifted(100), BLANK)
    batch = images(3, 96, 128)
    quiet = copy.deepcopy(exported.model)
    shift(quiet, 9)  # so that the background alone counts, and a shift changes the logits of scores by as much
    quiet.roi_head.test_cfg.score_thr = 0
    highest = sorted(objects.scores[0].logit().item() + 9 for objects in eager(quiet, batch))
    some = exported.shifted(sum(highest[1:]) / 2 + 2.95)  # 0.05 has the logit -2.95
    assert sorted(map(bool, compare(some, some.model, None, batch))) == [False, False, True]


def assert_finds_nothing(exported, batch):
    got = exported(batch)
    assert got['num'].tolist() == [0] and got['dets'].tolist() == [[[0] * 5]] and got['labels'].tolist() == [[-1]]
    assert 'masks' not in got or got['masks'].shape == (1, 1, 28, 28)


def test_an_object_just_at_the_threshold_makes_no_file_wrong(exported):
    predictor = SimpleNamespace(model=copy.deepcopy(exported.model))
    batches = (verify.images(1, 201, 333), verify.images(2, 160, 128))  # those of `compare_file`
    lowest = min(objects.scores.min().item() for batch in batches for objects in eager(predictor.model, batch))
    for above, differ in ((-1e-6, False), (5e-4, False), (0.05, True)):
        predictor.model.roi_head.test_cfg.score_thr = lowest + above
        assert (verify.compare_file(exported.path, predictor, 'detection')[0] > 0) == differ


def test_a_file_that_onnxruntime_does_not_run_is_one_sentence(exported, tmp_path):
    damaged = tmp_path / 'model.onnx'
    damaged.write_bytes(b'damaged')
    for path, task in ((damaged, 'detection'), (exported.path, 'backbone')):
        with pytest.raises(ExportError, match='onnxruntime') as caught:
            verify.compare_file(path, SimpleNamespace(model=exported.model), task)
        assert '\n' not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize('kind, fused', [*((kind, False) for kind in KINDS), ('cascade', True)])
def test_every_kind_in_a_file(kind, fused, tmp_path):
    model = detector(kind)
    if fused:
        model.backbone.fuse()
    exported = Exported(model, tmp_path / 'model.onnx')
    limit = 50 if kind in ('maskrcnn', 'fasterrcnn') else 100
    for shape in SHAPES:
        assert sum(compare(exported, model, shape, limit=limit))
    compare(exported, model, None, BLANK, limit=limit)
    assert_finds_nothing(exported.shifted(100), BLANK)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ('small', 'retinanet'))
def test_more_objects_than_the_limit(kind, tmp_path):
    key = 'model.test_cfg.' if kind == 'retinanet' else 'model.test_cfg.rcnn.'
    exported = Exported(detector(kind, **{f'{key}score_thr': 0.0, f'{key}max_per_img': 20}), tmp_path / 'model.onnx')
    for shape in SHAPES[:3]:
        assert set(compare(exported, exported.model, shape, threshold=0.0, limit=20)) == {20}
