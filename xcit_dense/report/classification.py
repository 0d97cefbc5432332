"""What the test of a classifier tells, with a list of all mistakes and a sheet of pictures of the worst."""
import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mmengine.dist import collect_results
from PIL import Image, ImageOps

from .._utils.files import atomic_write
from .._utils.text import counted, listed
from ..data.batches import unwrapped
from ..data.imagenet import short_names
from ..draw.classes import ALARM, FAINT, FRAME, INK, PAPER, chip
from ..draw.pictures import paste
from .content import MOST_PICTURES, Column, Confusion, Content, Picture, Recorder, Row

_CLASSES = (Column('images', 'images', explanation='images of the class'),
            Column('correct', 'correct', explanation='images of the class that were predicted as it'),
            Column('accuracy', 'accuracy (recall)', 2, 'share of the images of the class that were predicted as it, in '
                   'percent'),
            Column('precision', 'precision', 2, 'share of the images predicted as the class that have it, in percent'))
_IMAGES = (Column('true', 'true class'), Column('predicted', 'predicted class'),
           Column('probability', 'probability', 2, 'that of the predicted class, in percent'))
#: The sheet of mistakes: columns and rows, size of a picture, of a letter, and from a picture to the next, in pixels.
_COLUMNS, _ROWS, _SIZE, _TEXT, _STEP = 5, 4, (300, 225), 15, (310, 300)


class ClassificationRecorder(Recorder):
    """Collects the results of an mmpretrain test with one label per image."""
    files = ('mistakes.json', 'worst_mistakes.png')

    def __init__(self, runner, known):
        super().__init__(runner, known)
        self._results, self._outputs = [], None

    def see(self, batch, outputs):
        """Keep what was predicted."""
        self._results += map(result_of, outputs)
        scores = outputs[0].get('pred_score')
        self._outputs = None if scores is None else len(scores)

    def content(self, metrics):
        """Return the `Content`; None if images do not have exactly one label."""
        self._results = results = collect_results(self._results, len(self.dataset), 'cpu')
        if results is None:
            return None
        several = results.count(None)
        if several or not results:
            self.warn(f'it needs one label and one prediction per image, which {several:,} of '
                      f'{counted(len(results), "images")} do not have')
            return None
        self._names = names_of(self.classes, results, self.known if len(self.known) == self._outputs else self.classes)
        self._mistakes, self._counts = mistakes_of(results), np.zeros((len(self._names.truth), ) * 2, int)
        for found in results:
            self._counts[found.truth, found.prediction] += 1
        rows, notes = self._rows()
        correct = sorted((found for found in results if found.truth == found.prediction),
                         key=lambda found: found.probability or 0)
        images = [self._image_row(found) for found in (*self._mistakes, *correct)]
        confusion = Confusion(*self._names, self._counts, 'images',
                              'An image counts as the class of the highest score.')
        # of a head that learned from training images before the test
        more = getattr(getattr(unwrapped(self.runner.model), 'head', None), 'facts', ())
        return Content('classification', self.facts(*more), metrics, (_CLASSES, rows), (_IMAGES, images), confusion,
                       self.pictures((found.path, found) for found in self._mistakes[:MOST_PICTURES]), notes,
                       self.work_dir())

    def _image_row(self, found):
        probability = None if found.probability is None else 100 * found.probability
        return Row(found.path, dict(true=self._names.truth[found.truth], predicted=self._names.prediction[
            found.prediction], probability=probability))

    def _rows(self):
        """Return the rows of the classes, worst first, those without images last; and a note on the latter."""
        correct, images, predicted = np.diag(self._counts), self._counts.sum(1), self._counts.sum(0)
        rows = [Row(name, dict(images=int(images[i]), correct=int(correct[i]), accuracy=_share(correct[i], images[i]),
                               precision=_share(correct[i], predicted[i])), '' if images[i] else 'no images')
                for i, name in enumerate(self._names.truth)]
        rows.sort(key=lambda row: (row.values['accuracy'] is None, row.values['accuracy'] or 0))
        missing = [row.name for row in rows if row.note]
        return rows, [f'No images: {listed(missing, 20)}.'] * bool(missing)

    def summary(self) -> str:
        """Return how many mistakes there are, and the most frequent."""
        wrong = self._counts * (1 - np.eye(len(self._counts), dtype=self._counts.dtype))
        truth, prediction = np.unravel_index(wrong.argmax(), wrong.shape)
        number = wrong[truth, prediction]
        words = (f', most often {self._names.truth[truth]} predicted as {self._names.prediction[prediction]} '
                 f'({number:,})')
        return (f'{counted(len(self._mistakes), "mistakes")} among {counted(len(self._results), "images")}'
                + words * bool(number))

    def write_more(self, folder):
        """Write the list of mistakes and the sheet of the worst."""
        write_mistakes(folder / self.files[0], self._mistakes, self._names)
        draw_mistakes(folder / self.files[1], self._mistakes, self._names, self.image_reader())

    def draw(self, path, picture, known):
        """Return a mistake as a `Picture`."""
        sure = '' if known.probability is None else f' ({known.probability:.1%})'
        return Picture(path, f'{self._names.truth[known.truth]} predicted as '
                       f'{self._names.prediction[known.prediction]}{sure}', picture, None)


