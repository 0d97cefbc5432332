"""Numbers that users set, the words of a finding, and schedules that do not fit the length of a run."""
import re

import pytest
from mmengine.config import Config
from mmengine.registry import MODELS, TRANSFORMS

from helpers.paths import TINY_CONFIG
from xcit_dense.config import check
from xcit_dense.config.check import _LEAST, check_schedule, find_numbers
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError

#: The least whole numbers and, after them, the least of any kind.
WHOLE = {'train_dataloader.batch_size': 1, 'val_dataloader.batch_size': 1, 'test_dataloader.batch_size': 1,
         'train_dataloader.num_workers': 0, 'val_dataloader.num_workers': 0, 'test_dataloader.num_workers': 0,
         'train_cfg.max_epochs': 1, 'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1, 'train_cfg.val_begin': 0,
         'default_hooks.checkpoint.interval': -1, 'auto_scale_lr.base_batch_size': 1, 'randomness.seed': 0}
ANY = dict.fromkeys(('optim_wrapper.optimizer.lr', 'optim_wrapper.optimizer.weight_decay', 'param_scheduler.0.begin',
                     'optim_wrapper.clip_grad.max_norm', 'param_scheduler.0.end', 'param_scheduler.1.T_max'), 0)
RETINA, UPERNET = 'retinanet_xcit_s12_p16_coco', 'upernet_xcit_s12_p16_ade20k'


def refused(cfg, key, value, wanted):
    """Whether a value is a finding; it must be the only one and name key, value and what is wanted."""
    cfg.merge_from_dict({key: value})
    lines = find_numbers(cfg)
    assert lines in ([], [f'{key} = {value!r}: it must be {wanted}'])
    return bool(lines)


def test_numbers_out_of_range():
    cfg = load_config(TINY_CONFIG)
    assert find_numbers(cfg) == [] and _LEAST.keys() <= {**WHOLE, **ANY}.keys()
    for key, least in {**WHOLE, **ANY}.items():
        before, whole, name = cfg.to_dict(), key in WHOLE, key.rpartition('.')[2]
        for value, wrong in (
                (least, False), (least + 1, False), (least + 2., False), (least - 1, True), (least - 1e-6, True),
                (least + 0.5, whole), (float('nan'), True), (float('-inf'), True), (True, True), ('3', True),
                ([3], True), (None, False),
                # a norm to be logged and not clipped, and a schedule that does not end
                (float('inf'), name not in ('max_norm', 'end'))):
            assert refused(cfg, key, value, f'a {"whole " * whole}number of at least {least}') == wrong, (key, value)
        cfg = Config(before)
    for cfg in (dict(model=3), dict(train_dataloader=None, optim_wrapper=3, param_scheduler=dict(type='x'))):
        assert find_numbers(Config(cfg)) == []  # nothing that is not there
    for steps, right in (([], True), ([8, 11.], True), ((8, ), True), ([8, '11'], False), ('8', False), (8, False)):
        lines = find_numbers(Config(dict(param_scheduler=[dict(type='LinearLR'), dict(type='x', milestones=steps)])))
        assert lines == ([] if right else [
            f'param_scheduler.1.milestones = {steps!r}: it must be a list of numbers, such as "[8,11]"'])


@pytest.mark.parametrize('key', ('model.roi_head.mask_head.dropout_ratio', 'test_dataloader.dataset.pipeline.0.prob'))
def test_probabilities_above_one(key, register):
    """In every part of the frameworks; in parts of others it may mean anything, and -1 turns some of mmseg's off."""
    cfg = load_config(TINY_CONFIG)
    for value, right in ((1, True), (0.5, True), (-1, True), (1.0001, False), (2, False)):
        assert refused(cfg, key, value, 'a probability, from 0 to 1') != right
    with pytest.raises(ConfigError, match=rf'1 mistake .*\n.*{key} = 2'):  # by the tools that do not train
        load_config(TINY_CONFIG, cfg_options={key: 2})
    register(type('OwnPart', (), {}), MODELS, TRANSFORMS)
    cfg.merge_from_dict({key: 2, f'{key.rpartition(".")[0]}.type': 'OwnPart'})
    assert not find_numbers(cfg)


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
    (RETINA, {'train_cfg.max_epochs': 72}, '1 (MultiStepLR) ... ends at 36, before ... 72 epochs ... --cfg-options ... '
     'param_scheduler.1.end=72 param_scheduler.1.milestones="[54,66]"'),
    (UPERNET, {'param_scheduler': dict(_delete_=True, type='LinearLR', by_epoch=False, end=200000)},
     'param_scheduler (LinearLR) ... ends at 200000, ... beyond ... 160000'),
    # what may be meant; the end of steps only bounds them
    (RETINA, {'train_cfg.max_epochs': 12, 'param_scheduler.1.milestones': [8, 11]}, None),
    (RETINA, {'param_scheduler': dict(_delete_=True, type='CosineAnnealingLR', T_max=None, begin=0)}, None),
    (RETINA, {'param_scheduler': [dict(type='MultiStepLR', milestones=[])]}, None),
    # an end in the other unit
    (RETINA, {'param_scheduler': [dict(type='CosineAnnealingLR', by_epoch=False, end=90000),
                                  dict(type='MultiStepLR', end=20, milestones=[10])]}, None)])
def test_schedules_of_published_recipes(name, options, words, warning):
    cfg = load_config(name)
    cfg.merge_from_dict(options)
    text = warning(cfg)
    assert not text if words is None else (
        re.search('.*'.join(map(re.escape, words.split(' ... '))), text) and text.count('\n') == 1), text


@pytest.mark.parametrize('length, epochs', ((10, True), (100, False)))
def test_milestones_and_ends_beyond_and_before_the_end_of_the_run(length, epochs, warning):
    """The last tenth of a run may have a constant rate, and the end of steps only bounds them."""
    for milestones, late in (([0], []), ([length // 2, length - 1], []), ([length - 1, length], [length]),
                             ([1, length, length + 1], [length, length + 1])):
        text = warning(length, epochs, dict(type='MultiStepLR', milestones=milestones))
        assert bool(text) == bool(late), (milestones, text)
        words = f'milestones {late} beyond the run of {length} {"epochs" if epochs else "iterations"}'
        assert not late or f'param_scheduler.0 (MultiStepLR) has the {words}' in text
    assert f'param_scheduler.0.milestones="{"[1,8,9]" if epochs else "[1,89,90]"}"' in text  # of the last
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
    for by_epoch, end, run in ((True, 4, '3.5 epochs'), (False, 36, '35 iterations')):  # ends within an epoch
        cfg = Config(dict(train_cfg=dict(max_epochs=4, max_iters=35), param_scheduler=[
            dict(type='PolyLR', by_epoch=by_epoch, end=end)]))
        assert f'ends at {end}, beyond the run of {run};' in warning(cfg, epoch_length=10)
    text = warning(100, False, dict(type='MultiStepLR', by_epoch=True, milestones=[5]))
    assert 'counts epochs, but this run counts iterations' in text and 'param_scheduler.0.by_epoch=False' in text
    assert not warning(100, False, dict(type='ReduceOnPlateauLR', by_epoch=True))
    assert not warning(100, False, dict(type='PolyLR', by_epoch=True, convert_to_iter_based=True))
