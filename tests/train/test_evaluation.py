"""COCO's evaluation: of files that a training takes (ids from 0 or of any kind, no ``iscrowd``), and with hotcoco.

hotcoco in place of pycocotools finds the same arrays and figures.
"""
import json
from contextlib import redirect_stdout
from importlib.machinery import ModuleSpec
from io import StringIO

import numpy as np
import pytest
import torch
from mmdet.evaluation import CocoMetric
from mmengine.config import Config
from pycocotools import mask as mask_api
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from helpers.detections import evaluated, many, metric_of, sample, write_truth
from helpers.paths import TINY_CONFIG
from helpers.tools import run_tool
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import take_classes
from xcit_dense.data.demo import CLASSES
from xcit_dense.errors import ConfigError, SetupError
from xcit_dense.report.detection import DetectionRecorder
from xcit_dense.train import build_runner, evaluation
from xcit_dense.train.evaluation import FastCOCOeval, FastEvaluationHook, set_fast_evaluation

VALIDATION = 'annotations/instances_val2017.json'


def config_of(demo_data, tmp_path):
    cfg = load_config(TINY_CONFIG, data_root=str(demo_data), pretrained=False)
    take_classes(cfg)
    cfg.work_dir = str(tmp_path / 'run')
    return cfg


@pytest.fixture
def evaluate(demo_data, tmp_path):
    """A function that judges nearly right predictions by the metric of a run, on an annotation file changed before."""
    content = json.loads((demo_data / VALIDATION).read_text())
    runner = build_runner(config_of(demo_data, tmp_path))

    def call(change, **options):
        changed = json.loads(json.dumps(content))
        change(changed['annotations'])
        path = tmp_path / 'changed.json'
        path.write_text(json.dumps(changed))
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
    masks = [_mask(a['segmentation'], size) for a in of_image]
    found = dict(bboxes=boxes, scores=torch.linspace(0.9, 0.5, len(boxes)), masks=masks,
                 labels=torch.tensor([a['category_id'] - 1 for a in of_image]))
    return dict(img_id=image['id'], ori_shape=size, pred_instances=found)


def _mask(segmentation, size):
    if isinstance(segmentation, list):
        return mask_api.merge(mask_api.frPyObjects(segmentation, *size))
    return mask_api.frPyObjects(segmentation, *size) if isinstance(segmentation['counts'], list) else segmentation


def ids(numbered):
    return lambda annotations: [a.update(id=numbered(i)) for i, a in enumerate(annotations)]


def crowds(value):
    return lambda annotations: [a.update(iscrowd=value) for a in annotations]


#: Changes after which the numbers are those of another.
IDS = {'from 0': ids(int), 'from 0.0': ids(float), 'floats': ids(lambda i: i + 1.), "'0'": ids(str),
       'large': ids(lambda i: 10**17 + i), 'words': ids(lambda i: f'a-{i}')}
CROWDS = {'null': crowds(None), 'none': lambda annotations: [a.pop('iscrowd') for a in annotations]}


def test_files_that_a_training_takes_are_judged_alike(evaluate):
    wanted, evaluator = evaluate(lambda annotations: None)
    assert wanted['coco/segm_mAP'] == 1 and 0.5 < wanted['coco/bbox_mAP'] < 1 and wanted['coco/AR@100'] > 0.5
    api = next(value for value in vars(evaluator.metrics[0]).values() if hasattr(value, 'createIndex'))
    assert isinstance(evaluator.metrics[0], CocoMetric) and sorted(api.anns) == list(range(1, len(api.anns) + 1))
    for name, change in IDS.items():
        got, _ = evaluate(change, classwise=name == 'from 0')
        assert {key: got[key] for key in wanted} == wanted, name
    wanted, _ = evaluate(crowds(0))
    for name, change in CROWDS.items():
        assert evaluate(change)[0] == wanted, name


def test_ids_that_can_be_used_and_crowds_stay(evaluate):
    def change(annotations):
        annotations[0]['iscrowd'] = 1
        ids(lambda i: 7 * i + 5)(annotations)

    _, evaluator = evaluate(change)
    api = next(value for value in vars(evaluator.metrics[0]).values() if hasattr(value, 'createIndex'))
    assert list(api.anns)[:3] == [5, 12, 19] and [a['iscrowd'] for a in api.dataset['annotations']][:2] == [1, 0]


