"""COCO's evaluation by pycocotools and mmdet, with the same numbers in less time."""
import sys
from contextlib import contextmanager
from functools import partial

import numpy as np
from pycocotools.cocoeval import COCOeval

#: The names by which mmdet's COCO metrics find the class that evaluates: in this process, and with ``use_mp_eval`` in
#: several.
_NAMES = ('COCOeval', 'COCOevalMP')


def evaluate_fast(evaluator):
    """Let each `CocoMetric` of mmdet use `FastEvaluation`, and get the predictions without writing them into a file.

    On these objects, ``compute_metrics`` is replaced. Other metrics stay as they are.
    """
    kind = getattr(sys.modules.get('mmdet.evaluation'), 'CocoMetric', None)
    for metric in getattr(evaluator, 'metrics', ()) if kind else ():
        if isinstance(metric, kind) and type(metric).compute_metrics is kind.compute_metrics and (
                'compute_metrics' not in vars(metric)):
            metric.compute_metrics = partial(_compute_metrics, metric)


def _compute_metrics(metric, results):
    kept = {}

    def keep(known, content, file, *args, **options):
        if metric.outfile_prefix or not str(file).endswith(('.bbox.json', '.segm.json')):
            return known(content, file, *args, **options)
        kept[file] = content

    def read(known, file, *args, **options):
        # a copy for each evaluation, which adds to the records; pycocotools takes no class based on dict
        return known(file, *args, **options) if file not in kept else [
            {key: dict(value) if key == 'segmentation' else value for key, value in record.items()}
            for record in kept[file]]

    functions = dict(COCOeval=lambda known: FastEvaluation if known is COCOeval else known,
                     dump=lambda known: partial(keep, known), load=lambda known: partial(read, known))
    with _replaced(metric, functions):
        return type(metric).compute_metrics(metric, results)


@contextmanager
def _replaced(metric, functions):
    """Replace functions, by name, in the modules of the class of a metric and of its bases, while the context lasts."""
    modules = {sys.modules[kind.__module__] for kind in type(metric).__mro__ if kind.__module__ in sys.modules}
    kept = [(module, name, getattr(module, name)) for module in modules for name in functions if hasattr(module, name)]
    for module, name, known in kept:
        setattr(module, name, functions[name](known))
    try:
        yield
    finally:
        for module, name, known in kept:
            setattr(module, name, known)


def evaluations_made_by(make, metric):
    """Return a context in which a function builds the evaluations of a metric.

    Args:
        make: It is called with what would have built the evaluation (`FastEvaluation` for pycocotools' own), then with
            the arguments for it, by place or by name: ground truth and predictions as COCO of pycocotools, and ``bbox``
            or ``segm``. It returns an object with the interface of ``pycocotools.cocoeval.COCOeval``.
        metric: A metric that looks up the class in the module of its own class or of a base.
    """
    return _replaced(metric, dict.fromkeys(_NAMES, lambda known: partial(
        make, FastEvaluation if known is COCOeval else known)))


class FastEvaluation(COCOeval):
    """pycocotools' evaluation, where a prediction is compared only with the objects that it may be matched with."""

    def computeIoU(self, imgId, catId):
        """Compare the predictions and objects of a class in an image; most images have neither of most classes."""
        is_empty = self.params.useCats and not self._gts.get((imgId, catId)) and not self._dts.get((imgId, catId))
        return [] if is_empty else super().computeIoU(imgId, catId)

    def evaluateImg(self, imgId, catId, aRng, maxDet):
        """Match the predictions and objects of a class in an image; as in pycocotools."""
        params, place = self.params, (imgId, catId)
        objects, found = self._gts.get(place), self._dts.get(place)
        if not params.useCats:
            objects, found = ([record for number in params.catIds for record in records.get((imgId, number), ())]
                              for records in (self._gts, self._dts))
        if not objects and not found:
            return None
        objects, found = objects or [], found or []
        for record in objects:
            record['_ignore'] = int(bool(record['ignore']) or record['area'] < aRng[0] or record['area'] > aRng[1])
        order = sorted(range(len(objects)), key=lambda row: objects[row]['_ignore'])  # ignored ones last
        objects, ious = [objects[row] for row in order], self.ious[place]
        best_first = np.argsort([-record['score'] for record in found], kind='mergesort')
        found = [found[row] for row in best_first[:maxDet]]
        ignored, crowds = ([record[key] for record in objects] for key in ('_ignore', 'iscrowd'))
        shape = len(params.iouThrs), len(found)
        matches, taken, are_ignored = np.zeros(shape), np.zeros((shape[0], len(objects))), np.zeros(shape, bool)
        if len(ious):
            ious = ious[:, order]
            thresholds = [min(threshold, 1 - 1e-10) for threshold in params.iouThrs]
            near = {}
            possible = ~(ious < min(thresholds))
            if np.isnan(ious.sum()):  # after a NaN pycocotools takes any object
                possible |= np.isnan(ious).any(1)[:, None]
            for row, column in np.argwhere(possible).tolist():
                near.setdefault(row, []).append((column, ious[row, column]))
            for level, threshold in enumerate(thresholds):
                free = [True] * len(objects)
                for row, candidates in near.items():
                    best, least = None, threshold
                    for column, iou in candidates:
                        if not free[column] and not crowds[column]:
                            continue
                        if best is not None and not ignored[best] and ignored[column]:
                            break
                        if not iou < least:  # which NaN is not
                            best, least = column, iou
                    if best is not None:
                        free[best], taken[level, best] = False, found[row]['id']
                        matches[level, row], are_ignored[level, row] = objects[best]['id'], ignored[best]
        outside = np.array([record['area'] < aRng[0] or record['area'] > aRng[1] for record in found], bool)
        return dict(
            image_id=imgId, category_id=catId, aRng=aRng, maxDet=maxDet, dtIds=[record['id'] for record in found],
            gtIds=[record['id'] for record in objects], dtMatches=matches, gtMatches=taken,
            dtScores=[record['score'] for record in found], gtIgnore=np.array(ignored),
            dtIgnore=are_ignored | (matches == 0) & outside)
