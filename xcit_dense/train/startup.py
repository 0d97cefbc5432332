"""What the log of a training has: one block about what it is about to do, and which messages it omits."""
import logging
import sys

import torch
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.optim import AmpOptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop

from .. import __version__
from .._utils.machine import describe_machine
from .._utils.processes import is_first_process
from .._utils.text import counted, first_line, singular
from ..compat.mmengine_private import accumulated_steps
from ..config.check import check_schedule
from ..config.fit import Look, look
from ..data.batches import is_sharded, unwrapped
from ..data.unlabelled import MultiCrop
from .hooks import Bfloat16OptimWrapper, CompileHook
from .resuming import samples_of
from .val_loss import ValLossHook


@HOOKS.register_module()
class StartupHook(Hook):
    """Logs `describe_run` when a training starts, on the first process: ``custom_hooks=[dict(type='StartupHook')]``."""

    priority = 'LOWEST'  # the other hooks have set up what is reported here

    def before_train(self, runner):
        """Log the block, and problems of the schedule."""
        if is_first_process():
            # the schedule of a resumed run cannot be changed
            if runner.iter == 0 and samples_of(runner.train_dataloader) is not None:
                check_schedule(runner.cfg, len(runner.train_dataloader))
            found = _fit(runner)
            if found.warnings and runner.iter == 0:
                print_log('the config may not fit the data:\n' + '\n'.join(f'  {line}' for line in found.warnings)
                          + '\n--suggest prints a config that fits', logger='current', level=logging.WARNING)
            runner.logger.info('\n' + describe_run(runner, found.facts))


def describe_run(runner, facts=None) -> str:
    """Return a block of lines that describe a run: versions, device, model, weights, schedule, data, outputs.

    Args:
        runner: A runner whose training has begun, with optimizer, loops and weights.
        facts: Texts on the data by their names, as `xcit_dense.config.fit.look` returns them.
    """
    model = unwrapped(runner.model)
    lines = dict(
        versions=versions(runner),
        device=_device(runner),
        precision=_precision(runner, model),
        compile=_compile(runner),
        model=_model(model),
        parameters=_parameters(runner, model),
        weights=_weights(runner, model),
        batch=_batch(runner),
        **{'learning rate': _learning_rate(runner)},
        schedule=_schedule(runner),
        **{'training data': _data(runner.train_dataloader)},
        **_views(runner.train_dataloader),
        **(facts or {}),
        **{'validation data': _data(runner.val_dataloader) if runner.val_loop is not None else 'none'},
        **_validation_loss(runner),
        seed=f'{runner.seed}' + (', deterministic' if runner.deterministic else ''),
        **{'work dir': runner.work_dir},
        checkpoints=_checkpoints(runner),
        **_loggers(runner),
        resume=f'after a stop, repeat the command with --resume and --work-dir {runner.work_dir}')
    width = max(map(len, lines))
    return '\n'.join(f'{name:<{width}}  {text}' for name, text in lines.items())


def _fit(runner):
    """Return what `look` finds; nothing if it fails, as a mere report must not stop a training."""
    size = _batch_size(runner.train_dataloader)
    try:
        length = None if samples_of(runner.train_dataloader) is None else len(runner.train_dataloader)
        return look(runner.cfg, length, size and size * runner.world_size)
    except Exception as error:  # of any type: data sets may be users' classes
        print_log(f'cannot find out whether the config fits the data: {first_line(error)}', logger='current')
        return Look({}, [])


def versions(runner) -> str:
    """Return the versions of this package, Python, torch and the frameworks that a run uses."""
    names = dict.fromkeys(['torch', 'torchvision', 'mmengine', 'mmcv', str(runner.default_scope.scope_name)])
    # a user's scope may not be a module
    modules = [sys.modules[name] for name in names if hasattr(sys.modules.get(name), '__version__')]
    versions = [f'{module.__name__} {module.__version__}' for module in modules]
    return ', '.join([f'xcit_dense {__version__}', f'python {describe_machine()["python"]}', *versions])


