"""Learning rates that shrink with the depth."""
import re

import pytest
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from torch import nn

from helpers.models import TINY, build
from xcit_dense import XCiTClassifier
from xcit_dense.config.check import check_paramwise
from xcit_dense.config.check.parts import check_parts
from xcit_dense.errors import ConfigError


class Detector(nn.Module):

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.neck, self.head = backbone, nn.Conv2d(32, 8, 1), nn.Linear(8, 2)


def wrapper_of(model, rate=0.5, **rules):
    return build_optim_wrapper(model, Config(dict(
        type='OptimWrapper', constructor='LayerDecayConstructor',
        optimizer=dict(type='AdamW', lr=1., weight_decay=0.1),
        paramwise_cfg=dict(layer_decay_rate=rate, **rules)))._cfg_dict)


def rates_of(model, *args, key='lr', **rules):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = wrapper_of(model, *args, **rules).optimizer.param_groups
    assert all(len(group['params']) == 1 for group in groups)
    return {names[id(group['params'][0])]: group[key] for group in groups}


def test_each_parameter_has_the_rate_of_its_layer():
    model = Detector(build())
    rates = rates_of(model)
    assert rates.keys() == dict(model.named_parameters()).keys()
    for name, rate in rates.items():
        block = re.match(r'backbone\.blocks\.(\d)', name)
        if block:
            assert rate == 0.5**(4 - int(block[1])), name  # of 4 blocks the last has 1/2
        elif name.startswith(('backbone.patch_embed', 'backbone.pos_embeder')):
            assert rate == 0.5**5, name
        else:
            assert rate == 1 and name.startswith(('backbone.fpn', 'neck', 'head')), name
    assert len(set(rates.values())) == 6


def test_of_a_classifier_class_attention_is_the_last_layer():
    arch = {key: TINY[key] for key in ('embed_dims', 'depth', 'num_heads')}
    rates = rates_of(XCiTClassifier(arch, num_classes=3, norm_cfg=dict(type='BN')))
    assert rates['cls_token'] == rates['head.weight'] == rates['cls_attn_blocks.0.gamma1'] == rates['norm.bias'] == 1
    assert rates['blocks.3.gamma1'] == 0.5 and rates['patch_embed.proj.0.0.weight'] == 0.5**5


def test_other_rules_hold_beside_it():
    model, rules = Detector(build()), dict(custom_keys={'norm': dict(decay_mult=0.), 'neck': dict(lr_mult=3.)})
    plain = wrapper_of(model, 1., **rules).optimizer.param_groups
    rates, decays = rates_of(model, **rules), rates_of(model, key='weight_decay', **rules)
    assert rates['neck.weight'] == 3 and rates['head.weight'] == 1 and rates['backbone.blocks.3.norm1.weight'] == 0.5
    assert list(decays.values()) == [group['weight_decay'] for group in plain]
    assert decays['backbone.blocks.3.norm1.weight'] == 0 and decays['backbone.blocks.3.gamma1'] == 0.1


def test_frozen_and_wrapped_models():
    """Frozen blocks keep the heights of the others."""
    rates = rates_of(Detector(build(frozen_stages=2)))
    assert 'backbone.blocks.1.gamma1' not in rates and rates['backbone.blocks.2.gamma1'] == 0.25
    outer = nn.Module()
    outer.module = Detector(build())
    assert [group['lr'] for group in wrapper_of(outer).optimizer.param_groups] == list(rates_of(outer.module).values())


def test_what_cannot_be():
    for rate in (0, 1.5, -1, None, '0.9', True):
        with pytest.raises(ConfigError, match='layer_decay_rate'):
            rates_of(build(), rate)
    with pytest.raises(ConfigError, match='needs an XCiT'):
        rates_of(nn.Linear(2, 2))


def test_the_check_of_the_config_knows_it():
    """A rule that matches nothing, a misspelt key, and a rate for a constructor that does not read it."""

    def cfg(constructor, **rules):
        return Config(dict(default_scope='mmdet', optim_wrapper=dict(
            type='OptimWrapper', optimizer=dict(type='AdamW', lr=1.), paramwise_cfg=rules, **constructor)))

    ours = dict(constructor='LayerDecayConstructor')
    with pytest.raises(ConfigError, match='custom_keys.gama1'):
        check_paramwise(cfg(ours, layer_decay_rate=0.9, custom_keys={'gama1': dict(lr_mult=2)}), build())
    assert not check_parts(cfg(ours, layer_decay_rate=0.9))
    slip, = check_parts(cfg(ours, layer_decay_rat=0.9))
    assert 'layer_decay_rate' in slip
    other, = check_parts(cfg({}, layer_decay_rate=0.9))
    assert 'layer_decay_rate' in other and 'DefaultOptimWrapperConstructor' in other
