"""The classifier against the authors' release, timm's and mmpretrain's, and in all the forms that it runs in."""
import copy
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, DefaultScope
from models.forms import assert_gradients, assert_same
from safetensors.torch import load_file
from torch import nn
from torch.fx import symbolic_trace

from helpers.models import build_golden_classifier, randomise, relative_error, save
from helpers.paths import ROOT
from helpers.recipes import mmpretrain_classifier
from xcit_dense import XCiT, XCiTClassifier, attention_maps, set_fast
from xcit_dense.errors import ConfigError
from xcit_dense.models.trunk import fuse_backbones
from xcit_dense.weights import load_classifier

TOLERANCE = 5e-6
ARCH = dict(embed_dims=32, depth=2, num_heads=4)


def test_rates_by_layer_of_mmpretrain():
    from mmpretrain.engine.optimizers import LearningRateDecayOptimWrapperConstructor
    from mmpretrain.models import ImageClassifier
    DefaultScope.get_instance('rates', scope_name='mmpretrain')
    model = ImageClassifier(dict(type='XCiTClassifier', arch=ARCH, num_classes=5, norm_cfg=dict(type='BN')),
                            head=dict(type='LinearClsHead', num_classes=2, in_channels=5))
    constructor = LearningRateDecayOptimWrapperConstructor(dict(optimizer=dict(type='AdamW', lr=1., weight_decay=0.1)),
                                                           dict(layer_decay_rate=0.5))
    rates = {group['param_name']: group['lr'] for group in constructor(model).optimizer.param_groups}
    assert rates.keys() == dict(model.named_parameters()).keys()
    for start, rate in (('patch_embed.', 1 / 32), ('pos_embeder.', 1 / 32), ('blocks.0.', 1 / 16), ('blocks.1.', 1 / 8),
                        ('cls_attn_blocks.0.', 1 / 4), ('cls_attn_blocks.1.', 1 / 2), ('cls_token', 1), ('norm.', 1)):
        assert {rate} == {found for name, found in rates.items() if name.startswith(f'backbone.{start}')}, start
    assert rates['head.fc.weight'] == 1
    assert XCiT(arch='nano_12_p16').get_layer_depth('backbone.blocks.11.gamma1', 'backbone.') == (12, 14)


@pytest.mark.parametrize('scope, name', (('mmdet', 'LearningRate'), ('mmseg', 'LearningRate'), ('mmseg', 'Layer')))
def test_rates_by_layer_of_the_dense_frameworks(scope, name):
    import_module(f'xcit_dense.for_{scope}')

    def groups_of(**rules):
        constructor = OPTIM_WRAPPER_CONSTRUCTORS.build(dict(
            type=f'{scope}.{name}DecayOptimizerConstructor', paramwise_cfg=dict(decay_rate=0.5, **rules),
            optim_wrapper_cfg=dict(optimizer=dict(type='AdamW', lr=1., weight_decay=0.1))))
        return {group['param_names'][0]: group for group in constructor(model).optimizer.param_groups}

    backbone = XCiT(ARCH, norm_cfg=dict(type='BN'), out_indices=[1], out_strides=[8], frozen_stages=0)
    model = nn.Module()
    model.backbone, model.head = backbone, nn.Linear(2, 2)
    groups = groups_of(num_layers=2)
    assert groups.keys() == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for key, rate, decay in (('backbone.blocks.0.mlp.fc1.weight', 1 / 4, 0.1), ('backbone.blocks.1.gamma1', 1 / 2, 0.),
                             ('head.weight', 1, 0.1), ('head.bias', 1, 0.)):
        assert groups[key]['lr'] == groups[key]['lr_scale'] == rate and groups[key]['weight_decay'] == decay
    for wrong in (dict(num_layers=7), dict(decay_type='stage_wise')):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            groups_of(**wrong)
    model.backbone = type('ConvNeXt', (nn.Linear, ), dict(get_layer_depth=None))(2, 2)  # is left to the framework
    if name == 'LearningRate':  # the other warns and knows BEiT alone
        assert groups_of(num_layers=12)['backbone.weight']['lr'] == 1


def build(patch_size=16, tokens_norm=True, num_classes=5, **options):
    arch = dict(ARCH, patch_size=patch_size, tokens_norm=tokens_norm)
    return XCiTClassifier(arch, num_classes=num_classes, **dict(norm_cfg=dict(type='BN')) | options)


@pytest.fixture(params=((16, True), (8, False)), ids=('p16', 'p8'))
def classifier(request):
    """The model of a golden file, and its tensors."""
    patch_size, tokens_norm = request.param
    name = f'xcit_classifier_dim32_depth2_heads4_p{patch_size}_tokensnorm{int(tokens_norm)}.safetensors'
    tensors = load_file(ROOT / 'tests/golden' / name)
    return build_golden_classifier(patch_size, tokens_norm, tensors), tensors


