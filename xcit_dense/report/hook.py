"""The report on a test, as a hook of mmengine."""
from pathlib import Path

from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from .._utils.files import OwnFiles
from .._utils.processes import is_first_process, return_freed_memory, run_on_first
from .._utils.text import first_line
from ..config.framework import framework_of
from ..data.classes import known_classes
from ..errors import XCiTDenseError
from .classification import ClassificationRecorder
from .content import tell_classes, write_classes, write_confusion
from .detection import DetectionRecorder
from .page import draw_confusion, write_page
from .segmentation import SegmentationRecorder

PAGE, CLASSES, CONFUSION, MATRIX = FILES = 'report.html', 'per_class.csv', 'confusion.csv', 'confusion_matrix.png'
#: Freed memory goes back to the system after this many batches: 40 ms for a process of 1 GiB.
_RETURN_EVERY = 50
_RECORDERS = dict(mmdet=DetectionRecorder, mmseg=SegmentationRecorder, mmpretrain=ClassificationRecorder)


@HOOKS.register_module()
class ReportHook(Hook):
    """Writes a report on a test: a page, the table of classes and the confusion matrix.

    A problem of the report is a warning: it stops no test, and its metrics are logged before.

    Args:
        out_dir: The folder for `FILES` and those of the task.
        overwrite: Whether to replace files that no earlier test wrote.
    """

    def __init__(self, out_dir: str, overwrite: bool = False):
        self._own = OwnFiles(out_dir, 'test', overwrite)
        self._recorder, self._known, self._metrics = None, (), {}

    def after_load_checkpoint(self, runner, checkpoint):
        """Keep the checkpoint's names for the outputs of its model; the data may have other names."""
        self._known = known_classes(checkpoint)

    def before_test(self, runner):
        """Claim the files.

        Raises:
            OutputError: Files that no earlier test wrote would be overwritten.
        """
        framework = framework_of(runner.cfg)
        kind = _RECORDERS.get(framework)
        if kind is None:
            runner.logger.warning(f'no report written: there are reports for {", ".join(_RECORDERS)}, not for models '
                                  f'of {framework}')
            return
        run_on_first(self._own.claim, *FILES, *kind.files)
        self._recorder = self._try(runner, kind, runner, self._known)

    def after_test_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Keep what the report needs of a batch."""
        if self._recorder:
            self._try(runner, self._recorder.see, data_batch, outputs)
        if (batch_idx + 1) % _RETURN_EVERY == 0:
            return_freed_memory()

    def after_test_epoch(self, runner, metrics=None):
        """Keep the metrics."""
        self._metrics = metrics or {}

    def after_test(self, runner):
        """Write the report of all processes, after the log of the metrics."""
        if all(all_gather_object(self._recorder is not None)):
            content = self._try(runner, self._recorder.content, self._metrics)
            if content is not None and is_first_process():
                self._try(runner, self._write, runner, content)
        self.close()

    def close(self):
        """Record what was written, also after a test that failed."""
        if is_first_process():
            self._own.close()

    def _try(self, runner, function, *args):
        """Call a function; after an error, log a warning and report nothing more."""
        try:
            return function(*args)
        except Exception as error:  # of any type: hours of a test must not be lost for a report on it
            is_known = isinstance(error, (OSError, XCiTDenseError))
            reason = first_line(error) if is_known else f'{type(error).__name__}: {first_line(error)}'
            runner.logger.warning(f'the report in {self._own.folder} is incomplete: {reason}. The metrics of the test '
                                  'are not affected', exc_info=None if is_known else error)
            self._recorder = None
            return None

    def _write(self, runner, content):
        folder, recorder = Path(self._own.folder), self._recorder
        runner.logger.info('\n'.join(filter(None, [
            f'per class, worst first:\n{tell_classes(content)}', *content.notes, recorder.summary()])))
        write_classes(folder / CLASSES, content)
        write_confusion(folder / CONFUSION, content.confusion)
        draw_confusion(folder / MATRIX, content.confusion)
        recorder.write_more(folder)
        write_page(folder / PAGE, content)
        runner.logger.info(f'wrote {", ".join((*FILES, *recorder.files))} into {folder}')
