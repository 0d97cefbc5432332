"""COCO evaluation in a test: what pycocotools needs of the annotations, and the same figures faster by hotcoco."""
import datetime
import math
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from io import StringIO
from numbers import Real

import numpy as np
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from pycocotools.cocoeval import COCOeval

from ..compat.internals import evaluations_made_by
from ..config.options import add_hook
from ..data.evaluators import evaluators, metric_class
from ..errors import ConfigError, SetupError


def complete_annotations(evaluator):
    """Make metrics that have read a COCO file accept what a training accepts; valid files give the same numbers.

    pycocotools ignores an object with the id 0, so that every detection of it counts as wrong. It also needs numeric
    ids, and ``iscrowd`` for every object. If it cannot use some ids, all are replaced by 1, 2, ...; a missing
    ``iscrowd`` becomes 0.

    Args:
        evaluator: mmengine's evaluator; its metrics may hold annotations in any attribute.
    """
    # the index of panoptic data, of another class, has no such objects
    for api in (value for metric in evaluator.metrics for value in vars(metric).values()
                if getattr(getattr(value, 'createIndex', None), '__module__', '') == 'pycocotools.coco'):
        annotations = api.dataset.get('annotations') or []
        for annotation in annotations:
            if annotation.get('iscrowd') is None:
                annotation['iscrowd'] = 0
        # it keeps ids in an array of numbers, in which 0 means no object
        ids = [annotation['id'] for annotation in annotations]
        if all(isinstance(id, Real) and id != 0 and not math.isnan(id) for id in ids):
            continue
        for number, annotation in enumerate(annotations, 1):
            annotation['id'] = number
        with redirect_stdout(StringIO()):  # it prints that it is done
            api.createIndex()


_PARAMS = ('imgIds', 'catIds', 'iouThrs', 'recThrs', 'maxDets', 'areaRng', 'areaRngLbl', 'useCats')
_FIELDS = ('id', 'image_id', 'category_id', 'bbox', 'area', 'score')


def set_fast_evaluation(cfg):
    """Let hotcoco evaluate in a test, as ``--coco-eval hotcoco`` asks.

    Raises:
        ConfigError: The test has no metric that pycocotools would evaluate.
        SetupError: hotcoco is not installed.
    """
    kinds = [metric_class(metric) for _, metric in evaluators(cfg, ['test_dataloader'])]
    if not any('CocoMetric' in [base.__name__ for base in getattr(kind, '__mro__', ())] for kind in kinds):
        raise ConfigError('--coco-eval hotcoco is for tests with a CocoMetric, and test_evaluator has none')
    if find_spec('hotcoco') is None:
        raise SetupError('--coco-eval hotcoco needs hotcoco: pip install hotcoco')
    # after the hook of the report, which then watches hotcoco's evaluation
    add_hook(cfg, 'FastEvaluationHook', priority='LOW')


@HOOKS.register_module()
class FastEvaluationHook(Hook):
    """Lets hotcoco compute what the COCO metrics of a test would compute with pycocotools."""

    def before_test(self, runner):
        """Change the metrics."""
        for metric in runner.test_loop.evaluator.metrics:
            metric.compute_metrics = partial(_compute, metric, metric.compute_metrics)


def _compute(metric, compute, results):
    with evaluations_made_by(lambda built_by, *args, **options: FastCOCOeval(*args, **options), metric):
        return compute(results)


class FastCOCOeval(COCOeval):
    """pycocotools' evaluation of boxes or masks, with its arrays computed by hotcoco.

    The summary is pycocotools' own. ``evalImgs`` and ``ious`` stay empty.
    """

    def evaluate(self):
        """Match predictions and objects."""
        import hotcoco
        params = self.params
        params.imgIds, params.maxDets = list(np.unique(params.imgIds)), sorted(params.maxDets)
        if params.useCats:
            params.catIds = list(np.unique(params.catIds))
        print_log(f'hotcoco {hotcoco.__version__} evaluates', logger='current')
        self._fast = hotcoco.COCOeval(*(hotcoco.COCO(_plain(api.dataset, params.iouType))
                                        for api in (self.cocoGt, self.cocoDt)), params.iouType)
        for name in _PARAMS:
            value = getattr(params, name)
            if isinstance(value, (list, np.ndarray)):
                value = np.array(value).tolist()
            setattr(self._fast.params, name, value)
        self._fast.evaluate()

    def accumulate(self, p=None):
        """Fill ``eval``."""
        self._fast.accumulate()
        arrays = {name: np.asarray(self._fast.eval[name]) for name in ('precision', 'recall', 'scores')}
        now = datetime.datetime.now().strftime('%Y-%m-%d %H:%M:%S')
        self.eval = dict(params=self.params, counts=list(arrays['precision'].shape), date=now, **arrays)


def _plain(dataset, kind):
    """Return a data set with what pycocotools reads of it: it ignores objects for ``iscrowd`` alone."""
    fields = (*_FIELDS, 'segmentation') if kind == 'segm' else _FIELDS
    objects = [dict({name: found[name] for name in fields if name in found}, iscrowd=int(found.get('iscrowd') or 0))
               for found in dataset.get('annotations', ())]
    return dict(images=dataset['images'], categories=dataset['categories'], annotations=objects)
