"""Every config holds its recipe, from the authors or a framework or with changes, and runs through its model."""
import itertools
import json
import re

import pytest
import torch
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from helpers.paths import ROOT
from helpers.recipes import CLASSIFIERS, DENSE, FAMILIES, HEADS, LOADABLE, RESULTS, build, for_small_images, path_of
from helpers.refusals import stock
from xcit_dense import arch_names, get_arch
from xcit_dense.config.check import check_paramwise
from xcit_dense.config.check.keys import changes, value_at
from xcit_dense.config.check.top_level import known_names
from xcit_dense.config.loading import load_config
from xcit_dense.weights import zoo

#: The published dense models by family and arch.
PUBLISHED = {(row['family'], row['arch'].removeprefix('xcit_')): row
             for row in json.loads((ROOT / 'tests/golden/published.json').read_text())['dense']}
RECIPES = list(itertools.product(FAMILIES, arch_names()))
#: The configs of small 12 with patches of 16, as the authors trained it.
WRITTEN = json.loads((ROOT / 'tests/golden/recipes.json').read_text())
#: Where the width of the backbone is.
WIDTHS = dict(maskrcnn=['model.neck.in_channels'], upernet=[
    'model.decode_head.in_channels', 'model.auxiliary_head.in_channels'], semfpn=[
        'model.neck.in_channels', 'model.neck.out_channels', 'model.decode_head.in_channels'])
#: Of each config that is no published recipe, that of the same size, and every key that differs from it.
WANTED = json.loads((ROOT / 'tests/golden/other_recipes.json').read_text())
#: The release names that of small 12 (reference: classifier.md); the others are those of its dense recipes.
DROP_PATH = dict(nano_12=0., tiny_12=0., tiny_24=0.05, small_12=0.05, small_24=0.1, medium_24=0.15, large_24=0.2)
ARCHITECTURES = json.loads((ROOT / 'tests/golden/architectures.json').read_text())['archs']
OTHERS = sorted({*DENSE} - {path_of(*recipe).stem for recipe in RECIPES})
#: The config, the one it follows, and the number of maps that the head takes.
SOURCES = {
    'dino_xcit_s12_p16_coco': ('mmdet/dino/dino-4scale_r50_8xb2-12e_coco', 3),
    'deformable_detr_xcit_s12_p16_coco': ('mmdet/deformable_detr/deformable-detr_r50_16xb2-50e_coco', 3),
    'atss_xcit_s12_p16_coco': ('mmdet/atss/atss_r50_fpn_1x_coco', 3),
    'condinst_xcit_s12_p16_coco': ('mmdet/condinst/condinst_r50_fpn_ms-poly-90k_coco_instance', 3),
    'mask2former_xcit_s12_p16_coco': ('mmdet/mask2former/mask2former_r50_8xb2-lsj-50e_coco', 4),
    'mask2former_xcit_s12_p16_ade20k': ('mmseg/mask2former/mask2former_r50_8xb2-160k_ade20k-512x512', 4)}
#: Keys that mean the same where they differ: defaults that one of the two writes out, and loops of this package.
EQUAL = ('.model.num_feature_levels', '.auto_scale_lr.enable', '.val_evaluator.format_only', '.train_cfg.type',
         '.model.data_preprocessor.pad_mask', '.with_mask', '.im2col_step', '.num_workers', '.data_root',
         '.reduce_zero_label', '.data_prefix.seg', '.train_dataloader.sampler.type')
#: ATSS and CondInst have heads of the frameworks, and the authors' schedule and images for COCO.
AUTHORS = 'atss_xcit_s12_p16_coco', 'condinst_xcit_s12_p16_coco'
NORMS = {f'.optim_wrapper.paramwise_cfg.custom_keys.norm{number}.{part}': dict(lr_mult=0.1, decay_mult=0.)
         for number in (1, 2, 3) for part in ('weight', 'bias')}


