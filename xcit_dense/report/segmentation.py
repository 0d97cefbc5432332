"""What the test of a model for segmentation tells: pixels, counted image by image in bounded memory."""
import heapq

import cv2
import numpy as np
import torch
from mmengine.dist import all_gather_object, get_rank, get_world_size

from .._utils.text import counted, listed
from ..draw.classes import class_colours
from ..draw.pictures import draw_map
from .content import MOST_PICTURES, Column, Confusion, Content, Picture, Recorder, Row

_PERCENT = ', in percent'
_COUNTS = (Column('images', 'images', explanation='images whose ground truth has the class'),
           Column('pixels', 'pixels', explanation='pixels of the class in the ground truth'))
_FIGURES = (
    Column('IoU', 'IoU', 2, 'correct pixels, divided by those that have the class or were predicted as it' + _PERCENT),
    Column('Acc', 'accuracy (recall)', 2, 'share of the pixels of the class that were predicted as it' + _PERCENT),
    Column('Precision', 'precision', 2, 'share of the pixels predicted as the class that have it' + _PERCENT),
    Column('Fscore', 'F1', 2, 'harmonic mean of precision and recall' + _PERCENT))
_IMAGES = (Column('mIoU', 'mIoU', 2, 'mean IoU of the classes in the ground truth or the prediction' + _PERCENT),
           Column('wrong', 'wrong pixels', 2, 'share of the labelled pixels with a wrong prediction' + _PERCENT))
_NO_CLASS = 'no class'


class SegmentationRecorder(Recorder):
    """Collects the results of a test with a model of segmentation.

    The figures per class are those that the metric of the test prints: its own function computes them, from the counts
    of pixels.
    """

    def __init__(self, runner):
        super().__init__(runner)
        from mmseg.evaluation import IoUMetric
        self._names, self._colours = self.classes, class_colours(self.classes, self.palette)
        self._metric = next((metric for metric in runner.test_loop.evaluator.metrics if isinstance(metric, IoUMetric)),
                            IoUMetric(ignore_index=getattr(self.dataset, 'ignore_index', 255)))
        self._counts = PixelCounts(len(self._names), self._metric.ignore_index, MOST_PICTURES)
        self._seen = self._without = 0

    def see(self, batch, outputs):
        for sample in outputs:
            # the order in which the metrics join the processes; the last images may come twice
            place = self._seen * get_world_size() + get_rank()
            self._seen += 1
            truth, prediction = sample.get('gt_sem_seg'), sample.get('pred_sem_seg')
            if truth is None or prediction is None:
                self._without += 1
            elif place < len(self.dataset):
                prediction = prediction.data.squeeze(0)
                path = sample.get('img_path') or f'image {place}'  # data sets in memory have no files
                self._counts.add(place, str(path), truth.data.squeeze(0).to(prediction.device), prediction)

    def content(self, metrics):
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
        rows, notes = self._rows()
        images = sorted(counts.images, key=lambda image: (not image[1].values, image[1].values.get('mIoU'), image[0]))
        labelled = 'labelled pixels', f'{counts.confusion.sum():,}; those with the label {counts.ignored} do not count'
        return Content('segmentation', self.facts(labelled), metrics, ((*_COUNTS, *_FIGURES), rows),
                       (_IMAGES, [row for _, row in images]), self._confusion(),
                       self.pictures((image[1].name, image[1:]) for image in counts.worst), notes,
                       self.work_dir(), dict(zip(map(str, self._names), self._colours, strict=True)))

    def _rows(self):
        """Return the rows of the classes, worst first, those without pixels last; and a note on the latter."""
        metric, areas = self._metric, areas_of(self._counts.confusion)
        found = metric.total_area_to_metrics(*(torch.tensor(area, dtype=torch.float32) for area in areas),
                                             ['mIoU', 'mFscore'], metric.nan_to_num)
        rows = []
        for place, name in enumerate(self._names):
            predicted, pixels = (int(area[place]) for area in areas[2:])
            values = {column.key: None if np.isnan(value := found[column.key][place]) else round(float(value) * 100, 2)
                      for column in _FIGURES}
            note = '' if pixels else f'no pixels in the ground truth; predicted in {counted(predicted, "pixels")}'
            rows.append(Row(str(name), dict(values, images=int(self._counts.images_of[place]), pixels=pixels), note))
        rows.sort(key=lambda row: (not row.values['pixels'], row.values['IoU'] is None, row.values['IoU']))
        missing = [row.name for row in rows if row.note]
        inside = [row.name for row in rows if row.note and row.values['IoU'] is not None]
        means = 'They are not in the means' + f', except {listed(inside, 20)}, with the IoU of the table' * bool(inside)
        return rows, [f'No pixels in the ground truth: {listed(missing, 20)}. {means}.'] * bool(missing)

    def _confusion(self):
        counts = self._counts.confusion
        names = [*map(str, self._names), *[_NO_CLASS] * bool(counts[-1].any() or counts[:, -1].any())]
        return Confusion(names, counts[:len(names), :len(names)], 'pixels', 'A pixel counts as the class that the '
                         f'model predicts. Pixels with the label {self._counts.ignored} do not count.')

    def draw(self, path, picture, known):
        row, *maps = known  # compressed
        sides = [draw_map(picture, cv2.imdecode(np.frombuffer(labels, np.uint8), cv2.IMREAD_UNCHANGED), self._names,
                          self._colours, (len(self._names) + 1, )) for labels in maps]
        return Picture(path, 'mIoU {mIoU:.2f}%, {wrong:.1f}% of the pixels wrong'.format(**row.values), *sides)


