"""Checkpoints of a run: written whole, old ones deleted only after, never two runs in one place."""
import fcntl
import logging
import os
import time
from contextlib import contextmanager
from pathlib import Path

from mmengine.logging import print_log
from mmengine.registry import HOOKS, VISBACKENDS

from ..compat.mmengine_private import OpenCheckpointHook, OpenVisBackend, built_train_loop
from ..errors import CheckpointError, ConfigError
from ..files import atomic_write
from ..processes import is_first_process, run_on_first
from ..weights.fetching import POINTER


@HOOKS.register_module()
class DenseCheckpointHook(OpenCheckpointHook):
    """mmengine's hook, but nothing is deleted before what replaces it lies on the disk.

    Args:
        on_write_error: What to do where a checkpoint cannot be written: ``stop``, or ``continue`` with an error in
            the log. What was there before stays in both cases.

    Other arguments are those of `mmengine.hooks.CheckpointHook`, but for ``published_keys`` and those that name another
    place.
    """

    def __init__(self, *args, on_write_error: str = 'stop', **kwargs):
        if on_write_error not in ('stop', 'continue'):
            raise ConfigError(f"on_write_error must be 'stop' or 'continue', got {on_write_error!r}")
        super().__init__(*args, **kwargs)
        if self.out_dir or self.backend_args or self.file_client_args:
            raise ConfigError('DenseCheckpointHook writes to the work dir of the run, where --resume looks: name that '
                              'with --work-dir DIR instead of out_dir, backend_args or file_client_args')
        if self.published_keys:
            raise ConfigError('DenseCheckpointHook writes no second file for published_keys: convert_checkpoint takes '
                              'the weights out of a checkpoint')
        self.on_write_error = on_write_error

    def save_stopped(self, runner, iteration: int) -> Path:
        """Save a run that is told to stop after ``iteration`` iterations, and return the file.

        Raises:
            CheckpointError: It cannot be written.
        """
        name = f'iter_{iteration}.pth'
        self._write(runner, name, dict(epoch=runner.epoch, iter=iteration))
        return Path(self.out_dir, name)

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Let a training stop during validation."""
        check = getattr(built_train_loop(runner), 'check_validation', None)  # none in a run without training
        if check:
            check(batch_idx)

    def save_step(self, runner, step, meta):
        """Save a checkpoint; a failure ends the training or is logged, as ``on_write_error`` says."""
        try:
            self._write(runner, self.filename_tmpl.format(step), meta)
        except CheckpointError as error:
            if self.on_write_error == 'stop':
                raise
            runner.logger.error(f'{error} The training goes on; the checkpoints before are kept.')

    def _write(self, runner, name, meta):
        hub = runner.message_hub
        before = hub.runtime_info.get('kept_checkpoints', [])
        kept = [*(old for old in before if old != name), name]
        keep = kept[-self.max_keep_ckpts:] if self.max_keep_ckpts > 0 else kept
        last, self.last_ckpt = self.last_ckpt, str(Path(self.out_dir, name))
        hub.update_info('kept_checkpoints', keep)  # they are in the checkpoint too
        hub.update_info('last_ckpt', self.last_ckpt)
        try:
            runner.save_checkpoint(self.out_dir, name, save_optimizer=self.save_optimizer,
                                   save_param_scheduler=self.save_param_scheduler, meta=meta, by_epoch=self.by_epoch,
                                   backend_args=self.backend_args, **self.args)
            run_on_first(_write_pointer, runner.work_dir, self.last_ckpt)
        except CheckpointError:
            hub.update_info('kept_checkpoints', before)
            hub.update_info('last_ckpt', last)
            self.last_ckpt = last
            raise
        if is_first_process():
            for old in set(before) - set(keep):
                Path(self.out_dir, old).unlink(missing_ok=True)

    def save_best_of(self, runner, metrics):
        """Save the best checkpoint; those before are deleted here, where mmengine deletes them before it writes."""
        if not self.save_best:
            return
        unknown = [key for key in self.key_indicators if key not in (*metrics, 'auto')]
        if metrics and unknown:
            raise ConfigError(f'default_hooks.checkpoint.save_best: there is no metric {", ".join(unknown)}; there are '
                              f'{", ".join(metrics)}')
        hub, before = runner.message_hub, self._best()
        infos = {key: value for key, value in hub.runtime_info.items() if key.startswith('best_')}
        self._set_best({})
        try:
            super().save_best_of(runner, metrics)
        except CheckpointError as error:
            for key in [key for key in hub.runtime_info if key.startswith('best_')]:
                hub.runtime_info.pop(key)
            hub.runtime_info.update(infos)
            self._set_best(before)
            if self.on_write_error == 'stop':
                raise
            runner.logger.error(f'{error} The training goes on; the best checkpoint before is kept.')
            return
        after = {key: new or before.get(key) for key, new in self._best().items()}
        self._set_best(after)
        for old in set(before.values()) - set(after.values()) - {None}:
            # one elsewhere is of the run that this one was resumed from
            if is_first_process() and Path(old).parent == Path(self.out_dir):
                Path(old).unlink(missing_ok=True)

    def _best(self):
        """The best checkpoint by metric; of a single metric, whose name may not be known yet, under None."""
        return {None: self.best_ckpt_path} if len(self.key_indicators) == 1 else dict(self.best_ckpt_path_dict)

    def _set_best(self, paths):
        if len(self.key_indicators) == 1:
            self.best_ckpt_path = paths.get(None)
        else:
            self.best_ckpt_path_dict = {key: paths.get(key) for key in self.key_indicators}


def _write_pointer(work_dir, checkpoint):
    with _named_errors(Path(work_dir, POINTER)) as pointer, atomic_write(pointer) as part:
        part.write_text(checkpoint)


@contextmanager
def _named_errors(path):
    """Turn errors of writing to ``path`` into one that names it."""
    try:
        yield path
    except (OSError, RuntimeError) as error:  # the latter by torch's writer while it handles the former
        number = getattr(error, 'errno', None) or getattr(error.__context__, 'errno', None)
        if number is None:
            raise
        raise CheckpointError(f'cannot write {path}: {os.strerror(number)}. Make room or writable, or name another '
                              '--work-dir.') from error


def write_checkpoint(checkpoint, path, save):
    """Write a checkpoint with ``save(checkpoint, file)`` whole or not at all.

    Raises:
        CheckpointError: The disk is full or read-only; nothing was changed.
    """
    with _named_errors(Path(path)) as path, atomic_write(path) as part, open(part, 'wb') as file:
        save(checkpoint, file)


def lock_work_dir(work_dir):
    """Keep other trainings out of a folder, as long as the returned file is open; the system frees it with the process.

    What killed trainings left half written is taken away.

    Raises:
        CheckpointError: The folder cannot be written to.
        ConfigError: A training runs there.
    """
    with _named_errors(Path(work_dir)) as folder:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / '.running'
        file = open(path, 'a+')  # noqa: SIM115
    os.register_at_fork(after_in_child=file.close)  # workers may outlive the process by seconds
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        raise ConfigError(f'another training (process {file.read().strip() or "unknown"}) runs in '
                          f'{Path(work_dir).absolute()}: stop it, or name another --work-dir') from None
    except OSError as error:
        print_log(f'{path} cannot be locked on this file system ({error}): see to it that no other training runs there',
                  logger='current', level=logging.WARNING)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    for part in Path(work_dir).glob('*.part'):  # of killed trainings
        part.unlink(missing_ok=True)
    return file


def check_work_dir(work_dir, new: bool):
    """Raise an error before anything is written to a work dir that is not free.

    Args:
        work_dir: The folder.
        new: Whether a run starts there, which must not hold checkpoints of another.

    Raises:
        CheckpointError: The folder cannot be written to.
        ConfigError: A training runs there, or was there.
    """
    lock_work_dir(work_dir).close()  # the runner takes it again
    if new and (found := sorted(Path(work_dir).glob('*.pth'))):
        raise ConfigError(f'{Path(work_dir).absolute()} holds checkpoints of an earlier run, such as {found[0].name}: '
                          'go on with --resume, name another --work-dir, or start anew there with --overwrite')


def move_old_checkpoints(work_dir):
    """Move the checkpoints of an earlier run into a folder of their own, so that none is resumed by mistake.

    Raises:
        CheckpointError: The folder cannot be written to.
    """
    old = sorted(Path(work_dir).glob('*.pth'))
    if old:
        with _named_errors(Path(work_dir, time.strftime('before_%Y%m%d_%H%M%S'))) as folder:
            folder.mkdir()
            for path in [*Path(work_dir).glob(POINTER), *old]:
                path.rename(folder / path.name)
        print_log(f'moved the {len(old)} checkpoints of an earlier run into {folder}', logger='current')


@VISBACKENDS.register_module()
class DenseVisBackend(OpenVisBackend):
    """mmengine's local files of curves, but a full disk costs lines of them, not the training."""

    def write_line(self, *args, **kwargs):
        """Write scalars; a failure is logged."""
        try:
            super().write_line(*args, **kwargs)
        except OSError as error:
            print_log(f'cannot write the curves: {error}', logger='current', level=logging.WARNING)
