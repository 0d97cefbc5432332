"""Weights of every project and layout, strictly: other projects' own models, PASSL's files, published files."""

import numpy as np
import pytest
import torch
from mmengine.registry import DefaultScope

from helpers.models import assert_equal, build, official_state, prefixed, randomise, relative_error, save
from helpers.recipes import FAMILIES
from helpers.weight_files import arrays, assert_same_tensors, classifier, passl_state, values, without, write_pickle
from xcit_dense import XCiTClassifier, get_arch
from xcit_dense.archs import SIZES, arch_names
from xcit_dense.errors import CheckpointError
from xcit_dense.weights import load_classifier, load_model, read_checkpoint
from xcit_dense.weights.convert import convert
from xcit_dense.weights.layouts import Contents
from xcit_dense.weights.zoo import WEIGHTS

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


@pytest.mark.parametrize('protocol', (2, 3, 4, 5))
@pytest.mark.parametrize('wrap', (
    lambda s: {**s, 'StructuredToParameterName@@': dict.fromkeys(s, 'linear_0.w_0')},
    lambda s: {**prefixed({'stem.conv._mean': np.zeros(3), 'head.fc.weight': np.zeros((3, 2))}, 'Teacher.'),
               **prefixed(s, 'Student.')},
    lambda s: {'epoch': 3, 'best': np.float64(0.7), 'state_dict': {n: PaddleTensor(v) for n, v in s.items()}},
), ids=('published', 'distilled', 'training'))
def test_passl_files(tmp_path, wrap, protocol):
    state = {name: value for name, value in official_state().items() if not name.endswith('num_batches_tracked')}
    path = write_pickle(wrap(arrays(passl_state(state))), tmp_path / 'xcit.pdparams', protocol)
    model = build(init_cfg=dict(type='Pretrained', checkpoint=str(path)))
    model.init_weights()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items() if name in state)
    convert(path, tmp_path / 'official.pth', 'official')
    assert_equal(read_checkpoint(tmp_path / 'official.pth')['model'], state)
    with pytest.raises(CheckpointError, match="cannot write the layout 'PASSL', only dense"):
        convert(path, tmp_path / 'again.pth', 'PASSL')


@pytest.mark.parametrize('arch', arch_names())
def test_the_sizes_of_passl_are_recognised(arch):
    with torch.device('meta'):
        state = XCiTClassifier(arch, num_classes=1000, norm_cfg=dict(type='BN')).state_dict()
    found = Contents.of(passl_state(state), arch)
    assert (found.layout, found.arch, found.num_classes) == ('PASSL', get_arch(arch), 1000) and not found.rest
    assert all(value.shape == state[name].shape for name, value in found.tensors.items())


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=pytest.mark.slow if name.startswith(('small_24', 'medium', 'large')) else ())
    for name in WEIGHTS if name.endswith(('p8_384_dist', 'p16_224', 'dino')) and not name.startswith(FAMILIES)])
def test_every_published_file_loads_strictly(name, tmp_path, monkeypatch):
    """A file of its layout, at the place of the published one; DINO's have no head."""
    monkeypatch.setattr(torch.hub, '_hub_dir', str(tmp_path))
    weights = WEIGHTS[name]
    has_head = not name.endswith('dino')
    with torch.device('meta'):
        model = XCiTClassifier(weights.arch, num_classes=1000 if has_head else 0)
    model.to_empty(device='cpu')
    state = {name: torch.tensor(0.5).expand(value.shape) if value.is_floating_point() else torch.tensor(7)
             for name, value in model.state_dict().items()}  # each takes the memory of one number
    (tmp_path / 'checkpoints').mkdir()
    torch.save({'model': state} if has_head else state, tmp_path / 'checkpoints' / weights.url.rpartition('/')[2])
    load_classifier(model, f'xcit://{name}')
    assert all((parameter == 0.5).all() for parameter in model.parameters())
    found = Contents.of(state, name)
    assert (found.size, found.arch) == (weights.arch, get_arch(weights.arch))
    assert found.num_classes == (1000 if has_head else None)


@pytest.mark.parametrize('target', ('official', 'timm', 'mmpretrain'))
def test_every_layout_loads(tmp_path, target):
    """Into a classifier, and into the whole model of a test."""
    state, path = official_state(), tmp_path / 'other.pth'
    convert(save(tmp_path / 'in1k.pth', {'model': state}), path, target)
    model, whole = classifier(), torch.nn.Module()
    whole.backbone = classifier()
    load_classifier(model, path)
    load_model(whole, read_checkpoint(path), 'other.pth')
    for found in (model, whole.backbone):
        assert all(torch.equal(value, state[name]) for name, value in found.state_dict().items())


def test_a_run_gives_a_start(tmp_path):
    """With the same classes, with others, for a model without a head, and from a file without one."""
    state = official_state(num_classes=10)
    run = save(tmp_path / 'epoch_1.pth', {'state_dict': prefixed(state, 'backbone.'), 'meta': {}})
    headless = save(tmp_path / 'dino.pth', without(state, 'head.'))
    for path, classes, takes_head in ((run, 10, True), (run, 3, False), (run, 0, False), (headless, 10, False),
                                      (headless, 0, False)):
        model = classifier(classes, init_cfg=dict(type='Pretrained', checkpoint=str(path)))
        before = values(model)
        model.init_weights()
        assert_equal(values(model), {name: state[name] if takes_head or not name.startswith('head.') else before[name]
                                     for name in before})
        assert ('start fresh: head' in model.weights_from) == (classes > 0 and not takes_head)


@pytest.mark.parametrize('size', SIZES)
def test_parameters_are_passls_in_millions(size):
    """To the two digits that PASSL publishes."""
    published = {
        'nano_12': (3.05, 3.05), 'tiny_12': (6.71, 6.72), 'tiny_24': (12.11, 12.12), 'small_12': (26.21, 26.25),
        'small_24': (47.63, 47.67), 'medium_24': (84.32, 84.40), 'large_24': (188.93, 189.10)}
    for patch, wanted in zip((8, 16), published[size], strict=True):
        with torch.device('meta'):
            model = XCiTClassifier(f'{size}_p{patch}', num_classes=1000)
        assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == wanted
