"""mmengine's runner with checkpoints that are read safely and loaded strictly."""
import difflib
import time
from contextlib import nullcontext
from pathlib import Path

import mmengine
import torch
from mmengine.dist import (
    all_gather_object,
    all_reduce,
    broadcast_object_list,
    get_rank,
    get_world_size,
    is_main_process,
)
from mmengine.model import is_model_wrapper, revert_sync_batchnorm
from mmengine.registry import RUNNERS
from mmengine.runner import EpochBasedTrainLoop, Runner
from mmengine.utils import apply_to

from ..checkpoint import fetch, load_model, newest_checkpoint, read_checkpoint
from ..errors import CheckpointError, ConfigError, DataError
from .check_config import check_paramwise
from .saving import lock_work_dir, write_checkpoint

#: Settings that may differ from those of the run that is resumed.
_PLACES = ('resume', 'load_from', 'work_dir', 'launcher')


@RUNNERS.register_module()
class DenseRunner(Runner):
    """Runner of every config of this package (``runner_type = 'DenseRunner'``).

    Unlike mmengine's own, it resumes checkpoints with torch 2.6 and later, evaluates no text out of
    a checkpoint, refuses a checkpoint that does not fit the model, and does not start over when
    there is nothing to resume.
    """

    def __init__(self, *args, resume=False, load_from=None, work_dir=None, randomness=None, **kwargs):
        randomness, self._resumed = dict(randomness or dict(seed=None)), None
        if resume:
            load_from = str(_find_resumed(load_from, work_dir))
            self._resumed = read_checkpoint(load_from)
            if not isinstance(self._resumed, dict) or not self._resumed.keys() >= {'meta', 'optimizer'}:
                raise CheckpointError(f'{load_from} holds weights but no state of a training run to resume. To start '
                                      'from these weights: --cfg-options load_from=FILE, without --resume.')
            randomness['seed'] = self._resumed['meta'].get('seed', randomness['seed'])  # before anything draws from it
        super().__init__(*args, resume=resume, load_from=load_from, work_dir=work_dir, randomness=randomness, **kwargs)
        self.logger.addFilter(_is_news)
        if resume:
            self._compare_settings(self._resumed['meta'].get('cfg'))

    def _compare_settings(self, before):
        """Warn of lines of the config that differ from those of the run to resume; the text is only compared."""
        if not isinstance(before, str):
            return
        lines = difflib.unified_diff(*([line for line in text.splitlines() if not line.startswith(_PLACES)]
                                       for text in (before, self.cfg.pretty_text)), n=0, lineterm='')
        changed = [line for line in lines if not line.startswith(('---', '+++', '@@'))]
        if changed:
            self.logger.warning('the run goes on with other settings than before:\n' + '\n'.join(changed[:40]))

    def setup_env(self, env_cfg):
        """Set up processes and random numbers; on CPUs join the process group here: mmengine asks for a GPU.

        Raises:
            ConfigError: There is no GPU, and the processes were not started by torch's launcher.
        """
        if self.distributed and not torch.cuda.is_available() and not torch.distributed.is_initialized():
            if self._launcher != 'pytorch':
                raise ConfigError(f'--launcher {self._launcher} needs GPUs, and torch sees none. On CPUs start the '
                                  'processes with python -m torch.distributed.run and give --launcher pytorch.')
            torch.distributed.init_process_group('gloo')
        super().setup_env(env_cfg)

    def wrap_model(self, model_wrapper_cfg, model):
        """Wrap the model for a distributed run; on CPUs without a device number and with plain batch norms."""
        if self.distributed and not torch.cuda.is_available() and not is_model_wrapper(model):
            model = revert_sync_batchnorm(model)
            defaults = dict(broadcast_buffers=False,
                            find_unused_parameters=self.cfg.get('find_unused_parameters', False))
            model_wrapper_cfg = {**defaults, **(model_wrapper_cfg or {}), 'device_ids': None}
        return super().wrap_model(model_wrapper_cfg, model)

    @staticmethod
    def build_dataloader(dataloader, seed=None, diff_rank_seed=False):
        """Build a data loader; a data set that is empty after filtering is an error that says why."""
        try:
            return Runner.build_dataloader(dataloader, seed, diff_rank_seed)
        except ValueError as error:
            if 'need at least one array to concatenate' not in str(error):
                raise
            dataset = dataloader['dataset']
            raise DataError(f'no image of the data set {dataset.get("data_root")} {dataset.get("ann_file")} has an '
                            'object of the classes that the config expects. Class names are matched by name: set '
                            "the data set's metainfo.classes, or classes_from_data = True.") from error

    def build_optim_wrapper(self, optim_wrapper):
        """Build the optimizer.

        Raises:
            ConfigError: A key for the learning rates or weight decays of some parameters matches none.
        """
        check_paramwise(self.cfg, self.model)
        return super().build_optim_wrapper(optim_wrapper)

    def scale_lr(self, optim_wrapper, auto_scale_lr=None):
        """Scale the learning rate linearly with the batch size, the one in the log (``base_lr``) too."""
        if not (auto_scale_lr or {}).get('enable'):
            return
        before = optim_wrapper.param_groups[0]['lr']
        super().scale_lr(optim_wrapper, auto_scale_lr)
        if optim_wrapper.base_param_settings is not None:  # a copy for the log, which mmengine leaves as it was
            optim_wrapper.base_param_settings['lr'] *= optim_wrapper.param_groups[0]['lr'] / before

    def load_checkpoint(self, filename, map_location='cpu', strict=True, revise_keys=None):
        """Load the model's weights from a file.

        Args:
            filename: As for `xcit_dense.checkpoint.read_checkpoint`.
            map_location: As for `torch.load`.
            strict: Kept for mmengine's callers; loading is always strict.
            revise_keys: Likewise; ``module.`` prefixes are always taken off.

        Returns:
            The checkpoint, without the text of its config.

        Raises:
            CheckpointError: The file cannot be read or does not fit the model.
        """
        if self._resumed is None:
            filename = fetch(str(filename))
            checkpoint = read_checkpoint(filename, map_location)
        else:
            checkpoint, self._resumed = self._resumed, None
        if isinstance(checkpoint, dict) and isinstance(checkpoint.get('meta'), dict):
            # mmengine would run the text as Python when it resumes
            checkpoint['meta'] = {k: v for k, v in checkpoint['meta'].items() if k not in ('cfg', 'config')}
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        model = self.model.module if is_model_wrapper(self.model) else self.model
        load_model(model, checkpoint, filename)
        self._has_loaded = True
        return checkpoint

    def train(self):
        """Train; a second training in the same work dir is refused.

        Raises:
            ConfigError: Another training runs in the work dir.
        """
        lock = lock_work_dir(self.work_dir) if is_main_process() else nullcontext()
        with lock:
            return super().train()

    def resume(self, filename, *args, **kwargs):
        """Go on from a checkpoint, and with mmengine's state also with the position in the data and random numbers."""
        if self._resumed is None:
            self._resumed = read_checkpoint(filename)
        checkpoint = self._resumed
        saved, found = (list((meta or {}).get('classes') or []) for meta in (
            checkpoint['meta'].get('dataset_meta'), getattr(self.train_dataloader.dataset, 'metainfo', None)))
        if saved and found and saved != found:
            raise DataError(f'{filename} has the classes {saved}, this run {found}: the outputs of the model would '
                            'change their meaning. Give the data of the run before, or start anew with load_from.')
        super().resume(filename, *args, **kwargs)
        loop, state = self.train_loop, checkpoint.get('training')
        if not hasattr(loop, 'load_state_dict'):
            return
        if state is None or len(state['loops']) != get_world_size():
            self.logger.warning(f'{filename} holds the random states of {len(state["loops"]) if state else 0} '
                                f'processes, this run has {get_world_size()}: it goes on, but not exactly as it would '
                                'have without the stop.')
        if state is not None:
            loop.load_state_dict(state['loops'][min(get_rank(), len(state['loops']) - 1)])
            for name, parameter in self.model.named_parameters():
                if name in state['gradients']:
                    parameter.grad = state['gradients'][name].to(parameter)
        elif isinstance(loop, EpochBasedTrainLoop):
            loop.dataloader.load_state_dict(dict(passes=self.epoch, batches=0))

    def save_checkpoint(self, out_dir, filename, file_client_args=None, save_optimizer=True,
                        save_param_scheduler=True, meta=None, by_epoch=True, backend_args=None):
        """Save a checkpoint whole or not at all; arguments as in mmengine. All processes call it.

        Beyond mmengine's it holds, where the run can be resumed from it, ``training``: each process's position in
        the data and random state, and gradients that wait for others to be added.

        Raises:
            CheckpointError: It cannot be written; what was there stays.
        """
        training = self._training_state() if save_optimizer and hasattr(self.train_loop, 'state_dict') else None
        failed = [None]
        if is_main_process():
            try:
                self._write_checkpoint(Path(out_dir, filename), meta, by_epoch, save_optimizer, save_param_scheduler,
                                       training)
            except CheckpointError as error:
                failed = [str(error)]
        broadcast_object_list(failed)  # no process goes on before the file is there
        if failed[0]:
            raise CheckpointError(failed[0])

    def _write_checkpoint(self, path, meta, by_epoch, save_optimizer, save_param_scheduler, training):
        model = self.model.module if is_model_wrapper(self.model) else self.model
        meta = dict(meta or {}, cfg=self.cfg.pretty_text, seed=self.seed, experiment_name=self.experiment_name,
                    time=time.strftime('%Y%m%d_%H%M%S'), mmengine_version=mmengine.__version__)
        meta.setdefault('epoch', self.epoch + by_epoch)  # as mmengine counts in its hooks
        meta.setdefault('iter', self.iter + (not by_epoch))
        if hasattr(self.train_dataloader.dataset, 'metainfo'):
            meta['dataset_meta'] = self.train_dataloader.dataset.metainfo
        checkpoint = dict(meta=meta, state_dict=model.state_dict(),
                          message_hub=self.message_hub.state_dict())
        if save_optimizer:
            checkpoint['optimizer'] = self.optim_wrapper.state_dict()
        if save_param_scheduler and self.param_schedulers is not None:
            checkpoint['param_schedulers'] = _states(self.param_schedulers)
        if training:
            checkpoint['training'] = training
        self.call_hook('before_save_checkpoint', checkpoint=checkpoint)
        checkpoint = apply_to(checkpoint, lambda x: hasattr(x, 'cpu'), lambda x: x.cpu())
        write_checkpoint(checkpoint, path, torch.save)

    def _training_state(self):
        loops = all_gather_object(self.train_loop.state_dict())
        gradients, wrapper = {}, self.optim_wrapper
        if getattr(wrapper, 'inner_count', 0) % getattr(wrapper, '_accumulative_counts', 1):
            for name, parameter in self.model.named_parameters():
                if parameter.grad is not None:
                    gradients[name] = parameter.grad.detach().clone()
                    all_reduce(gradients[name], 'mean')
        return dict(loops=loops, gradients=gradients)


def build_runner(cfg):
    """Build the runner that ``cfg.runner_type`` names, which is `DenseRunner` in the configs of this package."""
    return RUNNERS.build(cfg)


def _find_resumed(checkpoint, work_dir):
    if checkpoint is not None and not Path(checkpoint).is_dir():
        return fetch(str(checkpoint))
    try:
        return newest_checkpoint(checkpoint or work_dir, to_resume=True)
    except CheckpointError as error:
        raise CheckpointError(f'nothing to resume: {error}. Name it with --resume FILE or --work-dir DIR, or start '
                              'anew without --resume.') from error


def _states(schedulers):
    if isinstance(schedulers, dict):  # one list for each of several optimizers
        return {name: _states(several) for name, several in schedulers.items()}
    return [scheduler.state_dict() for scheduler in schedulers]


def _is_news(record):
    """Filter for the log: not one line per parameter, no deprecations of mmengine's own hooks."""
    noise = ('paramwise_options -- ', '"FileClient" will be deprecated', '"HardDiskBackend" is the alias')
    return not record.getMessage().startswith(noise)
