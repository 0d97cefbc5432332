"""What the test of a model for segmentation tells: pixels, counted image by image in bounded memory."""
import heapq
from typing import NamedTuple

import cv2
import numpy as np
import torch
from mmengine.dist import all_gather_object, get_rank, get_world_size

from .._utils.text import counted, listed
from ..data.batches import unwrapped
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

    def __init__(self, runner, known):
        super().__init__(runner, known)
        from mmseg.evaluation import IoUMetric
        self._names, self._colours = self.classes, class_colours(self.classes, self.palette)
        self._metric = next((metric for metric in runner.test_loop.evaluator.metrics if isinstance(metric, IoUMetric)),
                            IoUMetric(ignore_index=getattr(self.dataset, 'ignore_index', 255)))
        self._counts = PixelCounts(len(self._names), self._metric.ignore_index, MOST_PICTURES)
        self._seen = self._without = 0

    def see(self, batch, outputs):
        """Count the pixels of a batch."""
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
        """Return the `Content`, see `Recorder`."""
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
        notes += ['Other metrics of the test are in its log.'] * (len(self.runner.test_loop.evaluator.metrics) > 1)
        images = sorted(counts.images, key=lambda image: (image.miou is None, image.miou, image.place))
        labelled = 'labelled pixels', f'{counts.confusion.sum():,}; those with the label {counts.ignored} do not count'
        ignored = 'ignored labels', listed(map(str, getattr(self.dataset, 'ignore_labels', ())), 20)
        return Content('segmentation', self.facts(labelled, *[ignored] * bool(ignored[1])), metrics,
                       ((*_COUNTS, *_FIGURES), rows),
                       (_IMAGES, [_image_row(image) for image in images]), self._confusion(),
                       self.pictures((image.figures.path, image) for image in self._counts.worst), notes,
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
        wrong = [row.name for row in rows if row.note and row.values['IoU'] == 0]
        means = f'nan_to_num of the metric averages them in as {metric.nan_to_num}'
        if metric.nan_to_num is None:
            means = 'They are not in the means' + f', except {listed(wrong, 20)}: predicted, so that the IoU is 0' * (
                bool(wrong))
        return rows, [f'No pixels in the ground truth: {listed(missing, 20)}. {means}.'] * bool(missing)

    def _confusion(self):
        counts = self._counts
        names = [*map(str, self._names)]
        used = counts.confusion[-1].any() or counts.confusion[:, -1].any()
        size = len(names) + bool(used)
        extra = [_NO_CLASS] * bool(used)
        return Confusion([*names, *extra], [*self.outputs(names), *extra], counts.confusion[:size, :size], 'pixels',
                         self._rule())

    def _rule(self):
        head = getattr(unwrapped(self.runner.model), 'decode_head', None)
        head = head[-1] if isinstance(head, (list, torch.nn.ModuleList)) else head
        rule = 'A pixel counts as the class of the highest score'
        if getattr(head, 'out_channels', None) == 1:
            rule = f'A pixel counts as the second class if its score is above {head.threshold:g}'
        return f'{rule}. Pixels with the label {self._counts.ignored} do not count.'

    def draw(self, path, picture, known):
        """Return a `WorstImage` as a `Picture`."""
        sides = []
        for compressed in known[1:]:
            labels, ignored = self._counts.labels_of(compressed)
            if labels.shape != picture.shape[:2]:  # a loader that changes the size
                picture = cv2.resize(picture, labels.shape[::-1], interpolation=cv2.INTER_AREA)
            sides.append(draw_map(picture, labels, self._names, self._colours, (ignored, )))
        return Picture(path, _caption(known.figures, [*map(str, self._names), _NO_CLASS]), *sides)


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


class ImageFigures(NamedTuple):
    """What is known of an image.

    Args:
        place: Its number in the data set.
        path: The image file.
        miou: Mean IoU of the classes in the ground truth or the prediction, from 0 to 1; None if all is ignored.
        wrong: Share of the labelled pixels with a wrong prediction; None if all is ignored.
        confused: The most frequent mistake: numbers of the true and the predicted class, and its share of the labelled
            pixels; None if there is no mistake.
    """
    place: int
    path: str
    miou: float | None
    wrong: float | None
    confused: tuple | None


class WorstImage(NamedTuple):
    """Figures of an image, and ground truth and prediction as compressed label maps, see `labels_of`."""
    figures: ImageFigures
    truth: bytes
    prediction: bytes


class PixelCounts:
    """Counts pixels by true and predicted class, and keeps the label maps of the worst images.

    Args:
        classes: The number of classes.
        ignored: The label of pixels that do not count.
        kept: How many images to keep.

    Attributes:
        confusion: Pixels by true (row) and predicted (column) class, int64. The last row and column are for labels that
            are no class.
        images_of: For each class, how many images have it in the ground truth.
        images: `ImageFigures` of all images.
        worst: `WorstImage` of the kept ones, the worst first.
    """

    def __init__(self, classes: int, ignored: int, kept: int):
        self.classes, self.ignored, self.kept = classes, ignored, kept
        self.confusion = np.zeros((classes + 1, classes + 1), np.int64)
        self.images_of = np.zeros(classes, np.int64)
        self.images, self.worst = [], []

    def add(self, place: int, path: str, truth: torch.Tensor, prediction: torch.Tensor):
        """Count an image.

        Args:
            place: Its number in the data set.
            path: The image file.
            truth: Labels (H, W).
            prediction: Labels of the same shape, on the same device.
        """
        labelled, truth, prediction = truth != self.ignored, self._numbered(truth), self._numbered(prediction)
        size = self.classes + 1
        pairs = (truth * size + prediction)[labelled]
        counts = torch.bincount(pairs, minlength=size * size).reshape(size, size).cpu().numpy()
        self.confusion += counts
        self.images_of += counts[:-1].any(1)
        figures = _figures_of(place, path, counts)
        self.images.append(figures)
        if figures.miou is not None and (len(self.worst) < self.kept
                                         or _badness(figures) > _badness(self.worst[-1].figures)):
            maps = [_compressed(torch.where(labelled, labels, size)) for labels in (truth, prediction)]
            self._keep(WorstImage(figures, *maps))

    def join(self, other):
        """Add what another process counted."""
        self.confusion += other.confusion
        self.images_of += other.images_of
        self.images += other.images
        self._keep(*other.worst)

    def labels_of(self, compressed) -> tuple:
        """Return a label map of a `WorstImage` as an array (H, W), and the label of its ignored pixels."""
        return cv2.imdecode(np.frombuffer(compressed, np.uint8), cv2.IMREAD_UNCHANGED), self.classes + 1

    def _keep(self, *images):
        self.worst = heapq.nlargest(self.kept, [*self.worst, *images], key=lambda image: _badness(image.figures))

    def _numbered(self, labels):
        labels = labels.long()
        return torch.where((labels >= 0) & (labels < self.classes), labels, self.classes)


def _badness(figures):
    return -figures.miou, -figures.place


def areas_of(confusion) -> list:
    """Return intersection, union, area of the prediction and of the ground truth of each class.

    Args:
        confusion: As in `PixelCounts`.
    """
    truth, prediction, both = (part[:-1] for part in (confusion.sum(1), confusion.sum(0), np.diag(confusion)))
    return [both, truth + prediction - both, prediction, truth]


def _figures_of(place, path, counts):
    total = int(counts.sum())
    if not total:
        return ImageFigures(place, path, None, None, None)
    both, union, *_ = areas_of(counts)
    mistakes = counts.copy()
    np.fill_diagonal(mistakes, 0)
    mistakes[-1, -1] = counts[-1, -1]  # a label that is no class is never right
    pair = np.unravel_index(mistakes.argmax(), mistakes.shape)
    share = mistakes[pair] / total
    return ImageFigures(place, path, float((both[union > 0] / union[union > 0]).mean()) if union.any() else 0.,
                        float(mistakes.sum() / total), (*map(int, pair), float(share)) if share else None)


def _compressed(labels):
    labels = labels.cpu().numpy()
    kind = np.uint8 if labels.max() < 256 else np.uint16
    return cv2.imencode('.png', labels.astype(kind))[1].tobytes()
