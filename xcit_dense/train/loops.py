"""Training loops that can stop and resume anywhere, and that stop by themselves at errors."""
import math
import os
import signal
import sys
import threading
from itertools import islice

import torch
from mmengine.dist import all_gather_object, all_reduce, is_distributed
from mmengine.hooks import EMAHook, ParamSchedulerHook
from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop

from .._utils.processes import STOP_SIGNALS, ignore_signal, release_children
from .._utils.text import counted, first_line
from ..compat.internals import OpenLoop, set_steps, steps_of
from ..data.batches import described, files_of, unwrapped
from ..errors import ConfigError, DataError, LossError, OutOfMemory, Stopped
from .loaders import ResumableLoader, explained
from .resuming import random_state, set_random_state
from .saving import DenseCheckpointHook


class _DenseLoop(OpenLoop):
    """Code that both loops share. At a loss that is no finite number, ``bad_loss`` is to ``stop``, or to ``skip`` the
    batch and count it."""

    def __init__(self, runner, dataloader, *args, bad_loss: str = 'stop', **kwargs):
        if bad_loss not in ('stop', 'skip'):
            raise ConfigError(f"train_cfg.bad_loss must be 'stop' or 'skip', got {bad_loss!r}")
        by_rank = (runner.cfg.get('randomness') or {}).get('diff_rank_seed', False)
        dataloader = runner.build_dataloader(dataloader, runner.seed, by_rank)
        super().__init__(runner, ResumableLoader(dataloader, runner.seed), *args, **kwargs)
        self.bad_loss, self.skipped = bad_loss, 0
        self._validated = None  # the last iteration that was followed by validation
        self._outside = None  # random state of the training, while validation runs
        self._resumed = None  # random state to continue with
        self._steps = None  # of the optimizer wrapper, without skipped batches
        self._signal = None
        self._checks = 0  # batches of a validation after which the processes share their signals
        self._end = sys.maxsize  # iterations after which an epoch ends too
        #: Whether there is time for a validation before the last one, of all processes together.
        self.may_validate = lambda: True

    def state_dict(self) -> dict:
        """Return the position in the run, besides mmengine's epoch and iteration, and this process's random state."""
        # hooks save when the metrics of a validation are available
        validated = self._validated if self._outside is None else self.iterations
        return dict(data=self.dataloader.state_dict(), validated=validated, skipped=self.skipped,
                    steps=steps_of(self.runner.optim_wrapper),
                    random=self._outside or self._resumed or random_state())

    def load_state_dict(self, state: dict):
        """Go to a position; the random state is set when the first batch is available."""
        self.dataloader.load_state_dict(state['data'])
        self._validated, self.skipped, self._resumed = state['validated'], state['skipped'], state['random']
        self._steps = state['steps']

    def run(self):
        """Train from the current position."""
        module, previous = unwrapped(self.runner.model), {}
        release_children()
        if threading.current_thread() is threading.main_thread():  # Python handles signals only there
            previous = {number: signal.signal(number, self._note_signal) for number in STOP_SIGNALS}
        module.parse_losses = _checked(module.parse_losses)
        if self._steps is not None:
            set_steps(self.runner.optim_wrapper, self._steps)
        try:
            self.update_val_interval()
            self.runner.call_hook('before_train')
            self._run()
            self.runner.call_hook('after_train')
            return self.runner.model
        except DataError as error:
            # the other processes of a run would not save; validation has swapped parameters and random state
            if is_distributed() or self._outside is not None or not self.iterations:
                raise
            raise DataError(f'{error}. Fix the data. {self._save()}') from error
        finally:
            del module.parse_losses  # restores the method of the class
            for number, handler in previous.items():
                signal.signal(number, handler or signal.SIG_DFL)

    def run_iter(self, *args):
        """Train on a batch; arguments as in mmengine's loop."""
        batch, buffers = args[-1], []
        if self._resumed is not None:
            set_random_state(self._resumed)
            self._resumed = None
        if self.bad_loss == 'skip':  # the statistics of norms change before there is a loss
            buffers = [(buffer, buffer.clone()) for buffer in self.runner.model.buffers()]
        try:
            with explained('train_dataloader'):  # torch may report a dead worker at any time
                super().run_iter(*args)
        except _BadLoss as error:
            self._bad_loss(error, args, buffers)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise OutOfMemory(_describe_memory(error, batch, self.iterations + 1)) from error
            raise
        if self._is_asked_to_stop():
            self._stop()

    def _bad_loss(self, error, args, buffers):
        index, batch = (args[0] if len(args) > 1 else self.iterations), args[-1]
        parts = []
        for process, (terms, images) in enumerate(all_gather_object((error.args[0], files_of(batch)))):
            if not all(map(math.isfinite, terms.values())):
                where = f'process {process}: ' if is_distributed() else ''
                terms = ', '.join(f'{name} {value:g}' for name, value in terms.items())
                parts.append(f'{where}{terms}; images: {", ".join(images)}')
        what = f'iteration {self.iterations + 1}: the loss is not finite. {". ".join(parts)}'
        if self.bad_loss == 'stop':
            raise LossError(f'{what}. Earlier checkpoints are kept. Check these images and annotations, or use a lower '
                            '--lr. --cfg-options train_cfg.bad_loss=skip skips and counts such batches.') from error
        for buffer, kept in buffers:
            buffer.copy_(kept)
        self.skipped += 1
        self.runner.logger.warning(f'skipped {counted(self.skipped, "batches")} so far; {what}')
        self.runner.call_hook('after_train_iter', batch_idx=index, data_batch=batch, outputs=None)
        self.iterations += 1

    def _due(self, done, end):
        return done >= self.val_begin and (done % self.val_interval == 0 or done == end)

    def _validate(self, done, end):
        """Run validation if it is due after so many of all epochs or iterations; the training goes on as without."""
        if (self.runner.val_loop is None or not self._due(done, end) or self._validated == self.iterations
                or done != end and not self.may_validate()):
            return
        self._outside, stopped = self._resumed or random_state(), False
        self._checks = min(all_gather_object(len(self.runner.val_dataloader)))  # each process may have another number
        try:
            with explained('val_dataloader'):
                self.runner.val_loop.run()
        except _StopValidation:
            stopped = True
            for hook in self.runner.hooks:
                if isinstance(hook, EMAHook):
                    hook.after_val_epoch(self.runner)  # puts the model's own parameters back
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise OutOfMemory(f'validation after iteration {self.iterations}: {first_line(error)}. Earlier '
                                  'checkpoints are kept. To need less memory: a smaller val_dataloader.batch_size, or '
                                  'smaller scales in the val_dataloader.') from error
            raise
        set_random_state(self._outside)
        self._outside = None
        if not stopped:
            self._validated = self.iterations
        if stopped or self._is_asked_to_stop():
            self._stop()

    def end_here(self):
        """Make the current iteration the last of the run; called by a hook after it, on all processes."""
        self._end = self.max_iters = self.iterations + 1
        self.max_epochs = self.epochs + 1

    def _note_signal(self, number, _):
        if number == self._signal == signal.SIGINT:  # the second Ctrl-C; launchers send SIGTERM more than once
            raise KeyboardInterrupt
        self._signal = self._signal or number
        hint = '; press Ctrl-C again to stop at once' if number == signal.SIGINT else ''
        os.write(2, f'\n{signal.Signals(number).name}: stopping after this iteration{hint}\n'.encode())

    def _is_asked_to_stop(self):
        """Whether any process of the run has a signal; all of them ask together."""
        flag = torch.tensor(float(self._signal is not None))
        all_reduce(flag, 'max')
        return bool(flag)

    def check_signals(self, batch_idx: int = -1):
        """Stop the validation if a signal came; all processes call this together, or after each validated batch."""
        if batch_idx < self._checks and self._is_asked_to_stop():
            raise _StopValidation

    def _stop(self):
        number = signal.Signals(self._signal or signal.SIGTERM)
        raise Stopped(f'stopped by {number.name} after iteration {self.iterations}. {self._save()}', number)

    def _save(self):
        """Save the run at its current position; return what was done, for the user."""
        hook = next((hook for hook in self.runner.hooks if isinstance(hook, DenseCheckpointHook)), None)
        if hook is None:
            return 'Nothing was saved, as there is no DenseCheckpointHook'
        if threading.current_thread() is threading.main_thread():  # nothing may interrupt the writing
            for ignored in STOP_SIGNALS:
                signal.signal(ignored, ignore_signal)
        return f'Saved {hook.save_stopped(self.runner, self.iterations)}; continue with --resume'


