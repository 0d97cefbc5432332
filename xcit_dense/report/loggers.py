"""TensorBoard, Weights & Biases and MLflow behind one interface; each package is imported when its logger opens.

mmengine's own backends for them are not used: they have no steps for Weights & Biases, start a new run at every
resume, wait for a server without a limit, and close with functions that newer versions have no more.
"""
import json
import logging
import os
import re
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen
from uuid import uuid4

from mmengine.logging import print_log

from ..files import atomic_write
from ..text import first_line

#: Name of the project or experiment, if the environment has none.
PROJECT = 'xcit_dense'
#: In the work dir: by logger, what a resumed run needs to continue the same record.
NOTES = 'loggers.json'
_CONNECT_SECONDS, _UPLOAD_SECONDS = 30, 60


class Logger:
    """One place where a training is logged. Every method may raise any error of its package.

    Args:
        work_dir: The work dir of the training.
        resumed: Whether the training continues an earlier one.
        step: The iteration at which it starts or continues.
    """
    #: For messages.
    title = ''

    def __init__(self, work_dir, resumed, step):
        self.work_dir, self.resumed, self.step = Path(work_dir).absolute(), resumed, step

    def open(self, cfg) -> str:
        """Open the record, log the config, and return where to look, in a few words."""
        raise NotImplementedError

    def scalars(self, values, step):
        """Log numbers by their names."""
        raise NotImplementedError

    def picture(self, name, picture, caption, step):
        """Log a picture, (H, W, 3) uint8 RGB."""
        raise NotImplementedError

    def close(self, finished):
        """End the record; ``finished`` is False if the training stopped before its end."""
        raise NotImplementedError

    def noted(self):
        """Return what `note` wrote in the training that is resumed; empty if there is none."""
        try:
            return json.loads((self.work_dir / NOTES).read_text())[self.title] if self.resumed else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def note(self, **values):
        """Write what a resumed run will need."""
        path = self.work_dir / NOTES
        try:
            notes = dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            notes = {}
        with atomic_write(path) as part:
            part.write_text(json.dumps({**notes, self.title: values}, indent=1))


