"""hotcoco in place of pycocotools: the same arrays and figures, and no test is lost where it fails."""
import sys
from contextlib import redirect_stdout
from importlib.machinery import ModuleSpec
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
from mmengine.config import Config
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from helpers.detections import evaluated, many, metric_of, sample, write_truth
from helpers.paths import TINY_CONFIG
from helpers.tools import run_tool
from xcit_dense.errors import ConfigError, SetupError
from xcit_dense.report.detection import DetectionRecorder
from xcit_dense.train import fast_evaluation
from xcit_dense.train.fast_evaluation import FastCOCOeval, FastEvaluationHook, set_fast_evaluation

pytest.importorskip('mmdet')
KINDS = ['bbox', 'segm']
NAMES = 'cat', 'dog', 'newt', 'yak'
needs_hotcoco = pytest.mark.skipif(fast_evaluation.find_spec('hotcoco') is None, reason='hotcoco is not installed')


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """A COCO file of 30 images, and samples of a model."""
    folder = tmp_path_factory.mktemp('data')
    truth, predictions = many(30, seed=1)
    return write_truth(folder, truth, NAMES), [sample(number, found, with_masks=True)
                                               for number, found in enumerate(predictions, 1)]


class FastRecorder(DetectionRecorder):
    """As in a test with both options: the hook of the report comes first."""

    def __init__(self, runner, known):
        super().__init__(runner, known)
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
    for evaluation in (COCOeval, FastCOCOeval):
        with redirect_stdout(StringIO()):
            truth = COCO(file)
            truth.anns[1]['ignore'] = 1
            lines = [dict(image_id=each['img_id'], category_id=10 * int(label) + 10, score=float(score),
                          segmentation=mask) for each in samples for label, score, mask
                     in zip(*map(each['pred_instances'].get, ('labels', 'scores', 'masks')), strict=True)]
            done = evaluation(truth, truth.loadRes(lines), kind)
            if evaluation is FastCOCOeval:
                monkeypatch.setattr(COCOeval, 'evaluate', None)  # it is not pycocotools that computes
            done.evaluate(), done.accumulate(), done.summarize()
        found.append(done)
    plain, fast = found
    for name in ('precision', 'recall', 'scores'):
        assert np.array_equal(fast.eval[name], plain.eval[name]) and fast.eval[name].max() > 0
    assert fast.stats.tolist() == plain.stats.tolist()


def test_pycocotools_evaluates_where_hotcoco_fails(data, monkeypatch):
    broken = SimpleNamespace(__version__='0', COCO=lambda data: 1 / 0, COCOeval=None)
    monkeypatch.setitem(sys.modules, 'hotcoco', broken)
    said = []
    monkeypatch.setattr(fast_evaluation, 'print_log', lambda text, **_: said.append(text))
    file, samples = data
    plain = evaluated([metric_of(file)], samples, NAMES)
    fast = evaluated([metric_of(file)], samples, NAMES, recorder=FastRecorder)
    assert fast.metrics == plain.metrics and 'ZeroDivisionError' in said[-1]


def test_the_option_needs_the_package_and_a_metric(monkeypatch):
    cfg = Config(dict(test_evaluator=[dict(type='mmdet.VOCMetric')]))
    with pytest.raises(ConfigError, match='test_evaluator has none'):
        set_fast_evaluation(cfg)
    for kind in ('CocoMetric', 'mmdet.CocoMetric'):
        cfg = Config(dict(test_evaluator=[dict(type=kind)]))
        monkeypatch.setattr(fast_evaluation, 'find_spec', lambda name: None)
        with pytest.raises(SetupError, match='pip install hotcoco'):
            set_fast_evaluation(cfg)
        monkeypatch.setattr(fast_evaluation, 'find_spec', lambda name: ModuleSpec(name, None))
        set_fast_evaluation(cfg)
        assert cfg.custom_hooks == [dict(type='FastEvaluationHook', priority='LOW')]


@needs_hotcoco
def test_the_tool_evaluates_with_it(trained, demo_data, tmp_path):
    args = ('test.py', TINY_CONFIG, trained[0], '--data-root', demo_data, '--work-dir', tmp_path)
    done = run_tool(*args, '--coco-eval', 'hotcoco', '--report')
    assert 'hotcoco 1' in done.stdout and (tmp_path / 'report/per_class.csv').exists()
    figures = [line.partition('coco/')[2].partition('data_time')[0] for line in (done.stdout, run_tool(*args).stdout)
               for line in line.splitlines() if 'coco/bbox_mAP:' in line]
    assert len(figures) == 2 and figures[0] == figures[1]
