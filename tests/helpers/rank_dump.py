"""Hooks for configs of the tests: they record the state of each process or disturb it."""
import atexit
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


def say(line):
    os.write(1, f'\n{line}\n'.encode())  # in one call: the processes of a run share the output


def _tell_threads_of_gloo():
    """Print how many threads of gloo are alive when the interpreter ends, where they sometimes abort the process."""
    for _ in range(20):  # the system lists a thread for a moment after it ended
        left = 0
        for task in Path('/proc/self/task').iterdir():
            with suppress(OSError):
                left += 'gloo' in (task / 'comm').read_text()
        if not left:
            break
        time.sleep(0.02)
    say(f'threads of gloo at the end: {left}')
    if RankDumpHook.end:
        say(f'seconds after training: {time.monotonic() - RankDumpHook.end:.1f}')


if 'LONG_WAITS' in os.environ:  # a run that waits for a worker is then visible on any machine
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 100.
if 'TORCHELASTIC_RUN_ID' in os.environ:  # a process of torch's launcher, not of the tests
    atexit.register(_tell_threads_of_gloo)


@HOOKS.register_module()
class RankDumpHook(Hook):
    """Writes the parameters, buffers and losses of each process at the end."""

    end = None  # of the training

    def before_run(self, runner):
        self.losses = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.losses.append(float(outputs['loss']))

    def after_train(self, runner):
        RankDumpHook.end = time.monotonic()
        model = runner.model
        torch.save(dict(parameters=dict(model.named_parameters()), buffers=dict(model.named_buffers()),
                        losses=self.losses), Path(runner.work_dir, f'rank{get_rank()}.pt'))


@HOOKS.register_module()
class EvalNormsHook(Hook):
    """Makes batch norms use running statistics, which are the same in every process."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        for module in runner.model.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.eval()


@HOOKS.register_module()
class SignalHook(Hook):
    """Sends a signal to its own process in an iteration: after it, or at the given point."""

    def __init__(self, rank, iteration, number, where='after_train_iter'):
        self.rank, self.iteration, self.number = rank, iteration, number
        setattr(self, where, self._send)

    def _send(self, runner, *_, **__):
        if get_rank() == self.rank and runner.iter + 1 == self.iteration:
            os.kill(os.getpid(), getattr(signal, self.number))


@HOOKS.register_module()
class KillInWritingHook(Hook):
    """Kills the process while it writes a checkpoint."""

    def __init__(self, iteration):
        self.iteration = iteration

    def before_save_checkpoint(self, runner, checkpoint):
        if checkpoint['meta']['iter'] == self.iteration:
            torch.save = _write_a_part


def _write_a_part(checkpoint, file):
    file.write(b'PK')
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)


@HOOKS.register_module()
class PoisonHook(Hook):
    """Makes the loss of one process NaN from an iteration on; with ``heal`` only in that one."""

    def __init__(self, rank, iteration, heal=False):
        self.rank, self.iteration, self.heal, self.kept = rank, iteration, heal, None

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if get_rank() == self.rank and runner.iter + 1 == self.iteration:
            parameter = next(runner.model.parameters())
            self.kept = parameter.detach().clone()
            parameter.data.fill_(float('nan'))

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if self.heal and self.kept is not None:
            next(runner.model.parameters()).data.copy_(self.kept)
            self.kept = None
