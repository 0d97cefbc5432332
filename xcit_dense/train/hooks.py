"""Parts of trainings for any project: hooks that fuse, compile and average, and what optimizers get in addition."""
import time
from contextlib import contextmanager
from functools import partialmethod
from operator import itemgetter

import torch
from mmengine.device import get_device
from mmengine.hooks import EMAHook, Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS, OPTIM_WRAPPERS

from ..compat.evaluation import evaluate_fast
from ..compat.internals import is_resumed
from ..compat.masks import cut_masks
from ..data.batches import unwrapped
from ..errors import ConfigError
from ..models.graphs import Graphs
from ..models.trunk import Trunk, backbones_of, fuse_backbones

#: Optimizers that change each parameter by itself and write nothing into its group.
_BY_PARAMETER = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


@HOOKS.register_module()
class FuseHook(Hook):
    """Fuses the backbone before a test run: ``custom_hooks=[dict(type='FuseHook')]``. Training runs are left alone."""

    def before_test(self, runner):
        """Fuse, unless `EMAHook` will swap parameters with an average that is not fused."""
        if any(isinstance(hook, EMAHook) and not isinstance(hook, AverageHook) for hook in runner.hooks):
            runner.logger.info('the backbone is not fused, because EMAHook swaps its parameters')
        else:
            fuse_backbones(runner.model)


@HOOKS.register_module()
class CompileHook(Hook):
    """Trains the blocks of the backbone with `torch.compile`: ``custom_hooks=[dict(type='CompileHook')]``.

    All of them share one graph, for any image size. The state dict does not change. On a CPU torch needs a C++
    compiler for it.
    """

    def before_train(self, runner):
        """Compile; this happens in the first iteration and takes a minute."""
        for backbone in backbones_of(runner.model):
            backbone.compile_blocks()


@HOOKS.register_module()
class CUDAGraphHook(Hook):
    """Replays the backbone as CUDA graphs, in training and tests: ``custom_hooks=[dict(type='CUDAGraphHook')]``.

    On a GPU and with few images, that is faster: see `xcit_dense.models.graphs`. Models on a CPU run as they are.
    """

    def before_run(self, runner):
        """Let the backbones use graphs."""
        for backbone in backbones_of(runner.model):
            backbone.graphs = Graphs(backbone, runner.logger.info)


@HOOKS.register_module()
class FastValidationHook(Hook):
    """Makes validations and tests of detectors faster: ``custom_hooks=[dict(type='FastValidationHook')]``.

    For configs with mmengine's runner; `DenseRunner` does it by itself. Numbers stay the same. What is replaced, on
    model and metrics: see `xcit_dense.compat.masks.cut_masks` and `xcit_dense.compat.evaluation.evaluate_fast`.
    """

    def before_run(self, runner):
        """Let the model return masks as run lengths."""
        cut_masks(unwrapped(runner.model))

    def before_val(self, runner):
        """Let the metrics compare less."""
        evaluate_fast(getattr(runner.val_loop, 'evaluator', None))

    def before_test(self, runner):
        """Let the metrics compare less."""
        evaluate_fast(getattr(runner.test_loop, 'evaluator', None))


