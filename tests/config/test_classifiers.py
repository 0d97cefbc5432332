"""The configs of classifiers: the authors' recipe for ImageNet, number by number, and those for your own images."""
import re

import pytest
from mmengine.optim import build_optim_wrapper

from helpers.paths import ROOT, TINY_CLS_CONFIG
from helpers.recipes import RESULTS, build
from xcit_dense import arch_names, get_arch
from xcit_dense.config.check import check_config
from xcit_dense.config.loading import load_config

pytest.importorskip('mmpretrain')
pytestmark = pytest.mark.filterwarnings('ignore')
#: The release names that of small 12 (reference: classifier.md); the others are those of its dense recipes.
DROP_PATH = dict(nano_12=0., tiny_12=0., tiny_24=0.05, small_12=0.05, small_24=0.1, medium_24=0.15, large_24=0.2)
NAMES = {f'xcit_{arch[0]}{arch.split("_", 1)[1]}_imagenet': arch for arch in arch_names()}




@pytest.mark.parametrize('name', NAMES)
def test_leaf(name):
    arch, path = NAMES[name], ROOT / f'configs/{name}.py'
    cfg = load_config(path)
    assert cfg.model.backbone.pop('drop_path_rate', 0.) == DROP_PATH[arch.rpartition('_')[0]]
    assert cfg.model.backbone == dict(type='XCiTClassifier', arch=arch, num_classes=1000)  # from random weights
    top1 = [RESULTS[f'{arch}_{kind}']['top1'] for kind in ('224', '224_dist', '384_dist')]
    header, body = path.read_text().split('_base_', 1)
    assert re.findall(r'\d+\.\d', header) == list(map(str, top1)) and 'not measured here' in header
    assert header.count('\n') + body.count('\n') <= 15
    model = build(cfg, 'meta')
    assert not [*model.head.parameters()] and model.backbone.embed_dims == get_arch(arch).embed_dims


@pytest.mark.parametrize('name', ('xcit_n12_p16_imagenet', 'xcit_s12_p16_custom'))
def test_weight_decay_spares_vectors_class_token_and_temperature(name):
    cfg = load_config(name, pretrained=False)
    model = build(cfg, 'meta')
    groups = build_optim_wrapper(model, cfg.optim_wrapper).param_groups
    decays = {id(p): g['weight_decay'] for g in groups for p in g['params']}
    for key, parameter in model.named_parameters():
        spared = parameter.ndim <= 1 or key.endswith(('.bias', 'cls_token', 'temperature'))  # the first two are timm's
        assert decays[id(parameter)] == (0. if spared else 0.05), key


def test_slips_are_found(mistakes):
    """All at once, and none in the tiny config."""
    check_config(load_config(TINY_CLS_CONFIG))
    slips = {
        'model.backbone.drop_path': (0.1, 'drop_path_rate'), 'model.data_preprocessor.to_rbg': (True, 'to_rgb'),
        'train_dataloader.dataset.splt': ('train', 'split'), 'val_evaluator.top': (1, 'topk'),
        'train_dataloader.dataset.pipeline.3.magnitud_level': (1, 'magnitude_level')}
    for planted in (slips, {'model.head.loss.label_smooth': (0.1, 'label_smooth_val')},
                    {'model.train_cfg.augments.0.alfa': (1., 'Mixup')},
                    {'model.head.type': ('LogitHead', 'LogitsHead')},
                    {'model.backbone.num_classes': (
                        10, 'model.data_preprocessor.num_classes = 1000: the backbone returns 10')}):
        cfg = load_config('xcit_n12_p16_imagenet')
        cfg.merge_from_dict({key: value for key, (value, _) in planted.items()}, allow_list_keys=True)
        lines = mistakes(cfg)
        assert len(lines) == len(planted)
        assert all(any(words in line for line in lines) for _, words in planted.values()), lines
