"""Trainings of the tiny configs: started, interrupted, compared."""
import copy
import os
import random
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

import helpers.rank_dump  # noqa: F401  registers hooks
from helpers.models import assert_equal
from helpers.paths import TINY_SEG_CONFIG
from helpers.tools import forget_run
from xcit_dense._utils.processes import end_workers, is_first_process
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import take_classes
from xcit_dense.errors import Stopped
from xcit_dense.train import build_runner, minutes
from xcit_dense.weights import newest_checkpoint, read_checkpoint

DROPPING = dict(drop_path_rate=0.3, attn_drop_rate=0.1)
NO_VALIDATION = dict(val_cfg=None, val_dataloader=None, val_evaluator=None)
#: What draws from a generator of its own, or from what it keeps: both normals are drawn in pairs, one of them kept.
SOURCES = dict(python=random.random, python_gauss=lambda: random.gauss(0, 1), numpy=np.random.rand,
               numpy_gauss=np.random.randn, torch=lambda: torch.rand(()).item(),
               torch_normal=lambda: torch.randn(()).item())


def draw():
    return {name: float(source()) for name, source in SOURCES.items()}


def disturb():
    """Leave every generator with another state, at another position, with another number kept."""
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    draw()


class At(Hook):
    """Do something to a run once, at an iteration."""

    def __init__(self, iteration, action, where='after_train_iter'):
        self.iteration, self.action = iteration, action
        setattr(self, where, self._call)

    def _call(self, runner, *_, **__):
        if runner.iter + 1 == self.iteration:
            self.action(runner)


@HOOKS.register_module()
class DrawHook(Hook):
    """Draws from every generator at every iteration and in validations, as a model or a hook of a user's might."""

    def after_train_iter(self, runner, *_, **__):
        draw()

    after_val_iter = after_train_iter


class Metrics(Hook):
    """Set the results of the validations of a run."""

    priority = 'HIGHEST'

    def __init__(self, *values):
        self.values = list(values)

    def after_val_epoch(self, runner, metrics):
        metrics.clear()
        metrics['mIoU'] = metrics['aAcc'] = self.values.pop(0)


