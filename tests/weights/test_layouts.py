"""Weights of every project: against timm's and mmpretrain's own models, and PASSL's files."""
import pickle

import numpy as np
import pytest
import torch
from mmengine.registry import DefaultScope

from helpers.models import assert_equal, build, official_state, prefixed, randomise, relative_error, save
from helpers.weight_files import assert_same_tensors, passl_state, rejects
from xcit_dense.weights import load_backbone, read_checkpoint
from xcit_dense.weights.convert import convert

TOLERANCE = 5e-6


def timm_model(patch_size):
    xcit = pytest.importorskip('timm.models.xcit')
    return randomise(xcit.Xcit(img_size=64, patch_size=patch_size, embed_dim=32, depth=4, num_heads=4, num_classes=10,
                               tokens_norm=True)).eval()


def mmpretrain_model(patch_size):
    models = pytest.importorskip('mmpretrain.models')
    backbone = dict(type='XCiT', img_size=64, patch_size=patch_size, embed_dims=32, depth=4, num_heads=4,
                    tokens_norm=True)
    head = dict(type='LinearClsHead', num_classes=10, in_channels=32)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        return randomise(models.ImageClassifier(backbone=backbone, head=head)).eval()


@pytest.mark.parametrize('patch_size, suffix', ((8, '.pth'), (16, '.safetensors')))
def test_one_classifier_in_timm_and_in_mmpretrain(tmp_path, patch_size, suffix):
    """Our files load into their models strictly, and both compute the same classes: the whole classifier is right."""
    timm, mmpretrain = timm_model(patch_size), mmpretrain_model(patch_size)
    source = save(tmp_path / 'in1k.pth', {'model': official_state(patch_size)})
    convert(source, tmp_path / f'timm{suffix}', 'timm')
    convert(source, tmp_path / f'mmpretrain{suffix}', 'mmpretrain')
    timm.load_state_dict(read_checkpoint(tmp_path / f'timm{suffix}'), strict=True)
    state = read_checkpoint(tmp_path / f'mmpretrain{suffix}')
    mmpretrain.load_state_dict(state.get('state_dict', state), strict=True)
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        assert relative_error(mmpretrain(images, mode='tensor'), timm(images)) < TOLERANCE


@pytest.mark.parametrize('make, target', ((timm_model, 'timm'), (mmpretrain_model, 'mmpretrain')))
def test_their_files_come_back_bit_for_bit(tmp_path, make, target):
    state = make(16).state_dict()
    source = save(tmp_path / 'theirs.pth', {'state_dict': state} if target == 'mmpretrain' else state)
    convert(source, tmp_path / 'official.pth', 'official')
    convert(tmp_path / 'official.pth', tmp_path / 'again.pth', target)
    again = read_checkpoint(tmp_path / 'again.pth')
    assert_same_tensors(again.get('state_dict', again), state)


class PaddleTensor:
    """How PaddlePaddle pickles a tensor inside nested containers."""

    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return tuple, (('linear_0.w_0', self.value), )


@pytest.mark.parametrize('protocol', (2, 3, 4))
@pytest.mark.parametrize('wrap', (
    lambda s: {**s, 'StructuredToParameterName@@': dict.fromkeys(s, 'linear_0.w_0')},
    lambda s: {**prefixed({'stem.conv._mean': np.zeros(3), 'head.fc.weight': np.zeros((3, 2))}, 'Teacher.'),
               **prefixed(s, 'Student.')},
    lambda s: {'epoch': 3, 'state_dict': {n: PaddleTensor(v) for n, v in s.items()}},
), ids=('published', 'distilled', 'training'))
def test_passl_files(tmp_path, wrap, protocol):
    state = official_state()
    path = tmp_path / 'xcit.pdparams'
    path.write_bytes(pickle.dumps(wrap(passl_state(state)), protocol))
    model = build()
    load_backbone(model, path)
    assert all(torch.equal(model.state_dict()[n], v) for n, v in state.items()
               if n in model.state_dict() and not n.endswith('num_batches_tracked'))
    convert(path, tmp_path / 'official.pth', 'official')
    assert_equal(read_checkpoint(tmp_path / 'official.pth')['model'],
                 {n: v for n, v in state.items() if not n.endswith('num_batches_tracked')})


def test_a_weight_of_too_many_dimensions_is_of_another_shape_not_turned(tmp_path):
    state = passl_state(official_state()) | {'backbone.blocks.0.mlp.fc1.weight': np.zeros((2, 3, 4), np.float32)}
    path = tmp_path / 'xcit.pdparams'
    path.write_bytes(pickle.dumps(state))
    with rejects('blocks.0.mlp.fc1.weight (2, 3, 4)', '(128, 32)'):
        load_backbone(build(), path)
