"""Runs with several optimizers, each with its own schedulers: saved, resumed, and reported at the start."""
import re
from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS

from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import NO_VALIDATION, assert_same_run, make_config, stop_after, train
from xcit_dense.train import build_runner
from xcit_dense.train.resuming import states_of
from xcit_dense.train.startup import describe_run


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


@pytest.mark.parametrize('stop, counts, waiting', ((1, (2, 3), {True, False}), (3, (2, 1), {True})))
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