class TensorBoard(Logger):
    """Event files in ``WORK_DIR/tensorboard``; what a resumed or new run repeats replaces what was there."""
    title = 'TensorBoard'

    def open(self, cfg):
        """See `Logger`."""
        from torch.utils.tensorboard import SummaryWriter
        folder = self.work_dir / 'tensorboard'
        self._writer = SummaryWriter(str(folder), purge_step=self.step + 1 if self.resumed else 0)
        text = cfg.pretty_text.replace('\n', '\n    ')
        self._writer.add_text('config', f'    {text}', self.step)
        self._writer.flush()
        return f'tensorboard --logdir {folder}'

    def scalars(self, values, step):
        """See `Logger`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a run that is killed loses nothing, and a full disk is noticed

    def picture(self, name, picture, caption, step):
        """See `Logger`."""
        self._writer.add_image(name, picture, step, dataformats='HWC')
        self._writer.flush()

    def close(self, finished):
        """See `Logger`."""
        self._writer.close()


class WandB(Logger):
    """A run of Weights & Biases; without a key or a connection it is logged into the work dir, to be uploaded later.

    The package uploads in a process of its own, so a training waits for it only at its start and its end.
    """
    title = 'Weights & Biases'

    def open(self, cfg):
        """See `Logger`."""
        # its reports of errors use the random numbers of the training in a thread; silent, it asks for no key
        for variable, value in dict(WANDB_ERROR_REPORTING='false', WANDB_SILENT='true').items():
            os.environ.setdefault(variable, value)
        import wandb
        self._wandb = wandb
        name = os.environ.get('WANDB_RUN_ID') or self.noted().get('id') or uuid4().hex[:8]
        known = getattr(wandb.Settings, 'model_fields', {})
        limits = dict(init_timeout=_CONNECT_SECONDS, login_timeout=_CONNECT_SECONDS, finish_timeout=_UPLOAD_SECONDS,
                      finish_timeout_raises=True)
        # those of the environment take precedence
        defaults = dict(WANDB_PROJECT=('project', PROJECT), WANDB_NAME=('name', self.work_dir.name),
                        WANDB_DIR=('dir', str(self.work_dir)))
        options = dict((option for variable, option in defaults.items() if not os.environ.get(variable)),
                       resume='allow', settings=wandb.Settings(
                           console='off', **{key: value for key, value in limits.items() if key in known}))
        problem = _why_unreachable(wandb.setup().settings)
        if not problem:
            try:
                self._run = wandb.init(**options, id=name)
            except wandb.Error as error:
                problem, name = first_line(error)[:200].rstrip('.'), uuid4().hex[:8]  # the package keeps the first one
        if problem:
            print_log(f'{self.title}: {problem}. This training is logged offline; the command that uploads it later '
                      'is shown below', logger='current', level=logging.WARNING)
            self._run = wandb.init(**options, id=name, mode='offline')
        self.note(id=name)
        self._run.define_metric('iteration', hidden=True)
        self._run.define_metric('*', step_metric='iteration')
        self._run.config.update(plain_config(cfg), allow_val_change=True)
        if self._run.offline:
            # one folder for each part of a resumed run
            return f'offline; to upload it: wandb sync {Path(self._run.settings.sync_dir).parent}/offline-run-*-{name}'
        return self._run.url or 'switched off by WANDB_MODE'

    def scalars(self, values, step):
        """See `Logger`."""
        # its own steps cannot go back, as those of a resumed run may
        self._run.log({**values, 'iteration': step})

    def picture(self, name, picture, caption, step):
        """See `Logger`."""
        self.scalars({name: self._wandb.Image(picture, caption=caption)}, step)

    def close(self, finished):
        """See `Logger`."""
        if not self._run.offline and self._run.url:
            print_log(f'{self.title}: uploading, {_UPLOAD_SECONDS} s at most', logger='current')
        self._run.finish(exit_code=0 if finished else 1)


class MLflow(Logger):
    """A run of MLflow on the server of ``MLFLOW_TRACKING_URI``, or else in the file ``WORK_DIR/mlflow.db``."""
    title = 'MLflow'

    def open(self, cfg):
        """See `Logger`."""
        for variable, value in dict(MLFLOW_HTTP_REQUEST_TIMEOUT='10', MLFLOW_HTTP_REQUEST_MAX_RETRIES='2',
                                    # its thread uses the random numbers of the training
                                    MLFLOW_DISABLE_TELEMETRY='true').items():
            os.environ.setdefault(variable, value)
        import mlflow
        from mlflow.exceptions import MlflowException
        # it reports every table of a new file, and errors that it raises too
        logging.getLogger('mlflow').setLevel(logging.CRITICAL)
        uri = os.environ.get('MLFLOW_TRACKING_URI')
        place = uri or f'sqlite:///{self.work_dir / "mlflow.db"}'
        self._client = mlflow.MlflowClient(place)
        self._run = self.noted().get('run') if self.noted().get('uri') == place else None
        if self._run:
            try:
                self._client.update_run(self._run, status='RUNNING')
            except MlflowException as error:
                if error.error_code != 'RESOURCE_DOES_NOT_EXIST':
                    raise
                self._run = None
        if not self._run:
            experiment = os.environ.get('MLFLOW_EXPERIMENT_ID') or self._experiment(None if uri else self.work_dir)
            self._run = self._client.create_run(experiment, run_name=self.work_dir.name).info.run_id
            self._log_params(cfg, mlflow.entities.Param)
        self.note(run=self._run, uri=place)
        self._client.log_text(self._run, cfg.pretty_text, 'config.py')
        return f'run {self._run} on {uri}' if uri else f'mlflow ui --backend-store-uri {place}'

    def _experiment(self, folder):
        """Return the id of the experiment, which is made if there is none; ``folder`` is for the files of a local one.
        """
        name = os.environ.get('MLFLOW_EXPERIMENT_NAME') or PROJECT
        found = self._client.get_experiment_by_name(name)
        if found:
            return found.experiment_id
        return self._client.create_experiment(name, folder and (folder / 'mlflow_files').as_uri())

    def _log_params(self, cfg, kind):
        params = [kind(_allowed(name)[:250], str(value)[:500]) for name, value in _flat(plain_config(cfg))]
        for first in range(0, len(params), 100):  # the most that a server accepts
            self._client.log_batch(self._run, params=params[first:first + 100])

    def scalars(self, values, step):
        """See `Logger`."""
        from mlflow.entities import Metric
        now = int(time.time() * 1000)
        self._client.log_batch(self._run, [Metric(_allowed(name), value, now, step) for name, value in values.items()])

    def picture(self, name, picture, caption, step):
        """See `Logger`."""
        self._client.log_image(self._run, picture, key=_allowed(name), step=step, synchronous=True)

    def close(self, finished):
        """See `Logger`."""
        self._client.set_terminated(self._run, 'FINISHED' if finished else 'KILLED')


#: By the names that ``--log`` accepts.
KINDS = dict(tensorboard=TensorBoard, wandb=WandB, mlflow=MLflow)


def _why_unreachable(settings):
    """Return why the server of Weights & Biases cannot be reached, or '' if it can or need not be."""
    if settings.mode in ('offline', 'disabled', 'dryrun'):
        return ''
    try:
        with urlopen(settings.base_url, timeout=_CONNECT_SECONDS / 3):
            return ''
    except HTTPError:  # it answered
        return ''
    except OSError as error:
        return f'{settings.base_url} cannot be reached ({first_line(getattr(error, "reason", error))})'


def plain_config(cfg) -> dict:
    """Return a config as a dict of what JSON has; the rest, such as classes, as text."""
    return json.loads(json.dumps(cfg.to_dict(), default=str, skipkeys=True))


def _flat(node, path=''):
    """Yield the values of a config with their dotted keys; lists of plain values stay one value."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) and any(
        isinstance(part, (dict, list)) for part in node) else ()
    if not inner:
        yield path, node
    for key, value in inner:
        yield from _flat(value, f'{path}.{key}' if path else str(key))


def _allowed(name):
    """Return a name with only the characters that MLflow accepts."""
    return re.sub(r'[^\w\-. /]', '_', name, flags=re.ASCII)
