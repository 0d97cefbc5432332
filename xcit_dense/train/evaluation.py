"""COCO evaluation in a test: what pycocotools needs of the annotations, and the same figures faster by hotcoco."""
import datetime
import logging
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

from .._utils.text import counted, first_line
from ..compat.patches import evaluations_made_by
from ..config.options import add_hook
from ..data.evaluators import evaluators, metric_class
from ..errors import ConfigError, SetupError


def complete_annotations(evaluator, config=None):
    """Make metrics that have read a COCO file accept what a training accepts; valid files give the same numbers.

    pycocotools ignores an object with the id 0, so that every detection of it counts as wrong. It also needs numeric
    ids, and ``iscrowd`` for every object. If it cannot use some ids, all are replaced by 1, 2, ...; a missing
    ``iscrowd`` becomes 0. A warning reports new ids, once for each file.

    Args:
        evaluator: mmengine's evaluator; its metrics may hold annotations in any attribute.
        config: The config it was built from, which names their files.
    """
    told = set()
    for metric, file in zip(evaluator.metrics, _files(config, len(evaluator.metrics)), strict=True):
        for api in vars(metric).values():
            if _is_coco(api) and (unusable := _complete(api)) and (file is None or file not in told):
                told.add(file)
                _tell(file or f'the annotations of {type(metric).__name__}', unusable)


def _tell(file, unusable):
    print_log(f'{file}: {counted(len(unusable), "objects")} with ids that pycocotools cannot use, such as '
              f'{unusable[0]!r}. This evaluation uses the ids 1, 2, ... instead. pycocotools by itself ignores an '
              'object with the id 0, and fails on ids that are not numbers.', logger='current', level=logging.WARNING)


def _files(config, count):
    """Return the annotation file of each metric in a config, or None."""
    parts = config.get('metrics', config) if isinstance(config, dict) else config
    parts = parts if isinstance(parts, (list, tuple)) else [parts]
    files = [part.get('ann_file') if isinstance(part, dict) else None for part in parts]
    return files if len(files) == count else [None] * count


def _is_coco(api):
    """Whether an object is a COCO of pycocotools with its own index: the one of panoptic data has no such objects."""
    return any(kind.__module__ == 'pycocotools.coco' and type(api).createIndex is kind.createIndex
               for kind in type(api).__mro__ if 'createIndex' in vars(kind))


def _complete(api):
    """Complete annotations; return the ids that pycocotools cannot use."""
    annotations = api.dataset.get('annotations') or []
    for annotation in annotations:
        if annotation.get('iscrowd') is None:
            annotation['iscrowd'] = 0
    unusable = [annotation['id'] for annotation in annotations if not _is_usable(annotation['id'])]
    if not unusable:
        return []
    for number, annotation in enumerate(annotations, 1):
        annotation['id'] = number
    with redirect_stdout(StringIO()):  # it prints that it is done
        api.createIndex()
    for name, index in (('img_ann_map', 'imgToAnns'), ('cat_img_map', 'catToImgs')):  # mmdet's names for them
        if hasattr(api, name):
            setattr(api, name, getattr(api, index))
    return unusable


def _is_usable(id):
    """Whether pycocotools can keep an id in an array of numbers in which 0 means no object."""
    return isinstance(id, Real) and not math.isnan(id) and id != 0


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
