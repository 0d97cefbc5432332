"""The configs of the published recipes."""
import itertools
import json
import runpy
from importlib.util import find_spec

import torch
from mmengine.registry import MODELS, init_default_scope

from helpers.paths import ROOT
from xcit_dense import arch_names, list_models

PUBLISHED = {(row['family'], row['arch'].removeprefix('xcit_')): row
             for row in json.loads((ROOT / 'tests/golden/published.json').read_text())['dense']}
config_name = runpy.run_path(ROOT / 'tools/model_table.py')['config_name']
FAMILIES = ('maskrcnn', 'semfpn', 'upernet')
RECIPES = list(itertools.product(FAMILIES, arch_names()))
#: Names of the configs of dense models and of classifiers; the latter need mmpretrain, which the forks have not.
DENSE = [name for name in list_models() if not name.startswith('xcit_')]
CLASSIFIERS = [name for name in list_models() if name.startswith('xcit_')]
LOADABLE = DENSE + (CLASSIFIERS if find_spec('mmpretrain') else [])


def path_of(family, arch):
    return ROOT / 'configs' / f'{config_name(family, arch)}.py'


def build(cfg, device='cpu'):
    init_default_scope(cfg.default_scope)
    with torch.device(device):
        return MODELS.build(cfg.model)
