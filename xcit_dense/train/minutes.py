"""The longest training that fits into some minutes: measured before it starts, and set as its length."""
import copy
import io
import math
import time
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from mmengine.dist import all_gather_object, all_reduce
from mmengine.hooks import Hook
from mmengine.logging import print_log

from .._utils.processes import end_workers, is_first_process, return_freed_memory
from .._utils.text import counted, type_name
from ..config.check import schedulers
from ..config.check.keys import concerns, copies_of, restore_given
from ..config.length import UNITS, length_key, set_length, set_val_interval, shorten_warm_up
from ..errors import ConfigError, Stopped
from .resuming import kept_random_state
from .runner import build_runner
from .work_dirs import lock_work_dir

#: The first iterations, which are slower and belong to the start; the fewest and the most that are measured after them.
_FIRST, _FEWEST, _MOST = 6, 6, 60
#: The fewest batches of the validation that are measured.
_BATCHES = 2
#: The share of the minutes in which iterations, and a validation, are measured.
_MEASURED = 0.015
#: The most validations, the share of the run that they may take, and the fewest iterations of a run.
_VALIDATIONS, _SHARE, _ITERATIONS = 10, 0.06, 20
#: A trained model finds more than one that is measured, which only the second validation could take into account.
_TRAINED = 1.25
#: What is left for the end of the run: a share of the minutes, and seconds.
_LEFT, _END = 0.01, 5.
#: A length that no training has, and so no end is in sight while it is measured.
_ENDLESS = 10**6
#: Hooks that report to the user.
_REPORTS = 'StartupHook', 'EndingHook', 'LoggersHook'
#: What a length changes.
_PARTS = 'train_cfg', 'param_scheduler', 'default_hooks', 'custom_hooks'


class _Costs(NamedTuple):
    """Seconds of the parts of a training, and the iterations of an epoch."""
    start: float
    iteration: float
    validation: float
    save: float
    epoch: int


