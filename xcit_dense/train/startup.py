"""What a training is about to do, in one block of the log."""
import logging
import sys

import torch
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.optim import AmpOptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop

from .. import __version__
from ..compat.mmengine_private import accumulated_steps
from ..config.check import check_schedule
from ..fit import Look, look
from ..machine import describe_machine
from ..processes import is_first_process
from ..text import counted, first_line
from .hooks import CompileHook
from .resuming import samples_of
from .sharding import is_sharded, unwrapped


@HOOKS.register_module()
class StartupHook(Hook):
    """Logs `describe_run` when a training starts, on the first process: ``custom_hooks=[dict(type='StartupHook')]``."""

    priority = 'LOWEST'  # the other hooks have set up what is told here

    def before_train(self, runner):
        """Log the block, and what does not fit in the schedule."""
        if is_first_process():
            # the schedule of a resumed run cannot be changed
            if runner.iter == 0 and samples_of(runner.train_dataloader) is not None:
                check_schedule(runner.cfg, len(runner.train_dataloader))
            found = _fit(runner)
            if found.warnings and runner.iter == 0:
                print_log('the config may not fit the data:\n' + '\n'.join(f'  {line}' for line in found.warnings)
                          + '\n--suggest prints a config made for it', logger='current', level=logging.WARNING)
            runner.logger.info('\n' + describe_run(runner, found.facts))


def describe_run(runner, facts=None) -> str:
    """Return a block of lines on a run: with what, on what, from which weights, where to.

    Args:
        runner: A runner whose training has begun: optimizer, loops and weights are there.
        facts: Texts on the data by their names, as `xcit_dense.fit.look` gives them.
    """
    model = unwrapped(runner.model)
    lines = dict(
        versions=_versions(runner),
        device=_device(runner),
        precision=_precision(runner, model),
        compile=_compile(runner),
        model=f'{type(model).__name__} with {type(getattr(model, "backbone", model)).__name__}',
        parameters=_parameters(runner, model),
        weights=_weights(runner, model),
        batch=_batch(runner),
        **{'learning rate': _learning_rate(runner)},
        schedule=_schedule(runner),
        **{'training data': _data(runner.train_dataloader)},
        **(facts or {}),
        **{'validation data': _data(runner.val_dataloader) if runner.val_loop is not None else 'none'},
        seed=f'{runner.seed}' + (', deterministic' if runner.deterministic else ''),
        **{'work dir': runner.work_dir},
        checkpoints=_checkpoints(runner),
        resume=f'give --resume and --work-dir {runner.work_dir} to go on after a stop')
    width = max(map(len, lines))
    return '\n'.join(f'{name:<{width}}  {text}' for name, text in lines.items())


def _fit(runner):
    """Return what `look` says of a run; nothing where it cannot, for what is only told stops no training."""
    size = _batch_size(runner.train_dataloader)
    try:
        length = None if samples_of(runner.train_dataloader) is None else len(runner.train_dataloader)
        return look(runner.cfg, length, size and size * runner.world_size)
    except Exception as error:  # of any type: data may be of the user's own kind
        print_log(f'whether the config fits the data is not known: {first_line(error)}', logger='current')
        return Look({}, [])


def _versions(runner):
    names = dict.fromkeys(['torch', 'torchvision', 'mmengine', 'mmcv', str(runner.default_scope.scope_name)])
    # a scope of the user's own may be no module
    modules = [sys.modules[name] for name in names if hasattr(sys.modules.get(name), '__version__')]
    versions = [f'{module.__name__} {module.__version__}' for module in modules]
    return ', '.join([f'xcit_dense {__version__}', f'python {describe_machine()["python"]}', *versions])


def _device(runner):
    return f'{describe_machine()["device"]}; {counted(runner.world_size, "processes")}'


def _precision(runner, model):
    wrapper = next(iter(_wrappers(runner).values()))
    if isinstance(wrapper, AmpOptimWrapper):
        kind = str(wrapper.cast_dtype or torch.float16).removeprefix('torch.')
        return f'mixed: {kind} and float32'
    kinds = sorted({str(p.dtype).removeprefix('torch.') for p in model.parameters()})
    tf32 = torch.cuda.is_available() and torch.backends.cuda.matmul.allow_tf32
    return ', '.join(kinds) + (', matrix products in TF32' if tf32 else '')


def _compile(runner):
    if runner.cfg.get('compile'):
        return 'the whole model'
    return 'the backbone' if any(isinstance(hook, CompileHook) for hook in runner.hooks) else 'nothing'


