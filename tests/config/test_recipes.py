"""Every config holds the published recipe, and runs through its whole model."""
import itertools
import json
import re

import pytest
import torch
from mmdet.testing import demo_mm_inputs
from mmengine.optim import build_optim_wrapper
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from helpers.paths import ROOT
from helpers.recipes import CLASSIFIERS, DENSE, FAMILIES, PUBLISHED, RECIPES, build, for_small_images, path_of
from xcit_dense import arch_names, get_arch
from xcit_dense.config.check.keys import changes, value_at
from xcit_dense.config.check.top_level import known_names
from xcit_dense.config.loading import load_config

#: The configs of small 12 with patches of 16, as the authors trained it.
WRITTEN = json.loads((ROOT / 'tests/golden/recipes.json').read_text())
#: Where the width of the backbone is.
WIDTHS = dict(maskrcnn=['model.neck.in_channels'], upernet=[
    'model.decode_head.in_channels', 'model.auxiliary_head.in_channels'], semfpn=[
        'model.neck.in_channels', 'model.neck.out_channels', 'model.decode_head.in_channels'])
ARCHITECTURES = json.loads((ROOT / 'tests/golden/architectures.json').read_text())['archs']
OTHERS = sorted({*DENSE} - {path_of(*recipe).stem for recipe in RECIPES})


def differences(name, cfg):
    """Return where a config differs from a recipe as written, by dotted key; variables do not count."""
    values = json.dumps({key: value for key, value in cfg.to_dict().items() if key in known_names(cfg)})
    return {key.removeprefix('.'): value for key, _, value in changes(WRITTEN[name], json.loads(values), '')}


@pytest.mark.parametrize('family, arch', RECIPES)
def test_recipe(family, arch):
    """The configs of a family differ in their backbone and its width; the header has the published result."""
    path, row, size = path_of(family, arch), PUBLISHED.get((family, arch)), get_arch(arch)
    cfg = load_config(path)
    rate, optimizer = cfg.model.backbone.get('drop_path_rate', 0.), cfg.optim_wrapper.optimizer
    wanted = {'model.backbone.arch': arch, 'model.backbone.init_cfg.checkpoint': f'xcit://{arch}_384_dist',
              'model.backbone.drop_path_rate': rate or None}
    for key in WIDTHS[family]:
        wanted[key] = [size.embed_dims] * 4 if isinstance(value_at(cfg, key), list) else size.embed_dims
    assert all(value_at(cfg, key) == value for key, value in wanted.items())
    assert differences(family, cfg).items() <= wanted.items()
    text = path.read_text()
    assert text.count('\n') <= 15
    header = text[:text.index('_base_')]
    if row is None:
        assert 'No result is published' in header
    else:
        assert (optimizer.lr, optimizer.weight_decay, rate) == (
            row['lr'], row['weight_decay'], row['drop_path_rate'])
        assert (list(size.out_indices), size.eta) == (row['out_indices'], row['eta'])
        figure = 'box AP {box_ap}, mask AP {mask_ap}.' if family == 'maskrcnn' else 'mIoU {miou}.'
        assert 'Published by the authors, not measured here: ' + figure.format(**row) in header
    name, patch = arch.rsplit('_', 1)
    parameters = build(cfg, 'meta').backbone.parameters()
    assert sum(p.numel() for p in parameters) == ARCHITECTURES[name]['dense_params'][patch]


def test_there_is_a_config_for_every_published_result_and_the_recipe_of_classifiers():
    assert set(PUBLISHED) <= set(RECIPES) and len(PUBLISHED) == 24
    assert sum(name.endswith('_imagenet') for name in CLASSIFIERS) == len(arch_names())
    pytest.importorskip('mmpretrain')
    assert differences('classifier', load_config('xcit_s12_p16_imagenet')) == {}


@pytest.mark.parametrize('family', FAMILIES)
def test_weight_decay_spares_the_layer_norms_of_the_blocks_only(family):
    cfg = load_config(path_of(family, 'nano_12_p16'))
    model = build(cfg, 'meta')
    groups = build_optim_wrapper(model, cfg.optim_wrapper).param_groups
    spared = {id(p) for g in groups if g['weight_decay'] == 0 for p in g['params']}
    assert {name for name, p in model.named_parameters() if id(p) in spared} == {
        f'backbone.blocks.{i}.norm{k}.{part}' for i in range(12) for k in (1, 2, 3) for part in ('weight', 'bias')}
    assert {g['weight_decay'] for g in groups} == {0., cfg.optim_wrapper.optimizer.weight_decay}


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=() if re.search('_n12_|retinanet|segformer|feature2pyramid', name) else pytest.mark.slow)
    for name in (*(path_of(*recipe).stem for recipe in zip(itertools.cycle(FAMILIES), arch_names(), strict=False)),
                 *(name for name in OTHERS if '_p8' not in name))])  # each arch once
def test_a_whole_model_learns_and_predicts(name):
    """A loss, a step back, and a prediction of one small random image."""
    cfg = for_small_images(load_config(name, pretrained=False))
    if cfg.default_scope == 'mmseg':
        cfg.model.data_preprocessor.size = (64, 96)  # or it pads to 512 x 512
        sample = SegDataSample(metainfo=dict(img_shape=(64, 96), ori_shape=(64, 96), img_padding_size=(0, 0, 0, 0)))
        sample.gt_sem_seg = PixelData(data=torch.randint(0, 4, (1, 64, 96)))
        batch = dict(inputs=[torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8)] * 2, data_samples=[sample] * 2)
    else:
        if 'roi_head' in cfg.model:
            for proposals in (cfg.model.train_cfg.rpn_proposal, cfg.model.test_cfg.rpn):
                proposals.update(nms_pre=100, max_per_img=50)  # for time: random weights keep all
        batch = demo_mm_inputs(2, [(3, 64, 96)] * 2, num_items=[1, 2], num_classes=80, with_mask=True)
    model = build(cfg)
    model.init_weights()  # some of mmdet's parameters are undefined before
    losses, _ = model.parse_losses(model(**model.data_preprocessor(batch, training=True), mode='loss'))
    losses.backward()
    assert torch.isfinite(losses)
    lacking = [name for name, p in model.named_parameters() if p.grad is None]
    assert not lacking, lacking[:5]
    with torch.no_grad():
        found, *_ = model.eval().test_step({key: value[:1] for key, value in batch.items()})
    if cfg.default_scope == 'mmdet':
        limits = cfg.model.test_cfg.get('rcnn', cfg.model.test_cfg)
        assert len(found.pred_instances.bboxes) <= limits.get('max_per_img', limits.get('max_per_image'))
    else:
        assert found.pred_sem_seg.data.shape == (1, 64, 96) and found.pred_sem_seg.data.max() < 150