def set_minutes(cfg, minutes: float, started: float, given=()):
    """Measure a training on this machine, and make it as long as some minutes allow.

    They are those of the whole run, with its validations, its checkpoints and its start, when `time.monotonic` was
    ``started``. The iterations, the validation and the checkpoint that are measured leave no trace in the training that
    follows: it is the same as with this length in the config. ``cfg.timed`` gets what was changed. There are at most
    ten validations, fewer where they take long. The ``given`` dotted keys are set by ``--cfg-options``.

    Returns:
        The `MinutesHook` that keeps the minutes where the training is slower than what was measured.

    Raises:
        ConfigError: The minutes are too few, the loop of the config is unknown, or ``given`` has the length too.
        Stopped: A signal came while it was measured.
    """
    key = length_key(cfg, 'minutes')
    if twice := [name for name in given if concerns(name, (f'train_cfg.{key}', 'train_cfg.val_interval',
                                                           'default_hooks.checkpoint.interval'))]:
        raise ConfigError(f'{", ".join(twice)}: set by --cfg-options and by --minutes {minutes:g}. Omit one of them')
    if is_first_process(cfg.get('launcher')):
        print_log(f'--minutes {minutes:g}: measuring up to {_FIRST + _MOST} iterations, a validation and a checkpoint',
                  logger='current')
    costs = _measure(cfg, key, _MEASURED * 60 * minutes, started + 12 * minutes)
    deadline = started + 60 * minutes * (1 - _LEFT) - _END
    elapsed = max(all_gather_object(time.monotonic() - started)) + costs.start
    left = deadline - started - elapsed
    loop, saving = cfg.train_cfg, (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    each = costs.validation + costs.save * (1 + bool(saving.get('save_best')))
    if left * _SHARE < 2 * each:
        each *= _TRAINED
    if key == 'max_epochs':
        epoch, interval, most = costs.epoch, loop.get('val_interval', 1) * costs.epoch, _VALIDATIONS
        # only our loop ends within an epoch, and what begins after a number of epochs needs whole ones
        whole = type_name(loop.get('type')) != 'DenseEpochLoop' or any(
            part.get('begin') and part.get('by_epoch', True) for _, part in schedulers(cfg.get('param_scheduler'), ''))
    else:
        epoch, interval, whole = 1, 1, False
        most = min(max(loop[key] // loop.get('val_interval', 1000), 1), _VALIDATIONS)
    length, spacing = longest(left, costs.iteration, each, most, interval)
    if whole:
        length -= length % epoch
    least = max(_ITERATIONS, epoch * whole)
    measured = ', '.join(f'{seconds:{".2g" if seconds < 9.5 else ",.0f"}} s a{name}' for seconds, name in (
        (costs.iteration, 'n iteration'), (costs.validation, ' validation'), (costs.save, ' save')))
    if length < least:
        needed = math.ceil((elapsed + least * costs.iteration + each + _END) / (1 - _LEFT) / 6) / 10
        raise ConfigError(f'--minutes {minutes:g} is too short: {measured}, and {elapsed:.0f} s until the training '
                          f'starts. {least} iterations with one validation need --minutes {needed:g}, or smaller '
                          'images and batches (--image-size, --batch-size), or a machine that does nothing else')
    before = copies_of(cfg, _PARTS)
    text = f'--minutes {minutes:g}: {measured}: {counted(length, "iterations")}'
    if key == 'max_epochs':
        text += f' ({length / epoch:.3g} epochs)'
    set_length(cfg, length, 'iterations', costs.epoch, exact=True)
    if 'fitted' in cfg:
        shorten_warm_up(cfg, costs.epoch)
    set_val_interval(cfg, min(-(-spacing // epoch), cfg.train_cfg[key]))
    cfg.timed = [dict(key=name, before=old, after=new, why=text)
                 for name, old, new in restore_given(cfg, before, given)]
    if is_first_process():
        print_log(text, logger='current')
    return MinutesHook(minutes, deadline, costs.iteration, each)


class MinutesHook(Hook):
    """Ends a training within its minutes: with fewer validations, if these are slower than planned, or sooner.

    Args:
        minutes: Those of the run.
        deadline: When the last validation must have ended, as `time.monotonic` gives it.
        iteration, each: Seconds of an iteration and of a validation with what is saved then, as measured before.
    """
    priority = 'HIGHEST'  # others ask whether an iteration is the last

    def __init__(self, minutes, deadline, iteration, each):
        self._option, self._deadline, self._each = f'--minutes {minutes:g}', deadline, each
        self._left, self._since, self._paused = 60 * minutes * _SHARE, None, None  # for validations
        self._iteration, self._done, self._seconds = iteration, 0, 0.

    def before_train(self, runner):
        """Let the loop ask before each validation; a loop of the user's keeps the length that was chosen."""
        self._ends = hasattr(runner.train_loop, 'end_here')
        runner.train_loop.may_validate = lambda: self._has_time(
            runner, (runner.max_iters - runner.iter) * self._iteration + 2 * self._each,
            f'{self._option}: this validation is left out, as validations are slower than measured',
            self._left >= 2 * self._each)

    def before_val(self, runner):
        self._paused = time.monotonic()

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        """Note how long a validation took, with what was saved after it."""
        now = time.monotonic()
        if self._paused:
            self._left -= now - self._paused
            self._each, self._since, self._paused = max(self._each, now - self._paused), None, None
        self._since = self._since or now

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """End the training if a further iteration would leave no time for the last validation."""
        now = time.monotonic()
        self._done, self._seconds, self._since = self._done + 1, self._seconds + now - self._since, now
        if self._done >= _FEWEST:
            self._iteration = self._seconds / self._done
        left = runner.max_iters - runner.iter - 1
        if self._ends and left > 0 and not self._has_time(runner, self._iteration + self._each, (
                f'{self._option}: the training ends {counted(left, "iterations")} early, as it is slower than '
                'measured')):
            runner.train_loop.end_here()

    def _has_time(self, runner, seconds, otherwise, in_any_case=False):
        """Whether seconds are left, on all processes together; otherwise the log says what follows."""
        late = torch.tensor(float(not in_any_case and time.monotonic() + seconds > self._deadline))
        all_reduce(late, 'max')
        if late:
            runner.logger.info(otherwise)
        return not late


def longest(seconds: float, unit: float, each: float, most: int, interval: int = 1) -> tuple:
    """Return the longest training that fits into a time, and the interval of its validations.

    Args:
        unit: Seconds of an iteration.
        each: Seconds of a validation with what is saved then.
        most: The most validations; there are fewer if they would take more than a share of the time.
        interval: The smallest interval of validations.
    """
    count = max(min(most, int(seconds * _SHARE / each)) if each else most, 1)
    length = max(int((seconds - count * each) / unit), 0)
    while (length + 1) * unit + min(count, -(-(length + 1) // interval)) * each <= seconds:
        length += 1
    return length, max(-(-length // count), interval)


def _measure(cfg, key, *limits):
    """Train, validate and save with a copy of the config in a folder that is deleted afterwards."""
    folder = Path(cfg.work_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with (lock_work_dir(folder) if is_first_process(cfg.get('launcher')) else nullcontext(), kept_random_state(),
          TemporaryDirectory(dir=folder, prefix='.measured_') as place,
          redirect_stdout(io.StringIO())):  # which has tables of metrics
        try:
            costs = _costs(_endless(cfg, key, place), *limits)
        except Stopped as stopped:
            raise Stopped('stopped before the training began, while --minutes was measured: nothing was saved',
                          stopped.number) from stopped
        finally:
            end_workers()
            return_freed_memory()
    return _Costs(*map(max, zip(*all_gather_object(costs), strict=True)))


def _endless(cfg, key, folder):
    """Return a copy of a config that trains without an end, without validations, and reports nothing."""
    cfg = copy.deepcopy(cfg)
    set_length(cfg, _ENDLESS, UNITS[key], epoch_length=1)
    cfg.train_cfg.val_begin = _ENDLESS
    hooks = {name: hook for name, hook in (cfg.get('default_hooks') or {}).items() if not _reports(hook)}
    cfg.default_hooks = dict(hooks, checkpoint=None)
    cfg.custom_hooks = [hook for hook in cfg.get('custom_hooks') or () if not _reports(hook)]
    cfg.visualizer = dict(cfg.get('visualizer') or {}, name='measured', vis_backends=None)  # shared by its name
    cfg.work_dir, cfg.experiment_name, cfg.log_level = folder, 'measured', 'ERROR'
    return cfg


def _reports(hook):
    return type_name((hook or {}).get('type')) in _REPORTS


def _costs(cfg, *limits):
    began = time.monotonic()
    runner, watch = build_runner(cfg), _Watch(*limits)
    runner.register_hook(watch, 'LOWEST')
    try:
        with suppress(_Enough):
            runner.train()
        ends = watch.ends
        iteration = (ends[-1] - ends[_FIRST - 1]) / (len(ends) - _FIRST)
        start, validation = ends[_FIRST - 1] - began - _FIRST * iteration, 0.
        if runner.val_loop is not None:
            began, watch.ends = time.monotonic(), []
            batches = watch.batches = min(all_gather_object(len(runner.val_dataloader)))
            try:
                runner.val_loop.run()
                validation = time.monotonic() - began
            except _Enough:
                runner.val_loop.evaluator.evaluate(len(runner.val_dataloader.dataset))
                validation = (time.monotonic() - began) / len(watch.ends) * batches
        began = time.monotonic()
        runner.save_checkpoint(cfg.work_dir, 'measured.pth')
        return _Costs(start, iteration, validation, time.monotonic() - began, len(runner.train_dataloader))
    finally:
        runner.logger.setLevel('INFO')  # other messages go there, until the training has its own


class _Enough(Exception):
    """Enough was measured. All processes raise it together."""


class _Watch(Hook):
    """Notes when iterations and validated batches end, and stops after some seconds, or sooner from a deadline on."""

    def __init__(self, seconds, deadline):
        self._seconds, self._deadline, self.ends, self.batches = seconds, deadline, [], 0

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Stop after some iterations; short epochs are among them, at whose end the next one has to be read."""
        self.ends.append(time.monotonic())
        count = len(self.ends) - _FIRST
        if count >= 1:
            self._stop(count >= _MOST or self.ends[-1] > self._deadline
                       or count >= _FEWEST and self.ends[-1] - self.ends[_FIRST - 1] > self._seconds)

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Stop after some batches, which every process has."""
        self.ends.append(time.monotonic())
        if _BATCHES <= len(self.ends) < self.batches:
            self._stop(self.ends[-1] - self.ends[0] > self._seconds)

    def _stop(self, enough):
        if any(all_gather_object(enough)):
            raise _Enough
