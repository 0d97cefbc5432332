"""The hooks of a report on a test, and of what a training logs to TensorBoard and Weights & Biases."""
import logging
from numbers import Real
from pathlib import Path

import cv2
from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS

from .._utils.files import OwnFiles
from .._utils.processes import is_first_process, return_freed_memory, run_on_first
from .._utils.text import counted, first_line, listed
from ..compat.internals import is_resumed
from ..config.tasks import task_of, tasks_with
from ..data.datasets import datasets
from ..predict.drawing import Drawing
from ..predict.reading import ImageReader, picture_of
from ..train.resuming import kept_random_state
from .content import tell_classes, write_classes, write_confusion
from .loggers import KINDS
from .on_training import compare_with_training
from .page import draw_confusion, write_page

PAGE, CLASSES, CONFUSION, MATRIX = FILES = 'report.html', 'per_class.csv', 'confusion.csv', 'confusion_matrix.png'
#: Freed memory goes back to the system after this many batches: 40 ms for a process of 1 GiB.
_RETURN_EVERY = 50
#: How many images are drawn, and the longer side of the largest pictures, which are scaled down.
HANDFUL, _LARGEST = 6, 1600


@HOOKS.register_module()
class ReportHook(Hook):
    """Writes a report on a test into a folder: a page, the table of classes and the confusion matrix, see `FILES`.

    A problem of the report is a warning: it stops no test, and its metrics are logged before. Files that no earlier
    test wrote are replaced only with ``overwrite``.
    """

    def __init__(self, out_dir: str, overwrite: bool = False):
        self._own = OwnFiles(out_dir, 'test', overwrite)
        self._recorder, self._metrics = None, {}
        self.by_size = None  # the SizesHook of tests at several sizes, of which the last has a report

    def before_test(self, runner):
        """Claim the files, with an `OutputError` if others that no earlier test wrote would be overwritten."""
        task = task_of(runner.cfg)
        kind = task.part('recorder')
        if kind is None:
            runner.logger.warning(f'no report written: there are reports for {tasks_with("recorder")}, not for '
                                  f'{task.name}')
            return
        run_on_first(self._own.claim, *FILES)
        if self.by_size is None or self.by_size.size == self.by_size.sizes[-1]:
            self._recorder = self._try(runner, kind, runner)

    def after_test_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Keep what the report needs of a batch."""
        if self._recorder:
            self._try(runner, self._recorder.see, data_batch, outputs)
        if (batch_idx + 1) % _RETURN_EVERY == 0:
            return_freed_memory()

    def after_test_epoch(self, runner, metrics=None):
        self._metrics = metrics or {}

    def after_test(self, runner):
        """Write the report of all processes, after the log of the metrics."""
        if all(all_gather_object(self._recorder is not None)):
            content = self._try(runner, self._recorder.content, self._metrics)
            if content is not None and is_first_process():
                self._try(runner, self._tell, runner, content)
                try:
                    if self.by_size is None:  # at other sizes, it says nothing of the training
                        compare_with_training(runner, content)
                finally:  # Ctrl-C ends it, not the report
                    self._try(runner, self._write, runner, content)
        self.close()

    def close(self):
        """Record what was written, also after a test that failed."""
        self._own.close()

    def _try(self, runner, function, *args):
        """Call a function; after an error, log a warning and report nothing more."""
        try:
            return function(*args)
        except Exception as error:  # of any type: hours of a test must not be lost for a report on it
            runner.logger.warning(f'the report in {self._own.folder} is incomplete: {type(error).__name__}: '
                                  f'{first_line(error)}. The metrics of the test are not affected', exc_info=error)
            self._recorder = None

    def _tell(self, runner, content):
        count = counted(len(runner.test_dataloader.dataset), 'test images')
        runner.logger.info('\n'.join([f'per class, worst first, on {count}:\n{tell_classes(content)}', *content.notes]))

    def _write(self, runner, content):
        folder, content.by_size = Path(self._own.folder), self.by_size and self.by_size.content()
        write_classes(folder / CLASSES, content)
        write_confusion(folder / CONFUSION, content.confusion)
        draw_confusion(folder / MATRIX, content.confusion)
        write_page(folder / PAGE, content)
        runner.logger.info(f'wrote {", ".join(FILES)} into {folder}')


@HOOKS.register_module()
class LoggersHook(Hook):
    """Logs the scalars, the config and pictures of a training to some of `KINDS`, by name; a test is left alone.

    The step of everything is the iteration. An error of a logger is a warning: the training continues without it.
    Nothing here changes the random numbers of the training.
    """
    priority = 'VERY_LOW'  # after mmengine's LoggerHook, before the block at the start is logged

    def __init__(self, loggers):
        self.loggers = list(dict.fromkeys(loggers))
        #: Where to look, by the name of the logger.
        self.places = {}
        self._open, self._snapshots = [], Snapshots()

    def before_train(self, runner):
        """Open the loggers. The names of their runs are in checkpoints, so that a resumed training continues them."""
        if not is_first_process():
            return
        info = runner.message_hub.runtime_info if is_resumed(runner) else {}
        folder = str(Path(runner.work_dir).absolute())
        if unknown := {*self.loggers} - {*KINDS}:  # of a config from before; a misspelt option is an error of the tool
            print_log(f'LoggersHook: there is no logger {listed(sorted(unknown))}, only {listed(KINDS)}. The training '
                      'continues without it', logger='current', level=logging.WARNING)
        for name in (name for name in self.loggers if name in KINDS):
            run, place_of_run = info.get(f'{name}_run') or (None, None)
            # a branch of a run in another folder is another run
            logger = KINDS[name](runner.work_dir, runner.iter, run if place_of_run == folder else None)
            place = self._call(logger, 'open', runner.cfg)
            if place:
                self._open.append(logger)
                self.places[name] = place
                runner.message_hub.update_info(f'{name}_run', (logger.run, folder))
        add_scalars = runner.visualizer.add_scalars

        def add_and_log(scalar_dict, step=0, *args, **options):  # named as mmengine's, which users may call too
            """Pass on what mmengine's LoggerHook logs of the training."""
            add_scalars(scalar_dict, step, *args, **options)
            if 'loss' in scalar_dict:
                self._log({key: value for key, value in scalar_dict.items() if key not in ('iter', 'step')}, 'train',
                          step)

        runner.visualizer.add_scalars = add_and_log

    def before_val_epoch(self, runner):
        if self._open and self._snapshots:
            self._call(self._snapshots, 'begin', runner)

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if self._open and self._snapshots:
            for picture in self._call(self._snapshots, 'drawn', outputs) or ():
                self._call_all('picture', *picture, runner.iter)

    def after_val_epoch(self, runner, metrics=None):
        self._log(metrics or {}, 'val', runner.iter)

    def after_train(self, runner):
        self.close(finished=True)

    def close(self, finished: bool = False):
        self._call_all('close', finished)
        self._open.clear()

    def _log(self, values, kind, step):
        self._call_all('scalars', {name if '/' in name else f'{kind}/{name}': float(value)
                                   for name, value in values.items() if isinstance(value, Real)}, step)

    def _call_all(self, method, *args):
        for logger in [*self._open]:
            self._call(logger, method, *args)

    def _call(self, part, method, *args):
        """Call a method of a logger, or of the pictures; after an error, that is not used any more."""
        try:
            with kept_random_state():
                return getattr(part, method)(*args)
        except Exception as error:  # of any type: whatever a package raises, and data sets may be users' classes
            self._open = [logger for logger in self._open if logger is not part]
            self._snapshots = None if part is self._snapshots else self._snapshots
            print_log(f'{part.title} failed: {type(error).__name__}: {first_line(error)}. The training continues '
                      'without it', logger='current', level=logging.WARNING)