KINDS = ['bbox', 'segm']
NAMES = 'cat', 'dog', 'newt', 'yak'
needs_hotcoco = pytest.mark.skipif(evaluation.find_spec('hotcoco') is None, reason='hotcoco is not installed')


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """A COCO file of 30 images, and samples of a model."""
    folder = tmp_path_factory.mktemp('data')
    truth, predictions = many(30, seed=1)
    return write_truth(folder, truth, NAMES), [sample(number, found, with_masks=True)
                                               for number, found in enumerate(predictions, 1)]


class FastRecorder(DetectionRecorder):
    """As in a test with both options: the hook of the report comes first."""

    def __init__(self, runner):
        super().__init__(runner)
        FastEvaluationHook().before_test(runner)


@needs_hotcoco
@pytest.mark.parametrize('options', [dict(metric=KINDS), dict(metric=['bbox', 'proposal'], classwise=True),
                                     dict(metric='segm', proposal_nums=(1, 2, 3)),
                                     dict(metric='bbox', iou_thrs=np.array([0.5, 0.6]), metric_items=['mAP', 'mAP_s'])])
def test_a_test_has_the_same_metrics_and_report(data, options):
    file, samples = data
    plain = evaluated([metric_of(file, **options)], samples, NAMES)
    fast = evaluated([metric_of(file, **options)], samples, NAMES, recorder=FastRecorder)
    np.testing.assert_equal(fast.metrics, plain.metrics)
    np.testing.assert_equal(fast.content.classes[1], plain.content.classes[1])
    assert fast.content.confusion.counts.tolist() == plain.content.confusion.counts.tolist()


@needs_hotcoco
@pytest.mark.parametrize('kind', KINDS)
def test_every_value_of_the_arrays_is_equal(data, kind, monkeypatch):
    """Also with the field ``ignore``, which pycocotools replaces by ``iscrowd``."""
    file, samples = data
    found = []
    for built_by in (COCOeval, FastCOCOeval):
        with redirect_stdout(StringIO()):
            truth = COCO(file)
            truth.anns[1]['ignore'] = 1
            lines = [dict(image_id=each['img_id'], category_id=10 * int(label) + 10, score=float(score),
                          segmentation=mask) for each in samples for label, score, mask
                     in zip(*map(each['pred_instances'].get, ('labels', 'scores', 'masks')), strict=True)]
            done = built_by(truth, truth.loadRes(lines), kind)
            if built_by is FastCOCOeval:
                monkeypatch.setattr(COCOeval, 'evaluate', None)  # it is not pycocotools that computes
            done.evaluate(), done.accumulate(), done.summarize()
        found.append(done)
    plain, fast = found
    for name in ('precision', 'recall', 'scores'):
        assert np.array_equal(fast.eval[name], plain.eval[name]) and fast.eval[name].max() > 0
    assert fast.stats.tolist() == plain.stats.tolist()


def test_the_option_needs_the_package_and_a_metric(monkeypatch):
    cfg = Config(dict(test_evaluator=[dict(type='mmdet.VOCMetric')]))
    with pytest.raises(ConfigError, match='test_evaluator has none'):
        set_fast_evaluation(cfg)
    for kind in ('CocoMetric', 'mmdet.CocoMetric'):
        cfg = Config(dict(test_evaluator=[dict(type=kind)]))
        monkeypatch.setattr(evaluation, 'find_spec', lambda name: None)
        with pytest.raises(SetupError, match='pip install hotcoco'):
            set_fast_evaluation(cfg)
        monkeypatch.setattr(evaluation, 'find_spec', lambda name: ModuleSpec(name, None))
        set_fast_evaluation(cfg)
        assert cfg.custom_hooks == [dict(type='FastEvaluationHook', priority='LOW')]


@needs_hotcoco
@pytest.mark.slow
def test_the_tool_evaluates_with_it(trained, demo_data, tmp_path):
    args = ('test.py', TINY_CONFIG, trained[0], '--data-root', demo_data, '--work-dir', tmp_path)
    done = run_tool(*args, '--coco-eval', 'hotcoco', '--report')
    assert 'hotcoco 1' in done.stdout and (tmp_path / 'report/per_class.csv').exists()
    figures = [line.partition('coco/')[2].partition('data_time')[0] for line in (done.stdout, run_tool(*args).stdout)
               for line in line.splitlines() if 'coco/bbox_mAP:' in line]
    assert len(figures) == 2 and figures[0] == figures[1]
