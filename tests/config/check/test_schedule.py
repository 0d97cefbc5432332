"""Schedules that do not fit the length of a run give a warning, and those that may be intended do not."""
import re

import pytest
from mmengine.config import Config

from helpers.paths import ROOT
from helpers.recipes import LOADABLE
from xcit_dense.config.check import check_schedule
from xcit_dense.config.check import schedule as schedule_module
from xcit_dense.config.loading import load_config

CONFIGS = dict(retina=ROOT / 'configs/retinanet_xcit_s12_p16_coco.py',
               upernet=ROOT / 'configs/upernet_xcit_s12_p16_ade20k.py')


@pytest.fixture
def schedule_warning(monkeypatch):
    """A function that changes a config and returns the warning about its schedule."""
    said = []
    monkeypatch.setattr(schedule_module, 'print_log', lambda text, **_: said.append(text))

    def warning(name, options=None, epoch_length=None):
        said.clear()
        cfg = load_config(name)
        cfg.merge_from_dict(options or {})
        check_schedule(cfg, epoch_length)
        assert len(said) < 2
        return ''.join(said)

    return warning


@pytest.mark.parametrize('name', LOADABLE)
def test_schedule_of_every_config_fits(name, schedule_warning):
    assert not schedule_warning(name)


@pytest.mark.parametrize('kind, options, words', [
    ('retina', {'train_cfg.max_epochs': 12}, (
        'param_scheduler.1 (MultiStepLR)', '[27, 33]', 'beyond', '12 epochs', '--cfg-options ',
        'param_scheduler.1.end=12 param_scheduler.1.milestones="[9,11]"')),
    ('retina', {'train_cfg.max_epochs': 72}, (
        'param_scheduler.1 (MultiStepLR)', 'ends at 36 ', '72 epochs', '--cfg-options ',
        'param_scheduler.1.end=72 param_scheduler.1.milestones="[54,66]"')),
    ('retina', {'param_scheduler': [dict(type='MultiStepLR', milestones=[60, 90])]}, (
        'param_scheduler.0 (MultiStepLR)', '[60, 90]', 'beyond', '36 epochs', '--cfg-options ',
        'param_scheduler.0.milestones="[22,32]"')),
    ('upernet', {'train_cfg.max_iters': 40000}, (
        'param_scheduler.1 (PolyLR)', 'ends at 160000,', 'beyond', '40000 iterations', '--cfg-options ',
        'param_scheduler.1.end=40000')),
    ('upernet', {'train_cfg.max_iters': 320000}, (
        'param_scheduler.1 (PolyLR)', 'ends at 160000 ', '320000 iterations', 'param_scheduler.1.end=320000')),
    ('upernet', {'param_scheduler.1.by_epoch': True}, (
        'param_scheduler.1 (PolyLR)', 'epochs', 'iterations', 'param_scheduler.1.by_epoch=False')),
    ('upernet', {'param_scheduler': dict(_delete_=True, type='LinearLR', by_epoch=False, end=200000)}, (
        'param_scheduler (LinearLR)', 'ends at 200000,', 'beyond', '160000')),
])
def test_schedule_left_behind_by_the_run(kind, options, words, schedule_warning):
    text = schedule_warning(CONFIGS[kind], options)
    assert re.search('.*'.join(map(re.escape, words)), text) and text.count('\n') == 1, text


@pytest.mark.parametrize('kind, options', [
    # the end of steps only bounds them
    ('retina', {'train_cfg.max_epochs': 12, 'param_scheduler.1.milestones': [8, 11]}),
    ('retina', {'train_cfg.max_epochs': 38}),
    ('retina', {'param_scheduler': None}),
    ('retina', {'param_scheduler': dict(_delete_=True, type='CosineAnnealingLR', T_max=None, begin=0)}),
    ('retina', {'param_scheduler': [dict(type='MultiStepLR', milestones=[])]}),
    # a warm-up and then a constant rate; an end in the other unit
    ('upernet', {'param_scheduler': [dict(type='LinearLR', by_epoch=False, end=1500)]}),
    ('retina', {'param_scheduler': [dict(type='CosineAnnealingLR', by_epoch=False, end=90000),
                                    dict(type='MultiStepLR', end=20, milestones=[10])]}),
    # one goes on where the other ends
    ('retina', {'param_scheduler': [dict(type='CosineAnnealingLR', end=20, T_max=20),
                                    dict(type='ConstantLR', factor=1, begin=20, end=36)]}),
    ('upernet', {'param_scheduler': [dict(type='PolyLR', by_epoch=True, convert_to_iter_based=True, end=3)]}),
])
def test_schedules_that_may_be_meant(kind, options, schedule_warning):
    assert not schedule_warning(CONFIGS[kind], options)