class PixelCounts:
    """Counts pixels by true and predicted class, and keeps the label maps of the worst images, at most ``kept``.

    Pixels with the label ``ignored`` do not count.
    """

    def __init__(self, classes: int, ignored: int, kept: int):
        self.classes, self.ignored, self.kept = classes, ignored, kept
        #: By true (row) and predicted (column) class; the last row and column are for labels that are no class.
        self.confusion = np.zeros((classes + 1, classes + 1), np.int64)
        self.images_of = np.zeros(classes, np.int64)  # how many have a class in the ground truth
        self.images = []  # the number in the data set and the `Row` of all images
        #: The same of the kept ones, the worst first, and ground truth and prediction as compressed label maps (H, W);
        #: ``classes`` is the number for labels that are no class, and the next one for ignored pixels.
        self.worst = []

    def add(self, place: int, path: str, truth: torch.Tensor, prediction: torch.Tensor):
        """Count an image by its number in the data set; both sides are labels (H, W) on the same device."""
        labelled, truth, prediction = truth != self.ignored, self._numbered(truth), self._numbered(prediction)
        size = self.classes + 1
        pairs = (truth * size + prediction)[labelled]
        counts = torch.bincount(pairs, minlength=size * size).reshape(size, size).cpu().numpy()
        self.confusion += counts
        self.images_of += counts[:-1].any(1)
        image = place, _row_of(path, counts)
        self.images.append(image)
        if image[1].values and (len(self.worst) < self.kept or _badness(image) > _badness(self.worst[-1])):
            maps = (torch.where(labelled, labels, size).cpu().numpy() for labels in (truth, prediction))
            self._keep((*image, *(cv2.imencode('.png', labels.astype(np.uint16))[1].tobytes() for labels in maps)))

    def join(self, other):
        """Add what another process counted."""
        self.confusion += other.confusion
        self.images_of += other.images_of
        self.images += other.images
        self._keep(*other.worst)

    def _keep(self, *images):
        self.worst = heapq.nlargest(self.kept, [*self.worst, *images], key=_badness)

    def _numbered(self, labels):
        labels = labels.long()
        return torch.where((labels >= 0) & (labels < self.classes), labels, self.classes)


def _badness(image):
    place, row, *_ = image
    return -row.values['mIoU'], -place


def areas_of(confusion) -> list:
    """Return intersection, union, area of the prediction and of the ground truth of each class."""
    truth, prediction, both = (part[:-1] for part in (confusion.sum(1), confusion.sum(0), np.diag(confusion)))
    return [both, truth + prediction - both, prediction, truth]


def _row_of(path, counts):
    """Return the row of an image: the mean IoU of the classes in its ground truth or prediction, and what is wrong."""
    if not (total := int(counts.sum())):
        return Row(path, {}, 'all pixels are ignored')
    both, union, *_ = areas_of(counts)
    miou = (both[union > 0] / union[union > 0]).mean() if union.any() else 0
    return Row(path, dict(mIoU=100 * float(miou), wrong=100 * float((total - both.sum()) / total)))