def terminate(_, number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def die(_):
    raise RuntimeError('killed by the test')


def make_config(config, data_root, work_dir, workers=0, **changes):
    cfg = load_config(config, data_root=str(data_root), pretrained=False)
    take_classes(cfg)
    cfg.work_dir = str(work_dir)
    cfg.randomness = dict(seed=3)
    cfg.model.backbone.update(DROPPING if cfg.model.backbone.type == 'XCiT' else dict(drop_path_rate=0.3))
    cfg.train_dataloader.update(num_workers=workers, persistent_workers=workers > 0)
    cfg.merge_from_dict(copy.deepcopy(changes))
    return cfg


def short_config(demo_data, work_dir, iterations=2, **checkpoint):
    """Return the config of a segmentor that saves every iteration and validates nothing."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, work_dir, **NO_VALIDATION,
                      **{'default_hooks.checkpoint': dict(interval=1, **checkpoint)})
    cfg.train_cfg.update(max_iters=iterations, val_interval=100)
    return cfg


def train(cfg, *hooks, resume=False):
    forget_run()  # two runs of one second have one log and its curves, and a log has a warning once
    cfg = copy.deepcopy(cfg)
    cfg.resume = resume
    runner = build_runner(cfg)
    for hook in hooks:
        runner.register_hook(hook)
    try:
        runner.train()
    finally:
        end_workers()
    return read_checkpoint(newest_checkpoint(cfg.work_dir))


def choose_minutes(config, data_root, work_dir, late):
    """Return what `set_minutes` changes in a process of a group, whose first began some seconds before the others."""
    cfg = make_config(config, data_root, work_dir, launcher='pytorch')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minutes, '_FEWEST', 3)
        patch.setattr(minutes, '_MEASURED', 0.)
        minutes.set_minutes(cfg, 5, time.monotonic() - late * is_first_process())
    return cfg.timed, cfg.train_cfg.max_epochs


def train_slowly(cfg, seconds, iteration, validation):
    """Train within some seconds of a clock that stands still but for iterations and validations, of which each was
    measured as one second and as two; return the checkpoint, the time, and when validations ended."""
    now, ended = [100.], []

    class Slow(Hook):
        priority = 'LOWEST'

        def before_train_iter(self, runner, *_, **__):
            now[0] += iteration

        def before_val_iter(self, runner, batch_idx, *_, **__):
            now[0] += validation * (not batch_idx)

        def after_val_epoch(self, runner, metrics=None):
            ended.append(now[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minutes, 'time', SimpleNamespace(monotonic=lambda: now[0]))
        return train(cfg, minutes.MinutesHook(1, 100. + seconds, 1., 2.), Slow()), now[0], ended


def end_together(config, data_root, work_dir):
    """Return after how many iterations a process of a group ends, and its validations; the second is slower."""
    cfg = make_config(config, data_root, work_dir, launcher='pytorch')
    cfg.train_cfg.update(max_iters=12, val_interval=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minutes, '_FEWEST', 1)
        patch.setattr(minutes, '_SHARE', 0.1)
        got, _, ended = train_slowly(cfg, 24, 1. + (not is_first_process()), 2.)
    return got['meta']['iter'], len(ended)


def assert_same_run(got, wanted):
    for part in ('state_dict', 'optimizer', 'param_schedulers', 'ema_state_dict', 'training'):
        assert (part in got) == (part in wanted)
        assert_equal(got.get(part), wanted.get(part), part)
    assert got['meta']['iter'] == wanted['meta']['iter'] and got['meta']['epoch'] == wanted['meta']['epoch']


def stop_after(iteration, cfg, *hooks, **options):
    """Train until SIGTERM stops the run after an iteration; return the content of the checkpoint."""
    with pytest.raises(Stopped, match=rf'SIGTERM after iteration {iteration}\. Saved .*/iter_{iteration}\.pth'):
        train(cfg, *hooks, At(iteration, terminate), **options)
    return read_checkpoint(newest_checkpoint(cfg.work_dir))


_SUMMED = {'optim_wrapper.accumulative_counts': 2}
#: What changes in the config of a segmentor's run, by name.
CASES = dict(
    iterations={},
    # much of what has a state, in one run
    iterations_loaded={
        **_SUMMED, 'optim_wrapper.clip_grad': dict(max_norm=0.1), 'train_dataloader.sampler.type': 'DefaultSampler',
        'custom_hooks': [dict(type='EMAHook'), dict(type='DrawHook'), dict(
            type='EarlyStoppingHook', monitor='mIoU', rule='greater', patience=5)]},
    iterations_skipping={
        **_SUMMED, 'train_cfg.bad_loss': 'skip', 'train_cfg.max_iters': 6,
        'custom_hooks': [dict(type='PoisonHook', rank=0, iteration=place, heal=True) for place in (2, 5)]},
    epochs={  # of three iterations, the last one of two
        **_SUMMED, 'train_cfg': dict(_delete_=True, type='DenseEpochLoop', max_epochs=2, max_iters=5),
        'train_dataloader.sampler': dict(_delete_=True, type='DefaultSampler', shuffle=True),
        'log_processor.by_epoch': True, 'default_hooks.checkpoint': dict(by_epoch=True, interval=1),
        'custom_hooks': [dict(type='AverageHook', momentum=0.1), dict(type='DrawHook')]})
_WHOLE = {}


def whole_run(name, data_root, tmp_path_factory):
    """Return the last checkpoint of a run without interruption."""
    if name not in _WHOLE:
        _WHOLE[name] = train(make_config(TINY_SEG_CONFIG, data_root, tmp_path_factory.mktemp('whole'), **CASES[name]))
    return _WHOLE[name]