def values_of(cfg):
    """Return a config as JSON values, without variables."""
    return json.loads(json.dumps({key: value for key, value in cfg.to_dict().items() if key in known_names(cfg)}))


def differences(recipe, cfg):
    """Return where a config differs from the values of a recipe, by dotted key."""
    return {key.removeprefix('.'): value for key, _, value in changes(recipe, values_of(cfg), '')}


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
    assert differences(WRITTEN[family], cfg).items() <= wanted.items()
    text = path.read_text()
    assert text.count('\n') <= 15
    header = text[:text.index('_base_')]
    if row is None:
        assert 'No result is published' in header
    else:
        assert (optimizer.lr, optimizer.weight_decay, rate) == (row['lr'], row['weight_decay'], row['drop_path_rate'])
        assert (list(size.out_indices), size.eta) == (row['out_indices'], row['eta'])
        figure = 'box AP {box_ap}, mask AP {mask_ap}.' if family == 'maskrcnn' else 'mIoU {miou}.'
        assert 'Published by the authors, not measured here: ' + figure.format(**row) in header
    name, patch = arch.rsplit('_', 1)
    parameters = build(cfg, 'meta').backbone.parameters()
    assert sum(p.numel() for p in parameters) == ARCHITECTURES[name]['dense_params'][patch]


@pytest.mark.parametrize('arch', arch_names())
def test_recipe_of_a_classifier(arch):
    pytest.importorskip('mmpretrain')
    path = ROOT / f'configs/xcit_{arch[0]}{arch.split("_", 1)[1]}_imagenet.py'
    cfg = load_config(path)
    rate = DROP_PATH[arch.rpartition('_')[0]]
    assert (cfg.model.backbone.arch, cfg.model.backbone.get('drop_path_rate', 0.)) == (arch, rate)
    assert differences(WRITTEN['classifier'], cfg).items() <= {
        'model.backbone.arch': arch, 'model.backbone.drop_path_rate': rate or None}.items()
    top1 = [str(RESULTS[f'{arch}_{kind}']['top1']) for kind in ('224', '224_dist', '384_dist')]
    header, body = path.read_text().split('_base_', 1)
    assert re.findall(r'\d+\.\d', header) == top1 and 'not measured here' in header
    assert header.count('\n') + body.count('\n') <= 15
    model = build(cfg, 'meta')
    assert not [*model.head.parameters()] and model.backbone.embed_dims == get_arch(arch).embed_dims


def test_every_config_is_written_out():
    assert set(PUBLISHED) <= set(RECIPES) and len(PUBLISHED) == 24
    assert sum(name.endswith('_imagenet') for name in CLASSIFIERS) == len(arch_names())
    assert list(WANTED) == sorted([*{*OTHERS} - {*HEADS}, *(
        name for name in CLASSIFIERS if not name.endswith(('_imagenet', '_imagenet_dist')))])


@pytest.mark.parametrize('name', WANTED)
def test_it_differs_from_a_published_recipe_as_written(name):
    if name not in LOADABLE:
        pytest.skip('mmpretrain is not installed')
    cfg, recipe = load_config(name), WANTED[name]['recipe']
    got = differences(values_of(load_config(recipe)), cfg)
    assert dict(got, recipe=recipe) == WANTED[name]
    if 'init_from' in got:
        weights = zoo.get_weights(cfg.init_from)  # the whole published model
        assert cfg.init_from.startswith(f'xcit://{name.partition("_")[0]}_') and weights.arch == cfg.model.backbone.arch
        assert load_config(name, pretrained=False).init_from is None
        given = {'load_from': 'a.pth', 'model.backbone.init_cfg': dict(type='Pretrained', checkpoint='b.pth')}
        assert load_config(name, cfg_options=given).model.backbone.init_cfg  # load_from goes first
        cfg = load_config(name, cfg_options=given, init_from='mine.pth')
        assert (cfg.init_from, cfg.load_from, cfg.model.backbone.init_cfg) == ('mine.pth', None, None)


