"""Hooks for the tests of several processes: what each holds, and what happens to one of them."""
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
    os.write(1, f'\n{line}\n'.encode())  # at once: the processes of a run share the output


@atexit.register
def _tell_threads_of_gloo():
    """Threads that live on into the interpreter's end, where they now and then abort the process."""
    for _ in range(20):  # the system lists a thread for a moment after its end
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


@HOOKS.register_module()
class RankDumpHook(Hook):
    """Writes the parameters and losses of each process at the end."""

    end = None  # of the training

    def before_run(self, runner):
        self.losses = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.losses.append(float(outputs['loss']))

    def after_train(self, runner):
        RankDumpHook.end = time.monotonic()
        torch.save(dict(parameters=dict(runner.model.named_parameters()), losses=self.losses),
                   Path(runner.work_dir, f'rank{get_rank()}.pt'))


@HOOKS.register_module()
class EvalNormsHook(Hook):
    """Batch norms with running statistics, the same in every process."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        for module in runner.model.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.eval()


@HOOKS.register_module()
class SignalHook(Hook):
    """Sends a signal to one process of the run, by itself, after an iteration."""

    def __init__(self, rank, iteration, number):
        self.rank, self.iteration, self.number = rank, iteration, number

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if get_rank() == self.rank and runner.iter + 1 == self.iteration:
            os.kill(os.getpid(), getattr(signal, self.number))


@HOOKS.register_module()
class PoisonHook(Hook):
    """Makes the loss of one process infinite, at an iteration."""

    def __init__(self, rank, iteration):
        self.rank, self.iteration = rank, iteration

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if get_rank() == self.rank and runner.iter + 1 == self.iteration:
            next(runner.model.parameters()).data.fill_(float('nan'))
