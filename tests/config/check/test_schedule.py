"""Schedules that do not fit the length of a run are told of, and those that may be meant are not."""
import pytest

from helpers.paths import ROOT
from xcit_dense import list_models
from xcit_dense.config.check import check_schedule
from xcit_dense.config.check import schedule as schedule_module
from xcit_dense.config.loading import load_config

CONFIGS = dict(retina=ROOT / 'configs/retinanet_xcit_s12_p16_coco.py',
               upernet=ROOT / 'configs/upernet_xcit_s12_p16_ade20k.py')


@pytest.fixture
def schedule_warning(monkeypatch):
    """A function that changes a config and returns what is said of its schedule."""
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


@pytest.mark.parametrize('name', list_models())
def test_schedule_of_every_config_fits(name, schedule_warning):
    assert not schedule_warning(name)


@pytest.mark.parametrize('kind, options, words', [
    ('retina', {'train_cfg.max_epochs': 12}, 'param_scheduler.1 (MultiStepLR) has the milestones [27, 33] beyond the '
     'run of 12 epochs; stretch it with --cfg-options param_scheduler.1.end=12 param_scheduler.1.milestones="[9,11]"'),
    ('retina', {'train_cfg.max_epochs': 72}, 'param_scheduler.1 (MultiStepLR) ends at 36 of 72 epochs; stretch it with '
     '--cfg-options param_scheduler.1.end=72 param_scheduler.1.milestones="[54,66]"'),
    ('retina', {'param_scheduler': [dict(type='MultiStepLR', milestones=[60, 90])]},
     'param_scheduler.0 (MultiStepLR) has the milestones [60, 90] beyond the run of 36 epochs; stretch it with '
     '--cfg-options param_scheduler.0.milestones="[22,32]"'),
    ('upernet', {'train_cfg.max_iters': 40000}, 'param_scheduler.1 (PolyLR) ends at 160000, beyond the run of 40000 '
     'iterations; stretch it with --cfg-options param_scheduler.1.end=40000'),
    ('upernet', {'train_cfg.max_iters': 320000}, 'param_scheduler.1 (PolyLR) ends at 160000 of 320000 iterations'),
    ('upernet', {'param_scheduler.1.by_epoch': True}, 'param_scheduler.1 (PolyLR) counts epochs and this run '
     'iterations'),
    ('upernet', {'param_scheduler': dict(_delete_=True, type='LinearLR', by_epoch=False, end=200000)},
     'param_scheduler (LinearLR) ends at 200000, beyond'),
])
def test_schedule_left_behind_by_the_run(kind, options, words, schedule_warning):
    text = schedule_warning(CONFIGS[kind], options)
    assert words in text and text.count('\n') == 1


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
    assert schedule_warning(CONFIGS['retina'], epoch_length=13).endswith(
        'param_scheduler.0 (LinearLR) ends at iteration 500, beyond the run of 468 iterations; stretch it with '
        '--cfg-options param_scheduler.0.end=468')