def _device(runner):
    return f'{describe_machine()["device"]}; {counted(runner.world_size, "processes")}'


def _precision(runner, model):
    wrapper = next(iter(_wrappers(runner).values()))
    if isinstance(wrapper, (AmpOptimWrapper, Bfloat16OptimWrapper)):
        kind = str(wrapper.cast_dtype or torch.float16).removeprefix('torch.')
        return f'mixed: {kind} and float32'
    kinds = sorted({str(p.dtype).removeprefix('torch.') for p in model.parameters()})
    tf32 = torch.cuda.is_available() and torch.backends.cuda.matmul.allow_tf32
    return ', '.join(kinds) + (', matrix products in TF32' if tf32 else '')


def _compile(runner):
    if runner.cfg.get('compile'):
        return 'the whole model'
    if any(isinstance(hook, CompileHook) for hook in runner.hooks):
        return 'blocks of the backbone'
    return 'nothing; with few images on a GPU --compile is faster' if torch.cuda.is_available() else 'nothing'


def _model(model):
    branch = getattr(model, 'student', None)  # of DINO
    if branch is None:
        return f'{type(model).__name__} with {type(getattr(model, "backbone", model)).__name__}'
    return (f'{type(model).__name__}, student and teacher: {type(branch.backbone).__name__} with '
            f'{counted(branch.backbone.embed_dims, "channels")}, {type(branch.head).__name__} with '
            f'{counted(branch.head.num_prototypes, "prototypes")}')


def _views(loader):
    """Return the views of an image that a model compares, if it does."""
    steps = getattr(getattr(loader.dataset, 'pipeline', None), 'transforms', ())
    found = [step.summary for step in steps if isinstance(step, MultiCrop)]
    return dict(views=found[0]) if found else {}


