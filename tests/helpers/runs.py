"""Trainings of the tiny configs: started, interrupted, compared."""
import copy
import os
import signal

from mmengine.hooks import Hook

from helpers.models import assert_equal
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import take_classes
from xcit_dense.processes import end_workers
from xcit_dense.train import build_runner
from xcit_dense.weights import newest_checkpoint, read_checkpoint

DROPPING = dict(drop_path_rate=0.3, attn_drop_rate=0.1)


class At(Hook):
    """Do something to a run once, at an iteration."""

    def __init__(self, iteration, action, where='after_train_iter'):
        self.iteration, self.action = iteration, action
        setattr(self, where, self._call)

    def _call(self, runner, *_, **__):
        if runner.iter + 1 == self.iteration:
            self.action(runner)


class Poison(At):
    """Make the loss of one iteration infinite."""

    def __init__(self, iteration):
        super().__init__(iteration, self.poison, where='before_train_iter')

    def poison(self, runner):
        self.parameter = runner.model.backbone.patch_embed.proj[0][0].weight  # in front of all norms
        self.kept = self.parameter.detach().clone()
        self.parameter.data.fill_(float('nan'))

    def after_train_iter(self, runner, *_, **__):
        if runner.iter + 1 == self.iteration:
            self.parameter.data.copy_(self.kept)


class Metrics(Hook):
    """Set the results of the validations of a run, and record which best checkpoints exist at each save."""

    priority = 'HIGHEST'

    def __init__(self, folder, *values):
        self.folder, self.values, self.there = folder, list(values), []

    def after_val_epoch(self, runner, metrics):
        metrics.clear()
        metrics['mIoU'] = self.values.pop(0)

    def before_save_checkpoint(self, runner, checkpoint):
        self.there.append([p.name for p in self.folder.glob('best_*.pth')])


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
    cfg.merge_from_dict(changes)
    return cfg


def train(cfg, *hooks, resume=False):
    """Train and return the content of the newest checkpoint."""
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


def assert_same_run(got, wanted):
    for part in ('state_dict', 'optimizer', 'param_schedulers', 'ema_state_dict', 'training'):
        assert (part in got) == (part in wanted)
        assert_equal(got.get(part), wanted.get(part), part)
    assert got['meta']['iter'] == wanted['meta']['iter'] and got['meta']['epoch'] == wanted['meta']['epoch']


CASES = dict(
    epochs=(TINY_CONFIG, 0, {}),
    epochs_workers=(TINY_CONFIG, 2, {}),
    epochs_ema=(TINY_CONFIG, 0, dict(custom_hooks=[dict(type='EMAHook')])),
    epochs_accumulation=(TINY_CONFIG, 0, {'optim_wrapper.accumulative_counts': 2}),
    epochs_average=(TINY_CONFIG, 0, dict(custom_hooks=[dict(type='AverageHook', momentum=0.1)])),
    iterations=(TINY_SEG_CONFIG, 0, {}),
    iterations_workers=(TINY_SEG_CONFIG, 2, {}),
    iterations_ema=(TINY_SEG_CONFIG, 0, dict(custom_hooks=[dict(type='EMAHook')])),
    iterations_early_stopping=(TINY_SEG_CONFIG, 0, dict(custom_hooks=[
        dict(type='EarlyStoppingHook', monitor='mIoU', rule='greater', patience=5)])),
    iterations_finite_sampler=(TINY_SEG_CONFIG, 0, {'train_dataloader.sampler.type': 'DefaultSampler'}))
_WHOLE = {}


def whole_run(name, data_root, tmp_path_factory):
    """Return the last checkpoint of a run without interruption."""
    if name not in _WHOLE:
        config, workers, changes = CASES[name]
        cfg = make_config(config, data_root, tmp_path_factory.mktemp('whole'), workers, **changes)
        _WHOLE[name] = train(cfg)
    return _WHOLE[name]
