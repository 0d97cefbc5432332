"""What the log of a training has: one block about what it is about to do, and which messages it omits."""
import logging
import shlex
import sys
import time
from contextlib import suppress

import torch
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop
from torch.utils.data import Dataset

from .. import __version__
from .._utils.machine import describe_machine
from .._utils.processes import is_first_process, run_on_first
from .._utils.text import counted, digits, first_line
from ..compat.internals import accumulated_steps
from ..config.check import check_schedule
from ..config.fit import Look, describe_fit, look
from ..data.batches import unwrapped
from ..errors import DataError
from ..models import XCiT, XCiTClassifier
from ..weights.layouts import figures_of, size_title
from ..weights.zoo import PREFIX, WEIGHTS
from .hooks import Bfloat16OptimWrapper, CompileHook, CUDAGraphHook
from .resuming import kept_random_state

#: With fewer images, published weights usually are better than random ones.
_FEW = 1000


@HOOKS.register_module()
class StartupHook(Hook):
    """Logs `describe_run` when a training starts, on the first process: ``custom_hooks=[dict(type='StartupHook')]``."""

    priority = 'LOWEST'  # the other hooks have set up what is reported here
    misfit = ''  # in what the config does not fit the data

    def before_train(self, runner):
        """Log the block, and problems of the schedule; `DataError` if the training data has no object to learn from."""
        run_on_first(_check_used, runner)
        if not is_first_process():
            return
        length = len(runner.train_dataloader)
        if runner.iter == 0:  # the schedule of a resumed run cannot be changed
            check_schedule(runner.cfg, length)
        try:
            size = _batch_size(runner)
            found = look(runner.cfg, length, size and size * runner.world_size)
        except Exception as error:  # of any type: data sets may be users' classes; a mere report stops no training
            print_log(f'cannot find out whether the config fits the data: {first_line(error)}', logger='current')
            found = Look({}, [])
        lines = describe_fit(runner.cfg, found)
        self.misfit = lines.pop('', '')
        if self.misfit and runner.iter == 0:
            print_log(self.misfit, logger='current', level=logging.WARNING)
        runner.logger.info('\n' + describe_run(runner, lines))
        self._began, self._first = time.monotonic(), runner.iter

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        """Log the first iteration, a sign of life long before the first line of losses."""
        if is_first_process() and runner.iter == self._first:
            runner.logger.info(f'first iteration: {time.monotonic() - self._began:.1f} s with the start of the workers')


def describe_run(runner, facts=None) -> str:
    """Return a block of lines that describe a run: versions, device, model, weights, schedule, data, outputs.

    Its training has begun, with optimizer, loops and weights. ``facts`` on the data are those of `describe_fit`.
    """
    model = unwrapped(runner.model)
    lines = {
        'versions': versions(runner),
        'device': f'{describe_machine()["device"]}; {counted(runner.world_size, "processes")}',
        'precision': _precision(runner.optim_wrapper, model),
        'compile': 'the whole model' if runner.cfg.get('compile') else 'blocks of the backbone' if any(
            isinstance(hook, CompileHook) for hook in runner.hooks) else 'nothing',
        **({} if not torch.cuda.is_available() else {'CUDA graphs': 'of the backbone, for sizes that come again' if any(
            isinstance(hook, CUDAGraphHook) for hook in runner.hooks) else 'none'}),
        'model': f'{type(model).__name__} with {type(getattr(model, "backbone", model)).__name__}',
        'parameters': _parameters(runner, model),
        'weights': _weights(runner, model),
        **_steps(runner),
        'schedule': _schedule(runner),
        **({'length': runner.cfg.timed[0]['why']} if runner.cfg.get('timed') else {}),
        'training data': _data(runner.train_dataloader, getattr(runner, 'data_report', None)),
        **(facts or {}),
        'validation data': _data(runner.val_dataloader) if runner.val_loop is not None else 'none',
        'seed': f'{runner.seed}' + (', deterministic' if runner.deterministic else ''),
        'work dir': runner.work_dir,
        # where to look at what hooks log besides files, by the name of the logger
        **{name: place for hook in runner.hooks for name, place in getattr(hook, 'places', {}).items()},
        'resume': f'after a stop, repeat the command with --resume and --work-dir {shlex.quote(str(runner.work_dir))}'}
    width = max(map(len, lines))
    return '\n'.join(f'{name:<{width}}  {text}' for name, text in lines.items())