@LOOPS.register_module()
class DenseEpochLoop(_DenseLoop, EpochBasedTrainLoop):
    """Epochs of training that can stop and resume anywhere; arguments as in mmengine's loop, ``bad_loss``, and
    ``max_iters``: after how many iterations the run ends, if that is before the end of its last epoch."""

    def __init__(self, *args, max_iters: int = None, **kwargs):
        super().__init__(*args, **kwargs)
        self._end = max_iters or sys.maxsize
        self.max_epochs = min(self.max_epochs, math.ceil(self._end / len(self.dataloader)))
        self.max_iters = min(self.max_iters, self._end)

    def load_state_dict(self, state: dict):
        super().load_state_dict(state)
        if self.dataloader.batches and self.iterations < self.max_iters:  # the last epoch of `end_here` is not done
            self.epochs = self.dataloader.passes

    def _run(self):
        if self.iterations and (self.dataloader.batches == 0 or self.epochs == self.max_epochs):
            self._validate(self.epochs, self.max_epochs)
        while self.epochs < self.max_epochs and not self.stop_training:
            self.run_epoch()
            self.update_val_interval()
            self._validate(self.epochs, self.max_epochs)

    def run_epoch(self):
        """Iterate over the rest of an epoch."""
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        # not by max_iters, which is that of this batch size: a resumed run may have counted others
        for batch in islice(self.dataloader, max(self._end - self.iterations, 0)):
            self.run_iter(self.dataloader.batches - 1, batch)
            if self.iterations >= self._end:  # which `end_here` may change
                break
        for hook in self.runner.hooks:  # schedules go on after whole epochs only, as a resumed run ends this one
            if not (self.dataloader.batches and isinstance(hook, ParamSchedulerHook)):
                hook.after_train_epoch(self.runner)
        self.epochs += 1


