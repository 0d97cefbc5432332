"""What the test of a model for segmentation tells."""
import numpy as np
import torch
from mmengine.dist import all_gather_object, get_rank, get_world_size

from ..draw.classes import class_colours
from ..draw.pictures import draw_map
from ..text import counted, listed
from ..train.sharding import unwrapped
from .content import Column, Confusion, Content, Picture, Row
from .pixels import PixelCounts, areas_of
from .recorder import MOST_PICTURES, Recorder, classes_of

_PERCENT = ', in percent'
_COUNTS = (Column('images', 'images', explanation='images whose ground truth has the class'),
           Column('pixels', 'pixels', explanation='pixels of the class in the ground truth'))
_FIGURES = {column.key: column for column in (
    Column('IoU', 'IoU', 2, 'correct pixels, divided by those that have the class or were predicted as it' + _PERCENT),
    Column('Acc', 'accuracy (recall)', 2, 'share of the pixels of the class that were predicted as it' + _PERCENT),
    Column('Precision', 'precision', 2, 'share of the pixels predicted as the class that have it' + _PERCENT),
    Column('Recall', 'recall', 2, 'share of the pixels of the class that were predicted as it' + _PERCENT),
    Column('Fscore', 'F1', 2, 'harmonic mean of precision and recall' + _PERCENT),
    Column('Dice', 'Dice', 2, 'twice the correct pixels, divided by the pixels of the class plus those predicted as it'
           + _PERCENT))}
_IMAGES = (Column('mIoU', 'mIoU', 2, 'mean IoU of the classes in the ground truth or the prediction' + _PERCENT),
           Column('wrong', 'wrong pixels', 2, 'share of the labelled pixels with a wrong prediction' + _PERCENT))
_NO_CLASS = 'no class'