def _share(part, whole):
    return 100 * float(part / whole) if whole else None


class Result(NamedTuple):
    """A tested image: its file, its class, the predicted class and its probability (None if unknown)."""
    path: str
    truth: int
    prediction: int
    probability: float | None


def result_of(sample) -> Result | None:
    """Return the `Result` of a data sample of mmpretrain, None unless it has one true class and one prediction."""
    truth, prediction, scores = (sample.get(key) for key in ('gt_label', 'pred_label', 'pred_score'))
    if truth is None or prediction is None or truth.numel() != 1 or prediction.numel() != 1:
        return None
    # after test-time augmentation only the scores are those of all views
    prediction = int(prediction if scores is None else scores.argmax())
    # data sets in memory have no files
    path = sample.get('img_path') or f'image {sample.get("sample_idx", "without a number")}'
    return Result(str(path), int(truth), prediction, None if scores is None else float(scores[prediction]))


def mistakes_of(results) -> list:
    """Return the wrong results, most confident first."""
    return sorted((result for result in results if result.truth != result.prediction),
                  key=lambda result: -(result.probability or 0))


class Names(NamedTuple):
    """The names of the classes by number: in the data, and of the model's outputs."""
    truth: list
    prediction: list


def names_of(classes, results, outputs=None) -> Names:
    """Return a unique name for each class; names that several classes share get the class number added.

    Args:
        classes: The names of the data set; there may be fewer names than labels.
        results: All `Result`.
        outputs: The names of the model's outputs. Default: those of the data set.
    """
    count = max([len(classes), *(max(result.truth, result.prediction) + 1 for result in results)])
    return Names(_distinct(classes, count), _distinct(outputs or classes, count))


def _distinct(classes, count):
    names = [*map(str, short_names(classes)), *map(str, range(len(classes), count))][:count]
    several = {name for name, number in Counter(names).items() if number > 1}
    return [f'{name} ({place})' if name in several else name for place, name in enumerate(names)]


def write_mistakes(path, mistakes, names):
    """Write mistakes as JSON, in order: path, names of truth and prediction, probability of the prediction."""
    content = [dict(path=found.path, truth=names.truth[found.truth], prediction=names.prediction[found.prediction],
                    probability=found.probability) for found in mistakes]
    with atomic_write(path) as part:
        part.write_text(json.dumps(content, indent=1))


def draw_mistakes(path, mistakes, names, read):
    """Draw the first mistakes as PNG, each above its truth, its prediction with the probability, and its file name.

    Args:
        path: The file.
        mistakes: `Result`, the worst first.
        names: `Names` of the classes.
        read: Function that returns the image of a file as an array (H, W, 3), RGB, uint8. If it raises, the cell stays
            empty.
    """
    sheet = np.full((-(-min(len(mistakes), _COLUMNS * _ROWS) // _COLUMNS) * _STEP[1], _COLUMNS * _STEP[0], 3),
                    PAPER, np.uint8)
    for place, found in enumerate(mistakes[:_COLUMNS * _ROWS]):
        x, y = place % _COLUMNS * _STEP[0], place // _COLUMNS * _STEP[1]
        try:
            picture = ImageOps.pad(Image.fromarray(read(found.path)), _SIZE, Image.Resampling.LANCZOS, FRAME)
        except Exception:  # of any type: loaders may be the user's own, and some data sets have no files
            picture = Image.new('RGB', _SIZE, FRAME)
        paste(sheet, np.asarray(picture), x, y)
        share = '' if found.probability is None else f'{found.probability:.1%}'
        for line, (text, colour, suffix) in enumerate((
                (f'true: {names.truth[found.truth]}', INK, ''),
                (f'predicted: {names.prediction[found.prediction]}', ALARM, share),
                ('/'.join(Path(found.path).parts[-2:]), FAINT, ''))):
            paste(sheet, chip(text, _TEXT, colour, _SIZE[0], suffix), x, y + _SIZE[1] + line * round(1.25 * _TEXT))
    if not mistakes:
        sheet = chip('no mistakes', _TEXT, INK, _SIZE[0])
    with atomic_write(path) as part:
        Image.fromarray(sheet).save(part, format='PNG')
