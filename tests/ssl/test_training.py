"""Trainings of DINO: when the teacher follows, stopped and resumed, in two processes."""
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim.optimizer import amp_optimizer_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import EpochBasedTrainLoop

from helpers.models import randomise
from helpers.paths import TINY_DINO_CONFIG
from helpers.runs import At, assert_same_run, make_config, terminate, train
from helpers.tools import run_tool
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError, Stopped
from xcit_dense.ssl import dino
from xcit_dense.ssl.dino_hooks import DINOHook, progress

HEALTHY = dict(teacher_temperature=(0.04, 0.07), warmup=2)
CASES = dict(plain={}, accumulation={'optim_wrapper.accumulative_counts': 2}, average=dict(custom_hooks=[
    dict(type='DINOHook', momentum=(0.9, 1.), **HEALTHY),
    dict(type='AverageHook', momentum=0.1, update_buffers=True)]))
#: Views without chance, so that an image has the same in every process, and batch norms with fixed statistics: on CPUs
#: each process has its own, as there is no SyncBN.
SAME = '''
custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmpretrain', 'helpers.rank_dump'])
randomness = dict(seed=1)
model = dict(backbone=dict(drop_path_rate=0., norm_eval=True), head=dict(batch_norm=False))
_flip = dict(type='RandomFlip', prob=1., direction='horizontal')
train_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='MultiView', num_views=[1, 1, 1], transforms=[
        [dict(type='Resize', scale=(32, 32))], [dict(type='Resize', scale=(32, 32)), _flip],
        [dict(type='CenterCrop', crop_size=24), dict(type='Resize', scale=(16, 16))]]),
    dict(type='PackInputs')]))
optim_wrapper = dict(optimizer=dict(_delete_=True, type='SGD', lr=0.01, weight_decay=0.01))
'''


@pytest.fixture
def config(class_folders, tmp_path):
    return lambda workers=0, **changes: make_config(TINY_DINO_CONFIG, class_folders / 'train', tmp_path, workers,
                                                    **changes)


class Watch(Hook):
    """Note after each iteration which parts of the model have changed."""
    def before_train(self, runner):
        self.parts, self.last = [], self._now(runner)

    def after_train_iter(self, runner, *_, **__):
        now = self._now(runner)
        self.parts.append({name for name in now if not torch.equal(now[name], self.last[name])})
        self.last = now

    def _now(self, runner):
        parts = dict(student=runner.model.student, teacher=runner.model.teacher)
        parts['prototypes'] = parts['student'].head.last_layer
        return {name: torch.cat([p.detach().flatten() for p in part.parameters()]) for name, part in parts.items()}


def test_the_teacher_follows_the_steps_of_the_optimizer(config):
    """Not the iterations whose gradients wait; prototypes learn from the second epoch."""
    train(config(**{'optim_wrapper.accumulative_counts': 2}), watch := Watch())
    assert watch.parts == [set(), {'student', 'teacher'}] * 2 + [set(), {'student', 'teacher', 'prototypes'}] * 4


def test_the_teacher_stays_if_a_step_is_skipped(config, monkeypatch):
    """As in mixed precision on a GPU, whose first scale is too large here: gradients are infinite."""
    monkeypatch.setattr(amp_optimizer_wrapper, 'is_cuda_available', lambda: True)
    monkeypatch.setattr(amp_optimizer_wrapper, 'GradScaler', partial(torch.amp.GradScaler, 'cpu'))
    scale = dict(init_scale=2.**127, backoff_factor=2.**-120)
    train(config(**{'optim_wrapper.type': 'AmpOptimWrapper', 'optim_wrapper.loss_scale': scale,
                    'train_cfg.max_epochs': 1}), watch := Watch())
    assert watch.parts == [set(), *[{'student', 'teacher'}] * 3]


def test_gradients_may_be_limited_by_value(config):
    cfg = config(**{'optim_wrapper.clip_grad': dict(_delete_=True, type='value', clip_value=0.)})
    cfg.optim_wrapper.optimizer.weight_decay = 0.
    train(cfg, watch := Watch())
    assert len(watch.parts) == 12 and not any('student' in parts for parts in watch.parts)


