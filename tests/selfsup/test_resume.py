"""Trainings of DINO that are stopped and go on: exactly, with all that its schedules depend on."""
import pytest
import torch

from helpers.paths import TINY_DINO_CONFIG
from helpers.runs import At, assert_same_run, make_config, terminate, train
from xcit_dense.errors import Stopped

pytest.importorskip('mmpretrain')

CASES = dict(plain={}, accumulation={'optim_wrapper.accumulative_counts': 2}, average={})
_WHOLE = {}


def config(name, class_folders, work_dir, workers=0):
    cfg = make_config(TINY_DINO_CONFIG, class_folders / 'train', work_dir, workers, **CASES[name])
    if name == 'average':
        cfg.custom_hooks = [*cfg.custom_hooks, dict(type='AverageHook', momentum=0.1, update_buffers=True)]
    return cfg


def whole(name, class_folders, tmp_path_factory):
    """Return the end of the run that nothing stopped."""
    if name not in _WHOLE:
        _WHOLE[name] = train(config(name, class_folders, tmp_path_factory.mktemp('whole')))
    return _WHOLE[name]


@pytest.mark.parametrize('name, stop, workers', (
    ('plain', 3, 0), ('plain', 4, 2), ('plain', 10, 2), ('accumulation', 5, 0), ('average', 6, 0)))
def test_stopped_and_resumed_is_the_same_to_the_last_bit(name, stop, workers, class_folders, tmp_path,
                                                         tmp_path_factory):
    """In an epoch, at its end, while the prototypes are frozen or not, between summed gradients, with the average."""
    wanted = whole(name, class_folders, tmp_path_factory)
    cfg = config(name, class_folders, tmp_path, workers)
    with pytest.raises(Stopped, match=f'iteration {stop}'):
        train(cfg, At(stop, terminate))
    cfg.randomness = dict(seed=None)  # it is the checkpoint's
    assert_same_run(train(cfg, resume=True), wanted)


def test_a_checkpoint_holds_student_teacher_centre_and_schedules(class_folders, tmp_path_factory):
    state = whole('plain', class_folders, tmp_path_factory)
    weights = state['state_dict']
    for part in ('backbone.blocks.0.attn.qkv.weight', 'head.last_layer.weight_v'):
        assert not torch.equal(weights[f'student.{part}'], weights[f'teacher.{part}'])
    assert weights['teacher.centre'].any() and {name.split('.')[0] for name in weights} == {'student', 'teacher'}
    assert len(state['param_schedulers']) == 3
    decays = {group['weight_decay'] for group in state['optimizer']['param_groups']}
    assert len(decays) == 2 and 0. in decays and 0.39 < max(decays) <= 0.4
