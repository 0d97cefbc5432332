"""What the test of a model for detection tells: figures of each class from pycocotools' evaluation, and mistakes."""
import numpy as np
from mmengine.dist import all_gather_object, get_rank

from .._utils.text import counted, listed
from ..compat.evaluation import evaluations_made_by
from ..draw.classes import class_colours
from .content import BACKGROUND, MOST_PICTURES, Column, Confusion, Content, Picture, Recorder, Row, near
from .matching import IOU, RULE, SCORE, Objects, draw_sides

#: The types of IoU that have a report; metrics of users may have others, such as keypoints.
_KINDS = dict(bbox='boxes', segm='masks')
#: Predictions per image that AP and AR count, where the metric has this number.
_MOST = 100
_COUNTS = (Column('objects', 'objects', explanation='objects in the ground truth, without crowd regions'),
           Column('images', 'images', explanation='images that have such objects'))
_BEST = (Column('threshold', 'score threshold', 3, 'the score threshold with the highest F1 of the class: of boxes, at '
                f'IoU {IOU}'),
         Column('precision', 'precision', 3, 'share of the predictions that are right, at this threshold'),
         Column('recall', 'recall', 3, 'share of the objects that are found, at this threshold'),
         Column('F1', 'F1', 3, 'harmonic mean of precision and recall, at this threshold'))
_IMAGES = (Column('mistakes', 'mistakes', explanation='missed objects, wrong classes and false positives together; the '
                  'images are sorted by it, then by missed objects'),
           Column('objects', 'objects', explanation='objects in the ground truth, without crowd regions'),
           Column('found', 'found', explanation='objects with a prediction of their class'),
           Column('missed', 'missed', explanation='objects without a prediction'),
           Column('wrong_class', 'wrong class', explanation='objects with a prediction of another class'),
           Column('false_positives', 'false positives', explanation='predictions without an object; a second '
                  'prediction of the same object is one'))
_SIZES = (*(column for key in ('objects', 'found', 'wrong_class', 'missed') for column in _IMAGES if column.key == key),
          Column('share', 'missed (%)', 1, 'share of the objects of this size that are missed'))


class DetectionRecorder(Recorder):
    """Collects the results of a test with a model of detection.

    Figures of classes are those of the first COCO metric of the test: they come from the arrays of its own evaluation.
    """

    def __init__(self, runner):
        super().__init__(runner)
        from mmdet.evaluation import CocoMetric
        self._all = runner.test_loop.evaluator.metrics
        self._watches = [Watch(metric) for metric in self._all if isinstance(metric, CocoMetric)]
        self._paths = {}

    def see(self, batch, outputs):
        self._paths.update((sample.get('img_id'), sample.get('img_path')) for sample in outputs)

    def content(self, metrics):
        every = all_gather_object(self._paths)
        if get_rank():
            return None
        self._paths = {key: path for paths in every for key, path in paths.items() if path}
        watch = next((watch for watch in self._watches if watch.evaluated), None)
        if watch is None:
            found_nothing = any({'bbox', 'segm'} & {*each.metric.metrics} and not each.metric.format_only
                                for each in self._watches)
            self.warn('the model found no object in any image: train it longer' if found_nothing else
                      'its figures are those of a CocoMetric with metric bbox or segm that evaluates at least one '
                      f'prediction, and the test has {listed(type(metric).__name__ for metric in self._all)} without '
                      "them. If it is missing, add dict(type='CocoMetric', metric='bbox') to test_evaluator")
            return None
        ids = [int(number) for number in watch.metric.cat_ids]
        names = [str(watch.truth.cats[number]['name']) for number in ids]
        figures = {}
        for kind in sorted(watch.evaluated):  # boxes first
            figures |= figures_of(*watch.evaluated[kind], ids)
        objects, untested = self._count(watch, ids)
        paths = {number: str(self._paths.get(number) or image['file_name'])
                 for number, image in watch.truth.imgs.items()}
        rows = _rows(names, figures, objects)
        notes = _notes(rows, untested)
        if len(self._all) > 1:
            notes.append(f'The report is on the metric {watch.metric.prefix or type(watch.metric).__name__}, one of '
                         f'{counted(len(self._all), "metrics")} of the test.')
        self._shown = watch.truth, names, (colours := self._colours(names))
        return Content('detection', self._facts(objects), metrics, ((*_COUNTS, *figures, *_BEST), rows),
                       (_IMAGES, [Row(paths[number], values) for number, values in objects.rows]),
                       Confusion([*names, BACKGROUND], objects.confusion, 'objects', RULE),
                       self.pictures((paths[image.id], image) for image in objects.worst),
                       notes, self.work_dir(), dict(zip(names, colours, strict=True)),
                       (_SIZES, [Row(f'{low:.3g} to {high:.3g}', values) for (low, high), values in objects.by_size()]))

    def _count(self, watch, ids):
        """Count all images of an evaluation, and how many of them have not been tested."""
        objects = Objects({number: label for label, number in enumerate(ids)}, MOST_PICTURES)
        predictions = {prediction['img_id']: prediction for _, prediction in watch.results}
        params, _ = next(iter(watch.evaluated.values()))
        untested = [number for number in params.imgIds if number not in predictions]
        nothing = dict(bboxes=np.zeros((0, 4)), labels=np.zeros(0, int), scores=np.zeros(0))
        objects.count((number, watch.truth.imgToAnns.get(number, ()), predictions.get(number, nothing))
                      for number in (*predictions, *untested))
        return objects, untested

    def _facts(self, objects):
        file = getattr(self.dataset, 'ann_file', None)
        crowds = f' and {counted(objects.crowds, "regions with iscrowd")}' if objects.crowds else ''
        return self.facts(*[('annotations', near(file))] * bool(file),
                          ('objects', f'{int(objects.objects.sum()):,}{crowds}'),
                          ('counts as found', f'IoU at least {IOU}, score at least {SCORE}; AP and AR: all scores'))

    def _colours(self, names):
        """Return the colours of classes; a palette is in the order of the config, the classes in that of the file."""
        of_config = dict(zip(map(str, self.classes), class_colours(self.classes, self.palette), strict=True))
        return [of_config[name] for name in names] if {*names} <= {*of_config} else class_colours(names)

    def draw(self, path, picture, known):
        return Picture(path, _caption(known), *draw_sides(known, picture, *self._shown))