def test_a_warm_up_longer_than_a_run_of_epochs(schedule_warning):
    assert not schedule_warning(CONFIGS['retina'], epoch_length=14)
    text = schedule_warning(CONFIGS['retina'], epoch_length=13)
    assert all(words in text for words in (
        'param_scheduler.0 (LinearLR)', 'iteration 500,', '468 iterations', '--cfg-options param_scheduler.0.end=468'))


#: The run's length and whether it counts epochs.
RUNS = [(10, True), (100, False)]


@pytest.fixture
def said_of(monkeypatch):
    """A function that returns the warning about schedulers in a run of some length."""
    said = []
    monkeypatch.setattr(schedule_module, 'print_log', lambda text, **_: said.append(text))

    def warning(length, epochs, *parts, epoch_length=None):
        said.clear()
        check_schedule(Config(dict(
            train_cfg={'max_epochs' if epochs else 'max_iters': length},
            param_scheduler=[dict(dict(by_epoch=epochs), **part) for part in parts])), epoch_length)
        return ''.join(said)

    return warning


@pytest.mark.parametrize('length, epochs', RUNS)
def test_a_milestone_counts_up_to_the_last_unit_of_the_run(length, epochs, said_of):
    unit = 'epochs' if epochs else 'iterations'
    for milestones, late in (([0], []), ([1], []), ([length // 2, length - 1], []), ([length - 1], []),
                             ([length], [length]), ([length + 1], [length + 1]),
                             ([length - 1, length], [length]), ([1, length, length + 1], [length, length + 1])):
        text = said_of(length, epochs, dict(type='MultiStepLR', milestones=milestones))
        assert bool(text) == bool(late), (milestones, text)
        if late:
            assert 'param_scheduler.0 (MultiStepLR)' in text and f'milestones {late} ' in text
            assert f'the run of {length} {unit}' in text


@pytest.mark.parametrize('length, epochs', RUNS)
@pytest.mark.parametrize('kind, key', (('CosineAnnealingLR', 'T_max'), ('CosineAnnealingLR', 'end'), ('PolyLR', 'end'),
                                       ('LinearLR', 'end')))
def test_an_end_at_the_end_of_the_run_fits_and_one_after_does_not(kind, key, length, epochs, said_of):
    for end, beyond in ((length - 1, False), (length, False), (length + 1, True)):
        text = said_of(length, epochs, dict(type=kind, **{key: end}))
        assert bool(text) == beyond, (end, text)
        if beyond:
            assert f'ends at {end}, beyond the run of {length} ' in text and f'param_scheduler.0.{key}={length}' in text


@pytest.mark.parametrize('length, epochs', RUNS)
@pytest.mark.parametrize('kind', ('StepLR', 'ExponentialLR', 'ReduceOnPlateauLR'))
def test_the_end_of_steps_only_bounds_them(kind, length, epochs, said_of):
    for end in (length, length + 1, 10 * length):
        assert not said_of(length, epochs, dict(type=kind, end=end))


@pytest.mark.parametrize('length, epochs', RUNS)
def test_the_last_tenth_of_a_run_may_have_a_constant_rate(length, epochs, said_of):
    at = length * 9 // 10
    for end, early in ((at - 1, True), (at, False), (at + 1, False), (length, False)):
        text = said_of(length, epochs, dict(type='PolyLR', end=end))
        assert (f'ends at {end} of {length} ' in text) == bool(text) == early, (end, text)
    # the last of several counts, and a warm-up may end anywhere
    assert not said_of(length, epochs, dict(type='PolyLR', end=1), dict(type='CosineAnnealingLR', begin=1, end=length))
    assert not said_of(length, epochs, dict(type='LinearLR', end=1))
    assert said_of(length, epochs, dict(type='LinearLR', end=1), dict(type='PolyLR', begin=1, end=at - 1))


def test_the_unit_of_a_scheduler_and_that_of_the_run(said_of):
    """Iterations in a run of epochs are compared once the length of an epoch is known."""
    for end, beyond in ((39, False), (40, False), (41, True)):
        text = said_of(10, True, dict(type='LinearLR', by_epoch=False, end=end), epoch_length=4)
        assert bool(text) == beyond
        assert not beyond or f'iteration {end}, beyond the run of 40 iterations' in text
        assert not said_of(10, True, dict(type='LinearLR', by_epoch=False, end=end))
    text = said_of(100, False, dict(type='MultiStepLR', by_epoch=True, milestones=[5]))
    assert 'counts epochs, but this run counts iterations' in text and 'param_scheduler.0.by_epoch=False' in text
    assert not said_of(100, False, dict(type='ReduceOnPlateauLR', by_epoch=True))
    assert not said_of(100, False, dict(type='PolyLR', by_epoch=True, convert_to_iter_based=True))