@LOOPS.register_module()
class DenseIterLoop(_DenseLoop, IterBasedTrainLoop):
    """Iterations of training that can stop and resume anywhere; arguments as in mmengine's loop, and ``bad_loss``."""

    def _run(self):
        self.runner.call_hook('before_train_epoch')
        if self.iterations:
            self._validate(self.iterations, self.max_iters)
        while self.iterations < self.max_iters and not self.stop_training:
            self.runner.model.train()
            self.run_iter(next(self.dataloader_iterator))
            self.update_val_interval()
            self._validate(self.iterations, self.max_iters)
        self.runner.call_hook('after_train_epoch')


class _BadLoss(Exception):
    """A loss that is not finite, with its terms; raised before the backward pass."""

class _StopValidation(Exception):
    """A signal came during validation."""


def _checked(parse_losses):
    """Let a model's ``parse_losses`` raise `_BadLoss`, on all processes together, if the loss is not finite."""

    def parse(losses):
        loss, terms = parse_losses(losses)
        bad = (~torch.isfinite(loss.detach())).float()
        all_reduce(bad, 'max')
        if bad:
            raise _BadLoss({name: float(torch.as_tensor(value).detach()) for name, value in terms.items()})
        return loss, terms

    return parse


def is_out_of_memory(error) -> bool:
    """Whether an error says that memory of a GPU, or of the machine, is used up."""
    return isinstance(error, torch.OutOfMemoryError) or type(error) is RuntimeError and (
        "can't allocate memory" in str(error))


def _describe_memory(error, batch, iteration):
    return (f'iteration {iteration}: out of memory with a batch of {described(batch)}: {first_line(error)}. To need '
            'less memory: --cfg-options model.backbone.with_cp=True (activation checkpointing), --amp on a GPU, a '
            'smaller train_dataloader.batch_size (with --auto-scale-lr), smaller scales in the train_pipeline.')