def plain(value):
    """Return a part of a config with lists for tuples, without where files are read."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if key != 'backend_args'}
    return [*map(plain, value)] if isinstance(value, (list, tuple)) else value


@pytest.mark.skipif(not stock('mmdet').is_dir(), reason='the forks ship no stock configs')
@pytest.mark.parametrize('name', SOURCES)
def test_a_config_follows_the_frameworks(name):
    (source, maps), ours = SOURCES[name], load_config(name, pretrained=False)
    framework, _, path = source.partition('/')
    theirs = Config.fromfile(stock(framework, f'{path}.py'))
    keys = ['model'] if name in AUTHORS else [
        'model', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'auto_scale_lr', 'train_dataloader',
        'val_dataloader', 'val_evaluator']
    wanted, found = ({key: plain(cfg.to_dict()[key]) for key in keys} for cfg in (theirs, ours))
    if isinstance(wanted.get('param_scheduler'), dict):
        wanted['param_scheduler'] = [wanted['param_scheduler']]
    different = {key: new for key, _, new in changes(wanted, found, '')
                 if not key.startswith('.model.backbone.') and not key.endswith(EQUAL)}
    channels = [key for key in different if key.endswith('.in_channels')]
    assert [different.pop(key) for key in channels] == [[384] * maps]
    different.pop('.model.neck.start_level', None)  # the levels begin at stride 8
    assert different == ({} if name in AUTHORS else NORMS)
    assert ours.model.backbone.get('out_strides', (4, 8, 16, 32)) == (4, 8, 16, 32)[-maps:]


@pytest.mark.parametrize('name', SOURCES)
def test_patch_8_differs_in_the_backbone_only(name):
    first, second = (load_config(one, pretrained=False) for one in (name, name.replace('_p16_', '_p8_')))
    assert {key for key, *_ in changes(first.to_dict(), second.to_dict(), '')} == {'.model.backbone.arch'}


@pytest.mark.parametrize('family', FAMILIES)
def test_weight_decay_spares_the_layer_norms_of_the_blocks_only(family, hints):
    cfg = load_config(path_of(family, 'nano_12_p16'))
    model = build(cfg, 'meta')
    check_paramwise(cfg, model)
    assert not hints
    groups = build_optim_wrapper(model, cfg.optim_wrapper).param_groups
    spared = {id(p) for g in groups if g['weight_decay'] == 0 for p in g['params']}
    assert {name for name, p in model.named_parameters() if id(p) in spared} == {
        f'backbone.blocks.{i}.norm{k}.{part}' for i in range(12) for k in (1, 2, 3) for part in ('weight', 'bias')}
    assert {g['weight_decay'] for g in groups} == {0., cfg.optim_wrapper.optimizer.weight_decay}


@pytest.mark.parametrize('name', ('xcit_n12_p16_imagenet', 'xcit_s12_p16_custom'))
def test_weight_decay_spares_vectors_class_token_and_temperature(name):
    pytest.importorskip('mmpretrain')
    cfg = load_config(name, pretrained=False)
    model = build(cfg, 'meta')
    groups = build_optim_wrapper(model, cfg.optim_wrapper).param_groups
    decays = {id(p): g['weight_decay'] for g in groups for p in g['params']}
    for key, parameter in model.named_parameters():
        spared = parameter.ndim <= 1 or key.endswith(('.bias', 'cls_token', 'temperature'))  # the first two are timm's
        assert decays[id(parameter)] == (0. if spared else 0.05), key


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=() if re.search('_n12_|retinanet|segformer|feature2pyramid', name) else pytest.mark.slow)
    for name in (*(path_of(*recipe).stem for recipe in zip(itertools.cycle(FAMILIES), arch_names(), strict=False)),
                 *(name for name in OTHERS if '_p8' not in name))])  # each arch once
def test_a_whole_model_learns_and_predicts(name):
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
