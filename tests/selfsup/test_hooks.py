"""The hooks of DINO: when the teacher follows, what learns, and the alarm for a collapse."""
import re

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

from helpers.paths import TINY_CLS_CONFIG, TINY_DINO_CONFIG
from helpers.runs import At, make_config, terminate, train
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError, Stopped
from xcit_dense.selfsup.hooks import DINOHook
from xcit_dense.train import build_runner

pytest.importorskip('mmpretrain')


class Watch(Hook):
    """Note after each iteration which parts of the model have changed, and the momentum."""

    def before_train(self, runner):
        self.parts, self.momenta, self.wrapper = [], [], runner.optim_wrapper
        self.model, self.last = runner.model, self._now(runner)

    def after_train_iter(self, runner, *_, **__):
        now = self._now(runner)
        self.parts.append({name for name in now if not torch.equal(now[name], self.last[name])})
        self.momenta.append(runner.message_hub.get_scalar('train/teacher_momentum').current())
        self.last = now

    def _now(self, runner):
        parts = dict(student=runner.model.student, teacher=runner.model.teacher)
        parts['prototypes'] = parts['student'].head.last_layer
        return {name: torch.cat([p.detach().flatten() for p in part.parameters()]) for name, part in parts.items()}


def test_the_teacher_follows_the_steps_of_the_optimizer(class_folders, tmp_path):
    """Not the iterations whose gradients wait; prototypes learn from the second epoch."""
    cfg = make_config(TINY_DINO_CONFIG, class_folders / 'train', tmp_path, **{'optim_wrapper.accumulative_counts': 2})
    train(cfg, watch := Watch())
    assert watch.parts[:4] == [set(), {'student', 'teacher'}] * 2
    assert watch.parts[4:] == [set(), {'student', 'teacher', 'prototypes'}] * 4
    assert watch.momenta[0] == 0.9 and watch.momenta == sorted(watch.momenta)
    assert 0.998 < watch.momenta[-1] < 1  # a cosine that is 1 when the training is over


class ScalingOptimWrapper(OptimWrapper):
    """Does on a CPU what `AmpOptimWrapper` does on a GPU; the first scale is too large."""

    def __init__(self, **options):
        super().__init__(**options)
        self.scaler = torch.amp.GradScaler('cpu', init_scale=2.**127, backoff_factor=2.**-120)

    def backward(self, loss):
        self.scaler.scale(loss).backward()
        self._inner_count += 1

    def step(self):
        self.scaler.unscale_(self.optimizer)
        self._clip_grad()
        self.scaler.step(self.optimizer)
        self.scaler.update()


def test_the_teacher_stays_if_a_step_is_skipped(class_folders, tmp_path, monkeypatch):
    """As in mixed precision, if gradients are infinite."""
    monkeypatch.setitem(OPTIM_WRAPPERS.module_dict, 'ScalingOptimWrapper', ScalingOptimWrapper)
    cfg = make_config(TINY_DINO_CONFIG, class_folders / 'train', tmp_path, **{
        'optim_wrapper.type': 'ScalingOptimWrapper'})
    train(cfg, watch := Watch())
    assert watch.parts[:2] == [set(), {'student', 'teacher'}]


def test_gradients_may_be_limited_by_value(class_folders, tmp_path):
    cfg = make_config(TINY_DINO_CONFIG, class_folders / 'train', tmp_path, **{
        'optim_wrapper.clip_grad': dict(_delete_=True, type='value', clip_value=0.)})
    cfg.optim_wrapper.optimizer.weight_decay = 0.
    train(cfg, watch := Watch())
    assert len(watch.parts) == 12 and not any('student' in parts for parts in watch.parts)


def test_the_teacher_learns_only_from_the_student(class_folders, tmp_path):
    train(make_config(TINY_DINO_CONFIG, class_folders / 'train', tmp_path), watch := Watch())
    teacher = list(watch.model.teacher.parameters())
    assert not any(p.requires_grad for p in teacher) and all(p.grad is None for p in teacher)
    assert not any(p in watch.wrapper.optimizer.state for p in teacher)
    student = dict(watch.model.student.named_parameters())
    assert {name for name, p in student.items() if p not in watch.wrapper.optimizer.state} == {
        'head.last_layer.weight_g'}  # of length 1


