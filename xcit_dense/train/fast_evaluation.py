"""The arithmetic of mmdet's COCO metrics by hotcoco: the figures of pycocotools in a fraction of the time."""
import datetime
import logging
from functools import partial
from importlib.util import find_spec

import numpy as np
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from pycocotools.cocoeval import COCOeval

from ..compat.patches import evaluations_made_by
from ..config.options import add_hook
from ..data.datasets import class_of
from ..data.evaluators import evaluators
from ..errors import ConfigError, SetupError
from ..text import first_line

_PARAMS = ('imgIds', 'catIds', 'iouThrs', 'recThrs', 'maxDets', 'areaRng', 'areaRngLbl', 'useCats')
_FIELDS = ('id', 'image_id', 'category_id', 'bbox', 'area', 'score')


def set_fast_evaluation(cfg):
    """Let hotcoco evaluate in a test, as ``--coco-eval hotcoco`` asks.

    Raises:
        ConfigError: The test has no metric that pycocotools would evaluate.
        SetupError: hotcoco is not installed.
    """
    kinds = [class_of(metric, 'METRICS', metric.get('type')) for _, metric in evaluators(cfg, ['test_dataloader'])]
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

    The summary is pycocotools' own. ``evalImgs`` and ``ious`` stay empty. Where hotcoco fails, pycocotools evaluates,
    after a warning.
    """

    def evaluate(self):
        """Match predictions and objects."""
        params = self.params
        params.imgIds, params.maxDets = list(np.unique(params.imgIds)), sorted(params.maxDets)
        if params.useCats:
            params.catIds = list(np.unique(params.catIds))
        try:
            import hotcoco
            print_log(f'hotcoco {hotcoco.__version__} evaluates', logger='current')
            self._fast = hotcoco.COCOeval(*(hotcoco.COCO(_plain(api.dataset, params.iouType))
                                            for api in (self.cocoGt, self.cocoDt)), params.iouType)
            for name in _PARAMS:
                setattr(self._fast.params, name, _listed(getattr(params, name)))
            self._fast.evaluate()
            self._fast.accumulate()
        except Exception as error:  # of any type: hours of a test must not be lost for a faster evaluation
            print_log(f'hotcoco cannot evaluate this test ({type(error).__name__}: {first_line(error)}); pycocotools '
                      'does it', logger='current', level=logging.WARNING)
            self._fast = None
            super().evaluate()

    def accumulate(self, p=None):
        """Fill ``eval``."""
        if self._fast is None:
            super().accumulate(p)
            return
        arrays = {name: np.asarray(self._fast.eval[name]) for name in ('precision', 'recall', 'scores')}
        now = datetime.datetime.now().strftime('%Y-%m-%d %H:%M:%S')
        self.eval = dict(params=self.params, counts=list(arrays['precision'].shape), date=now, **arrays)


def _plain(dataset, kind):
    """Return a data set with what pycocotools reads of it: it ignores objects for ``iscrowd`` alone."""
    fields = (*_FIELDS, 'segmentation') if kind == 'segm' else _FIELDS
    objects = [dict({name: found[name] for name in fields if name in found}, iscrowd=int(found.get('iscrowd') or 0))
               for found in dataset.get('annotations', ())]
    return dict(images=dataset['images'], categories=dataset['categories'], annotations=objects)


def _listed(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [item.item() if isinstance(item, np.generic) else item for item in value] if isinstance(value, list) \
        else value
