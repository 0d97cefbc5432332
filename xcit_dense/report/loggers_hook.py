"""The hook that logs a training to TensorBoard, Weights & Biases and MLflow."""
import atexit
import logging
import os
from numbers import Real

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS

from ..compat.mmengine_private import PassingVisBackend, add_vis_backend, is_resumed
from ..errors import ConfigError
from ..processes import is_first_process
from ..text import first_line
from ..train.randomness import kept_random_state
from .loggers import KINDS
from .snapshots import Snapshots


@HOOKS.register_module()
class LoggersHook(Hook):
    """Logs the scalars, the config and pictures of a training; a test is left alone.

    The step of everything is the iteration. An error of a logger is a warning: the training continues without it.
    Nothing here changes the random numbers of the training.

    Args:
        loggers: Names of `KINDS`.
    """
    priority = 'VERY_LOW'  # after mmengine's LoggerHook, before the block at the start is logged

    def __init__(self, loggers):
        if unknown := [name for name in loggers if name not in KINDS]:
            raise ConfigError(f'LoggersHook.loggers accepts {", ".join(KINDS)}; got {", ".join(map(repr, unknown))}')
        self.loggers = list(loggers)
        #: Where to look, by the name of the logger.
        self.places = {}
        self._open, self._runner, self._snapshots = {}, None, None
        self._validates = self._finished = False

    def before_train(self, runner):
        """Open the loggers."""
        if not is_first_process():
            return
        self._runner, self._pid = runner, os.getpid()
        for name in self.loggers:
            logger = KINDS[name](runner.work_dir, is_resumed(runner), runner.iter)
            self._call(name, logger, 'open', runner.cfg)
            if name in self.places:  # a stop meanwhile, by Ctrl-C, leaves nothing to close
                self._open[name] = logger
        add_vis_backend(runner.visualizer, 'LoggersHook', PassingVisBackend(self._send))
        atexit.register(self._close_at_exit)  # of a training that a user's program started and that failed

    def before_val_epoch(self, runner):
        """Begin with the pictures of an evaluation."""
        self._validates = True
        if self._open and self._snapshots is None:
            self._snapshots = self._try_to_draw(Snapshots, runner) or False
        if self._snapshots:
            self._snapshots.restart()

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Log the pictures of a batch."""
        if self._open and self._snapshots:
            for picture in self._try_to_draw(self._snapshots.drawn, outputs) or ():
                self._call_all('picture', *picture, runner.iter)

    def after_val_epoch(self, runner, metrics=None):
        """The evaluation is over, and its scalars are logged."""
        self._validates = False

    def after_train(self, runner):
        """Close the loggers of a training that came to its end."""
        self._finished = True
        self.close()

    def close(self):
        """Close the loggers, also after a training that failed."""
        self._call_all('close', self._finished)
        self._open.clear()
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self):
        if os.getpid() == self._pid:  # not in a copy of the process
            self.close()

    def _try_to_draw(self, function, *args):
        """Return what a function returns; if it fails, there are no more pictures."""
        try:
            with kept_random_state():
                return function(*args)
        except Exception as error:  # of any type: data sets may be users' classes
            self._snapshots = False
            _warn(f'cannot draw validation images: {_text(error)}. The training continues without pictures')

    def _send(self, values, step):
        """Log scalars of mmengine: evaluations come with the epoch, or the iteration, after which they ran."""
        kind, step = ('val', self._runner.iter) if self._validates else ('train', step)
        numbers = {name if '/' in name else f'{kind}/{name}': float(value) for name, value in values.items()
                   if isinstance(value, Real) and name not in ('iter', 'step')}
        if numbers:
            self._call_all('scalars', numbers, step)

    def _call_all(self, method, *args):
        for name, logger in list(self._open.items()):
            self._call(name, logger, method, *args)

    def _call(self, name, logger, method, *args):
        """Call a method of a logger; if it fails, the logger is not used any more."""
        try:
            with kept_random_state():
                place = getattr(logger, method)(*args)
            if method == 'open':
                self.places[name] = place
        except Exception as error:  # of any type: whatever a package raises
            self._open.pop(name, None)
            _warn(f'{logger.title} failed: {_text(error)}. The training continues without it')


def close_loggers(runner):
    """Close the loggers of a training, also of one that failed."""
    for hook in runner.hooks:
        if isinstance(hook, LoggersHook):
            hook.close()


def _text(error):
    text, cause = first_line(error), error
    while cause.__cause__:
        cause = cause.__cause__
    if first_line(cause) not in text:  # such as a full disk, below a database
        text += f' ({first_line(cause)})'
    return f'{type(error).__name__}: {text}'


def _warn(text):
    print_log(text, logger='current', level=logging.WARNING)
