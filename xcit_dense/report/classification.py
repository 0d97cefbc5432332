"""What the test of a classifier tells."""
import numpy as np
from mmengine.dist import collect_results

from ..text import counted, listed
from ..train.sharding import unwrapped
from .classified import mistakes_of, names_of, result_of
from .confusion import confusion_of
from .content import Column, Confusion, Content, Picture, Row
from .mistakes import draw_mistakes, write_mistakes
from .recorder import MOST_PICTURES, Recorder, classes_of

_CLASSES = (Column('images', 'images', explanation='images of the class'),
            Column('correct', 'correct', explanation='images of the class that were predicted as it'),
            Column('accuracy', 'accuracy (recall)', 2, 'share of the images of the class that were predicted as it, in '
                   'percent'),
            Column('precision', 'precision', 2, 'share of the images predicted as the class that have it, in percent'))
_IMAGES = (Column('true', 'true class'), Column('predicted', 'predicted class'),
           Column('probability', 'probability', 2, 'that of the predicted class, in percent'))


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
        dataset = self.runner.test_dataloader.dataset
        self._results = results = collect_results(self._results, len(dataset), 'cpu')
        if results is None:
            return None
        several = results.count(None)
        if several or not results:
            self.warn(f'it needs one label and one prediction per image, which {several:,} of '
                      f'{counted(len(results), "images")} do not have')
            return None
        classes = classes_of(dataset)
        self._names = names_of(classes, results, self.known if len(self.known) == self._outputs else classes)
        self._mistakes, self._counts = mistakes_of(results), confusion_of(results, len(self._names.truth))
        rows, notes = self._rows()
        correct = sorted((found for found in results if found.truth == found.prediction),
                         key=lambda found: found.probability or 0)
        images = [self._image_row(found) for found in (*self._mistakes, *correct)]
        confusion = Confusion(*self._names, self._counts, 'images',
                              'An image counts as the class of the highest score.')
        # of a head that learned from training images before the test
        more = getattr(getattr(unwrapped(self.runner.model), 'head', None), 'facts', ())
        return Content('classification', self.facts(*more), metrics, (_CLASSES, rows), (_IMAGES, images), confusion,
                       self._pictures(), notes, self.work_dir())

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
        draw_mistakes(folder / self.files[1], self._mistakes, self._names, len(self._results), self.image_reader())

    def _pictures(self):
        """Return the worst mistakes, see `pictures`."""

        def draw(path, picture, found):
            sure = '' if found.probability is None else f' ({found.probability:.1%})'
            return Picture(path, f'{self._names.truth[found.truth]} predicted as '
                           f'{self._names.prediction[found.prediction]}{sure}', picture, None)

        return self.pictures(((found.path, found) for found in self._mistakes[:MOST_PICTURES]), draw)


def _share(part, whole):
    return 100 * float(part / whole) if whole else None
