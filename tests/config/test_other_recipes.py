"""Each config that is no published recipe is one with changes, which are written out in a golden file."""
import json

import pytest
from mmengine.optim import build_optim_wrapper

from helpers.paths import ROOT
from helpers.recipes import CLASSIFIERS, DENSE, LOADABLE, RECIPES, build, path_of
from xcit_dense.config.check.changes import changes
from xcit_dense.config.check.top_level import known_names
from xcit_dense.config.loading import load_config
from xcit_dense.weights import zoo

#: By name, the recipe of the same size, and every key that differs from it with its value.
WANTED = json.loads((ROOT / 'tests/golden/other_recipes.json').read_text())


def test_every_other_config_is_written_out():
    published = {path_of(*recipe).stem for recipe in RECIPES}
    assert list(WANTED) == sorted([*{*DENSE} - published, *(
        name for name in CLASSIFIERS if not name.endswith('_imagenet'))])


@pytest.mark.parametrize('name', WANTED)
def test_it_differs_from_a_published_recipe_as_written(name):
    if name not in LOADABLE:
        pytest.skip('mmpretrain is not installed')
    cfg, recipe = load_config(name), load_config(WANTED[name]['recipe'])
    got = {key.removeprefix('.'): value for key, _, value in changes(recipe.to_dict(), cfg.to_dict(), '')}
    got = {key: value for key, value in got.items() if key.partition('.')[0] in known_names(cfg)}  # no variables
    assert json.loads(json.dumps(dict(got, recipe=WANTED[name]['recipe']))) == WANTED[name]
    if 'init_from' in got:
        weights = zoo.get_weights(cfg.init_from)  # the whole published model
        assert cfg.init_from.startswith(f'xcit://{name.partition("_")[0]}_') and weights.arch == cfg.model.backbone.arch
        assert load_config(name, pretrained=False).init_from is None
        assert load_config(name, pretrained=False, init_from='mine.pth').init_from == 'mine.pth'


@pytest.mark.parametrize('name, rate', (
    ('maskrcnn_xcit_t12_p16_finetune', 5e-5), ('semfpn_xcit_t12_p16_finetune', 3e-5)))
def test_rates_shrink_with_the_depth_where_that_is_asked_for(name, rate):
    assert 'constructor' not in load_config(name).optim_wrapper
    cfg = load_config(name, check=True, cfg_options={
        'optim_wrapper.constructor': 'LayerDecayConstructor', 'optim_wrapper.paramwise_cfg.layer_decay_rate': 0.9})
    model = build(cfg, 'meta')
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {names[id(group['params'][0])]: group
              for group in build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups}
    assert groups['neck.lateral_convs.0.conv.weight']['lr'] == groups['backbone.fpn1.0.weight']['lr'] == rate
    assert groups['backbone.blocks.11.gamma1']['lr'] == pytest.approx(rate * 0.9)
    assert groups['backbone.patch_embed.proj.0.0.weight']['lr'] == pytest.approx(rate * 0.9**13)
    assert groups['backbone.blocks.0.norm1.weight']['weight_decay'] == 0
    assert groups['backbone.blocks.0.gamma1']['weight_decay'] == cfg.optim_wrapper.optimizer.weight_decay
