"""The report of a test of a classifier, as a hook of mmengine."""
import logging
from pathlib import Path

import numpy as np
from mmengine.dist import collect_results
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ..data.classes import known_classes
from ..errors import OutputError
from ..files import OwnFiles
from ..predict.classes import test_dataset
from ..predict.reading import ImageReader, picture_of
from ..processes import is_first_process, run_on_first
from ..text import counted
from .confusion import confusion_of, draw_confusion, write_confusion
from .mistakes import draw_mistakes, write_mistakes
from .results import mistakes_of, names_of, result_of

FILES = ('confusion.csv', 'confusion_matrix.png', 'mistakes.json', 'worst_mistakes.png')


@HOOKS.register_module()
class ReportHook(Hook):
    """Writes confusion matrix and worst mistakes of a test of mmpretrain, of a single label an image.

    Args:
        out_dir: The folder for `FILES`.
        overwrite: Whether they may take the place of files that no earlier test wrote.
    """

    def __init__(self, out_dir: str, overwrite: bool = False):
        self._own = OwnFiles(out_dir, 'test', overwrite)
        self._results, self._known, self._outputs = [], (), None

    def after_load_checkpoint(self, runner, checkpoint):
        """Keep what the checkpoint calls the outputs of its model; the data may have other names."""
        self._known = known_classes(checkpoint)

    def before_test(self, runner):
        """Claim the files.

        Raises:
            OutputError: Files that no earlier test wrote would be overwritten.
        """
        self._results = []
        run_on_first(self._own.claim, *FILES)

    def after_test_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Keep what was predicted."""
        self._results += map(result_of, outputs)
        scores = outputs[0].get('pred_score')
        self._outputs = None if scores is None else len(scores)

    def after_test(self, runner):
        """Write the report of all processes; where images have no single label, the log says that there is none."""
        dataset = runner.test_dataloader.dataset
        results = collect_results(self._results, len(dataset), 'cpu')
        run_on_first(self._write, runner, results, (getattr(dataset, 'metainfo', None) or {}).get('classes') or ())

    def close(self):
        """Note what was written, also by a test that failed."""
        if is_first_process():
            self._own.close()

    def _write(self, runner, results, classes):
        several = results.count(None)
        if several or not results:
            runner.logger.log(logging.WARNING, f'{counted(several, "images")} of {len(results):,} have no single label '
                              'and prediction: there is no confusion matrix and no sheet of mistakes of several labels '
                              'an image, or of none')
            return self.close()
        names = names_of(classes, results, self._known if len(self._known) == self._outputs else classes)
        mistakes, counts = mistakes_of(results), confusion_of(results, len(names.truth))
        reader = ImageReader(test_dataset(runner.cfg), on_disk=False)
        folder = Path(self._own.folder)
        try:
            write_confusion(folder / FILES[0], counts, names)
            draw_confusion(folder / FILES[1], counts, names)
            write_mistakes(folder / FILES[2], mistakes, names)
            draw_mistakes(folder / FILES[3], mistakes, names, len(results),
                          lambda path: picture_of(reader.load(path, 0)))
        except OSError as error:
            raise OutputError(f'cannot write into {folder}: {error}') from error
        finally:
            self.close()
        runner.logger.info(f'{counted(len(mistakes), "mistakes")} among {counted(len(results), "images")}'
                           f'{_most_frequent(counts, names)}; {", ".join(FILES)} in {folder}')
        return None


def _most_frequent(counts, names):
    """Return the mistake that was made most often, in words."""
    wrong = counts * (1 - np.eye(len(counts), dtype=counts.dtype))
    truth, prediction = np.unravel_index(wrong.argmax(), wrong.shape)
    number = wrong[truth, prediction]
    return f', most often {names.truth[truth]} taken for {names.prediction[prediction]} ({number:,})' if number else ''
