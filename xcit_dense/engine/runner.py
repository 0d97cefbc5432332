"""mmengine's runner with checkpoints that are read safely and loaded strictly."""
import torch
from mmengine.model import is_model_wrapper, revert_sync_batchnorm
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from ..checkpoint import fetch, load_model, newest_checkpoint, read_checkpoint
from ..errors import CheckpointError, ConfigError, DataError


@RUNNERS.register_module()
class DenseRunner(Runner):
    """Runner of every config of this package (``runner_type = 'DenseRunner'``).

    Unlike mmengine's own, it resumes checkpoints with torch 2.6 and later, evaluates no text out of
    a checkpoint, refuses a checkpoint that does not fit the model, and does not start over when
    there is nothing to resume.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.logger.addFilter(_is_news)
        if self._resume and self._load_from is None:
            try:
                self._load_from = str(newest_checkpoint(self.work_dir))
            except CheckpointError as error:
                raise CheckpointError(f'nothing to resume: {error}. Name it with --resume FILE or --work-dir DIR, or '
                                      'start anew without --resume.') from error

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
        """Build the optimizer, and say in one line what mmengine says in one line per parameter."""
        wrapper = super().build_optim_wrapper(optim_wrapper)
        groups = wrapper.optimizer.param_groups
        decayed = sum(p.numel() for g in groups if g['weight_decay'] for p in g['params'])
        total = sum(p.numel() for g in groups for p in g['params'])
        self.logger.info(f'parameters: {total:,} trained, {decayed:,} of them with weight decay')
        return wrapper

    def scale_lr(self, optim_wrapper, auto_scale_lr=None):
        """Scale the learning rate linearly with the batch size, the one in the log (``base_lr``) too."""
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
        filename = fetch(str(filename))
        checkpoint = read_checkpoint(filename, map_location)
        if self._resume and 'meta' not in checkpoint:
            raise CheckpointError(f'{filename} holds weights but no state of a training run to resume. To start from '
                                  'these weights: --cfg-options load_from=FILE, without --resume.')
        if isinstance(checkpoint, dict) and isinstance(checkpoint.get('meta'), dict):
            # mmengine would run the text as Python when it resumes
            checkpoint['meta'] = {k: v for k, v in checkpoint['meta'].items() if k not in ('cfg', 'config')}
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        model = self.model.module if is_model_wrapper(self.model) else self.model
        load_model(model, checkpoint, filename)
        self._has_loaded = True
        return checkpoint


def build_runner(cfg):
    """Build the runner that ``cfg.runner_type`` names, which is `DenseRunner` in the configs of this package."""
    return RUNNERS.build(cfg)


def _is_news(record):
    """Filter for the log: not one line per parameter, no deprecations of mmengine's own hooks."""
    noise = ('paramwise_options -- ', '"FileClient" will be deprecated', '"HardDiskBackend" is the alias')
    return not record.getMessage().startswith(noise)