@pytest.mark.parametrize('is_fast', (True, False))
def test_evaluation_equals_the_release(classifier, is_fast):
    model, tensors = classifier
    blocks = []
    for block in model.eval().cls_attn_blocks:
        block.register_forward_hook(lambda module, args, out: blocks.append((args[0], out)))
    x = tensors['input']
    with torch.no_grad(), set_fast(is_fast):
        assert relative_error(model(x), tensors['eval/logits']) < TOLERANCE
        assert relative_error(model.features(x), tensors['eval/feature']) < TOLERANCE
        for i, (before, after) in enumerate(blocks[:2]):
            assert relative_error(after, tensors[f'eval/class_block{i}']) < TOLERANCE
            weights = model.cls_attn_blocks[i].weights(before)
            assert relative_error(weights, tensors[f'eval/class_attention{i}']) < TOLERANCE
        maps = model.attention_maps(x)
        fused = copy.deepcopy(model).fuse()
        assert relative_error(fused(x), tensors['eval/logits']) < 1e-5
    p = model.arch.patch_size
    assert maps.shape == (len(x), 2, 4, -(-x.shape[2] // p), -(-x.shape[3] // p))
    for i in range(2):
        assert relative_error(maps[:, i].flatten(2), tensors[f'eval/class_attention{i}'][..., 1:]) < TOLERANCE
    with pytest.raises(ValueError, match='XCiTClassifier is fused'):
        fused.train()


@pytest.mark.parametrize('is_fast, with_cp', ((True, False), (True, True), (False, False)))
def test_training_equals_the_release(classifier, is_fast, with_cp):
    model, tensors = classifier
    model.with_cp = with_cp
    for dtype, tolerance in ((torch.float32, TOLERANCE), (torch.float64, 5e-7)):
        copied = copy.deepcopy(model).to(dtype).train()
        with set_fast(is_fast):
            logits = copied(tensors['input'].to(dtype))
            loss = F.cross_entropy(logits, tensors['labels'])
            loss.backward()
        assert relative_error(logits, tensors['train/logits']) < tolerance
        assert relative_error(loss, tensors['train/loss'][0]) < tolerance
        assert_gradients(copied, tensors, tolerance, by_layer=dtype == torch.float32)


@pytest.mark.parametrize('patch_size, tokens_norm', ((16, False), (8, True)))
def test_the_other_norm_with_each_patch_trains_in_both_forms(patch_size, tokens_norm):
    """With stochastic depth. The release cannot train without tokens_norm: it writes the class token in place."""
    model = randomise(build(patch_size, tokens_norm, drop_path_rate=0.3)).double().train()
    x, steps = torch.randn(2, 3, 88, 72).double(), []
    for is_fast in (True, False):
        copied = copy.deepcopy(model)
        torch.manual_seed(0)
        with set_fast(is_fast):
            out = copied(x)
        F.cross_entropy(out, torch.tensor([0, 3])).backward()
        steps.append(dict(out=out, **{name: p.grad for name, p in copied.named_parameters()}))
    assert all(value is not None for value in steps[1].values())
    assert_same(*steps)


def timm_classifier(name, num_classes):
    return pytest.importorskip('timm').create_model(f'xcit_{name}_224', num_classes=num_classes)


@pytest.mark.parametrize('name', ('nano_12_p8', 'tiny_12_p16', pytest.param('small_24_p8', marks=pytest.mark.slow)))
@pytest.mark.parametrize('make', (timm_classifier, mmpretrain_classifier))
def test_sizes_compute_what_theirs_do(tmp_path, make, name):
    theirs = randomise(make(name, 7)).eval()
    ours = XCiTClassifier(name, num_classes=7).eval()
    load_classifier(ours, save(tmp_path / 'theirs.pth', theirs.state_dict()))
    x = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        got, wanted = ours(x), theirs(x)
        if make is timm_classifier:
            assert relative_error(ours.features(x), theirs.forward_features(x)[:, 0]) < TOLERANCE
    assert relative_error(got, wanted) < TOLERANCE
    assert relative_error(fuse_backbones(nn.Sequential(ours))(x), wanted) < 1e-5


def test_traced_classifiers_bear_any_batch():
    model, x = randomise(build()).eval(), torch.randn(3, 3, 130, 210)
    with torch.no_grad():
        for graph in (torch.jit.trace(model, x[:2, :, :112, :144], check_trace=False), symbolic_trace(model)):
            assert relative_error(graph(x), model(x)) < TOLERANCE
        free = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC)
        program = torch.export.export(model, (x[:2, :, :112, :144], ), dynamic_shapes=(free, ))
        assert relative_error(program.module(check_guards=False)(x), model(x)) < TOLERANCE


def test_the_public_function_finds_the_classifier_and_leaves_its_mode(classifier):
    model, tensors = classifier
    model.train()
    model.cls_attn_blocks[0].eval()
    maps = attention_maps(nn.Sequential(model), tensors['input'])
    assert not maps.requires_grad and model.training and not model.cls_attn_blocks[0].training
    assert relative_error(maps[:, 1].flatten(2), tensors['eval/class_attention1'][..., 1:]) < TOLERANCE
    with pytest.raises(ValueError, match='Linear holds none'):
        attention_maps(nn.Linear(2, 2), tensors['input'])


def test_any_size():
    model = randomise(build()).eval()
    for size in ((1, 1), (15, 300), (130, 7)):
        x = torch.randn(1, 3, *size)
        out = model(x)
        with set_fast(False):
            assert out.shape == (1, 5) and relative_error(out, model(x)) < TOLERANCE


def test_wrong_options_are_named():
    for name, value in dict(num_classes=-1, drop_path_rate=1, frozen_stages=3, arch='small_12_p4',
                            norm_cfg=dict(type='Nope'), init_cfg=dict(type='Pretrained')).items():
        with pytest.raises(ValueError, match=name if name != 'arch' else value):
            XCiTClassifier(**{'arch': ARCH, name: value})


def test_frozen_stages_and_no_head():
    model = build(frozen_stages=2, num_classes=0).train()
    out = model(torch.randn(2, 3, 64, 64))
    assert out.shape == (2, 32)
    out.sum().backward()
    learns = {name.split('.')[0] for name, p in model.named_parameters() if p.grad is not None}
    assert learns == {'cls_token', 'cls_attn_blocks', 'norm'}
    assert not model.blocks[1].training and model.cls_attn_blocks[0].training
