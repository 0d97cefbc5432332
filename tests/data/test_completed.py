"""COCO's files as frameworks read them: with any ids, without ``iscrowd`` or ``area``, with a mark."""
import json

import numpy as np
import pytest
import torch
from mmdet.datasets import CocoDataset
from pycocotools import mask as mask_api

from helpers.faulty_data import ANNOTATIONS, coco, rewrite
from helpers.paths import TINY_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.check.check import check_data_set
from xcit_dense.data.check.coco_file import add_areas
from xcit_dense.data.classes import take_classes
from xcit_dense.data.demo import CLASSES
from xcit_dense.train import build_runner


@pytest.fixture
def evaluate(demo_data, tmp_path):
    """A function that judges nearly right predictions by the metric of a run, on an annotation file changed before."""
    content = json.loads((demo_data / 'annotations/instances_val2017.json').read_text())
    cfg = load_config(TINY_CONFIG, data_root=str(demo_data), pretrained=False, work_dir=tmp_path / 'run')
    take_classes(cfg)
    runner = build_runner(cfg)

    def call(change, mark='', **options):
        changed = json.loads(json.dumps(content))
        change(changed['annotations'])
        path = tmp_path / 'changed.json'
        path.write_text(mark + json.dumps(changed), encoding='utf-8')
        evaluator = runner.build_evaluator(dict(
            type='CocoMetric', ann_file=str(path), metric=['bbox', 'segm', 'proposal'], **options))
        evaluator.dataset_meta = dict(classes=CLASSES)
        for place, image in enumerate(content['images']):
            evaluator.process([_predict(content, image, place)])
        return evaluator.evaluate(len(content['images'])), evaluator

    return call


def _predict(content, image, shift):
    of_image = [a for a in content['annotations'] if a['image_id'] == image['id']]
    boxes = torch.tensor([a['bbox'] for a in of_image]).float().reshape(-1, 4) + torch.tensor([shift, 0., 0., 0.])
    boxes[:, 2:] += boxes[:, :2]
    size = image['height'], image['width']
    masks = [mask_api.merge(mask_api.frPyObjects(a['segmentation'], *size)) if isinstance(a['segmentation'], list)
             else a['segmentation'] for a in of_image]
    found = dict(bboxes=boxes, scores=torch.linspace(0.9, 0.5, len(boxes)), masks=masks,
                 labels=torch.tensor([a['category_id'] - 1 for a in of_image]))
    return dict(img_id=image['id'], ori_shape=size, pred_instances=found)


def ids(numbered):
    return lambda annotations: [a.update(id=numbered(i)) for i, a in enumerate(annotations)]


def _api_of(evaluator):
    return next(value for value in vars(evaluator.metrics[0]).values() if hasattr(value, 'createIndex'))


def test_files_that_a_training_takes_are_judged_alike(evaluate):
    wanted, evaluator = evaluate(lambda annotations: None)
    assert wanted['coco/segm_mAP'] == 1 and 0.5 < wanted['coco/bbox_mAP'] < 1 and wanted['coco/AR@100'] > 0.5
    assert sorted(_api_of(evaluator).anns) == list(range(1, len(_api_of(evaluator).anns) + 1))
    for number in (int, lambda i: i + 1., str, lambda i: 10**17 + i):
        got, _ = evaluate(ids(number), classwise=number is int)
        assert {key: got[key] for key in wanted} == wanted, number
    wanted, *others = (evaluate(lambda annotations, change=change: [change(a) for a in annotations])[0] for change in (
        lambda a: a.update(iscrowd=0), lambda a: a.update(iscrowd=None), lambda a: a.pop('iscrowd')))
    assert others == [wanted] * 2

    def change(annotations):
        annotations[0]['iscrowd'] = 1
        ids(lambda i: 7 * i + 5)(annotations)

    api = _api_of(evaluate(change)[1])  # what can be used stays
    assert list(api.anns)[:3] == [5, 12, 19] and [a['iscrowd'] for a in api.dataset['annotations']][:2] == [1, 0]


@pytest.mark.parametrize('mask, area', (
    ([[0, 0, 10, 0, 10, 4, 0, 4]], 40), ([[0, 0, 4, 0, 0, 4], [0, 0, 2, 0, 2, 2, 0, 2]], 12), ([], 30), (None, 30),
    (dict(size=[4, 5], counts=[3, 7, 10]), 7), ('x', 30), ([[1, 'x']], 30), ([3], 30), (dict(size=[4, 5]), 30),
    (dict(size=[9, 9], counts=mask_api.encode(np.asfortranarray(np.eye(9, dtype=np.uint8)))['counts'].decode()), 9)))
def test_areas_that_are_missing_are_those_of_mask_or_box(mask, area):
    content = dict(annotations=[dict(bbox=[1, 1, 5, 6], segmentation=mask), dict(bbox=[1, 1, 2]), dict(area=3), 4])
    add_areas(content)
    assert content['annotations'] == [dict(bbox=[1, 1, 5, 6], segmentation=mask, area=area), dict(bbox=[1, 1, 2]),
                                      dict(area=3), 4]


def test_a_file_with_a_mark_and_without_areas_is_read_by_check_data_set_and_metric(root, evaluate):
    wanted, _ = evaluate(lambda annotations: None)
    got, _ = evaluate(lambda annotations: [a.pop('area') for a in annotations], mark='\ufeff')
    assert all(got[key] == wanted[key] for key in ('coco/bbox_mAP', 'coco/segm_mAP', 'coco/AR@100'))
    content = rewrite(root, lambda content: [a.pop('area') for a in content['annotations']])
    (root / ANNOTATIONS).write_text('\ufeff' + json.dumps(content), encoding='utf-8')
    assert check_data_set(coco(root)).findings == []
    data = CocoDataset(**{key: value for key, value in coco(root, pipeline=[]).items() if key != 'type'})
    assert sum(len(data.get_data_info(i)['instances']) for i in range(len(data))) == len(content['annotations'])
