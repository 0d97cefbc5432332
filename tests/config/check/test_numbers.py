"""Numbers that users set, at both sides of each limit, and the words of a finding."""
import pytest
from mmengine.config import Config
from mmengine.registry import LOOPS, MODELS, TRANSFORMS

from helpers.paths import TINY_CONFIG
from xcit_dense.config.check import find_numbers
from xcit_dense.config.check.findings import finding
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError

#: The least whole numbers and, after them, the least of any kind.
WHOLE = {'train_dataloader.batch_size': 1, 'val_dataloader.batch_size': 1, 'test_dataloader.batch_size': 1,
         'train_dataloader.num_workers': 0, 'val_dataloader.num_workers': 0, 'test_dataloader.num_workers': 0,
         'train_cfg.max_epochs': 1, 'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1, 'train_cfg.val_begin': 0,
         'default_hooks.checkpoint.interval': -1, 'auto_scale_lr.base_batch_size': 1}
ANY = {'optim_wrapper.optimizer.lr': 0, 'optim_wrapper.optimizer.weight_decay': 0,
       'optim_wrapper.clip_grad.max_norm': 0, 'param_scheduler.0.begin': 0, 'param_scheduler.0.end': 0,
       'param_scheduler.1.T_max': 0}


def refused(cfg, key, value):
    """Whether a value is a finding; it must name the key and the value, and be the only one."""
    cfg.merge_from_dict({key: value})
    lines = find_numbers(cfg)
    assert len(lines) < 2 and all(line.startswith(f'{key} = {value!r}: ') for line in lines)
    return bool(lines)


@pytest.mark.parametrize('key, least, whole', [
    *((key, least, True) for key, least in WHOLE.items()), *((key, least, False) for key, least in ANY.items())])
def test_numbers_at_their_limits(key, least, whole):
    cfg = load_config(TINY_CONFIG)
    assert find_numbers(cfg) == []
    assert not refused(cfg, key, least) and not refused(cfg, key, least + 1) and not refused(cfg, key, least + 2.)
    assert refused(cfg, key, least - 1) and refused(cfg, key, least - 1e-6)
    assert refused(cfg, key, least + 0.5) == whole
    assert all(refused(cfg, key, value) for value in (float('nan'), float('-inf'), True, '3', [3]))
    # a norm to be logged and not clipped, and a schedule that does not end
    assert refused(cfg, key, float('inf')) == (not key.endswith(('max_norm', 'end')))


def test_what_is_not_there_is_no_finding():
    assert find_numbers(Config(dict(model=3))) == []
    assert find_numbers(Config(dict(train_dataloader=None, optim_wrapper=3, param_scheduler=dict(type='x')))) == []


@pytest.mark.parametrize('seed, right', ((None, True), (0, True), (2 ** 32 - 1, True), (2 ** 32, False), (-1, False),
                                         (1.5, False), ('abc', False), (True, False)))
def test_seeds(seed, right):
    lines = find_numbers(Config(dict(randomness=dict(seed=seed))))
    assert [line.partition(' = ')[0] for line in lines] == ([] if right else ['randomness.seed'])


@pytest.mark.parametrize('key', (
    'model.backbone.drop_path_rate', 'model.roi_head.mask_head.dropout_ratio',
    'train_dataloader.dataset.pipeline.3.prob', 'test_dataloader.dataset.pipeline.0.prob'))
def test_probabilities_above_one(key):
    """In every part of the frameworks; in parts of others it may mean anything, and -1 turns some of mmseg's off."""
    cfg = load_config(TINY_CONFIG)
    for value, right in ((1, True), (0.5, True), (-1, True), (1.0001, False), (2, False)):
        assert refused(cfg, key, value) != right
    with pytest.raises(ConfigError, match=rf'1 mistake .*\n.*{key} = 2'):  # by the tools that do not train
        load_config(TINY_CONFIG, cfg_options={key: 2})

    @MODELS.register_module(name='OwnPart')
    @TRANSFORMS.register_module(name='OwnPart')
    class OwnPart:
        pass

    try:
        cfg.merge_from_dict({key: 2, f'{key.rpartition(".")[0]}.type': 'OwnPart'})
        assert not find_numbers(cfg)
    finally:
        MODELS.module_dict.pop('OwnPart'), TRANSFORMS.module_dict.pop('OwnPart')


def test_a_loop_of_ones_own_counts_as_it_likes():

    @LOOPS.register_module(name='OwnCountingLoop')
    class OwnCountingLoop:
        pass

    try:
        own = dict(type='OwnCountingLoop', max_epochs='many', val_interval=None)
        assert not find_numbers(Config(dict(train_cfg=own)))
        assert find_numbers(Config(dict(train_cfg=dict(type='EpochBasedTrainLoop', max_epochs='many'))))
    finally:
        LOOPS.module_dict.pop('OwnCountingLoop')


@pytest.mark.parametrize('steps, right', (([], True), ([8, 11.], True), ((8, ), True), ([8, '11'], False),
                                          ([True], False), ('8', False), (8, False)))
def test_milestones_are_numbers(steps, right):
    lines = find_numbers(Config(dict(param_scheduler=[dict(type='LinearLR'), dict(type='x', milestones=steps)])))
    assert [line.partition(' ')[0] for line in lines] == ([] if right else ['param_scheduler.1.milestones'])


@pytest.mark.parametrize('value, text', (
    ('x' * 58, repr('x' * 58)), ('x' * 59, "'" + 'x' * 56 + '...'), (Config(dict(a=1))._cfg_dict, "{'a': 1}")))
def test_values_are_shown_up_to_a_length(value, text):
    assert finding('a.b', value, 'wrong') == f'a.b = {text}: wrong'


@pytest.mark.parametrize('number', (25, 26))
def test_a_few_names_are_listed_and_the_nearest_goes_first(number):
    names = [f'{chr(97 + i)}{chr(122 - i)}' for i in range(number)]
    line = finding('a.b', 1, 'wrong', 'nothing_like_it', names)
    assert line.endswith(f'; allowed: {", ".join(sorted(names))}') if number == 25 else line == 'a.b = 1: wrong'
    assert finding('a.b', 1, 'wrong', 'batchsize', [*names, 'batch_size']).endswith('wrong; did you mean batch_size?')