@pytest.mark.parametrize('hook', ('DINOHook', 'CollapseHook'))
def test_other_models_are_refused(hook, class_folders, tmp_path):
    cfg = make_config(TINY_CLS_CONFIG, class_folders, tmp_path, custom_hooks=[dict(type=hook)])
    with pytest.raises(ConfigError, match=f'{hook} is for a DINO model, but this one is a ImageClassifier'):
        build_runner(cfg).train()


@pytest.mark.parametrize('name, value, wanted', (
    ('momentum', (0.9, 1.1), 'from 0 to 1'), ('teacher_temperature', (0., 0.07), 'above 0')))
def test_wrong_numbers_of_the_hook_are_refused(name, value, wanted):
    with pytest.raises(ValueError, match=f'{name} must be two numbers {wanted}, got {re.escape(str(value))}'):
        DINOHook(**{name: value})


@pytest.mark.parametrize('name, value, wanted', (
    ('student_temperature', 0., 'above 0'), ('centre_momentum', 1.5, 'from 0 to 1'),
    ('global_views', 0, 'at least 1'), ('global_views', -1, 'at least 1'), ('global_views', 1.5, 'at least 1')))
def test_wrong_numbers_of_the_model_are_refused(name, value, wanted, class_folders):
    with pytest.raises(ConfigError, match=f'model.{name}.*must be .*{wanted}, got {value}'):
        load_config(TINY_DINO_CONFIG, cfg_options={f'model.{name}': value}, data_root=str(class_folders), check=True)


def test_dino_without_its_hook_names_it(class_folders, tmp_path):
    cfg = make_config(TINY_DINO_CONFIG, class_folders / 'train', tmp_path, custom_hooks=[])
    with pytest.raises(ConfigError, match='needs .*DINOHook.* in custom_hooks'):
        build_runner(cfg).train()


HEALTHY = dict(teacher_temperature=(0.04, 0.07), warmup=2)


@pytest.mark.parametrize('hook, centre_momentum, wanted', (
    (HEALTHY, 0.9, []),
    (dict(teacher_temperature=(50., 50.)), 0.9, ['same for every prototype.*teacher .* upper bound.* lower DINOHook']),
    (dict(teacher_temperature=(5e-5, 5e-5)), 1., ['one prototype.*teacher .* lower bound of 0.* higher DINOHook'])))
def test_a_collapse_is_a_warning(hook, centre_momentum, wanted, class_folders, tmp_path, capfd):
    """Of targets that are too flat, and of centring that does nothing; once, as it goes on."""
    cfg = make_config(TINY_DINO_CONFIG, class_folders / 'train', tmp_path, custom_hooks=[
        dict(type='DINOHook', **hook), dict(type='CollapseHook', patience=4, begin=1)], **{
        'model.centre_momentum': centre_momentum, 'model.head.batch_norm': False})  # with these, the student too
    train(cfg)
    warnings = [line for line in ''.join(capfd.readouterr()).splitlines() if 'collapses' in line]
    assert len(warnings) == len(wanted), warnings
    for line, pattern in zip(warnings, wanted, strict=True):
        assert 'WARNING' in line and re.search(pattern, line)
        assert f'iteration {8 if "upper" in pattern else 4}: ' in line  # uniform outputs are normal in the first epoch


class Entropies(Hook):
    """Replace the entropies of the student by given ones."""
    priority = 'HIGHEST'

    def __init__(self, shares):
        self.shares = shares

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        outputs['student_entropy'] = torch.tensor(self.shares[runner.iter] * 2.7725887)  # log 16


@pytest.mark.parametrize('stop', (None, 8))
def test_an_alarm_is_repeated_only_after_the_bound_was_left(stop, class_folders, tmp_path, capfd):
    """Also in a run that is stopped while it counts, and resumed."""
    shares = [1, 1, 1, .99, 1, .9, 1, 1, 1, 0.01, 0.01, 0.01]
    cfg = make_config(TINY_DINO_CONFIG, class_folders / 'train', tmp_path, custom_hooks=[
        dict(type='DINOHook', **HEALTHY), dict(type='CollapseHook', patience=3, begin=0)])
    if stop:
        with pytest.raises(Stopped):
            train(cfg, Entropies(shares), At(stop, terminate))
    train(cfg, Entropies(shares), resume=bool(stop))
    lines = re.findall(r'iteration (\d+): the training collapses: .* student .* (upper|lower) bound',
                       ''.join(capfd.readouterr()))
    assert lines == [('3', 'upper'), ('9', 'upper'), ('12', 'lower')]