def versions(runner) -> str:
    """Return the versions of this package, Python, torch and the frameworks that a run uses."""
    names = dict.fromkeys(['torch', 'torchvision', 'mmengine', 'mmcv', str(runner.default_scope.scope_name)])
    # a user's scope may not be a module
    return ', '.join([f'xcit_dense {__version__}', f'python {describe_machine()["python"]}', *(
        f'{name} {sys.modules[name].__version__}' for name in names if hasattr(sys.modules.get(name), '__version__'))])


def _precision(wrapper, model):
    if isinstance(wrapper, (AmpOptimWrapper, Bfloat16OptimWrapper)):
        return f'mixed: {str(wrapper.cast_dtype or torch.float16).removeprefix("torch.")} and float32'
    kinds = sorted({str(p.dtype).removeprefix('torch.') for p in model.parameters()})
    tf32 = torch.cuda.is_available() and torch.backends.cuda.matmul.allow_tf32
    return ', '.join(kinds) + (', matrix products in TF32' if tf32 else '')


def _parameters(runner, model):
    groups = runner.optim_wrapper.optimizer.param_groups
    decayed = sum(p.numel() for g in groups if g.get('weight_decay') for p in g['params'] if p.requires_grad)
    trained = sum(p.numel() for g in groups for p in g['params'] if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    return (f'{total:,}: {trained:,} trained, {decayed:,} of them with weight decay and {trained - decayed:,} without; '
            f'{total - trained:,} frozen')


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
    return ('; '.join(f'{name}: {text}' for name, text in found.items()) + '; the rest random' if found else
            f'all random{_published_for(runner, model)}')


def _published_for(runner, model):
    """Name the published weights for a backbone whose data has few images; '' if there are none, or no labels."""
    backbone, data = getattr(model, 'backbone', None), runner.train_dataloader.dataset
    if not isinstance(backbone, (XCiT, XCiTClassifier)) or not (getattr(data, 'metainfo', None) or {}).get('classes'):
        return ''
    size = size_title(figures_of(backbone.arch))
    name = f'{size}_{"384" if isinstance(backbone, XCiT) else "224"}_dist'  # as in the configs of this package
    if name not in WEIGHTS or len(data) >= _FEW:
        return ''
    with kept_random_state(), torch.device('meta'):
        count = sum(p.numel() for p in XCiTClassifier(size).parameters())
    return (f'; with so few images, ImageNet weights of this backbone usually help: --init-from {PREFIX}{name} '
            f'(a download of about {4 * count / 2**20:.0f} MiB)')


def _batch_size(runner):
    """Return the images in a batch of one process, or None if a user's batch sampler does not have the number."""
    return getattr(runner.train_dataloader.batch_sampler, 'batch_size', None)


def _steps(runner):
    """Describe the batch and the learning rate."""
    rates = sorted({group.get('initial_lr', group['lr']) for group in runner.optim_wrapper.optimizer.param_groups})
    rate = f'{rates[0]:g}' if len(rates) == 1 else f'{rates[0]:g} to {rates[-1]:g} by parameter'
    size, scale = _batch_size(runner), runner.auto_scale_lr or {}
    if size is None:
        return {'batch': 'size set by the batch sampler', 'learning rate': rate}
    accumulated, base = accumulated_steps(runner.optim_wrapper), scale.get('base_batch_size')
    images = size * runner.world_size * accumulated
    if scale.get('enable'):
        rate += f'; scaled by {images / base:g}: {counted(images, "images")} per step, the config is for {base}'
    elif base not in (None, images):
        rate += (f'; not scaled, although the config is for {counted(base, "images")} per step (--auto-scale-lr scales '
                 'it)')
    return {'batch': f'{counted(images, "images")} per step ({size} per process x '
                     f'{counted(runner.world_size, "processes")} x {accumulated} accumulated)',
            'learning rate': rate}


def _schedule(runner):
    loop, schedulers, unit = runner.train_loop, runner.param_schedulers or [], 'iterations'
    length = counted(loop.max_iters, unit)
    if isinstance(loop, EpochBasedTrainLoop):
        unit, length = 'epochs', (f'{counted(loop.max_epochs, "epochs")} of '
                                  f'{counted(len(loop.dataloader), "iterations")}, {loop.max_iters:,} in total')
    elif size := _batch_size(runner):
        times = loop.max_iters * size * runner.world_size / len(runner.train_dataloader.dataset)
        length += f', {digits(times)} times the data'
    interval = getattr(loop, 'val_interval', None) if runner.val_loop is not None else None
    validation = interval and f'validation every {counted(interval, unit)}'.replace('every 1 ', 'every ')
    return '; '.join((length, ', '.join(type(each).__name__ for each in schedulers) or 'a constant learning rate',
                      validation or 'no validation'))


def _data(loader, report=None):
    """Describe the data of a loader; with the report on a COCO file, how much of it is used, and why not all."""
    dataset, left_out = loader.dataset, report.left_out if report else None
    classes = (getattr(dataset, 'metainfo', None) or {}).get('classes')
    root, amounts = getattr(dataset, 'data_root', None), _amounts(dataset, report)
    used = [counted(number, name) if left_out is None else f'{number:,} of {report.counts[key]:,} {name}'
            for number, name, key in zip(amounts, ('images', 'objects'), ('images', 'annotations'), strict=True)
            if number is not None]
    repeated = f' ({len(dataset):,} images with repeats)' * (len(dataset) > amounts[0])
    return ' and '.join(used) + repeated + (f' of {counted(len(classes), "classes")}' if classes else '') + (
        ', after filtering' if left_out is None else '') + (f', in {root}' if root else '') + (
        f'; not used: {"; ".join(left_out)}' if left_out else '')


def _check_used(runner):
    """Raise `DataError` if the training data has no object to learn from."""
    _, objects = _amounts(runner.train_dataloader.dataset, getattr(runner, 'data_report', None))
    if objects == 0 and getattr(runner, 'data_findings', 'stop') == 'stop':
        raise DataError('no object of the training data is used, so there is nothing to learn: are annotations '
                        'missing, all crowds or outside of their images? --data-findings warn continues')


def _amounts(dataset, report=None) -> tuple:
    """Return how many images and objects a built data set has after its filters, as the report on a COCO file says, or
    by reading all records; None for objects that it has not."""
    leaves, objects = _innermost(dataset), None
    if report and report.judged is not None:
        return len(leaves[0]), report.judged
    with suppress(Exception):  # of any type: data sets may be users' classes
        objects = sum(len(record.get('segments_info') or [one for one in record['instances'] if not one.get(
            'ignore_flag')]) for leaf in leaves for record in map(leaf.get_data_info, range(len(leaf))))
    return sum(map(len, leaves)), objects


def _innermost(dataset):
    """Return the data sets in wrappers, except in those that take a part, such as torch's ``Subset``."""
    inner = getattr(dataset, 'datasets', None) or [getattr(dataset, 'dataset', None)]
    if not isinstance(inner, list) or not isinstance(inner[0], Dataset) or len(dataset) < sum(map(len, inner)):
        return [dataset]
    return [leaf for part in inner for leaf in _innermost(part)]


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
