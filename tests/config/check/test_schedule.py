"""Schedules that do not fit the length of a run give a warning, and those that may be intended do not."""
import re

import pytest
from mmengine.config import Config

from xcit_dense.config import check
from xcit_dense.config.check import check_schedule
from xcit_dense.config.loading import load_config

RETINA, UPERNET = 'retinanet_xcit_s12_p16_coco', 'upernet_xcit_s12_p16_ade20k'


@pytest.fixture
def warning(logged):
    """A function that returns the warning about the schedule of a config, by default of some length and schedulers."""
    said = logged(check)

    def warn(cfg, epochs=True, *parts, epoch_length=None):
        said.clear()
        if isinstance(cfg, int):
            cfg = Config(dict(train_cfg={'max_epochs' if epochs else 'max_iters': cfg},
                              param_scheduler=[dict(dict(by_epoch=epochs), **part) for part in parts]))
        check_schedule(cfg, epoch_length)
        assert len(said) < 2
        return ''.join(said)

    return warn


@pytest.mark.parametrize('name, options, words', [
    (RETINA, {'train_cfg.max_epochs': 12}, '1 (MultiStepLR) ... [27, 33] ... beyond ... 12 epochs ... --cfg-options '
     '... param_scheduler.1.end=12 param_scheduler.1.milestones="[9,11]"'),
    (RETINA, {'param_scheduler': [dict(type='MultiStepLR', milestones=[60, 90])]}, '0 (MultiStepLR) ... [60, 90] ... '
     'beyond ... 36 epochs ... --cfg-options ... param_scheduler.0.milestones="[22,32]"'),
    (UPERNET, {'param_scheduler': dict(_delete_=True, type='LinearLR', by_epoch=False, end=200000)},
     'param_scheduler (LinearLR) ... ends at 200000, ... beyond ... 160000'),
    # what may be meant; the end of steps only bounds them
    (RETINA, {'train_cfg.max_epochs': 12, 'param_scheduler.1.milestones': [8, 11]}, None),
    (RETINA, {'param_scheduler': dict(_delete_=True, type='CosineAnnealingLR', T_max=None, begin=0)}, None),
    (RETINA, {'param_scheduler': [dict(type='MultiStepLR', milestones=[])]}, None),
    # a warm-up and then a constant rate; an end in the other unit
    (UPERNET, {'param_scheduler': [dict(type='LinearLR', by_epoch=False, end=1500)]}, None),
    (RETINA, {'param_scheduler': [dict(type='CosineAnnealingLR', by_epoch=False, end=90000),
                                  dict(type='MultiStepLR', end=20, milestones=[10])]}, None),
    # one goes on where the other ends
    (RETINA, {'param_scheduler': [dict(type='CosineAnnealingLR', end=20, T_max=20),
                                  dict(type='ConstantLR', factor=1, begin=20, end=36)]}, None)])
def test_schedules_of_published_recipes(name, options, words, warning):
    cfg = load_config(name)
    cfg.merge_from_dict(options)
    text = warning(cfg)
    assert not text if words is None else (
        re.search('.*'.join(map(re.escape, words.split(' ... '))), text) and text.count('\n') == 1), text


#: The run's length and whether it counts epochs.
RUNS = [(10, True), (100, False)]


@pytest.mark.parametrize('length, epochs', RUNS)
def test_a_milestone_counts_up_to_the_last_unit_of_the_run(length, epochs, warning):
    for milestones, late in (([0], []), ([length // 2, length - 1], []), ([length - 1, length], [length]),
                             ([1, length, length + 1], [length, length + 1])):
        text = warning(length, epochs, dict(type='MultiStepLR', milestones=milestones))
        assert bool(text) == bool(late), (milestones, text)
        words = f'milestones {late} beyond the run of {length} {"epochs" if epochs else "iterations"}'
        assert not late or f'param_scheduler.0 (MultiStepLR) has the {words}' in text


@pytest.mark.parametrize('length, epochs', RUNS)
def test_ends_beyond_and_before_the_end_of_the_run(length, epochs, warning):
    """The last tenth of a run may have a constant rate, and the end of steps only bounds them."""
    for kind, key in (('CosineAnnealingLR', 'T_max'), ('PolyLR', 'end'), ('LinearLR', 'end')):
        for end, beyond in ((length - 1, False), (length, False), (length + 1, True)):
            text = warning(length, epochs, dict(type=kind, **{key: end}))
            wanted = max(length // 10, 2) if kind == 'LinearLR' else length  # a warm-up takes a tenth at most
            assert bool(text) == beyond, (kind, end, text)
            assert not beyond or re.search(f'ends at {end}, beyond the run of {length} .*0.{key}={wanted}', text)
    for kind in ('StepLR', 'ExponentialLR', 'ReduceOnPlateauLR'):
        assert not warning(length, epochs, dict(type=kind, end=length + 1)), kind
    at = length * 9 // 10
    for end, early in ((at - 1, True), (at, False), (at + 1, False), (length, False)):
        text = warning(length, epochs, dict(type='PolyLR', end=end))
        assert (f'ends at {end}, before the end of the run of {length} ' in text) == bool(text) == early, (end, text)
    # the last of several counts, and a warm-up may end anywhere
    assert not warning(length, epochs, dict(type='PolyLR', end=1), dict(type='CosineAnnealingLR', begin=1, end=length))
    assert not warning(length, epochs, dict(type='LinearLR', end=1))
    assert warning(length, epochs, dict(type='LinearLR', end=1), dict(type='PolyLR', begin=1, end=at - 1))


def test_the_unit_of_a_scheduler_and_that_of_the_run(warning):
    """Iterations in a run of epochs are compared once the length of an epoch is known."""
    for end, beyond in ((40, False), (41, True)):
        part = dict(type='LinearLR', by_epoch=False, end=end)
        text = warning(10, True, part, epoch_length=4)
        assert bool(text) == beyond and not warning(10, True, part)
    assert 'param_scheduler.0 (LinearLR) ends at 41, beyond the run of 40 iterations' in (
        text := warning(10, True, part, epoch_length=4)) and text.endswith('--cfg-options param_scheduler.0.end=4')
    text = warning(100, False, dict(type='MultiStepLR', by_epoch=True, milestones=[5]))
    assert 'counts epochs, but this run counts iterations' in text and 'param_scheduler.0.by_epoch=False' in text
    assert not warning(100, False, dict(type='ReduceOnPlateauLR', by_epoch=True))
    assert not warning(100, False, dict(type='PolyLR', by_epoch=True, convert_to_iter_based=True))