def test_a_momentum_out_of_range_is_refused(class_folders):
    """A temperature out of range makes the loss NaN."""
    for momentum in ((0.9, 1.1), (-0.1, 1)):
        with pytest.raises(ValueError, match='momentum must be two numbers from 0 to 1, got .*, 1'):
            DINOHook(momentum)
    assert DINOHook((0., 1.)).momentum == (0., 1.)
    with pytest.raises(ConfigError, match='DINO: centre_momentum must be from 0 to 1, got 1.5'):
        load_config(TINY_DINO_CONFIG, cfg_options={'model.centre_momentum': 1.5}, data_root=str(class_folders),
                    check=True)


def test_schedules_count_epochs_or_iterations_as_the_training_does():
    epochs = EpochBasedTrainLoop.__new__(EpochBasedTrainLoop)
    assert [progress(SimpleNamespace(train_loop=loop, epoch=2, iter=9)) for loop in (epochs, None)] == [2, 9]
    assert [dino.linear(1., 5., step, 3) for step in range(5)] == [1, 3, 5, 5, 5] and dino.linear(1., 5., 0, 1) == 1


@pytest.mark.parametrize('name, stop, workers', (
    pytest.param('plain', 4, 2, marks=pytest.mark.slow), ('accumulation', 3, 0),
    pytest.param('average', 6, 0, marks=pytest.mark.slow)))
def test_stopped_and_resumed_is_the_same_to_the_last_bit(name, stop, workers, config):
    """In an epoch, at its end, while the prototypes are frozen or not, between summed gradients, with the average."""
    changes = {'train_cfg.max_epochs': 2, **CASES[name]}
    wanted, cfg = train(config(**changes)), config(workers, **changes)
    cfg.work_dir += '/stopped'
    with pytest.raises(Stopped, match=f'iteration {stop}'):
        train(cfg, At(stop, terminate))
    cfg.randomness = dict(seed=None)  # it is the checkpoint's
    assert_same_run(train(cfg, resume=True), wanted)
    weights = wanted['state_dict']
    assert weights['teacher.centre'].any() and {name.split('.')[0] for name in weights} == {'student', 'teacher'}
    for part in ('backbone.blocks.0.attn.qkv.weight', 'head.last_layer.weight_v'):
        assert not torch.equal(weights[f'student.{part}'], weights[f'teacher.{part}'])


def test_two_processes_learn_what_one_does_with_the_joined_batch(two_processes, class_folders, tmp_path):
    """The centre is that of the images of both; with random weights their outputs are far apart."""
    init_default_scope('mmpretrain')
    cfg = load_config(TINY_DINO_CONFIG, cfg_options={'model.head.batch_norm': False})
    torch.save(randomise(MODELS.build(cfg.model), noise=0.5).state_dict(), tmp_path / 'random.pth')
    (tmp_path / 'config.py').write_text(
        f"_base_ = '{TINY_DINO_CONFIG}'\n{SAME}load_from = '{tmp_path}/random.pth'\ncustom_hooks = [dict("
        "type='RankDumpHook'), dict(type='DINOHook', momentum=(0.9, 1.), warmup=2)]\n")
    args = 'train.py', tmp_path / 'config.py', '--data-root', class_folders / 'train', '--work-dir'
    two_processes.run_tool(*args, tmp_path / 'two')
    run_tool(*args, tmp_path / 'one', '--cfg-options', 'train_dataloader.batch_size=6')
    first, second = (torch.load(tmp_path / f'two/rank{rank}.pt') for rank in (0, 1))
    whole = torch.load(tmp_path / 'one/rank0.pt')
    assert len(whole['losses']) == 6 and first['losses'] != second['losses']
    for loss, a, b in zip(whole['losses'], first['losses'], second['losses'], strict=True):
        assert (a + b) / 2 == pytest.approx(loss, rel=1e-5)
    centres = [run['buffers'][f'{prefix}teacher.centre'] for run, prefix in (
        (first, 'module.'), (second, 'module.'), (whole, ''))]
    assert torch.equal(centres[0], centres[1]) and centres[0].any()
    assert (centres[0] - centres[2]).norm() < 1e-5 * centres[2].norm()
    for name, value in whole['parameters'].items():
        a, b = (run['parameters'][f'module.{name}'] for run in (first, second))
        assert torch.equal(a, b), name
        assert (a - value).norm() < 1e-5 * value.norm() + 1e-7, name
