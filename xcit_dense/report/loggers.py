"""Log a training to TensorBoard and Weights & Biases; each package is imported when its logger opens.

mmengine's own backends for them are not used: they start a new record at every resume, have no steps for Weights &
Biases, count evaluations in epochs, wait for a server without a limit, and any error of theirs ends the training.
"""
import logging
import os
from pathlib import Path
from uuid import uuid4

from mmengine.logging import print_log

from .._utils.text import first_line

#: Name of the project, if the environment has none.
PROJECT = 'xcit_dense'
_CONNECT_SECONDS, _UPLOAD_SECONDS = 30, 60


class Logger:
    """One place where a training is logged. Every method may raise any error of its package.

    ``open(cfg)`` opens the record, logs the config and returns where to look, in a few words; ``scalars(values, step)``
    logs numbers by their names; ``picture(name, picture, step)`` logs a picture, (H, W, 3) uint8 RGB;
    ``close(finished)`` ends the record, where ``finished`` is False if the training stopped before its end.

    Args:
        work_dir: The work dir of the training.
        step: The iteration at which the training starts or continues.
        run: What `run` was in the training that is resumed; None if there is none.
    """
    #: For messages.
    title = ''

    def __init__(self, work_dir, step, run):
        self.work_dir, self.step, self.run = Path(work_dir).absolute(), step, run


class TensorBoard(Logger):
    """Event files in ``WORK_DIR/tensorboard``; what a resumed or new run repeats replaces what was there."""
    title = 'TensorBoard'

    def open(self, cfg):
        from torch.utils.tensorboard import SummaryWriter
        folder = self.work_dir / 'tensorboard'
        self._writer = SummaryWriter(str(folder), purge_step=self.step + 1 if self.step else 0)
        text = cfg.pretty_text.replace('\n', '\n    ')
        self._writer.add_text('config', f'    {text}', self.step)
        self._writer.flush()
        return f'tensorboard --logdir {folder}'

    def scalars(self, values, step):
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a run that is killed loses nothing, and a full disk is noticed

    def picture(self, name, picture, step):
        self._writer.add_image(name, picture, step, dataformats='HWC')
        self._writer.flush()

    def close(self, finished):
        self._writer.close()


class WandB(Logger):
    """A run of Weights & Biases; without a key or a connection it is logged into the work dir, to be uploaded later.

    The package uploads in a process of its own, so a training waits for it only at its start and its end.
    """
    title = 'Weights & Biases'

    def open(self, cfg):
        # its reports of errors use the random numbers of the training in a thread; silent, it asks for no key
        for variable, value in dict(WANDB_ERROR_REPORTING='false', WANDB_SILENT='true').items():
            os.environ.setdefault(variable, value)
        import wandb
        self._wandb, self.run = wandb, os.environ.get('WANDB_RUN_ID') or self.run or uuid4().hex[:8]
        settings = wandb.Settings(console='off', init_timeout=_CONNECT_SECONDS, login_timeout=_CONNECT_SECONDS,
                                  finish_timeout=_UPLOAD_SECONDS, finish_timeout_raises=True)
        defaults = dict(project=PROJECT, name=self.work_dir.name, dir=str(self.work_dir))
        options = {key: value for key, value in defaults.items() if not os.environ.get(f'WANDB_{key.upper()}')}
        options.update(id=self.run, resume='allow', settings=settings)
        try:
            self._run = wandb.init(**options)
        except wandb.Error as error:
            print_log(f'{self.title}: it does not start ({first_line(error)[:200]}). This training is logged offline; '
                      'the command that uploads it later is shown below', logger='current', level=logging.WARNING)
            wandb.teardown()  # its process knows this run
            self._run = wandb.init(**options, mode='offline')
        self._run.define_metric('iteration', hidden=True)
        self._run.define_metric('*', step_metric='iteration')
        self._run.config.update(cfg.to_dict(), allow_val_change=True)
        if self._run.offline:
            # one folder for each part of a resumed run
            folder = Path(self._run.settings.sync_dir).parent
            return f'offline; to upload it: wandb sync {folder}/offline-run-*-{self.run}'
        return self._run.url or 'switched off by WANDB_MODE'

    def scalars(self, values, step):
        # its own steps cannot go back, as those of a resumed run may
        self._run.log({**values, 'iteration': step})

    def picture(self, name, picture, step):
        self.scalars({name: self._wandb.Image(picture)}, step)

    def close(self, finished):
        if not self._run.offline and self._run.url:
            print_log(f'{self.title}: uploading, {_UPLOAD_SECONDS} s at most', logger='current')
        self._run.finish(exit_code=0 if finished else 1)


#: By the names that ``--log`` accepts.
KINDS = dict(tensorboard=TensorBoard, wandb=WandB)