class TimesHook(Hook):
    """Logs what a validation or a test waited for."""
    priority = 'HIGHEST'  # it measures what is between the others

    def before_val_epoch(self, runner):
        """Begin to count seconds: of waiting for images, of the model and of its masks."""
        self._began = self._last = time.monotonic()
        self._data = self._model = self._masks = 0.

    def before_val_iter(self, runner, batch_idx, data_batch=None):
        now = time.monotonic()
        self._data, self._last = self._data + now - self._last, now

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Add the time of a batch."""
        now = time.monotonic()
        found = [sample.get('pred_instances') for sample in outputs or () if hasattr(sample, 'get')]
        masks = sum(getattr(getattr(part, 'masks', None), 'seconds', 0.) for part in found)
        self._masks, self._model, self._last = self._masks + masks, self._model + now - self._last - masks, now

    def after_val_epoch(self, runner, metrics=None, done='validated'):
        """Log the shares."""
        now = time.monotonic()
        parts = dict(model=self._model, masks=self._masks, evaluation=now - self._last)
        parts['waiting for images'] = self._data
        whole = max(now - self._began, 1e-9)
        shares = [f'{name} {seconds / whole:.0%}' for name, seconds in parts.items() if seconds]
        runner.logger.info(f'{done} in {whole:.3g} s: {", ".join(shares)}')

    before_test_epoch, before_test_iter = before_val_epoch, before_val_iter
    after_test_iter, after_test_epoch = after_val_iter, partialmethod(after_val_epoch, done='tested')


@HOOKS.register_module()
class AverageHook(EMAHook):
    """Keeps a moving average of the weights next to the model; the model itself is evaluated and saved.

    mmengine's `EMAHook` replaces the model by the average in evaluations and checkpoints. Here the average is only
    added to checkpoints, as ``ema_state_dict``, from which a resumed run continues it. Arguments are those of
    `EMAHook`.
    """

    _resumed = None  # the average to continue

    def before_run(self, runner):
        """Do nothing yet: the model has no weights, and a test needs no average."""

    def after_load_checkpoint(self, runner, checkpoint):
        """Keep the average of the resumed run."""
        self._resumed = checkpoint.get('ema_state_dict') if is_resumed(runner) else None

    def before_train(self, runner):
        """Start the average, or continue it."""
        super().before_run(runner)
        if self._resumed is not None:
            self.ema_model.load_state_dict(self._resumed)
            self._resumed = None
        super().before_train(runner)

    def before_save_checkpoint(self, runner, checkpoint):
        """Save the average next to the model."""
        checkpoint['ema_state_dict'] = self.ema_model.state_dict()

    def before_val_epoch(self, runner, metrics=None):
        """Leave the model as it is."""

    after_val_epoch = before_test_epoch = after_test_epoch = before_val_epoch


@OPTIM_WRAPPERS.register_module()
class Bfloat16OptimWrapper(OptimWrapper):
    """Computes losses under autocast in bfloat16, on any device; parameters, gradients and optimizer stay in float32.

    mmengine's `AmpOptimWrapper` needs a GPU, as it scales the loss. bfloat16 has the range of float32, so there is
    nothing to scale. Arguments are those of `OptimWrapper`.
    """

    #: The type that is computed in, as `AmpOptimWrapper` names it.
    cast_dtype = torch.bfloat16

    @contextmanager
    def optim_context(self, model):
        """Context of the forward pass of a training step."""
        with super().optim_context(model), torch.autocast(get_device(), self.cast_dtype):
            yield


def step_together(optim_wrapper):
    """Let the optimizer of a wrapper step all parameters that have the same settings at once.

    mmengine gives each parameter a group, and on a GPU each group costs a step some ten launches: 40 ms of the host
    for the 350 groups of small 12, and 4 ms for the two that differ. The bits are the same. Groups are joined within
    the step only: schedules, logs and checkpoints have those of mmengine.
    """
    optimizer = optim_wrapper.optimizer
    if type(optimizer) in _BY_PARAMETER and not hasattr(optimizer, 'own_groups'):  # a resumed run asks twice
        optimizer.own_groups = None
        optimizer.register_step_pre_hook(_join_groups)
        optimizer.register_step_post_hook(_part_groups)


def _join_groups(optimizer, *_):
    joined, settings_of = {}, itemgetter(*optimizer.defaults)
    for group in optimizer.param_groups:
        key = tuple(tuple(value) if type(value) is list else value for value in settings_of(group))
        if key not in joined:
            joined[key] = dict(group, params=[])
        joined[key]['params'] += group['params']
    optimizer.own_groups, optimizer.param_groups = optimizer.param_groups, list(joined.values())


def _part_groups(optimizer, *_):
    optimizer.param_groups, optimizer.own_groups = optimizer.own_groups, None


class RatesByDepth:
    """Lets `LearningRateDecayOptimizerConstructor` of mmdet and mmseg, which know few backbones, train XCiT too."""

    def add_params(self, params, module, **options):
        """Add a group for each parameter: rates fall from the heads to the stem by ``paramwise_cfg.decay_rate``.
        `ConfigError` if the backbone has no stages, or another number of blocks."""
        rules, backbone = self.paramwise_cfg, getattr(module, 'backbone', None)
        if not isinstance(backbone, Trunk):
            return super().add_params(params, module, **options)
        for key, value in dict(num_layers=len(backbone.blocks), decay_type='layer_wise').items():
            if rules.get(key, value) != value:
                raise ConfigError(f'optim_wrapper.paramwise_cfg.{key} = {rules[key]!r}: this backbone needs {value!r}')
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                depth, depths = backbone.get_layer_depth(name, 'backbone.')
                scale = rules['decay_rate'] ** (depths - 1 - depth)
                decays = parameter.dim() > 1 and not name.endswith(('.bias', 'pos_embed', 'cls_token'))
                params.append(dict(params=[parameter], lr=self.base_lr * scale, lr_scale=scale, param_names=[name],
                                   weight_decay=self.base_wd if decays else 0.))
