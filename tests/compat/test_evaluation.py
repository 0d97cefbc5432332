"""COCO's evaluation in less time: the numbers of pycocotools, to the last digit."""
import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest
from mmdet.evaluation import CocoMetric, LVISMetric
from pycocotools import mask as mask_api
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from xcit_dense.compat.evaluation import FastEvaluation, evaluate_fast, evaluations_made_by

SIDE, CLASSES = 120, 3


def encoded(x, y, width, height):
    mask = np.zeros((SIDE, SIDE), np.uint8, order='F')
    mask[int(y):int(y + height), int(x):int(x + width)] = 1
    code = mask_api.encode(mask)
    return dict(code, counts=code['counts'].decode())


@pytest.fixture(scope='module')
def crowded():
    """Images with many objects of three classes side by side, crowds among them, each found several times."""
    random = np.random.default_rng(0)
    truth, results = dict(images=[], annotations=[], categories=[
        dict(id=number + 3, name=f'class {number}') for number in range(CLASSES)]), []
    for image in range(1, 6):
        truth['images'].append(dict(id=image, file_name=f'{image}.jpg', width=SIDE, height=SIDE))
        boxes = np.concatenate([random.uniform(0, 90, (30 * (image > 1), 2)), random.uniform(
            3, 30, (30 * (image > 1), 2))], 1).round(1)
        for place, box in enumerate(boxes.tolist()):
            truth['annotations'].append(dict(
                id=len(truth['annotations']) + 1, image_id=image, category_id=3 + place % CLASSES, bbox=box,
                iscrowd=int(place % 11 == 0), area=box[2] * box[3] * (1 if place % 7 else 30),
                segmentation=encoded(*box)))
        found = np.repeat(boxes, 3, 0) if len(boxes) else np.array([[1., 2, 3, 4]])
        found = np.abs(found + random.normal(size=found.shape) * random.choice([0, 2], (len(found), 1)))
        found[5:6, 2:] = 0
        corners = np.concatenate([found[:, :2], found[:, :2] + found[:, 2:]], 1).astype(np.float32)
        corners[6:7, 0] = np.nan  # of a model that diverges
        results.append((dict(width=SIDE, height=SIDE, img_id=image), dict(
            img_id=image, bboxes=corners, scores=random.integers(1, 30, len(found)).astype(np.float32) / 30,
            labels=np.where(random.random(len(found)) < 0.2, 0, np.arange(len(found)) // 3 % CLASSES),
            masks=[encoded(*box) for box in found])))
    return truth, results


def evaluated(kind, truth, results, iou_type, **params):
    ground = COCO()
    ground.dataset = copy.deepcopy(truth)
    ground.createIndex()
    found = [dict(image_id=result['img_id'], category_id=int(label) + 3, score=float(score), **(
        dict(bbox=[*box[:2], *(box[2:] - box[:2])]) if iou_type == 'bbox' else dict(segmentation=dict(mask))))
        for _, result in results for label, score, box, mask in zip(
            result['labels'], result['scores'], result['bboxes'].astype(float), result['masks'], strict=True)]
    evaluation = kind(ground, ground.loadRes(found), iou_type)
    vars(evaluation.params).update(dict(maxDets=[1, 10, 100]), **params)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation


@pytest.mark.parametrize('iou_type', ('bbox', 'segm'))
@pytest.mark.parametrize('params', ({}, dict(useCats=0), dict(iouThrs=np.array([0., 0.3, 1.]), maxDets=[1, 10, 20])))
def test_every_match_is_that_of_pycocotools(iou_type, params, crowded):
    """Also with crowds, equal scores, boxes that are empty or no numbers, areas that tell another size,
    and thresholds from 0 to 1."""
    wanted, found = (evaluated(kind, *crowded, iou_type, **params) for kind in (COCOeval, FastEvaluation))
    assert len(wanted.evalImgs) == len(found.evalImgs) and any(wanted.evalImgs)
    for one, other in zip(wanted.evalImgs, found.evalImgs, strict=True):
        assert (one is None) == (other is None)
        assert one is None or all(np.array_equal(one[key], other[key]) for key in one)
    assert all(np.array_equal(wanted.eval[key], found.eval[key]) for key in ('precision', 'recall', 'scores'))
    assert np.array_equal(wanted.stats, found.stats)


def metric_of(folder, kind=CocoMetric, **options):
    options.setdefault('metric', ['bbox', 'segm', 'proposal'])
    metric = kind(ann_file=str(folder / 'truth.json'), classwise=True, **options)
    metric.dataset_meta = dict(classes=[f'class {number}' for number in range(CLASSES)])
    return metric


def test_a_metric_says_the_same(crowded, tmp_path, monkeypatch):
    """The predictions stay in memory, unless the files were asked for; each kind of evaluation gets its own copy."""
    (tmp_path / 'truth.json').write_text(json.dumps(crowded[0]))
    wanted = str(metric_of(tmp_path).compute_metrics(copy.deepcopy(crowded[1])))
    metric, kept = metric_of(tmp_path, outfile_prefix=str(tmp_path / 'kept')), copy.deepcopy(crowded[1])
    evaluate_fast(SimpleNamespace(metrics=[metric]))
    assert str(metric.compute_metrics(kept)) == wanted and (tmp_path / 'kept.segm.json').is_file()
    metric = metric_of(tmp_path)
    evaluate_fast(SimpleNamespace(metrics=[metric]))
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr('mmdet.evaluation.metrics.coco_metric.dump', None)
            found = metric.compute_metrics(copy.deepcopy(crowded[1]))
        assert str(found) == wanted and found['segm_mAP'] > 0.1


def test_a_metric_without_a_file_reads_its_own(crowded, tmp_path):
    """mmdet writes the ground truth of the data set, which is no prediction."""
    results = copy.deepcopy(crowded[1])
    for number, (truth, _) in enumerate(results):
        truth['anns'] = [dict(bbox=[number, 1., 9., 9.], bbox_label=0)]
    found = []
    for fast in (False, True):
        metric = CocoMetric(metric='bbox')
        metric.dataset_meta = dict(classes=[f'class {number}' for number in range(CLASSES)])
        if fast:
            evaluate_fast(SimpleNamespace(metrics=[metric]))
        found.append(str(metric.compute_metrics(copy.deepcopy(results))))
    assert found[0] == found[1]


def test_what_is_replaced(crowded, tmp_path):
    """A metric whose class computes itself stays, as does a class of evaluation that is not pycocotools' own."""
    (tmp_path / 'truth.json').write_text(json.dumps(crowded[0]))

    class Own(CocoMetric):
        def compute_metrics(self, results):
            return {}

    for kind, is_ours in ((CocoMetric, True), (Own, False), (LVISMetric, False)):
        metric = object.__new__(kind)
        evaluate_fast(SimpleNamespace(metrics=[metric]))
        assert ('compute_metrics' in vars(metric)) == is_ours
    seen, metric = [], metric_of(tmp_path, metric='bbox')
    evaluate_fast(SimpleNamespace(metrics=[metric]))
    with evaluations_made_by(lambda kind, *args: seen.append(kind) or kind(*args), metric):
        metric.compute_metrics(copy.deepcopy(crowded[1]))
    assert seen == [FastEvaluation]
