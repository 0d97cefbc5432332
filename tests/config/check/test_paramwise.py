"""Which parameters the keys of rules for learning rates and weight decay match."""
import pytest
from mmengine.config import Config
from torch import nn

from helpers.recipes import build
from xcit_dense.config.check import check_paramwise
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError


@pytest.fixture
def told(hints):
    """A function that returns the keys of a config that errors are about, and those of hints."""

    def names(lines):
        return [line.partition(': ')[0].rpartition('paramwise_cfg.')[2].partition(' = ')[0] for line in lines]

    def tell(rules, model, **options):
        hints.clear()
        try:
            check_paramwise(Config(dict(optim_wrapper=dict(paramwise_cfg=rules), **options)), model)
        except ConfigError as error:
            return names(str(error).splitlines()[1:]), names(hints)
        return [], names(hints)

    return tell


def test_keys_are_parts_of_names(told):
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    for rules, wanted in (
            (dict(norm_decay_mult=0.), []), (dict(custom_keys={'1.': dict(lr_mult=2), '.0.': {}}), []),
            (dict(custom_keys={'0.weight': {}, '2.weight': {}}), ['custom_keys.2.weight'])):
        assert told(rules, model) == ([], wanted)
    wrapped = nn.ModuleDict(dict(module=model))  # of a distributed run
    assert told(dict(custom_keys={'module': {}}), wrapped) == ([], ['custom_keys.module'])
    model.requires_grad_(False)  # freezing makes no rule wrong
    assert told(dict(norm_decay_mult=0., custom_keys={'0.': {}}), model) == ([], [])


def test_a_key_with_a_slip_is_an_error_and_a_key_of_another_model_is_none(told):
    model = build(load_config('semfpn_xcit_n12_p16_ade20k', pretrained=False), 'meta')
    for key in ('backbone.blok', 'gama', 'atn.qkv', 'decod_head'):
        assert told(dict(custom_keys={key: dict(lr_mult=0.1)}), model) == ([f'custom_keys.{key}'], [])
        assert told(dict(custom_keys={key: {}}), model, config_findings='warn') == ([], [f'custom_keys.{key}'])
    for key in ('backbone.block', 'norm', 'blocks.1.', 'pos_embed'):
        assert told(dict(custom_keys={key: dict(lr_mult=0.1)}), model) == ([], [])
    for key in ('absolute_pos_embed', 'query_embed', 'norm9', 'backbone.stages.0.blocks.3.norm', 'backbone.unet'):
        assert told(dict(custom_keys={key: dict(lr_mult=0.1)}), model) == ([], [f'custom_keys.{key}'])


@pytest.mark.parametrize('name', ('maskrcnn_xcit_n12_p16_coco', 'upernet_xcit_n12_p8_ade20k',
                                  'retinanet_xcit_s12_p16_coco'))
def test_the_recipes_with_frozen_stages(name, hints):
    for frozen in (-1, 12):
        cfg = load_config(name, pretrained=False, cfg_options={'model.backbone.frozen_stages': frozen})
        check_paramwise(cfg, build(cfg, 'meta'))
        assert not hints, frozen
