"""What the test of a model for detection tells: figures of each class from pycocotools' evaluation, and mistakes."""
from functools import partial

import numpy as np
from mmengine.dist import all_gather_object, get_rank

from .._utils.text import counted, listed
from ..compat.patches import evaluations_made_by
from ..draw.classes import class_colours
from .content import BACKGROUND, MOST_PICTURES, Column, Confusion, Content, Picture, Recorder, Row, near
from .detected import IOU, RULE, SCORE, Objects, draw_sides

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

    Figures of classes are those of the COCO metric of the test: they come from the arrays of its own evaluation.
    """

    def __init__(self, runner, known):
        super().__init__(runner, known)
        from mmdet.evaluation import CocoMetric
        self._all = runner.test_loop.evaluator.metrics
        self._watches = [Watch(metric) for metric in self._all if isinstance(metric, CocoMetric)]
        self._paths = {}

    def see(self, batch, outputs):
        """Keep where the images are."""
        self._paths.update((sample.get('img_id'), sample.get('img_path')) for sample in outputs)

    def content(self, metrics):
        """Return the `Content`, see `Recorder`."""
        every = all_gather_object(self._paths)
        if get_rank():
            return None
        for watch in self._watches:
            watch.end()
        self._paths = {key: path for paths in every for key, path in paths.items() if path}
        watch = next((watch for watch in self._watches if watch.figures), None)
        if watch is None and any(found.results and not any(len(part['scores']) for _, part in found.results)
                                 for found in self._watches):
            self.warn('the model predicts no object in any image, and then the metric has no figures')
            return None
        if watch is None:
            self.warn('its figures are those of a CocoMetric with metric bbox or segm that evaluates, and the test '
                      f'has {listed(type(metric).__name__ for metric in self._all)} without them. Add dict('
                      "type='CocoMetric', metric='bbox') to test_evaluator")
            return None
        ids = [int(number) for number in watch.metric.cat_ids]
        names = [str(watch.truth.cats[number]['name']) for number in ids]
        same = {kind: found for other in self._watches if _judge_alike(other, watch)
                for kind, found in other.figures.items()}  # boxes and masks may have a metric each
        figures = {kind: found for kind in _KINDS if (found := watch.figures.get(kind, same.get(kind)))}
        objects, untested = self._count(watch, ids)
        rows = _rows(names, figures, objects)
        notes = _notes(rows, objects, untested)
        if len(self._all) > 1:
            notes.append(f'The report is on the metric {watch.metric.prefix or type(watch.metric).__name__}, one of '
                         f'{counted(len(self._all), "metrics")} of the test.')
        predicted = self.outputs(names)
        if {*predicted} == {*names}:  # the classes of the file, in another order
            predicted = names
        self._shown = watch.truth, names, (colours := self._colours(names))
        confusion = Confusion([*names, BACKGROUND], [*predicted, BACKGROUND], objects.confusion, 'objects', RULE)
        columns = (*_COUNTS, *(column for found in figures.values() for column in found), *_BEST)
        return Content('detection', self._facts(objects), metrics, (columns, rows),
                       (_IMAGES, [Row(self._path_of(watch, number), values) for number, values in objects.rows]),
                       confusion, self.pictures((self._path_of(watch, image.id), image) for image in objects.worst),
                       notes, self.work_dir(), dict(zip(names, colours, strict=True)),
                       (_SIZES, [Row(f'{low:.3g} to {high:.3g}', values) for (low, high), values in objects.by_size()]))

    def _count(self, watch, ids):
        """Count all images of an evaluation, and how many of them have not been tested."""
        objects = Objects({number: label for label, number in enumerate(ids)}, MOST_PICTURES)
        predictions = {}
        for _, prediction in watch.results:  # data sets that are tested as one may share ids
            known = predictions.get(prediction['img_id'])
            predictions[prediction['img_id']] = prediction if known is None else {
                name: np.concatenate((known[name], prediction[name])) for name in ('bboxes', 'labels', 'scores')}
        untested = [number for number in watch.images if number not in predictions]
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

    def _path_of(self, watch, number):
        path = self._paths.get(number) or watch.truth.imgs.get(number, {}).get('file_name') or f'image {number}'
        return str(path)

    def _colours(self, names):
        """Return the colours of classes; a palette is in the order of the config, the classes in that of the file."""
        order, palette = [*map(str, self.classes)], self.palette
        if palette is not None and not isinstance(palette, str) and len(palette) >= len(order) and {*names} <= {*order}:
            palette = [palette[order.index(name)] for name in names]
        return class_colours(names, palette)

    def draw(self, path, picture, known):
        """Return an `Image` as a `Picture`."""
        return Picture(path, _caption(known), *draw_sides(known, picture, *self._shown))


def _judge_alike(one, other):
    """Whether two `Watch` evaluated the same objects; files with the same ids may have others."""
    return one.images == other.images and one.metric.cat_ids == other.metric.cat_ids and (
        len(one.truth.anns) == len(other.truth.anns))


def _rows(names, figures, objects):
    """Return the rows of the classes, the lowest AP first, those without objects last."""
    rows = []
    for label, (name, best) in enumerate(zip(names, objects.best(), strict=True)):
        values = dict(objects=int(objects.objects[label]), images=int(objects.images_of[label]))
        for found in figures.values():
            values.update({column.key: None if np.isnan(of_all[label]) else float(of_all[label])
                           for column, of_all in found.items()})
        values.update(zip([column.key for column in _BEST], best, strict=True))
        note = ''
        if not values['objects']:
            times = int(objects.confusion[:, label].sum())
            note = f'no objects in the ground truth, not in the means; predicted in {counted(times, "places")}'
        rows.append(Row(name, values, note))
    first = f'{next(iter(figures))}_AP'
    rows.sort(key=lambda row: (not row.values['objects'], row.values[first] or 0, row.name))
    return rows


def _notes(rows, objects, untested):
    notes = []
    if missing := [row.name for row in rows if not row.values['objects']]:
        notes.append(f'No objects in the ground truth: {listed(missing, 20)}. They are not in the means.')
    if objects.crowds:
        notes.append(f'{counted(objects.crowds, "regions with iscrowd")} in the ground truth: predictions inside count '
                     'as neither right nor wrong, as in pycocotools.')
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
    """Keeps what a `CocoMetric` of mmdet evaluates: the results of all images, and the figures of each class.

    Args:
        metric: The metric. `end` gives it back as it was.
    """

    def __init__(self, metric):
        self.metric, self.results, self.truth, self.images = metric, [], None, []
        #: Those of `figures_of` by type of IoU, ``bbox`` or ``segm``.
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
                self.figures[evaluation.params.iouType] = figures_of(evaluation, self.metric.cat_ids)
                self.images = list(evaluation.params.imgIds)
        except Exception as error:  # of any type: the test's own figures come first
            self._failure = error


def _summarize(evaluation):
    """Summarize, and free what is not needed afterwards: mmdet keeps it while it reads the predictions once more."""
    del evaluation.summarize
    evaluation.summarize()
    for name in vars(evaluation).keys() - {'params', 'eval', 'stats'}:
        delattr(evaluation, name)


def figures_of(evaluation, categories) -> dict:
    """Return AP, AP50 (if that IoU is evaluated) and AR of each class, from a ``COCOeval`` that has accumulated.

    Args:
        evaluation: The ``COCOeval``.
        categories: Ids of the classes.

    Returns:
        By `Column` (classes, ), in the order of ``categories``; NaN for a class without objects.
    """
    params = evaluation.params
    order = [list(params.catIds).index(number) for number in categories]
    precision, recall = (np.asarray(evaluation.eval[name], float)[..., order, :, :] for name in ('precision', 'recall'))
    thresholds, most = np.asarray(params.iouThrs, float), [int(number) for number in params.maxDets]
    area, last = list(params.areaRngLbl).index('all'), min(2, len(most) - 1)  # the third is pycocotools' for AP50
    place = most.index(_MOST) if _MOST in most else last
    half = np.flatnonzero(np.isclose(thresholds, 0.5))
    is_there = precision[:, :, :, area, place].max((0, 1)) > -1
    over = f'IoU {thresholds[0]:g}' + f' to {thresholds[-1]:g}' * (len(thresholds) > 1)
    limit = f'mean over {over}; at most {most[place]:,} predictions per image and class'
    found = dict(AP=(precision[:, :, :, area, place], f'average precision, {limit}'))
    if half.size:
        found['AP50'] = precision[half[0], :, :, area, last], 'average precision at IoU 0.5'
    found['AR'] = recall[:, :, area, place], f'recall of all predictions, {limit}'
    kind = params.iouType
    return {Column(f'{kind}_{key}', f'{key} of {_KINDS[kind]}', 3, explanation):
            np.where(is_there, values.mean(tuple(range(values.ndim - 1))), np.nan)
            for key, (values, explanation) in found.items()}
