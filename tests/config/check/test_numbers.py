"""Numbers that users set, at both sides of each limit, and the words of a finding."""
import pytest
from mmengine.config import Config
from mmengine.registry import MODELS, TRANSFORMS

from helpers.paths import TINY_CONFIG
from xcit_dense.config.check import find_numbers
from xcit_dense.config.check.keys import finding
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError

#: The least whole numbers and, after them, the least of any kind.
WHOLE = {'train_dataloader.batch_size': 1, 'val_dataloader.batch_size': 1, 'test_dataloader.batch_size': 1,
         'train_dataloader.num_workers': 0, 'val_dataloader.num_workers': 0, 'test_dataloader.num_workers': 0,
         'train_cfg.max_epochs': 1, 'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1, 'train_cfg.val_begin': 0,
         'default_hooks.checkpoint.interval': -1, 'auto_scale_lr.base_batch_size': 1, 'randomness.seed': 0}
ANY = {'optim_wrapper.optimizer.lr': 0, 'optim_wrapper.optimizer.weight_decay': 0,
       'optim_wrapper.clip_grad.max_norm': 0, 'param_scheduler.0.begin': 0, 'param_scheduler.0.end': 0,
       'param_scheduler.1.T_max': 0}


def refused(cfg, key, value, wanted):
    """Whether a value is a finding; it must be the only one and name key, value and what is wanted."""
    cfg.merge_from_dict({key: value})
    lines = find_numbers(cfg)
    assert lines in ([], [f'{key} = {value!r}: it must be {wanted}'])
    return bool(lines)


def test_numbers_out_of_range():
    cfg = load_config(TINY_CONFIG)
    assert find_numbers(cfg) == []
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


def test_milestones_are_numbers():
    for steps, right in (([], True), ([8, 11.], True), ((8, ), True), ([8, '11'], False), ('8', False), (8, False)):
        lines = find_numbers(Config(dict(param_scheduler=[dict(type='LinearLR'), dict(type='x', milestones=steps)])))
        assert lines == ([] if right else [
            f'param_scheduler.1.milestones = {steps!r}: it must be a list of numbers, such as "[8,11]"'])


def test_the_line_of_a_finding():
    """Long values are cut. A few names are listed, and the nearest goes first."""
    for value, text in (('x' * 58, repr('x' * 58)), ('x' * 59, "'" + 'x' * 56 + '...'),
                        (Config(dict(a=1))._cfg_dict, "{'a': 1}")):
        assert finding('a.b', value, 'wrong') == f'a.b = {text}: wrong'
    names = [f'{chr(97 + i)}{chr(122 - i)}' for i in range(26)]
    for known, end in ((names, ''), (names[:25], f'; allowed: {", ".join(sorted(names[:25]))}')):
        assert finding('a.b', 1, 'wrong', 'nothing_like_it', known) == f'a.b = 1: wrong{end}'
        assert finding('a.b', 1, 'wrong', 'batchsize', [*known[1:], 'batch_size']).endswith(
            'wrong; did you mean batch_size?')