def _rows(names, figures, objects):
    """Return the rows of the classes, the lowest AP first, those without objects last."""
    rows = []
    for label, (name, best) in enumerate(zip(names, objects.best(), strict=True)):
        values = dict(objects=int(objects.objects[label]), images=int(objects.images_of[label]))
        values.update({column.key: None if np.isnan(of_all[label]) else float(of_all[label])
                       for column, of_all in figures.items()})
        values.update(zip([column.key for column in _BEST], best, strict=True))
        rows.append(Row(name, values, '' if values['objects'] else 'no objects in the ground truth, not in the means'))
    first = next(iter(figures))
    rows.sort(key=lambda row: (not row.values['objects'], row.values[first.key] or 0, row.name))
    return rows


def _notes(rows, untested):
    notes = []
    if missing := [row.name for row in rows if not row.values['objects']]:
        notes.append(f'No objects in the ground truth: {listed(missing, 20)}. They are not in the means.')
    if untested:
        notes.append(f'{counted(len(untested), "images")} of the annotation file were not tested, such as the one with '
                     f'the id {untested[0]}. Their objects count as missed, as in pycocotools.')
    return notes


def _caption(image):
    words = dict(missed='missed', wrong_class='of a wrong class',
                 false_positives='false positive' + 's' * (image.figures['false_positives'] > 1))
    return ', '.join([counted(image.figures['objects'], 'objects'),
                      *(f'{image.figures[key]:,} {what}' for key, what in words.items() if image.figures[key])])


class Watch:
    """Keeps what the next evaluation of a `CocoMetric` of mmdet reads and computes.

    Attributes:
        results: What the metric keeps of each image: pairs of ground truth and prediction.
        truth: COCO of pycocotools.
        evaluated: By type of IoU, ``bbox`` or ``segm``, the parameters and the arrays of the ``COCOeval``.
    """

    def __init__(self, metric):
        self.metric, self.results, self.truth, self.evaluated = metric, [], None, {}
        self._evaluation, self._compute, metric.compute_metrics = None, metric.compute_metrics, self._watch

    def _watch(self, results):
        self.metric.compute_metrics, self.results = self._compute, results
        with evaluations_made_by(self._build, self.metric):
            metrics = self._compute(results)
        self._keep()
        return metrics

    def _build(self, built_by, *args, **options):
        self._keep()  # the metric is done with the one before, and two at once would need twice the memory
        self._evaluation = built_by(*args, **options)
        self.truth = self._evaluation.cocoGt
        return self._evaluation

    def _keep(self):
        last, self._evaluation = self._evaluation, None
        if last is not None and last.eval and last.params.useCats and last.params.iouType in _KINDS:
            self.evaluated[last.params.iouType] = last.params, last.eval


def figures_of(params, arrays, categories) -> dict:
    """Return AP, AP50 (if that IoU is evaluated) and AR of each class, from what a ``COCOeval`` has accumulated.

    By `Column`, they are (classes, ), in the order of ``categories``; NaN for a class without objects.
    """
    order, area = [list(params.catIds).index(number) for number in categories], params.areaRngLbl.index('all')
    precision, recall = (np.asarray(arrays[name], float)[..., order, area, :] for name in ('precision', 'recall'))
    thresholds, most = np.asarray(params.iouThrs, float), [int(number) for number in params.maxDets]
    place = most.index(_MOST) if _MOST in most else -1
    limit = f'mean over IoU {thresholds[0]:g} to {thresholds[-1]:g}; at most {most[place]} per image and class'
    found = dict(AP=(precision[..., place], f'average precision, {limit}'))
    for half in np.flatnonzero(np.isclose(thresholds, 0.5)):
        found['AP50'] = precision[half, ..., -1], 'average precision at IoU 0.5'
    found['AR'] = recall[..., place], f'recall of all predictions, {limit}'
    is_there, kind = found['AP'][0].max((0, 1)) > -1, params.iouType
    return {Column(f'{kind}_{key}', f'{key} of {_KINDS[kind]}', 3, explanation):
            np.where(is_there, values.mean(tuple(range(values.ndim - 1))), np.nan)
            for key, (values, explanation) in found.items()}
