"""mmengine's runner, with checkpoints that are read safely and loaded strictly."""
import copy
import logging
import re
import time
from contextlib import nullcontext
from pathlib import Path

import mmengine
import torch
from mmengine.dist import get_world_size
from mmengine.model import is_model_wrapper, revert_sync_batchnorm
from mmengine.optim import OptimWrapperDict
from mmengine.registry import RUNNERS
from mmengine.runner import EpochBasedTrainLoop, Runner
from mmengine.utils import apply_to
from torch.utils.data import DataLoader

from .._utils.files import atomic_write
from .._utils.processes import is_first_process, run_on_first
from .._utils.text import counted
from ..compat.evaluation import evaluate_fast
from ..compat.internals import OpenRunner, accumulated_steps, mend_weighted_losses
from ..compat.masks import cut_masks
from ..config.check import check_paramwise
from ..data.batches import predict_by_size, unwrapped
from ..errors import CheckpointError, ConfigError, DataError
from ..weights import fetch, read_checkpoint
from ..weights.contents import run_of
from ..weights.convert import from_plain, to_plain
from . import resuming
from .hooks import TimesHook, step_together
from .init_from import load_weights
from .loaders import NamedErrors, ResumableLoader, bind_workers, explained
from .startup import is_for_console, is_news
from .work_dirs import claim_work_dir, lock_work_dir, named_errors, publish_config


