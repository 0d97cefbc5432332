"""Figures of each class, from the arrays of pycocotools' evaluation."""
from functools import partial
from typing import NamedTuple

import numpy as np

from ..compat.patches import evaluations_made_by

#: Predictions per image that AP and AR count, where the metric has this number.
_MOST = 100
#: The types of IoU that have a report; metrics of users may have others, such as keypoints.
_KINDS = 'bbox', 'segm'


class Figures(NamedTuple):
    """Figures of each class, in the order of ``categories``; NaN for a class without objects.

    Args:
        categories: Ids of the categories.
        ap: Mean over the IoU thresholds.
        ap50: AP at IoU 0.5; None if that is not one of the thresholds.
        ar: Mean over the IoU thresholds.
        thresholds: The IoU thresholds.
        most: How many predictions per image AP and AR count.
    """
    categories: list
    ap: np.ndarray
    ap50: np.ndarray | None
    ar: np.ndarray
    thresholds: list
    most: int

    def ordered(self, categories):
        """Return the same with the classes in another order."""
        places = [self.categories.index(number) for number in categories]
        ap50 = None if self.ap50 is None else self.ap50[places]
        return self._replace(categories=categories, ap=self.ap[places], ap50=ap50, ar=self.ar[places])


class Watch:
    """Keeps what a `CocoMetric` of mmdet evaluates: the results of all images, and the figures of each class.

    Args:
        metric: The metric. `end` gives it back as it was.
    """

    def __init__(self, metric):
        self.metric, self.results, self.truth, self.images = metric, [], None, []
        #: `Figures` by type of IoU, ``bbox`` or ``segm``.
        self.figures = {}
        self._failure, self._evaluation = None, None
        self._compute, metric.compute_metrics = metric.compute_metrics, self._watch

    def end(self):
        """Stop to watch.

        Raises:
            Exception: What failed while figures were read; the metric itself has not failed.
        """
        self.metric.compute_metrics = self._compute
        if self._failure:
            raise self._failure

    def _watch(self, results):
        self.results = results
        with evaluations_made_by(self._build, self.metric):
            metrics = self._compute(results)
        self._read()
        return metrics

    def _build(self, built_by, *args, **options):
        self._read()  # the metric is done with the one before, and two at once would need twice the memory
        self._evaluation = built_by(*args, **options)
        self.truth = self._evaluation.cocoGt
        from mmdet.evaluation import CocoMetric
        if type(self.metric).compute_metrics is CocoMetric.compute_metrics:  # another may need more afterwards
            self._evaluation.summarize = partial(_summarize, self._evaluation)
        return self._evaluation

    def _read(self):
        evaluation, self._evaluation = self._evaluation, None
        try:
            if (evaluation is not None and evaluation.eval and evaluation.params.useCats
                    and evaluation.params.iouType in _KINDS):
                self.figures[evaluation.params.iouType] = figures_of(evaluation)
                self.images = list(evaluation.params.imgIds)
        except Exception as error:  # of any type: the test's own figures come first
            self._failure = error


def _summarize(evaluation):
    """Summarize, and free what is not needed afterwards: mmdet keeps it while it reads the predictions once more."""
    del evaluation.summarize
    evaluation.summarize()
    for name in vars(evaluation).keys() - {'params', 'eval', 'stats'}:
        delattr(evaluation, name)


def figures_of(evaluation) -> Figures:
    """Return the `Figures` of a ``COCOeval`` that has evaluated and accumulated."""
    params = evaluation.params
    precision, recall = (np.asarray(evaluation.eval[name], float) for name in ('precision', 'recall'))
    thresholds, most = np.asarray(params.iouThrs, float), [int(number) for number in params.maxDets]
    area, last = list(params.areaRngLbl).index('all'), min(2, len(most) - 1)  # the third is pycocotools' for AP50
    counted = most.index(_MOST) if _MOST in most else last
    half = np.flatnonzero(np.isclose(thresholds, 0.5))
    is_there = precision[:, :, :, area, counted].max((0, 1)) > -1

    def mean(values):
        return np.where(is_there, values.mean(tuple(range(values.ndim - 1))), np.nan)

    return Figures([int(number) for number in params.catIds], mean(precision[:, :, :, area, counted]),
                   mean(precision[half[0], :, :, area, last]) if half.size else None,
                   mean(recall[:, :, area, counted]), thresholds.tolist(), most[counted])