class SegmentationRecorder(Recorder):
    """Collects the results of a test with a model of segmentation.

    The figures per class are those of the metrics of the test: it takes the areas that they sum up, and calls their own
    function for figures.
    """

    def __init__(self, runner, known):
        super().__init__(runner, known)
        dataset = runner.test_dataloader.dataset
        self._names = classes_of(dataset)
        self._colours = class_colours(self._names, (getattr(dataset, 'metainfo', None) or {}).get('palette'))
        self._metrics = [metric for metric in runner.test_loop.evaluator.metrics
                         if hasattr(metric, 'total_area_to_metrics')]
        self._areas = [None] * len(self._metrics)
        for place in range(len(self._metrics)):
            self._watch(place)
        ignored = next((metric.ignore_index for metric in self._metrics), getattr(dataset, 'ignore_index', 255))
        self._counts = PixelCounts(len(self._names), ignored, MOST_PICTURES)
        self._seen = self._without = 0

    def _watch(self, place):
        """Keep the areas that a metric sums up."""
        metric = self._metrics[place]
        compute = metric.compute_metrics

        def compute_metrics(results):
            if results and all(isinstance(result, tuple) and len(result) == 4 for result in results):
                self._areas[place] = [sum(parts) for parts in zip(*results, strict=True)]  # as mmseg adds them
            return compute(results)

        metric.compute_metrics = compute_metrics

    def see(self, batch, outputs):
        """Count the pixels of a batch."""
        for sample in outputs:
            # the order in which the metrics join the processes; the last images may come twice
            place = self._seen * get_world_size() + get_rank()
            self._seen += 1
            truth, prediction = sample.get('gt_sem_seg'), sample.get('pred_sem_seg')
            if truth is None or prediction is None:
                self._without += 1
            elif place < len(self.runner.test_dataloader.dataset):
                prediction = prediction.data.squeeze(0)
                path = sample.get('img_path') or f'image {place}'  # data sets in memory have no files
                self._counts.add(place, str(path), truth.data.squeeze(0).to(prediction.device), prediction)

    def content(self, metrics):
        """Return the `Content`, see `Recorder`."""
        for metric in self._metrics:
            vars(metric).pop('compute_metrics', None)
        every = all_gather_object((self._counts, self._without))
        if get_rank():
            return None
        counts, without = self._counts, sum(number for _, number in every)
        for other, _ in every[1:]:
            counts.join(other)
        if without or not counts.images or not self._names:
            self.warn('it needs names of classes, and a label map and a prediction for each image, which '
                      f'{without:,} of {counted(without + len(counts.images), "images")} do not have')
            return None
        notes = []
        figures = self._figures(notes)
        rows = self._rows(figures, notes)
        images = sorted(counts.images, key=lambda image: (image.miou is None, image.miou, image.place))
        pixels = int(counts.confusion.sum())
        labelled = ('labelled pixels', f'{pixels:,}; those with the label {counts.ignored} do not count')
        return Content('segmentation', self.facts(labelled), metrics,
                       ((*_COUNTS, *map(self._column, figures)), rows),
                       (_IMAGES, [_image_row(image) for image in images]), self._confusion(), self._pictures(), notes,
                       self.work_dir(), dict(zip(map(str, self._names), self._colours, strict=True)))

    def _figures(self, notes):
        """Return the figures of all classes by name, rounded as mmseg prints them: arrays, NaN where there is none."""
        from mmseg.evaluation import IoUMetric
        found, counts = {}, self._counts
        for number, (metric, areas) in enumerate(zip(self._metrics, self._areas, strict=True)):
            if areas is not None and len(areas[0]) == len(self._names):
                values = metric.total_area_to_metrics(*areas, metric.metrics, metric.nan_to_num, metric.beta)
                _add(found, values, f'{metric.prefix or f"metric {number}"}/')
        areas, fill = next(((areas, metric.nan_to_num) for metric, areas in zip(self._metrics, self._areas, strict=True)
                            if areas is not None), (None, None))
        if not found:
            areas = [torch.tensor(area, dtype=torch.float64) for area in areas_of(counts.confusion)]
            notes.append('The metrics of the test have no figures for classes. These are computed from the confusion '
                         'matrix.')
        more = IoUMetric.total_area_to_metrics(*areas, ['mIoU', 'mFscore'], fill)
        for same, other in (('Recall', 'Acc'), ('Acc', 'Recall'), ('Fscore', 'Dice')):  # two names of one number
            if other in {**more, **found} and same not in found:
                more.pop(same, None)
        _add(found, {key: values for key, values in more.items() if key not in found}, '')
        return dict(sorted(found.items(), key=lambda item: [*_FIGURES, item[0]].index(item[0])))

    def _column(self, key):
        prefix, _, name = key.rpartition('/')
        column = _FIGURES.get(name, Column(name, name, 2))
        beta = next((metric.beta for metric in self._metrics if 'mFscore' in metric.metrics), 1)
        if name == 'Fscore' and beta != 1:
            column = column._replace(title=f'F{beta:g}', explanation=f'mean of precision and recall, which counts '
                                     f'{beta:g} times as much{_PERCENT}')
        return column._replace(key=key, title=f'{column.title} ({prefix})') if prefix else column

    def _rows(self, figures, notes):
        """Return the rows of the classes, worst first, those without pixels last; and add a note on the latter."""
        _, _, predicted, pixels = areas_of(self._counts.confusion)
        key = next(key for key in ('IoU', *figures) if key in figures)
        fill = next((metric.nan_to_num for metric in self._metrics if metric.nan_to_num is not None), None)
        rows = []
        for place, name in enumerate(self._names):
            values = {column: None if np.isnan(value[place]) else round(float(value[place]), 2)
                      for column, value in figures.items()}
            note = ''
            if not pixels[place]:
                note = 'no pixels in the ground truth; ' + (
                    f'in the means as {fill} (nan_to_num)' if fill is not None else
                    f'predicted in {counted(int(predicted[place]), "pixels")}, so that its IoU is 0'
                    if predicted[place] else 'not in the means')
            rows.append(Row(str(name), dict(values, images=int(self._counts.images_of[place]),
                                            pixels=int(pixels[place])), note))
        rows.sort(key=lambda row: (not row.values['pixels'], row.values[key] is None, row.values[key]))
        if missing := [row.name for row in rows if not row.values['pixels']]:
            wrong = [row.name for row in rows if not row.values['pixels'] and row.values['IoU'] == 0]
            notes.append(f'No pixels in the ground truth: {listed(missing, 20)}. ' + (
                f'nan_to_num of the metric averages them in as {fill}.' if fill is not None else
                'They are not in the means' + (f', except {listed(wrong, 20)}: predicted, so that the IoU is 0.'
                                               if wrong else '.')))
        return rows

    def _confusion(self):
        counts = self._counts
        names = [str(name) for name in self._names]
        predicted = [*map(str, self.known)] if len(self.known) == len(names) else names
        used = counts.confusion[-1].any() or counts.confusion[:, -1].any()
        size = len(names) + bool(used)
        extra = [_NO_CLASS] * bool(used)
        return Confusion([*names, *extra], [*predicted, *extra], counts.confusion[:size, :size], 'pixels', self._rule())

    def _rule(self):
        head = getattr(unwrapped(self.runner.model), 'decode_head', None)
        head = head[-1] if isinstance(head, (list, torch.nn.ModuleList)) else head
        rule = 'A pixel counts as the class of the highest score'
        if getattr(head, 'out_channels', None) == 1:
            rule = f'A pixel counts as the second class if its score is above {head.threshold:g}'
        return f'{rule}. Pixels with the label {self._counts.ignored} do not count.'

    def _pictures(self):
        """Return the worst images, see `pictures`."""
        names = [*map(str, self._names), _NO_CLASS]

        def draw(path, picture, image):
            sides = []
            for compressed in image[1:]:
                labels, ignored = self._counts.labels_of(compressed)
                if labels.shape != picture.shape[:2]:  # a loader that changes the size
                    picture = _resized(picture, labels.shape)
                sides.append(draw_map(picture, labels, self._names, self._colours, (ignored, )))
            return Picture(path, _caption(image.figures, names), *sides)

        return self.pictures(((image.figures.path, image) for image in self._counts.worst()), draw)


def _add(found, values, prefix):
    """Add figures of a metric; with the prefix where another metric has others under that name."""
    for key, value in values.items():
        if key == 'aAcc':
            continue
        value = np.round(np.asarray(value) * 100, 2)
        if key in found and not np.array_equal(found[key], value, equal_nan=True):
            key = prefix + key
        found.setdefault(key, value)


def _image_row(image):
    if image.miou is None:
        return Row(image.path, {}, 'all pixels are ignored')
    return Row(image.path, dict(mIoU=100 * image.miou, wrong=100 * image.wrong))


def _caption(image, names):
    text = f'mIoU {100 * image.miou:.2f}%, {image.wrong:.1%} of the pixels wrong'
    if image.confused:
        truth, prediction, share = image.confused
        text += f', most often {names[truth]} predicted as {names[prediction]} ({share:.1%})'
    return text


def _resized(picture, shape):
    import cv2
    return cv2.resize(picture, shape[::-1], interpolation=cv2.INTER_AREA)
