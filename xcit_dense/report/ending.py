"""What the log of a training says of its validations, and at its end: the best, the files, and what to do next."""
import shlex
import time
from contextlib import suppress
from functools import reduce
from numbers import Real
from pathlib import Path

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop

from .._utils.processes import is_first_process
from .._utils.text import counted, first_line
from ..compat.internals import built_train_loop
from ..config.tasks import task_of
from ..data.evaluators import key_metric
from ..errors import ConfigError
from ..train.saving import VALIDATIONS, DenseCheckpointHook
from ..train.startup import StartupHook
from ..train.work_dirs import config_of_run
from .content import near
from .curves import plot_curves

_NOTHING = 'the validation data has no object that can be evaluated'


@HOOKS.register_module()
class EndingHook(Hook):
    """Logs a line for each validation and a block at the end, on the first process."""

    priority = 'LOW'  # after the metrics are logged, and before a checkpoint is saved, which keeps the validations
    _key = _start = None  # the main metric; time and iteration at which the training began

    def before_train_epoch(self, runner):
        self._start = self._start or (time.time(), runner.iter)

    def after_val_epoch(self, runner, metrics=None):
        """Log whether a validation is the best so far, and when the training will end."""
        loop = built_train_loop(runner)
        self._key = self._key or key_metric(runner.cfg) or next(iter(metrics or ()), None)
        value = (metrics or {}).get(self._key)
        if not hasattr(loop, 'run') or not isinstance(value, Real):  # only a validation; a user's metric
            if metrics == {} and is_first_process():
                runner.logger.info('validation: no metric; a detector that finds nothing has none')
            return
        value, seen = float(value), runner.message_hub.runtime_info.get(VALIDATIONS, [])
        step = runner.epoch if isinstance(loop, EpochBasedTrainLoop) else runner.iter
        runner.message_hub.update_info(VALIDATIONS, [*seen, [step, value]])
        if is_first_process():
            text = f'validation {len(seen) + 1}: {self._key} {value:.4g}' + (
                f' is no result: {_NOTHING}' if self._is_nothing(value) else self._compared(runner, value, seen))
            runner.logger.info('; '.join(filter(None, (text, self._expected_end(runner)))))

    def after_train(self, runner):
        if is_first_process():
            runner.logger.info('\n' + self.describe_end(runner))

    def describe_end(self, runner) -> str:
        """Return a block of lines about a training that has ended: metrics, files, and the next commands."""
        infos, cfg, loop = runner.message_hub.runtime_info, runner.cfg, runner.train_loop
        seen, last = infos.get(VALIDATIONS), infos.get('last_ckpt')
        by_epoch = isinstance(loop, EpochBasedTrainLoop)
        done, length, unit = ((runner.epoch, loop.max_epochs, 'epochs') if by_epoch else
                              (runner.iter, getattr(loop, 'max_iters', None), 'iterations'))
        lines = {'trained': counted(done, unit)
                 + (f' ({counted(runner.iter, "iterations")})' if by_epoch else '')  # the last epoch may be a part
                 + (f', stopped before {length:,}' if length and done < length else '')}
        if seen:
            self._key = self._key or key_metric(cfg) or 'metric'
            if best := self._best(runner, seen):
                file = infos.get('best_ckpt') or infos.get(f'best_ckpt_{self._key}')
                name = Path(file or '').name  # a resumed run may leave the best one where it was
                lines['best'] = f'none: {_NOTHING}' if self._is_nothing(best[1]) else (
                    f'{self._key} {_named(runner, best)}') + (
                    f': {name if Path(runner.work_dir, name).exists() else near(file)}' if file else
                    f', not kept: --cfg-options default_hooks.checkpoint.save_best={self._key} keeps it')
            lines['last'] = f'{self._key} {_named(runner, seen[-1])}' + (f': {Path(last).name}' if last else '')
        elif last:
            lines['last'] = Path(last).name
        try:
            lines['curves'] = near(plot_curves(runner.work_dir))
        except Exception as error:  # of any type: a picture must not fail a training
            lines['curves'] = f'not drawn: {first_line(error)}'
        misfit = next((hook.misfit for hook in runner.hooks if isinstance(hook, StartupHook)), '')
        width = max(map(len, lines))
        return '\n'.join([*(f'{name:<{width}}  {text}' for name, text in lines.items()),
                          *filter(None, [misfit]), *_next_commands(runner)])

    def _is_nothing(self, value):
        return value == -1 and 'mAP' in self._key  # COCO's metrics without an object to compare with

    def _compared(self, runner, value, seen):
        """Compare the value of a validation with the best of those before."""
        best = self._best(runner, seen)
        if best is None:
            return ''
        named, is_worse = _named(runner, best), self._best(runner, [best, [0, value]]) == best
        if value == best[1]:
            return f', as good as the best so far, {named}'
        return f'; the best so far: {named}' if is_worse else f', the best so far (before: {named})'

    def _best(self, runner, seen):
        """Return the best validation by the rule of the checkpoints; None without any, or without a rule."""
        rule = ((runner.cfg.get('default_hooks') or {}).get('checkpoint') or {}).get('rule')
        try:
            hook = DenseCheckpointHook(save_best=self._key, rule=rule if isinstance(rule, str) else None)
        except ValueError:  # a metric that mmengine does not know
            return None
        return reduce(lambda a, b: b if hook.is_better_than[self._key](b[1], a[1]) else a, seen) if seen else None

    def _expected_end(self, runner):
        done = runner.iter - self._start[1] if self._start else 0
        left = getattr(built_train_loop(runner), 'max_iters', 0) - runner.iter
        if done <= 0 or left <= 0:
            return ''
        seconds = (time.time() - self._start[0]) / done * left
        end = time.strftime('%d %b %H:%M', time.localtime(time.time() + seconds))
        return f'expected end {end}, in {counted(max(round(seconds / 60), 1), "minutes")}'


def _named(runner, validation):
    step, value = validation
    unit = 'epoch' if isinstance(runner.train_loop, EpochBasedTrainLoop) else 'iteration'
    return f'{value:.4g} at {unit} {step:,}'


def _next_commands(runner):
    """Return the commands that test the model and use it, as they are typed in the folder of this training."""
    cfg, task, folder, commands = runner.cfg, task_of(runner.cfg), near(runner.work_dir), []
    model = [folder]
    try:
        config_of_run(runner.work_dir)
    except ConfigError:  # of another runner
        model = [near(cfg.filename or 'CONFIG'), folder]
    if cfg.get('test_dataloader') is not None:
        commands.append(['test', *model, *['--report'] * bool(task.recorder)])
    image = 'IMAGES'
    with suppress(Exception):  # of any type: data sets may be users' classes
        image = near(runner.val_dataloader.dataset.get_data_info(0)['img_path'])
    if task.predictor:
        commands.append(['predict', *model, image, '--out', str(Path(folder, 'predictions'))])
    elif task.recorder:
        commands.append(['classify', folder, image, '--out', str(Path(folder, 'classified.json'))])
    return ['next:', *(f'  python -m xcit_dense {shlex.join(command)}' for command in commands)] if commands else []