def _parameters(runner, model):
    groups = [group for wrapper in _wrappers(runner).values() for group in wrapper.optimizer.param_groups]
    decayed = sum(p.numel() for g in groups if g.get('weight_decay') for p in g['params'] if p.requires_grad)
    trained = sum(p.numel() for g in groups for p in g['params'] if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    text = (f'{total:,}: {trained:,} trained, {decayed:,} of them with weight decay and {trained - decayed:,} without; '
            f'{total - trained:,} frozen')
    return f'this process holds {text}' if is_sharded(runner.model) else text


def _weights(runner, model):
    """Say what was loaded; a whole model's weights come after the backbone's, and replace them."""
    found = {name: module.weights_from for name, module in model.named_modules() if hasattr(module, 'weights_from')}
    if '' in found:
        return found[''] + (f', resumed at epoch {runner.epoch}, iteration {runner.iter}' if runner.iter else '')
    for name, module in model.named_modules():
        parts = getattr(module, 'init_cfg', None) or []
        for part in parts if isinstance(parts, (list, tuple)) else [parts]:
            if name not in found and 'Pretrained' in str(part.get('type')):
                found[name] = f'as {type(module).__name__} loads {part.get("checkpoint")}'
    return '; '.join(f'{name}: {text}' for name, text in found.items()) + '; the rest random' if found else 'all random'


def _batch(runner):
    if _batch_size(runner.train_dataloader) is None:
        return 'as large as the batch sampler makes it'
    images, counts = _images_per_step(runner)
    return f'{images} images a step ({counts})'


def _images_per_step(runner):
    per_process = _batch_size(runner.train_dataloader)
    accumulated = accumulated_steps(next(iter(_wrappers(runner).values())))
    return per_process * runner.world_size * accumulated, (
        f'{per_process} a process x {runner.world_size} x {accumulated} accumulated')


def _batch_size(loader):
    """Return the images of a batch of one process, or None where a batch sampler of the user's own does not tell."""
    size = loader.batch_size or getattr(loader.batch_sampler, 'batch_size', None)
    return size if isinstance(size, int) else None


def _learning_rate(runner):
    texts = []
    for name, wrapper in _wrappers(runner).items():
        rates = sorted({group.get('initial_lr', group['lr']) for group in wrapper.optimizer.param_groups})
        text = f'{rates[-1]:g}' if len(rates) == 1 else f'{rates[0]:g} to {rates[-1]:g} by parameter'
        texts.append(f'{name} {text}'.strip())
    scale = runner.auto_scale_lr or {}
    if _batch_size(runner.train_dataloader) is None:
        return '; '.join(texts)
    if scale.get('enable'):
        real = _batch_size(runner.train_dataloader) * runner.world_size
        texts.append(f'scaled by {real / scale["base_batch_size"]:g}: {real} images a batch, the config is for '
                     f'{scale["base_batch_size"]}')
    elif scale.get('base_batch_size', (images := _images_per_step(runner)[0])) != images:
        texts.append(f'not scaled, though the config is for {scale["base_batch_size"]} images a step '
                     '(--auto-scale-lr scales it)')
    return '; '.join(texts)


def _schedule(runner):
    loop, parts = runner.train_loop, []
    if isinstance(loop, EpochBasedTrainLoop):
        parts.append(f'{counted(loop.max_epochs, "epochs")} of {counted(len(loop.dataloader), "iterations")}, '
                     f'{loop.max_iters} in all')
    elif getattr(loop, 'max_iters', None) is None:  # of the user's own
        parts.append(f'as {type(loop).__name__} runs')
    else:
        batch, samples = _batch_size(runner.train_dataloader), samples_of(runner.train_dataloader)
        times = batch and samples and f', {loop.max_iters * batch * runner.world_size / samples:.3g} times the data'
        parts.append(f'{loop.max_iters} iterations{times or ""}')
    schedulers = runner.param_schedulers or []
    if isinstance(schedulers, dict):
        schedulers = [part for parts in schedulers.values() for part in parts]
    parts.append(', '.join(type(scheduler).__name__ for scheduler in schedulers) or 'a constant learning rate')
    if runner.val_loop is None:
        parts.append('no validation')
    elif hasattr(loop, 'val_interval'):
        parts.append(f'validation every {loop.val_interval}')
    return '; '.join(parts)


def _data(loader):
    dataset = loader.dataset
    classes = (getattr(dataset, 'metainfo', None) or {}).get('classes')
    known = f' of {len(classes)} classes' if classes else ''
    root = getattr(dataset, 'data_root', None)
    samples = samples_of(loader)
    count = 'a stream of images' if samples is None else f'{samples} images'
    return f'{count}{known}, after filtering' + (f', in {root}' if root else '')


def _checkpoints(runner):
    hook = next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
    if hook is None or hook.interval < 1:
        return 'none'
    unit = 'epoch' if hook.by_epoch else 'iteration'
    every = f'every {hook.interval} {unit}s' if hook.interval > 1 else f'every {unit}'
    kept = f', the newest {hook.max_keep_ckpts} stay' if hook.max_keep_ckpts > 0 else ''
    best = f', and the best of {", ".join(hook.save_best)}' if hook.save_best else ''
    return f'{every} in {hook.out_dir}{kept}{best}'


def _wrappers(runner):
    """Return the optimizer wrappers by name; a single one has none."""
    wrapper = runner.optim_wrapper
    return dict(wrapper.items()) if isinstance(wrapper, OptimWrapperDict) else {'': wrapper}