def close_loggers(runner):
    """Close the loggers of a training, also of one that failed."""
    for hook in runner.hooks:
        if isinstance(hook, LoggersHook):
            hook.close()


class Snapshots:
    """Draws a few validation images with their predictions, the same images at every evaluation."""
    #: For messages.
    title = 'Drawing of validation images'
    _reader = None

    def begin(self, runner):
        self._seen, loader = 0, runner.val_dataloader
        if self._reader is None:
            count = len(loader.sampler)  # of this process
            self._places = sorted({round(number * (count - 1) / (HANDFUL - 1)) for number in range(HANDFUL)})
            self._reader = ImageReader(next(iter(datasets(runner.cfg, ['val_dataloader']))), on_disk=False)
            drawing = Drawing(runner.cfg.visualizer, loader.dataset.metainfo, draw_gt=True)
            # the names of classes are written by mmpretrain
            self._draw_sample = drawing.draw if task_of(runner.cfg).predictor else drawing.visualizer.visualize_cls

    def drawn(self, samples) -> list:
        """Return name and picture (left ground truth, right prediction) of each image of a batch to be drawn."""
        first, self._seen, found = self._seen, self._seen + len(samples), []
        for number, place in enumerate(self._places, 1):
            if first <= place < self._seen:
                sample = samples[place - first].cpu()
                found.append((f'validation/{number}_{Path(sample.img_path).stem}', self._draw(sample)))
        return found

    def _draw(self, sample):
        picture = self._draw_sample(picture_of(self._reader.load(sample.img_path)), sample)
        scale = min(_LARGEST / max(picture.shape[:2]), 1)
        return cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
