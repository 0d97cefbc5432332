"""Which parameters each rule for learning rates and weight decay reaches: those that mmengine changes by it."""
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from torch import nn

from xcit_dense.config.check import check_paramwise
from xcit_dense.errors import ConfigError

RULES = ('bias_lr_mult', 'bias_decay_mult', 'norm_decay_mult', 'dwconv_decay_mult', 'flat_decay_mult',
         'dcn_offset_lr_mult')


def offset():
    module = nn.Module()
    module.conv_offset = nn.Conv2d(2, 4, 1, bias=False)
    return module


def own():
    module = nn.Module()
    module.weight = nn.Parameter(torch.ones(3))
    return module


MODELS = dict(
    plain=lambda: nn.Linear(2, 3, bias=False), bias=lambda: nn.Linear(2, 3), batch=lambda: nn.BatchNorm2d(2),
    layer=lambda: nn.LayerNorm(2), group=lambda: nn.GroupNorm(1, 2), instance=lambda: nn.InstanceNorm2d(2, affine=True),
    depthwise=lambda: nn.Conv2d(4, 8, 1, groups=4, bias=False), groups=lambda: nn.Conv2d(4, 8, 1, groups=2, bias=False),
    offset=offset, own=own)


@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize('kind', MODELS)
def test_a_rule_reaches_what_mmengine_changes_by_it(rule, kind):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), MODELS[kind]())

    def groups(rules):
        wrapper = build_optim_wrapper(model, Config(dict(
            optimizer=dict(type='SGD', lr=1., weight_decay=1.), paramwise_cfg=rules))._cfg_dict)
        return [(group['lr'], group['weight_decay']) for group in wrapper.optimizer.param_groups]

    rules = {rule: 0.125}
    # mmengine looks for modules of mmcv with deformable convolutions; the name is what they have
    changed = kind == 'offset' if rule == 'dcn_offset_lr_mult' else len(set(groups(rules))) > 1
    cfg = Config(dict(optim_wrapper=dict(paramwise_cfg=rules)))
    if changed:
        check_paramwise(cfg, model)
    else:
        with pytest.raises(ConfigError, match=f'paramwise_cfg.{rule} = 0.125'):
            check_paramwise(cfg, model)


def test_rules_beside_keys_of_ones_own():
    """What a key takes is not of the rule; frozen parameters are of neither; the name alone counts."""
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))

    def told(rules, model=model, **options):
        try:
            check_paramwise(Config(dict(optim_wrapper=dict(paramwise_cfg=rules), **options)), model)
        except ConfigError as error:
            return [line.split(' = ')[0].rpartition('paramwise_cfg.')[2] for line in str(error).splitlines()[1:]]
        return []

    assert told(dict(norm_decay_mult=0.)) == [] and told(dict(norm_decay_mult=None, dwconv_decay_mult=None)) == []
    assert told(dict(norm_decay_mult=0., custom_keys={'1.': dict(lr_mult=2)})) == ['norm_decay_mult']
    assert told(dict(norm_decay_mult=0., custom_keys={'0.': dict(lr_mult=2)})) == []
    assert told(dict(custom_keys={'0.weight': {}, '2.weight': {}})) == ['custom_keys.2.weight']
    wrapped = nn.Module()
    wrapped.module = model  # of a distributed run
    assert told(dict(custom_keys={'module': {}}), wrapped) == ['custom_keys.module']
    model[1].requires_grad_(False)
    assert told(dict(norm_decay_mult=0.)) == ['norm_decay_mult']
    assert told(dict(custom_keys={'1.weight': {}})) == ['custom_keys.1.weight']
    assert told(dict(norm_decay_mult=0.), config_findings='warn') == []
    assert told(dict(nothing=1, norm_decay_mult=0.), constructor='x') == ['norm_decay_mult']
