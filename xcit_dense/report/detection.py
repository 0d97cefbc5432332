"""What the test of a model for detection tells."""
import numpy as np
from mmengine.dist import all_gather_object, get_rank

from ..draw.classes import class_colours
from ..text import counted, listed
from .coco_figures import Watch
from .confusion import BACKGROUND
from .content import Column, Confusion, Content, Picture, Row
from .detected import Objects, badness, draw_sides
from .matching import IOU, RULE, SCORE
from .recorder import MOST_PICTURES, Recorder, classes_of, near

_KINDS = dict(bbox='boxes', segm='masks')
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
        figures = self._figures(watch, ids)
        objects, untested = self._count(watch, ids)
        rows = _rows(names, figures, objects)
        notes = _notes(rows, objects, untested)
        if len(self._all) > 1:
            notes.append(f'The report is on the metric {metric_name(watch.metric)}, one of '
                         f'{counted(len(self._all), "metrics")} of the test.')
        predicted = names
        if len(self.known) == len(names) and {*map(str, self.known)} != {*names}:
            predicted = [*map(str, self.known)]
        confusion = Confusion([*names, BACKGROUND], [*predicted, BACKGROUND], objects.confusion, 'objects', RULE)
        columns = (*_COUNTS, *(column for kind, found in figures.items() for column in _columns(kind, found)), *_BEST)
        return Content('detection', self._facts(objects), metrics, (columns, rows),
                       (_IMAGES, [self._image_row(watch, row) for row in sorted(objects.rows, key=badness,
                                                                                reverse=True)]),
                       confusion, self._pictures(watch, objects.worst, names), notes, self.work_dir(),
                       dict(zip(names, _colours(self.runner.test_dataloader.dataset, names), strict=True)))

    def _figures(self, watch, ids):
        """Return `Figures` by type of IoU, also those that other metrics have of the same objects."""
        found = dict(watch.figures)
        for other in self._watches:
            if other.images == watch.images and len(other.truth.anns) == len(watch.truth.anns):
                found = {**other.figures, **found}
        return {kind: found[kind].ordered(ids) for kind in _KINDS if kind in found}

    def _count(self, watch, ids):
        """Count all images of an evaluation, and how many of them have not been tested."""
        objects = Objects({number: label for label, number in enumerate(ids)}, MOST_PICTURES)
        predictions = {}
        for _, prediction in watch.results:
            predictions.setdefault(prediction['img_id'], []).append(prediction)
        untested = [number for number in watch.images if number not in predictions]
        objects.count((number, watch.truth.imgToAnns.get(number, ()), _joined(predictions.get(number)))
                      for number in (*predictions, *untested))
        return objects, untested

    def _facts(self, objects):
        file = getattr(self.runner.test_dataloader.dataset, 'ann_file', None)
        crowds = f' and {counted(objects.crowds, "regions with iscrowd")}' if objects.crowds else ''
        return self.facts(*[('annotations', near(file))] * bool(file),
                          ('objects', f'{int(objects.objects.sum()):,}{crowds}'),
                          ('counts as found', f'IoU at least {IOU}, score at least {SCORE}; AP and AR: all scores'))

    def _image_row(self, watch, row):
        return Row(self._path_of(watch, row.id), dict(
            mistakes=row.missed + row.mistaken + row.false, objects=row.objects, missed=row.missed,
            found=row.objects - row.missed - row.mistaken, wrong_class=row.mistaken, false_positives=row.false))

    def _path_of(self, watch, number):
        path = self._paths.get(number) or watch.truth.imgs.get(number, {}).get('file_name') or f'image {number}'
        return str(path)

    def _pictures(self, watch, worst, names):
        """Return the worst images, see `pictures`."""
        colours = _colours(self.runner.test_dataloader.dataset, names)

        def draw(path, picture, image):
            return Picture(path, _caption(image), *draw_sides(image, picture, watch.truth, names, colours))

        return self.pictures(((self._path_of(watch, image.id), image) for image in worst), draw)


def metric_name(metric) -> str:
    """Return a metric as a reader of the test's log knows it."""
    return metric.prefix or type(metric).__name__


def _columns(kind, figures):
    """Return the columns of a type of IoU."""
    what, thresholds = _KINDS[kind], figures.thresholds
    over = f'IoU {thresholds[0]:g} to {thresholds[-1]:g}' if len(thresholds) > 1 else f'IoU {thresholds[0]:g}'
    most = f'at most {figures.most:,} predictions per image and class'
    columns = [Column(f'{kind}_AP', f'AP of {what}', 3, f'average precision, mean over {over}; {most}'),
               Column(f'{kind}_AR', f'AR of {what}', 3, f'recall of all predictions, mean over {over}; {most}')]
    if figures.ap50 is not None:
        columns.insert(1, Column(f'{kind}_AP50', f'AP50 of {what}', 3, 'average precision at IoU 0.5'))
    return columns


def _rows(names, figures, objects):
    """Return the rows of the classes, the lowest AP first, those without objects last."""
    rows = []
    for label, (name, best) in enumerate(zip(names, objects.best(), strict=True)):
        values = dict(objects=int(objects.objects[label]), images=int(objects.images_of[label]))
        for kind, found in figures.items():
            for key, of_all in ((f'{kind}_AP', found.ap), (f'{kind}_AP50', found.ap50), (f'{kind}_AR', found.ar)):
                if of_all is not None:
                    values[key] = None if np.isnan(of_all[label]) else float(of_all[label])
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
    false = 'false positive' if image.false == 1 else 'false positives'
    parts = ((image.missed, 'missed'), (image.mistaken, 'of a wrong class'), (image.false, false))
    return ', '.join([counted(image.count, 'objects'), *(f'{number:,} {what}' for number, what in parts if number)])


def _colours(dataset, names):
    """Return the colours of classes; a palette is in the order of the config, the classes in that of the file."""
    palette = (getattr(dataset, 'metainfo', None) or {}).get('palette')
    order = [str(name) for name in classes_of(dataset)]
    if palette is not None and not isinstance(palette, str) and len(palette) >= len(order) and {*names} <= {*order}:
        palette = [palette[order.index(name)] for name in names]
    return class_colours(names, palette)


def _joined(predictions):
    """Return the predictions of an image, which several data sets may have under the same id, as one."""
    if not predictions:
        return dict(bboxes=np.zeros((0, 4)), labels=np.zeros(0, int), scores=np.zeros(0))
    if len(predictions) == 1:
        return predictions[0]
    keys = [key for key in ('bboxes', 'labels', 'scores', 'masks') if all(key in part for part in predictions)]
    return {key: [item for part in predictions for item in part[key]] for key in keys}
