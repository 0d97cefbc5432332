"""The configs of the published recipes."""
import runpy
from importlib.util import find_spec

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope, init_default_scope

from helpers.paths import ROOT
from xcit_dense import list_models
from xcit_dense.archs import get_arch

_TABLE = runpy.run_path(ROOT / 'tools/model_table.py')
config_name, RESULTS, PASSL = _TABLE['config_name'], _TABLE['RESULTS'], _TABLE['PASSL']
FAMILIES = ('maskrcnn', 'semfpn', 'upernet')
#: Names of the configs of dense models, and of classifiers, which need mmpretrain, which has no fork.
DENSE = [name for name in list_models() if not name.startswith('xcit_')]
CLASSIFIERS = [name for name in list_models() if name.startswith('xcit_') and '_dino' not in name]
#: Names of those with heads whose recipes are the frameworks', see tests/config/test_recipes.py.
HEADS = [name for name in DENSE if name.startswith(('atss_', 'condinst_', 'deformable_', 'dino_', 'mask2former_'))]
LOADABLE = list_models() if find_spec('mmpretrain') else DENSE
#: Training without labels has no validation.
VALIDATED = [name for name in LOADABLE if name in DENSE + CLASSIFIERS]


def path_of(family, arch):
    return ROOT / 'configs' / f'{config_name(family, arch)}.py'


def build(cfg, device='cpu'):
    init_default_scope(cfg.default_scope)
    with torch.device(device):
        return MODELS.build(cfg.model)


def mmpretrain_classifier(arch, num_classes):
    """Return mmpretrain's own classifier of an arch."""
    models, arch = pytest.importorskip('mmpretrain.models'), get_arch(arch)
    backbone = dict(type='XCiT', patch_size=arch.patch_size, embed_dims=arch.embed_dims, depth=arch.depth,
                    num_heads=arch.num_heads, tokens_norm=arch.tokens_norm, layer_scale_init_value=arch.eta)
    head = dict(type='LinearClsHead', num_classes=num_classes, in_channels=arch.embed_dims)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        return models.ImageClassifier(backbone=backbone, head=head)


def nano(cfg, keep_weights=False):
    """Give a config the arch nano with its own patch, and what depends on the width; its weights do not fit then."""
    backbone = cfg.model.backbone
    arch = get_arch(backbone.arch)
    backbone.arch = f'nano_12_p{arch.patch_size}'
    if not keep_weights:
        backbone.init_cfg = None
    for part in ('neck', 'panoptic_head', 'decode_head', 'auxiliary_head'):
        options = cfg.model.get(part) or {}
        for key in ('in_channels', 'embed_dim'):
            if options.get(key) == arch.embed_dims:
                options[key] = 128
            elif isinstance(options.get(key), (list, tuple)):
                options[key] = [128 if width == arch.embed_dims else width for width in options[key]]
    if proposals := (cfg.model.get('test_cfg') or {}).get('rpn'):
        proposals.update(nms_pre=200, max_per_img=100)  # for time: random weights keep all 1000
    return for_small_images(cfg)


def for_small_images(cfg):
    """Take queries, of which small images have fewer, and padding to the size of the full config from a model."""
    if 'num_queries' in cfg.model:
        cfg.model.num_queries = 50
    if 'batch_augments' in cfg.model.data_preprocessor:
        cfg.model.data_preprocessor.batch_augments = None
    return cfg
