"""Checkpoints of a run: written completely; then old ones are deleted, but only those that the run wrote here."""
import logging
import os
from pathlib import Path
from uuid import uuid4

from mmengine.dist import all_gather_object
from mmengine.logging import print_log
from mmengine.registry import HOOKS, VISBACKENDS

from .._utils.files import atomic_write
from .._utils.processes import run_on_first
from ..compat.internals import OpenCheckpointHook, OpenVisBackend, built_train_loop
from ..config.runner import refused_options
from ..errors import CheckpointError, ConfigError
from ..weights.files import NOTES, POINTER, Notes, write_notes
from .work_dirs import keep_others, named_errors

#: What the state of a run has of its validations: pairs of the epoch or iteration and the value of the main metric.
#: (The log shows what begins with ``val``.)
VALIDATIONS = 'of_validations'
#: How the names of the metrics begin that mmdet's metric for COCO returns.
_COCO = 'coco/'


@HOOKS.register_module()
class DenseCheckpointHook(OpenCheckpointHook):
    """mmengine's hook, but a checkpoint is deleted only once its replacement is on the disk.

    Args:
        on_write_error: What to do if a checkpoint cannot be written: ``stop``, or ``continue`` with an error in
            the log. Earlier checkpoints are kept in both cases.

    Other arguments are those of `mmengine.hooks.CheckpointHook`, except ``published_keys`` and those for another place.
    """

    #: While nothing is learned, the last checkpoint is the best.
    rule_map = {**OpenCheckpointHook.rule_map, 'greater': lambda a, b: a > b or a == b <= 0}

    def __init__(self, *args, on_write_error: str = 'stop', **kwargs):
        if on_write_error not in ('stop', 'continue'):
            raise ConfigError(f"on_write_error must be 'stop' or 'continue', got {on_write_error!r}")
        super().__init__(*args, **kwargs)
        if given := refused_options(vars(self)):
            raise ConfigError(f'DenseCheckpointHook does not take {", ".join(given)}: it writes whole checkpoints to '
                              'the work dir of the run, where --resume looks. Set the folder with --work-dir DIR; '
                              'convert_checkpoint extracts the weights of a checkpoint')
        self.on_write_error = on_write_error
        self.notes = None  # of the first process
        self._saves_best = False

    def before_train(self, runner):
        """Keep what a resumed checkpoint says about the files of this run, and drop what it says about others."""
        # mmengine's own runner claims no folder: no file there is known to be of its run
        self.notes = getattr(runner, 'notes', None) or Notes(run=uuid4().hex)
        own, infos = {*self.notes.checkpoints, *self.notes.best}, runner.message_hub.runtime_info
        infos.pop('keep_ckpt_ids', None)  # by which mmengine deletes in the current work dir
        for key in [key for key in infos if key.startswith('best_ckpt') or key == 'last_ckpt']:
            name = os.path.basename(str(infos[key]))
            if name in own:  # the folder may have been moved
                infos[key] = str(Path(runner.work_dir, name))
            elif key == 'last_ckpt':
                infos.pop(key)
        runner.message_hub.update_info('run_id', self.notes.run)
        super().before_train(runner)
        # all processes save it again after a better validation, and the first knows whether it is there
        self.last_ckpt = all_gather_object(infos.get('last_ckpt'))[0]

    def save_stopped(self, runner, iteration: int) -> Path:
        """Save a run that stops after some iterations; return the file, or raise `CheckpointError`."""
        name = f'iter_{iteration}.pth'
        self._write(runner, name, dict(epoch=runner.epoch, iter=iteration))
        return Path(self.out_dir, name)

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Let a training stop during validation."""
        if check := getattr(built_train_loop(runner), 'check_signals', None):  # None in a run without training
            check(batch_idx)

    def save_step(self, runner, step, meta):
        """Save a checkpoint; a failure stops the training or is logged, depending on ``on_write_error``."""
        try:
            self._write(runner, self.filename_tmpl.format(step), meta)
        except CheckpointError as error:
            if self.on_write_error == 'stop':
                raise
            runner.logger.error(f'{error} The training continues; earlier checkpoints are kept.')

    def _write(self, runner, name, meta):
        hub = runner.message_hub
        old = run_on_first(self._note, name)
        last, self.last_ckpt = self.last_ckpt, str(Path(self.out_dir, name))
        hub.update_info('last_ckpt', self.last_ckpt)  # it is in the checkpoint too
        try:
            runner.save_checkpoint(self.out_dir, name, save_optimizer=self.save_optimizer,
                                   save_param_scheduler=self.save_param_scheduler, meta=meta, by_epoch=self.by_epoch,
                                   backend_args=self.backend_args, **self.args)
            run_on_first(_write_pointer, runner.work_dir, self.last_ckpt)
        except CheckpointError:
            hub.update_info('last_ckpt', last)
            self.last_ckpt = last
            raise
        self._delete(old)

    def _note(self, name):
        """Note a checkpoint before it is written; return those to delete afterwards."""
        keep_others(self.out_dir, name, self.notes)
        there = [old for old in self.notes.checkpoints if old != name and Path(self.out_dir, old).is_file()]
        self.notes.checkpoints = [*there, name]
        self._write_notes()
        return there[:max(len(there) + 1 - self.max_keep_ckpts, 0)] if self.max_keep_ckpts > 0 else []

    def _note_best(self, new, all_names, validations):
        """Note the best checkpoints, one of which may be in another folder; return those to delete."""
        there = {*self.notes.best, *new}
        self.notes.best, self.notes.validations = [name for name in all_names if name in there], validations
        self._write_notes()
        return sorted(there - {*all_names})

    def _write_notes(self):
        with named_errors(Path(self.out_dir, NOTES)):
            write_notes(self.out_dir, self.notes)

    def _delete(self, names):
        for name in names or ():  # on the first process
            Path(self.out_dir, name).unlink(missing_ok=True)

    def before_save_checkpoint(self, runner, checkpoint):
        """Keep foreign files with the name of a best checkpoint, which is known by now. On the first process."""
        if self._saves_best:
            for name in {os.path.basename(path) for path in self._best().values() if path} - {*self.notes.best}:
                keep_others(self.out_dir, name, self.notes)
                self.notes.best.append(name)

    def save_best_of(self, runner, metrics):
        """Save the best checkpoint, then delete the previous ones; mmengine deletes them before it writes."""
        if not self.save_best:
            return
        if self.key_indicators[0].startswith(_COCO) and (
                metrics.get(self.key_indicators[0]) == -1 or not any(name.startswith(_COCO) for name in metrics)):
            return  # there was no object to find, or mmdet evaluates nothing where nothing was found
        unknown = [key for key in self.key_indicators if key not in (*metrics, 'auto')]
        if metrics and unknown:
            raise ConfigError(f'default_hooks.checkpoint.save_best: there is no metric {", ".join(unknown)}. Metrics: '
                              f'{", ".join(metrics)}')
        hub, before = runner.message_hub, self._best()
        infos = dict(hub.runtime_info)
        self._set_best({})
        self._saves_best = True
        try:
            super().save_best_of(runner, metrics)
            new = {os.path.basename(path) for path in self._best().values() if path}
            after = {key: path or before.get(key) for key, path in self._best().items()}
            old = run_on_first(self._note_best, new, [os.path.basename(path) for path in after.values() if path],
                               len(hub.runtime_info.get(VALIDATIONS, ())))
        except CheckpointError as error:
            hub.runtime_info.clear()
            hub.runtime_info.update(infos)
            self._set_best(before)
            if self.on_write_error == 'stop':
                raise
            runner.logger.error(f'{error} The training continues; the previous best checkpoint is kept.')
            return
        finally:
            self._saves_best = False
        self._set_best(after)
        self._delete(old)

    def _best(self):
        """Return the best checkpoint by metric; the key of a single metric, whose name may be unknown yet, is None."""
        return {None: self.best_ckpt_path} if len(self.key_indicators) == 1 else dict(self.best_ckpt_path_dict)

    def _set_best(self, paths):
        self.best_ckpt_path = paths.get(None)
        self.best_ckpt_path_dict = {key: paths.get(key) for key in self.key_indicators}


def _write_pointer(work_dir, checkpoint):
    with named_errors(Path(work_dir, POINTER)) as pointer, atomic_write(pointer) as part:
        part.write_text(checkpoint)


@VISBACKENDS.register_module()
class DenseVisBackend(OpenVisBackend):
    """mmengine's local files of curves; a full disk loses lines of them, but does not stop the training."""

    def write_line(self, *args, **kwargs):
        """Write scalars; a failure is logged."""
        try:
            super().write_line(*args, **kwargs)
        except OSError as error:
            print_log(f'cannot write the curves: {error}', logger='current', level=logging.WARNING)
