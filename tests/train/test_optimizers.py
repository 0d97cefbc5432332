"""Learning rates that shrink with the depth; several optimizers, each with its own schedulers; scaled rates."""
import re
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict, build_optim_wrapper
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from helpers.models import TINY, build
from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import NO_VALIDATION, assert_same_run, make_config, stop_after, train
from xcit_dense import XCiTClassifier
from xcit_dense.config.check import check_paramwise
from xcit_dense.config.check.parts import check_parts
from xcit_dense.errors import ConfigError
from xcit_dense.train import build_runner
from xcit_dense.train.resuming import states_of
from xcit_dense.train.startup import describe_run


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


def test_states_are_kept_by_name_and_in_order():
    several = [SimpleNamespace(state_dict=lambda step=step: dict(step=step)) for step in (1, 2, 3)]
    assert states_of(several) == [dict(step=1), dict(step=2), dict(step=3)]
    assert states_of(dict(one=several[:2], other=several[2:], none=[])) == dict(
        one=[dict(step=1), dict(step=2)], other=[dict(step=3)], none=[])


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class TwoOptimizers:
    """One for the backbone, another for the rest, with other rates and states."""

    def __init__(self, optim_wrapper_cfg, paramwise_cfg=None):
        self.counts = optim_wrapper_cfg['accumulative_counts']

    def __call__(self, model):
        parts = dict(backbone=[], rest=[])
        for name, parameter in model.named_parameters():
            parts['backbone' if name.startswith('backbone.') else 'rest'].append(parameter)
        adam = torch.optim.AdamW(parts['backbone'], lr=1e-3, weight_decay=0.1)
        sgd = torch.optim.SGD(parts['rest'], lr=1e-2, momentum=0.9)
        return OptimWrapperDict(backbone=OptimWrapper(adam, accumulative_counts=self.counts[0]),
                                rest=OptimWrapper(sgd, accumulative_counts=self.counts[1]))


class StepBoth(Hook):
    """Let the model train with both, as one made for it would, and note the rates of every iteration."""

    def __init__(self):
        self.rates, self.block = [], ''

    def before_train(self, runner):
        model = runner.model

        def step(data, optim_wrapper):
            loss, logs = model.parse_losses(model(**model.data_preprocessor(data, True), mode='loss'))
            optim_wrapper['backbone'].backward(loss, retain_graph=True)
            optim_wrapper['rest'].backward(loss)
            for wrapper in optim_wrapper.values():
                if wrapper.should_update():
                    wrapper.step()
                    wrapper.zero_grad()
            return logs

        model.train_step = step

    def after_train_iter(self, runner, *_, **__):
        self.block = self.block or describe_run(runner)
        self.rates.append([wrapper.param_groups[0]['lr'] for wrapper in runner.optim_wrapper.values()])


@pytest.fixture
def config_of(demo_data, tmp_path):

    def make(name, counts=(1, 1)):
        cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path / name, **NO_VALIDATION)
        cfg.optim_wrapper = dict(constructor='TwoOptimizers', type='OptimWrapper', optimizer=dict(type='SGD', lr=1.),
                                 accumulative_counts=counts)
        cfg.param_scheduler = dict(
            backbone=[dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=3),
                      dict(type='StepLR', step_size=2, gamma=0.5, by_epoch=False)],
            rest=[dict(type='ExponentialLR', gamma=0.5, by_epoch=False)])
        return cfg

    return make


def test_a_run_starts_with_no_rule_that_matches_nothing(config_of):
    cfg = config_of('run')
    cfg.optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=1.),
                             paramwise_cfg=dict(custom_keys={'gama1': dict(lr_mult=2)}))
    with pytest.raises(ConfigError, match='custom_keys.gama1'):
        build_runner(cfg).train()


@pytest.mark.parametrize('stop, counts, waiting', (
    pytest.param(1, (2, 3), {True, False}, marks=pytest.mark.slow), (3, (2, 1), {True})))
def test_both_optimizers_and_all_schedulers_go_on(stop, counts, waiting, config_of):
    """With the gradients that wait: those of both, or of the one that adds several iterations."""
    hooks = [StepBoth() for _ in range(3)]
    wanted = train(config_of('whole', counts), hooks[0])
    saved = stop_after(stop, cfg := config_of('run', counts), hooks[1])
    steps = {name: [state['last_step'] for state in states] for name, states in saved['param_schedulers'].items()}
    assert steps == dict(backbone=[min(stop, 2), stop], rest=[stop])  # the first has an end
    assert saved['training']['loops'][0]['steps'] == dict(backbone=stop, rest=stop)
    assert {name.startswith('backbone.') for name in saved['training']['gradients']} == waiting
    assert all(bool(saved['optimizer'][name]['state']) == (stop == 3) for name in ('backbone', 'rest'))
    assert_same_run(train(cfg, hooks[2], resume=True), wanted)
    assert hooks[1].rates + hooks[2].rates == hooks[0].rates
    assert [rest for _, rest in hooks[0].rates] == pytest.approx([1e-2, 5e-3, 2.5e-3, 1.25e-3])
    assert [backbone for backbone, _ in hooks[0].rates] == pytest.approx([1e-4, 5.5e-4, 5e-4, 5e-4])
    # the block at the start describes both
    block = dict(re.split('  +', line, maxsplit=1) for line in hooks[0].block.splitlines())
    assert 'backbone 0.001; rest 0.01' in block['learning rate']
    assert 'LinearLR, StepLR, ExponentialLR' in block['schedule']
    trained, decayed, plain = (int(re.search(pattern, block['parameters'])[1].replace(',', '')) for pattern in (
        r': ([\d,]+) trained', r'([\d,]+) of them with', r'and ([\d,]+) without'))
    assert trained == decayed + plain and min(decayed, plain) > 0


def test_rates_of_all_are_scaled(config_of):
    cfg = config_of('run')
    cfg.auto_scale_lr = dict(enable=True, base_batch_size=8)  # the batch has 2
    train(cfg, hook := StepBoth())
    assert hook.rates[0] == pytest.approx([1e-4 / 4, 1e-2 / 4])
    assert 'backbone 0.00025; rest 0.0025; scaled by 0.25' in hook.block


@pytest.mark.parametrize('backbone', (0., 0.5, 1.))
def test_rates_of_one_are_scaled_where_parts_have_the_rate_0(backbone, demo_data, tmp_path):
    """The one in the log too, which is that of the config."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{
        'optim_wrapper.paramwise_cfg': dict(custom_keys=dict(backbone=dict(lr_mult=backbone)))})
    runner = build_runner(cfg)
    wrapper = runner.build_optim_wrapper(cfg.optim_wrapper)
    rate = cfg.optim_wrapper.optimizer.lr
    for enabled, scale in ((False, 1), (True, 1 / 4)):
        runner.scale_lr(wrapper, dict(enable=enabled, base_batch_size=8))
        rates = sorted({group['lr'] for group in wrapper.optimizer.param_groups})
        assert rates == pytest.approx(sorted({rate * scale * backbone, rate * scale}))
        assert wrapper.get_lr()['base_lr'] == pytest.approx([rate * scale])