def _parameters(runner, model):
    groups = [group for wrapper in _wrappers(runner).values() for group in wrapper.optimizer.param_groups]
    decayed = sum(p.numel() for g in groups if g.get('weight_decay') for p in g['params'] if p.requires_grad)
    trained = sum(p.numel() for g in groups for p in g['params'] if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    text = (f'{total:,}: {trained:,} trained, {decayed:,} of them with weight decay and {trained - decayed:,} without; '
            f'{total - trained:,} frozen')
    return f'this process holds {text}' if is_sharded(runner.model) else text


def _weights(runner, model):
    """Describe what was loaded; the weights of a whole model are loaded after the backbone's and replace them."""
    found = {name: module.weights_from for name, module in model.named_modules() if hasattr(module, 'weights_from')}
    if '' in found:
        return found[''] + (f', resumed at epoch {runner.epoch}, iteration {runner.iter}' if runner.iter else '')
    for name, module in model.named_modules():
        parts = getattr(module, 'init_cfg', None) or []
        for part in parts if isinstance(parts, (list, tuple)) else [parts]:
            if name not in found and 'Pretrained' in str(part.get('type')):
                found[name] = f'{part.get("checkpoint")}, loaded by {type(module).__name__}'
    return '; '.join(f'{name}: {text}' for name, text in found.items()) + '; the rest random' if found else 'all random'


def _batch(runner):
    if _batch_size(runner.train_dataloader) is None:
        return 'size set by the batch sampler'
    images, counts = _images_per_step(runner)
    return f'{counted(images, "images")} per step ({counts})'


def _images_per_step(runner):
    per_process = _batch_size(runner.train_dataloader)
    accumulated = accumulated_steps(next(iter(_wrappers(runner).values())))
    return per_process * runner.world_size * accumulated, (
        f'{per_process} per process x {counted(runner.world_size, "processes")} x {accumulated} accumulated')


def _batch_size(loader):
    """Return the images in a batch of one process, or None if a user's batch sampler does not have the number."""
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
        texts.append(f'scaled by {real / scale["base_batch_size"]:g}: {counted(real, "images")} per batch, the config '
                     f'is for {scale["base_batch_size"]}')
    elif scale.get('base_batch_size', (images := _images_per_step(runner)[0])) != images:
        texts.append(f'not scaled, although the config is for {counted(scale["base_batch_size"], "images")} per step '
                     '(--auto-scale-lr scales it)')
    return '; '.join(texts)


def _schedule(runner):
    loop, parts = runner.train_loop, []
    if isinstance(loop, EpochBasedTrainLoop):
        parts.append(f'{counted(loop.max_epochs, "epochs")} of {counted(len(loop.dataloader), "iterations")}, '
                     f'{loop.max_iters:,} in total')
    elif getattr(loop, 'max_iters', None) is None:  # a user's loop
        parts.append(f'length set by {type(loop).__name__}')
    else:
        batch, samples = _batch_size(runner.train_dataloader), samples_of(runner.train_dataloader)
        times = batch and samples and f', {loop.max_iters * batch * runner.world_size / samples:.3g} times the data'
        parts.append(f'{counted(loop.max_iters, "iterations")}{times or ""}')
    schedulers = runner.param_schedulers or []
    if isinstance(schedulers, dict):
        schedulers = [part for parts in schedulers.values() for part in parts]
    parts.append(', '.join(type(scheduler).__name__ for scheduler in schedulers) or 'a constant learning rate')
    if runner.val_loop is None:
        parts.append('no validation')
    elif hasattr(loop, 'val_interval'):
        unit = 'epochs' if isinstance(loop, EpochBasedTrainLoop) else 'iterations'
        parts.append(f'validation every {_interval(loop.val_interval, unit)}')
    return '; '.join(parts)


def _data(loader):
    dataset = loader.dataset
    classes = (getattr(dataset, 'metainfo', None) or {}).get('classes')
    known = f' of {counted(len(classes), "classes")}' if classes else ''
    root = getattr(dataset, 'data_root', None)
    samples = samples_of(loader)
    count = 'a stream of images' if samples is None else counted(samples, 'images')
    return f'{count}{known}, after filtering' + (f', in {root}' if root else '')


def _validation_loss(runner):
    hook = next((hook for hook in runner.hooks if isinstance(hook, ValLossHook)), None)
    return {'validation loss': f'every term, as mean over {counted(hook.images(), "images")}'} if hook else {}


def _checkpoints(runner):
    hook = next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
    if hook is None or hook.interval < 1:
        return 'none'
    every = f'every {_interval(hook.interval, "epochs" if hook.by_epoch else "iterations")}'
    kept = f', the newest {hook.max_keep_ckpts} are kept' if hook.max_keep_ckpts > 0 else ''
    best = f', and the best by {", ".join(hook.save_best)}' if hook.save_best else ''
    return f'{every} in {hook.out_dir}{kept}{best}'


def _loggers(runner):
    """Return where to look at what the hooks of a run log besides files, by the name of the logger."""
    return {name: place for hook in runner.hooks for name, place in getattr(hook, 'places', {}).items()}


def _interval(number, unit):
    return counted(number, unit) if number > 1 else singular(unit)


def _wrappers(runner):
    """Return the optimizer wrappers by name; the name of a single one is empty."""
    wrapper = runner.optim_wrapper
    return dict(wrapper.items()) if isinstance(wrapper, OptimWrapperDict) else {'': wrapper}


def is_news(record) -> bool:
    """Whether a record goes into the log: no line for each parameter, no deprecations of mmengine's own hooks."""
    noise = ('paramwise_options -- ', '"FileClient" will be deprecated', '"HardDiskBackend" is the alias')
    text = record.getMessage()
    return not text.startswith(noise) and not text.endswith(' is skipped since its requires_grad=False')


def is_for_console(record) -> bool:
    """Whether a record goes to the console: not the long ones (versions of compilers, the config, the hooks)."""
    kept = ('\n' + '-' * 60 + '\nSystem environment', 'Config:\n', 'Hooks will be executed', 'Exp name: ',
            'Distributed training is not used, all SyncBatchNorm')
    return record.levelno > logging.INFO or not record.getMessage().startswith(kept)
