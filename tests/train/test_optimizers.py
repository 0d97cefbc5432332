"""Rules for parameters; one optimizer, whose parameters step together; scaled rates."""
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper, OptimWrapperDict, build_optim_wrapper
from torch import nn

from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import make_config
from xcit_dense.errors import ConfigError
from xcit_dense.train import build_runner
from xcit_dense.train.hooks import step_together


def test_several_optimizers_are_refused(demo_data, tmp_path):
    runner = build_runner(make_config(TINY_SEG_CONFIG, demo_data, tmp_path))
    several = OptimWrapperDict(one=OptimWrapper(torch.optim.SGD(runner.model.parameters(), lr=1.)))
    with pytest.raises(ConfigError, match='several optimizers'):
        runner.build_optim_wrapper(several)


def test_a_run_starts_with_no_rule_that_matches_nothing(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    cfg.optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=1.),
                             paramwise_cfg=dict(custom_keys={'gama1': dict(lr_mult=2)}))
    with pytest.raises(ConfigError, match='custom_keys.gama1'):
        build_runner(cfg).train()


@pytest.mark.parametrize('backbone', (0., 0.5, 1.))
def test_rates_of_one_are_scaled_where_parts_have_the_rate_0(backbone, demo_data, tmp_path):
    """The one in the log too, which is that of the config."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{
        'optim_wrapper.paramwise_cfg': dict(custom_keys=dict(backbone=dict(lr_mult=backbone)))})
    runner = build_runner(cfg)
    wrapper = runner.build_optim_wrapper(cfg.optim_wrapper)
    rate = cfg.optim_wrapper.optimizer.lr
    for enabled, scale, steps in ((False, 1, 4), (True, 1 / 4, 1), (True, 1 / 4, 4)):  # each in addition
        wrapper._accumulative_counts = steps
        runner.scale_lr(wrapper, dict(enable=enabled, base_batch_size=8))
        rates = sorted({group['lr'] for group in wrapper.optimizer.param_groups})
        assert rates == pytest.approx(sorted({rate * scale * backbone, rate * scale}))
        assert wrapper.get_lr()['base_lr'] == pytest.approx([rate * scale])


@pytest.mark.parametrize(('optimizer', 'groups'), [
    (dict(type='AdamW', foreach=True), 3), (dict(type='Adam', betas=[0.8, 0.9]), 3),
    (dict(type='SGD', momentum=0.9, foreach=True), 3), (dict(type=type('Own', (torch.optim.Adam, ), {})), None)],
    ids=('AdamW', 'Adam', 'SGD', 'other'))
def test_equal_parameters_step_together_to_the_same_bits(optimizer, groups):
    """Within a step there are three groups (a higher rate, no decay, the rest).

    Else there are those of mmengine, as for an optimizer that may write anything into its groups.
    """
    rules = dict(norm_decay_mult=0., custom_keys={'head.0': dict(lr_mult=10.)})
    models, counts = [], []
    for together in (False, True):
        torch.manual_seed(0)
        models.append(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)))
        models[-1].head = nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2))
        cfg = Config(dict(type='OptimWrapper', optimizer=dict(optimizer, lr=0.01, weight_decay=0.1),
                          paramwise_cfg=rules))._cfg_dict
        wrapper = build_optim_wrapper(models[-1], cfg)
        own = wrapper.optimizer.param_groups
        if together:
            step_together(wrapper)
            step_together(wrapper)  # as in a resumed run, which builds its optimizer twice
            wrapper.optimizer.register_step_pre_hook(lambda each, *_: counts.append(len(each.param_groups)))
        for step in range(3):
            own[0]['lr'] = 0.01 * (step + 1)  # a schedule changes one of them: from then on it is a group by itself
            for parameter in models[-1].parameters():
                parameter.grad = torch.randn_like(parameter)
            wrapper.step()
        assert wrapper.optimizer.param_groups is own and len(own) == len(list(models[-1].parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))
    assert counts == ([groups, groups + 1, groups + 1] if groups else [len(own)] * 3)
