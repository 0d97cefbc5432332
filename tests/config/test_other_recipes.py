"""Each config that is no published recipe is one with changes, which are written out in a golden file."""
import json

import pytest

from helpers.paths import ROOT
from helpers.recipes import CLASSIFIERS, DENSE, HEADS, LOADABLE, RECIPES, path_of
from xcit_dense.config.check.keys import changes
from xcit_dense.config.check.top_level import known_names
from xcit_dense.config.loading import load_config
from xcit_dense.weights import zoo

#: By name, the recipe of the same size, and every key that differs from it with its value.
WANTED = json.loads((ROOT / 'tests/golden/other_recipes.json').read_text())


def test_every_other_config_is_written_out():
    published = {path_of(*recipe).stem for recipe in RECIPES}
    assert list(WANTED) == sorted([*{*DENSE} - published - {*HEADS}, *(
        name for name in CLASSIFIERS if not name.endswith(('_imagenet', '_imagenet_dist')))])


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
