"""What the test of a classifier tells."""
from typing import NamedTuple

import numpy as np
from mmengine.dist import collect_results

from .._utils.text import counted, listed
from ..data.batches import unwrapped
from ..data.class_folders import short_names
from .content import MOST_PICTURES, Column, Confusion, Content, Picture, Recorder, Row

_CLASSES = (Column('images', 'images', explanation='images of the class'),
            Column('correct', 'correct', explanation='images of the class that were predicted as it'),
            Column('accuracy', 'accuracy (recall)', 2, 'share of the images of the class that were predicted as it, in '
                   'percent'),
            Column('precision', 'precision', 2, 'share of the images predicted as the class that have it, in percent'))
_IMAGES = (Column('true', 'true class'), Column('predicted', 'predicted class'),
           Column('probability', 'probability', 2, 'that of the predicted class, in percent'))


class ClassificationRecorder(Recorder):
    """Collects the results of an mmpretrain test with one label per image."""

    def __init__(self, runner):
        super().__init__(runner)
        self._results = []

    def see(self, batch, outputs):
        self._results += map(result_of, outputs)

    def content(self, metrics):
        results = collect_results(self._results, len(self.dataset), 'cpu')
        if results is None:
            return None
        without = results.count(None)
        if without or not results:
            self.warn(f'it needs one label and the scores of all classes for each image, which {without:,} of '
                      f'{counted(len(results), "images")} do not have')
            return None
        self._names = names_of(self.classes, results)
        # the surest mistake first, the surest correct one last
        results.sort(key=lambda found: found.probability if found.truth == found.prediction else -found.probability)
        mistakes = [found for found in results if found.truth != found.prediction]
        counts = np.zeros((len(self._names), ) * 2, int)
        for found in results:
            counts[found.truth, found.prediction] += 1
        rows, notes = _rows(self._names, counts)
        images = [Row(found.path, dict(true=self._names[found.truth], predicted=self._names[found.prediction],
                                       probability=100 * found.probability)) for found in results]
        # of a head that learned from training images before the test
        more = getattr(getattr(unwrapped(self.runner.model), 'head', None), 'facts', ())
        return Content('classification', self.facts(*more), metrics, (_CLASSES, rows), (_IMAGES, images),
                       Confusion(self._names, counts, 'images', 'An image counts as the class of the highest score.'),
                       self.pictures((found.path, found) for found in mistakes[:MOST_PICTURES]), notes,
                       self.work_dir())

    def draw(self, path, picture, known):
        return Picture(path, f'{self._names[known.truth]} predicted as {self._names[known.prediction]} '
                       f'({known.probability:.1%})', picture, None)


def _rows(names, counts):
    """Return the rows of the classes, worst first, those without images last; and a note on the latter."""
    correct, images, predicted = np.diag(counts), counts.sum(1), counts.sum(0)
    rows = [Row(name, dict(images=int(images[i]), correct=int(correct[i]), accuracy=_share(correct[i], images[i]),
                           precision=_share(correct[i], predicted[i])), '' if images[i] else 'no images')
            for i, name in enumerate(names)]
    rows.sort(key=lambda row: (row.values['accuracy'] is None, row.values['accuracy'] or 0))
    missing = [row.name for row in rows if row.note]
    return rows, [f'No images: {listed(missing, 20)}.'] * bool(missing)


def _share(part, whole):
    return 100 * float(part / whole) if whole else None


class Result(NamedTuple):
    """A tested image: its file, its class, the predicted class and its probability."""
    path: str
    truth: int
    prediction: int
    probability: float


def result_of(sample) -> Result | None:
    """Return the `Result` of a data sample of mmpretrain, None unless it has one true class and scores."""
    truth, scores = sample.get('gt_label'), sample.get('pred_score')
    if truth is None or truth.numel() != 1 or scores is None:
        return None
    prediction = int(scores.argmax())  # after test-time augmentation, only the scores are those of all views
    # data sets in memory have no files
    path = sample.get('img_path') or f'image {sample.get("sample_idx", "without a number")}'
    return Result(str(path), int(truth), prediction, float(scores[prediction]))


def names_of(classes, results) -> list:
    """Return the name of each class; the number where the data set has no name for it."""
    count = max([len(classes), *(max(result.truth, result.prediction) + 1 for result in results)])
    return [*map(str, short_names(classes)), *map(str, range(len(classes), count))]