@RUNNERS.register_module()
class DenseRunner(OpenRunner):
    """Runner of every config of this package (``runner_type = 'DenseRunner'``).

    Unlike mmengine's runner, it resumes checkpoints with torch 2.6 and later, runs no text from a checkpoint, raises an
    error if a checkpoint does not fit the model, and does not start a new run when there is nothing to resume.
    """

    def __init__(self, *args, resume=False, load_from=None, work_dir=None, randomness=None, **kwargs):
        randomness, self._resumed, self._run = dict(randomness or dict(seed=None)), None, None
        self._starts = False  # from weights that may have other classes
        if resume:
            load_from = str(resuming.find_resumed(resuming.source_of(resume, load_from), work_dir))
            self._resumed = read_checkpoint(load_from)
            if not isinstance(self._resumed, dict) or not self._resumed.keys() >= {'meta', 'optimizer'}:
                raise CheckpointError(f'{load_from} has weights, but no state of a training run to resume. To start '
                                      f'from these weights, without --resume: --init-from {load_from}')
            changed = resuming.changed_settings(kwargs.get('cfg'), self._resumed['meta'].get('cfg'), load_from)
            randomness['seed'] = self._resumed['meta'].get('seed', randomness['seed'])  # before anything draws from it
        super().__init__(*args, resume=bool(resume), load_from=load_from, work_dir=work_dir, randomness=randomness,
                         **kwargs)
        if resume and changed:
            self.logger.warning(f'the run continues with settings that differ from before:\n{changed}')

    def build_logger(self, *args, **kwargs):
        """Build the logger: long messages go only to its file, not to the console."""
        logger = super().build_logger(*args, **kwargs)
        logger.addFilter(is_news)
        for handler in logger.handlers:
            if not isinstance(handler, logging.FileHandler):
                handler.addFilter(is_for_console)
        return logger

    def dump_config(self):
        """Write the config next to the log; `train` copies it into the work dir, a test must not."""
        self._config_file = Path(self.log_dir, Path(self.cfg.filename or f'{self.timestamp}.py').name)
        cfg = copy.deepcopy(self.cfg)
        if cfg.get('resume') is True:
            cfg.load_from = None
        if cfg.get('resume'):  # other trainings with it begin anew
            cfg.resume = False
        if is_first_process():
            cfg.dump(self._config_file)

    def setup_env(self, env_cfg):
        """Set up processes and random numbers; on CPUs join the process group here, as mmengine needs a GPU."""
        on_cpus = self.launcher == 'pytorch' and not torch.cuda.is_available()
        if on_cpus and not torch.distributed.is_initialized():
            torch.distributed.init_process_group('gloo')
        super().setup_env(env_cfg)

    def wrap_model(self, model_wrapper_cfg, model):
        """Wrap the model for a distributed run; on CPUs without a device number and with plain batch norms.
        `ConfigError` if the model is to be sharded, or a loss has weights for another number of classes."""
        if re.search('FullySharded|DeepSpeed', str((model_wrapper_cfg or {}).get('type'))):
            raise ConfigError('model_wrapper_cfg shards the model (FSDP, DeepSpeed), which DenseRunner does not do: '
                              'remove it. To save memory where most is needed, in the activations, set '
                              'model.backbone.with_cp=True')
        on_cpus = self.distributed and not torch.cuda.is_available() and not is_model_wrapper(model)
        mend_weighted_losses(model)
        cut_masks(unwrapped(model))
        model = predict_by_size(revert_sync_batchnorm(model) if on_cpus else model)
        if on_cpus:
            defaults = dict(broadcast_buffers=False,
                            find_unused_parameters=self.cfg.get('find_unused_parameters', False))
            model_wrapper_cfg = {**defaults, **(model_wrapper_cfg or {}), 'device_ids': None}
        return super().wrap_model(model_wrapper_cfg, model)

    def register_hooks(self, default_hooks=None, custom_hooks=None):
        """Register the hooks of the config, and the one that tells what validations waited for."""
        self.register_hook(TimesHook())  # the first: it does not count what hooks do after a validation
        super().register_hooks(default_hooks, custom_hooks)

    def build_evaluator(self, evaluator):
        """Build the metrics; those of COCO need less time, with the same numbers."""
        evaluator = super().build_evaluator(evaluator)
        evaluate_fast(evaluator)
        return evaluator

    @staticmethod
    def build_dataloader(dataloader, seed=None, diff_rank_seed=False):
        """Build a data loader that raises a `DataError` if filtering leaves no image or an image cannot be read."""
        if isinstance(dataloader, DataLoader):
            bind_workers(dataloader)
            return dataloader
        dataset = dataloader['dataset']
        named = dict(dataloader, dataset=dict(type=NamedErrors, dataset=dataset))
        try:
            loader = Runner.build_dataloader(named, seed, diff_rank_seed)
        except ValueError as error:
            if 'need at least one array to concatenate' not in str(error) or not isinstance(dataset, dict):
                raise
            raise DataError(f'no image of the data set {dataset.get("data_root")} {dataset.get("ann_file")} has an '
                            'object of the classes in the config. Classes are matched by name: set '
                            "the data set's metainfo.classes, or classes_from_data = True.") from error
        bind_workers(loader)
        return loader

    def build_optim_wrapper(self, optim_wrapper):
        """Build the optimizer; `ConfigError` for several ones, and for a key for the learning rates or weight decays of
        some parameters that matches none."""
        check_paramwise(self.cfg, self.model)
        wrapper = super().build_optim_wrapper(optim_wrapper)
        if isinstance(wrapper, OptimWrapperDict):
            raise ConfigError('optim_wrapper has several optimizers (OptimWrapperDict), and DenseRunner trains with '
                              "one. runner_type = 'Runner' in the config keeps mmengine's runner")
        step_together(wrapper)
        return wrapper

    def scale_lr(self, optim_wrapper, auto_scale_lr=None):
        """Scale the learning rate linearly with the batch size, including the one in the log (``base_lr``)."""
        if not (auto_scale_lr or {}).get('enable'):
            return
        steps, for_batch = accumulated_steps(optim_wrapper), auto_scale_lr.get('base_batch_size')
        if for_batch is None:
            raise ConfigError('auto_scale_lr.enable is True, but auto_scale_lr.base_batch_size is missing: the batch '
                              'size that the learning rate of the config is for')
        for_batch = for_batch / steps if steps > 1 else for_batch
        super().scale_lr(optim_wrapper, dict(auto_scale_lr, base_batch_size=for_batch))
        if base := optim_wrapper.base_param_settings:
            base['lr'] *= self.world_size * self.train_dataloader.batch_sampler.batch_size / for_batch

    def load_checkpoint(self, filename, map_location='cpu', strict=True, revise_keys=None):
        """Load the model's weights from a file, as for `xcit_dense.weights.read_checkpoint`.

        Loading is always strict, without ``module.`` prefixes, whatever ``strict`` and ``revise_keys`` are. Returns the
        checkpoint, without the text of its config. `CheckpointError` if it cannot be read or does not fit the model.
        """
        starts = self._starts and filename == self.loads_from
        if self._resumed is None:
            filename = fetch(str(filename))
            checkpoint = from_plain(read_checkpoint(filename, map_location))
        else:
            checkpoint, self._resumed = from_plain(self._resumed), None
        if isinstance(checkpoint, dict) and isinstance(checkpoint.get('meta'), dict):
            # mmengine would run the text as Python when it resumes
            checkpoint['meta'] = {k: v for k, v in checkpoint['meta'].items() if k not in ('cfg', 'config')}
        if not starts:  # otherwise averages and the like may have other classes
            self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        load_weights(self, checkpoint, filename, starts)
        self.has_loaded = True
        return checkpoint

    def train(self):
        """Train; move checkpoints of another run in the work dir into a subfolder. `ConfigError` if another training
        runs in the work dir, or this run cannot continue there."""
        with run_on_first(lock_work_dir, self.work_dir) or nullcontext():
            if self.loads_from is None and not self.resumes and self.cfg.get('init_from'):
                self.loads_from, self._starts = self.cfg.init_from, True
            resumed, weights = (self.loads_from, None) if self.resumes else (None, self.loads_from)
            if weights is not None:
                # a missing file is an error before files of an earlier run are moved
                path = fetch(str(weights), 'To train without it, omit --init-from or load_from, or use --no-pretrained')
                if Path(weights).is_dir():
                    self.loads_from = weights = str(path)
            run = run_of(self._resumed) if self._resumed else self._run
            self.notes = run_on_first(claim_work_dir, self.work_dir, resumed, run, weights)
            return super().train()

    def load_or_resume(self):
        """Load or resume; only then a training, which may be refused, replaces the config of the run before it."""
        super().load_or_resume()
        if hasattr(self, 'notes'):
            config = run_on_first(publish_config, self._config_file, self.work_dir)
            if self.notes:  # of the first process
                self.notes.config = config

    def init_weights(self):
        """Initialise the weights, unless the model will have those of its checkpoint."""
        if not self.resumes:
            super().init_weights()

    def test(self):
        """Test; an unreadable image raises an error that names it, also with workers."""
        with explained('test_dataloader'):
            return super().test()

    def resume(self, filename, *args, **kwargs):
        """Continue from a checkpoint: mmengine's state, and the position in the data and random numbers."""
        if self._resumed is None:
            filename = str(resuming.find_resumed(filename, self.work_dir))
            self._resumed = read_checkpoint(filename)
        checkpoint, self.loads_from, self.resumes = self._resumed, filename, True  # users may call this themselves
        self._run = run_of(checkpoint)
        resuming.check_classes(self, checkpoint, filename)
        super().resume(filename, *args, **kwargs)
        loop = self.train_loop
        if hasattr(loop, 'load_state_dict'):
            self._restore(loop, checkpoint.get('training'), filename)
        if self.epoch >= loop.max_epochs if isinstance(loop, EpochBasedTrainLoop) else self.iter >= self.max_iters:
            self.logger.warning(f'{filename} is the end of a run of {counted(self.iter, "iterations")}: nothing is '
                                'left to train. With a longer train_cfg, the run continues at the learning rate at '
                                'which its schedule ended. For another schedule, start a new run without --resume: '
                                f'--init-from {filename} and another --work-dir')

    def _restore(self, loop, state, filename):
        if state is None or len(state['loops']) != get_world_size():
            self.logger.warning(f'{filename} has the random states of '
                                f'{counted(len(state["loops"]) if state else 0, "processes")}, this run has '
                                f'{get_world_size()}: it continues, but not exactly as without the stop.')
        if state is not None:
            resuming.restore_training(self, state, filename)
        elif isinstance(loop, EpochBasedTrainLoop) and isinstance(loop.dataloader, ResumableLoader):
            loop.dataloader.load_state_dict(dict(passes=self.epoch, batches=0))

    def save_checkpoint(self, out_dir, filename, file_client_args=None, save_optimizer=True,
                        save_param_scheduler=True, meta=None, by_epoch=True, backend_args=None):
        """Save a checkpoint completely or not at all; arguments as in mmengine. All processes must call it.

        If the run can be resumed from it, it has ``training`` in addition to mmengine's content: each process's
        position in the data and random state, and gradients that wait for others to be added. `CheckpointError` if it
        cannot be written; existing files do not change.
        """
        training = resuming.training_state(self) if save_optimizer and hasattr(self.train_loop, 'state_dict') else None
        checkpoint = dict(state_dict=unwrapped(self.model).state_dict())
        if save_optimizer:
            checkpoint['optimizer'] = self.optim_wrapper.state_dict()
        if save_param_scheduler and self.param_schedulers is not None:
            checkpoint['param_schedulers'] = [scheduler.state_dict() for scheduler in self.param_schedulers]
        if training:
            checkpoint['training'] = training
        run_on_first(self._write_checkpoint, checkpoint, Path(out_dir, filename), meta, by_epoch)

    def _write_checkpoint(self, checkpoint, path, meta, by_epoch):
        done = dict(epoch=self.epoch + by_epoch, iter=self.iter + (not by_epoch))  # as mmengine counts in its hooks
        meta = dict(done | (meta or {}), cfg=self.cfg.pretty_text, seed=self.seed, experiment_name=self.experiment_name,
                    time=time.strftime('%Y%m%d_%H%M%S'), mmengine_version=mmengine.__version__)
        if hasattr(self.train_dataloader.dataset, 'metainfo'):
            meta['dataset_meta'] = self.train_dataloader.dataset.metainfo
        checkpoint = dict(meta=meta, message_hub=self.message_hub.state_dict(), **checkpoint)
        self.call_hook('before_save_checkpoint', checkpoint=checkpoint)
        checkpoint = apply_to(checkpoint, lambda x: hasattr(x, 'cpu'), lambda x: x.cpu())
        with named_errors(path), atomic_write(path) as part, open(part, 'wb') as file:
            torch.save(to_plain(checkpoint), file)


def build_runner(cfg):
    """Build the runner of ``cfg.runner_type``, which is `DenseRunner` in the configs of this package."""
    return RUNNERS.build(cfg)
