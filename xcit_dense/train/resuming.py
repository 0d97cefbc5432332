"""What exact resuming needs in addition to mmengine's state, and random states that code can leave as they are.

Position in the data, random states, and gradients that wait for others to be added.
"""
import random
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from mmengine.dist import all_gather, all_gather_object, get_rank, get_world_size
from mmengine.hooks import EarlyStoppingHook

from .._utils.processes import is_first_process
from ..compat.internals import awaits_gradients
from ..config.check.keys import differences
from ..config.check.top_level import option_for
from ..data.batches import unwrapped
from ..errors import CheckpointError, ConfigError, DataError
from ..weights import fetch, newest_checkpoint

#: Settings that may differ from those of the resumed run: places, and what is reported.
_PLACES = ('resume', 'load_from', 'init_from', 'work_dir', 'launcher', 'custom_imports', 'config_findings', 'fitted',
           'fitted_to', 'timed', 'val_share')
#: Settings that a resumed run reads from its checkpoint.
_KEPT = ('optim_wrapper.optimizer', 'optim_wrapper.paramwise_cfg', 'param_scheduler', 'auto_scale_lr')


def source_of(resume, load_from):
    """Return what a run resumes: a checkpoint, or None for the newest of its work dir.

    ``resume`` is a checkpoint; ``'auto'`` for the newest; or True, as in mmengine, for ``load_from`` (or None).
    """
    return load_from if resume is True else None if resume == 'auto' else resume


def find_resumed(checkpoint, work_dir) -> Path:
    """Return the file to resume from: the given one, or the newest of a work dir; `CheckpointError` without one."""
    if checkpoint is not None and not Path(checkpoint).is_dir():
        return fetch(str(checkpoint))
    try:
        return newest_checkpoint(checkpoint or work_dir, to_resume=True)
    except CheckpointError as error:
        raise CheckpointError(f'nothing to resume: {error}, or start a new run without --resume (with --overwrite if '
                              'the work dir has checkpoints)') from error


def changed_settings(cfg, before, load_from) -> str | None:
    """Return lines on settings that differ from the resumed run's; `ConfigError` if some would have no effect."""
    changed = differences(before, cfg.pretty_text) if isinstance(before, str) and cfg else {}
    added = {key for key, (old, _) in changed.items() if key.startswith('custom_hooks') and old == 'not set'
             or key == 'optim_wrapper.type' and old == "'OptimWrapper'"}
    changed = {key: f'  {key}: {old} -> {new}' for key, (old, new) in changed.items()
               if not key.startswith(_PLACES) and not key.endswith('.palette')  # colours change no result
               and '.init_cfg' not in key}  # the weights are in the checkpoint
    options = {option_for(key) or '--augment' * (key.startswith('train_dataloader.dataset.') and 'pipeline' in key)
               for key in changed.keys() - added} - {'', '--data-root', '--workers'}  # those change no result
    again = f' if the previous run had {", ".join(sorted(options))}, give it again' if options else ''
    if kept := [line for key, line in changed.items() if key.startswith(_KEPT)]:
        raise ConfigError('a resumed run uses the optimizer and the schedule of its checkpoint, so these settings '
                          'would have no effect:\n' + '\n'.join(kept) + '\nRestore the previous values'
                          f'{again and f" ({again.strip()})"}, or start a new run from the weights, without --resume: '
                          f'--init-from {load_from} and another --work-dir')
    return '\n'.join([*changed.values(), *([again] if again and changed else [])])


def check_classes(runner, checkpoint, filename):
    """Raise `DataError` if a run has other classes than its checkpoint."""
    saved, found = (list((meta or {}).get('classes') or []) for meta in (
        checkpoint['meta'].get('dataset_meta'), getattr(runner.train_dataloader.dataset, 'metainfo', None)))
    if saved and found and saved != found:
        raise DataError(f'{filename} has the classes {saved}, but this run has {found}: the outputs of the model would '
                        'change their meaning. Use the data of the previous run, or start a new run from its weights, '
                        f'without --resume: --init-from {filename} and another --work-dir')


def training_state(runner) -> dict:
    """Return the state of all processes that exact resuming needs; every process must call this."""
    loops, gradients = all_gather_object(runner.train_loop.state_dict()), {}
    if awaits_gradients(runner.optim_wrapper):
        for name, parameter in _trained(runner):
            own = parameter.grad
            if own is None and get_world_size() > 1:  # another process may have one
                own = torch.zeros_like(parameter)
            if own is not None:
                parts = all_gather(own.detach())
                gradients[name] = [part.cpu() for part in parts] if is_first_process() else []
    waiting = [dict(best_score=float(hook.best_score), wait_count=hook.wait_count)
               for hook in runner.hooks if isinstance(hook, EarlyStoppingHook)]
    return dict(loops=loops, gradients=gradients, early_stopping=waiting, samples=len(runner.train_dataloader.dataset))


def restore_training(runner, state: dict, filename):
    """Restore what `training_state` returned, from a file; warn if the number of images has changed."""
    processes, process = get_world_size(), get_rank()
    runner.train_loop.load_state_dict(state['loops'][min(process, len(state['loops']) - 1)])
    for name, parameter in _trained(runner):
        if name in state['gradients']:
            parts = state['gradients'][name]
            own = parts[process] if len(parts) == processes else torch.stack(parts).mean(0)
            parameter.grad = own.to(parameter)
    hooks = [hook for hook in runner.hooks if isinstance(hook, EarlyStoppingHook)]
    for hook, waiting in zip(hooks, state['early_stopping'], strict=False):
        vars(hook).update(waiting)
    before, now = state['samples'], len(runner.train_dataloader.dataset)
    if before != now:
        runner.logger.warning(f'{filename} is from a run on {before:,} images, now there are {now:,}. The position in '
                              'the data means other images, so some may be repeated or skipped until the next pass; a '
                              'schedule that counts iterations keeps its length.')


def _trained(runner):
    return [(name, p) for name, p in unwrapped(runner.model).named_parameters() if p.requires_grad]


def random_state() -> dict:
    """Return the states of Python's, NumPy's and torch's generators as tensors and numbers."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
    keys = torch.from_numpy(keys.astype(np.int64))
    state = dict(python=dict(version=version, words=torch.tensor(words), gauss=gauss), torch=torch.get_rng_state(),
                 numpy=dict(keys=keys, position=position, has_gauss=has_gauss, cached=float(cached)))
    if torch.cuda.is_available():
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict):
    """Restore what `random_state` returned."""
    python, numpy = state['python'], state['numpy']
    random.setstate((python['version'], tuple(python['words'].tolist()), python['gauss']))
    np.random.set_state(('MT19937', numpy['keys'].numpy().astype(np.uint32), numpy['position'], numpy['has_gauss'],
                         numpy['cached']))
    torch.set_rng_state(state['torch'].cpu())
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'].cpu())


@contextmanager
def kept_random_state():
    """Context in which code may draw random numbers that a training must not miss."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


@contextmanager
def isolated_random_state(*seed: int):
    """Context whose random numbers depend only on ``seed`` and change nothing outside.

    The generators of GPUs are not isolated: code in this context belongs to a data set or draws nothing on a GPU.
    """
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        a, b, c, d = np.random.SeedSequence(seed).generate_state(4).tolist()
        random.seed(a)
        np.random.seed(b)
        torch.default_generator.manual_seed(c << 32 | d)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
