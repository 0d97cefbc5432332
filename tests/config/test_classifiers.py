"""The configs of classifiers: the authors' recipe for ImageNet, number by number, and those for your own images."""
import re

import pytest
import torch
from mmengine.optim import build_optim_wrapper

from helpers.paths import ROOT, TINY_CLS_CONFIG
from helpers.recipes import CLASSIFIERS, RESULTS, build
from xcit_dense import arch_names, get_arch
from xcit_dense.config.check import check_config
from xcit_dense.config.loading import load_config

pytest.importorskip('mmpretrain')
pytestmark = pytest.mark.filterwarnings('ignore')
#: The release names that of small 12 (reference: classifier.md); the others are those of its dense recipes.
DROP_PATH = dict(nano_12=0., tiny_12=0., tiny_24=0.05, small_12=0.05, small_24=0.1, medium_24=0.15, large_24=0.2)
NAMES = {f'xcit_{arch[0]}{arch.split("_", 1)[1]}_imagenet': arch for arch in arch_names()}


def steps_of(loader):
    return {step.type: step for step in loader.dataset.pipeline}


def test_there_is_a_config_for_each_arch():
    assert sorted(NAMES) == sorted(name for name in CLASSIFIERS if name.endswith('_imagenet'))


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


def test_the_recipe():
    cfg = load_config('xcit_s12_p16_imagenet')
    assert cfg.train_cfg == dict(type='DenseEpochLoop', max_epochs=400, val_interval=1)
    assert cfg.train_dataloader.batch_size * 8 == cfg.auto_scale_lr.base_batch_size == 1024
    assert cfg.optim_wrapper.type == 'OptimWrapper' and 'clip_grad' not in cfg.optim_wrapper
    assert cfg.optim_wrapper.optimizer == dict(
        type='AdamW', lr=5e-4 * 1024 / 512, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05)
    assert cfg.param_scheduler == [  # timm's cosine with a warm-up from 1e-6
        dict(type='LinearLR', start_factor=1e-3, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
        dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=0, end=400, T_max=400)]
    assert cfg.model.head == dict(
        type='LogitsHead', loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'))
    assert cfg.model.train_cfg == dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.)])
    assert cfg.custom_hooks == [dict(type='AverageHook', momentum=pytest.approx(1 - 0.99996), update_buffers=True)]
    assert cfg.train_dataloader.sampler == dict(type='RepeatAugSampler', shuffle=True, num_repeats=3)
    assert cfg.train_dataloader.drop_last
    assert cfg.val_evaluator == cfg.test_evaluator == dict(type='Accuracy', topk=(1, 5))
    preprocessor = cfg.model.data_preprocessor
    assert (preprocessor.mean, preprocessor.std) == ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375])
    assert preprocessor.to_rgb
    steps = steps_of(cfg.train_dataloader)
    assert list(steps) == ['LoadImageFromFile', 'RandomResizedCrop', 'RandomFlip', 'RandAugment', 'RandomErasing',
                           'PackInputs']
    crop, flip, random, erasing = list(steps.values())[1:5]
    assert (crop.scale, crop.backend, crop.interpolation) == (224, 'pillow', 'bicubic')
    assert (flip.prob, flip.direction) == (0.5, 'horizontal')
    assert (random.policies, random.num_policies, random.magnitude_level, random.magnitude_std) == (
        'timm_increasing', 2, 9, 0.5)
    assert random.hparams == dict(pad_val=[104, 116, 124], interpolation='bicubic')  # images are BGR here
    assert (erasing.erase_prob, erasing.mode, erasing.min_area_ratio, erasing.max_area_ratio) == (
        0.25, 'rand', 0.02, 1 / 3)
    assert (erasing.fill_color, erasing.fill_std) == ([103.53, 116.28, 123.675], [57.375, 57.12, 58.395])
    for loader in (cfg.val_dataloader, cfg.test_dataloader):  # crop ratio 1
        resize, crop = loader.dataset.pipeline[1:3]
        assert resize == dict(type='ResizeEdge', scale=224, edge='short', backend='pillow', interpolation='bicubic')
        assert crop == dict(type='CenterCrop', crop_size=224)


@pytest.mark.parametrize('name', ('xcit_n12_p16_imagenet', 'xcit_s12_p16_custom'))
def test_weight_decay_spares_vectors_class_token_and_temperature(name):
    cfg = load_config(name, pretrained=False)
    model = build(cfg, 'meta')
    groups = build_optim_wrapper(model, cfg.optim_wrapper).param_groups
    decays = {id(p): g['weight_decay'] for g in groups for p in g['params']}
    for key, parameter in model.named_parameters():
        spared = parameter.ndim <= 1 or key.endswith(('.bias', 'cls_token', 'temperature'))  # the first two are timm's
        assert decays[id(parameter)] == (0. if spared else 0.05), key


@pytest.mark.parametrize('name', ['xcit_n12_p8_imagenet', 'xcit_t12_p16_imagenet', 'xcit_n12_p8_small'])
def test_it_runs_through_the_whole_model(name):
    """Nano too, which the release cannot train: it writes its class token in place."""
    from mmpretrain.structures import DataSample
    model = build(load_config(name))
    images = [torch.randint(0, 256, (3, 48, 48), dtype=torch.uint8) for _ in range(2)]
    samples = [DataSample().set_gt_label(label) for label in (3, 7)]
    batch = dict(inputs=images, data_samples=samples)
    losses, _ = model.parse_losses(model(**model.data_preprocessor(batch, training=True), mode='loss'))
    losses.backward()
    assert torch.isfinite(losses) and not [name for name, p in model.named_parameters() if p.grad is None]
    with torch.no_grad():
        found = model.eval().test_step(batch)
        logits = model.backbone(model.data_preprocessor(batch)['inputs'])
    assert torch.equal(torch.stack([sample.pred_score for sample in found]), logits.softmax(1))
    assert [int(sample.pred_label) for sample in found] == logits.argmax(1).tolist()


def test_slips_are_found(mistakes):
    """All at once, and none in the tiny config."""
    check_config(load_config(TINY_CLS_CONFIG))
    slips = {
        'model.backbone.drop_path': (0.1, 'drop_path_rate'),
        'model.data_preprocessor.to_rbg': (True, 'to_rgb'),
        'train_dataloader.dataset.splt': ('train', 'split'), 'train_dataloader.sampler.num_repeat': (3, 'num_repeats'),
        'val_evaluator.top': (1, 'topk'),
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
