"""Weights of every project: against timm's and mmpretrain's own models, from PASSL, and from one layout to another."""
import os
import pickle
import runpy
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT
from mmengine.registry import DefaultScope
from weight_files import build, dense_state, official_state, prefixed, randomise, relative_error, save

from xcit_dense import XCiT, arch_names
from xcit_dense.errors import CheckpointError
from xcit_dense.weights import classes_of_checkpoint, load_backbone, read_checkpoint
from xcit_dense.weights.convert import TARGETS, convert, inspect
from xcit_dense.weights.describe import Contents
from xcit_dense.weights.meta import get_dataset_meta
from xcit_dense.weights.safe import _ArrayReader

TOLERANCE = 5e-6
NECK = {'neck.conv.weight': torch.ones(3), 'roi_head.bias': torch.ones(2)}


def equal(got, wanted):
    return list(got) == list(wanted) and all(torch.equal(got[n], v) for n, v in wanted.items())


# Other projects' models


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


def timm_blocks(model, images):
    return model.forward_intermediates(images, intermediates_only=True)


def mmpretrain_blocks(model, images):
    backbone = model.backbone
    backbone.out_type, backbone.out_indices = 'featmap', (0, 1, 2, 3)
    return backbone(images)


OTHERS = pytest.mark.parametrize('make, blocks', ((timm_model, timm_blocks), (mmpretrain_model, mmpretrain_blocks)),
                                 ids=('timm', 'mmpretrain'))


@pytest.mark.parametrize('patch_size', (8, 16))
@OTHERS
def test_weights_of_other_projects_compute_the_same_block_by_block(tmp_path, make, blocks, patch_size):
    theirs, ours = make(patch_size), build(patch_size, out_strides=None).eval()
    load_backbone(ours, save(tmp_path / 'theirs.pth', theirs.state_dict()))
    images = torch.randn(2, 3, 75, 101)
    with torch.no_grad():
        for got, wanted in zip(ours(images), blocks(theirs, images), strict=True):
            assert got.shape == wanted.shape and relative_error(got, wanted) < TOLERANCE


@pytest.mark.parametrize('patch_size', (8, 16))
@pytest.mark.parametrize('suffix', ('.pth', '.safetensors'))
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
    again = again.get('state_dict', again)
    assert again.keys() == state.keys() and all(torch.equal(again[n], v) for n, v in state.items())


# PASSL


def passl_state(state):
    """The authors' tensors as PaddlePaddle keeps them: linear weights the other way round, other names."""
    linear = ('qkv.weight', 'attn.proj.weight', 'fc1.weight', 'fc2.weight', 'head.weight')
    renamed = {}
    for name, value in state.items():
        if name.endswith('num_batches_tracked'):
            continue
        value = value.numpy().T if name.endswith(linear) else value.numpy()
        name = name.replace('running_mean', '_mean').replace('running_var', '_variance')
        name = name.replace('head.', 'head.fc_cls.') if name.startswith('head.') else f'backbone.{name}'
        renamed[name] = np.ascontiguousarray(value)
    return renamed


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
    assert equal(read_checkpoint(tmp_path / 'official.pth')['model'],
                 {n: v for n, v in state.items() if not n.endswith('num_batches_tracked')})


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path), )


@pytest.mark.parametrize('content', (
    lambda trace: Bomb(trace),
    lambda trace: np.array([object], dtype=object),
    lambda trace: np.array(['text']),
    lambda trace: np.dtype([('a', 'f4')]),
    lambda trace: print,
), ids=('bomb', 'objects', 'text', 'fields', 'function'))
@pytest.mark.parametrize('protocol', (2, 4))
def test_pickles_hold_numbers_or_are_refused(tmp_path, content, protocol):
    path, trace = tmp_path / 'x.pdparams', tmp_path / 'trace'
    path.write_bytes(pickle.dumps({'a': np.zeros(3), 'x': content(trace)}, protocol))
    with pytest.raises(CheckpointError, match='refused'):
        read_checkpoint(path)
    assert not trace.exists()


@pytest.mark.parametrize('state', ((None, {'__defaults__': (1, )}), {'__defaults__': (1, )}), ids=('slots', 'dict'))
@pytest.mark.parametrize('name', _ArrayReader._KNOWN)
def test_pickles_cannot_change_the_reader(tmp_path, name, state):
    """Opcodes by hand: set an attribute of what a name stands for."""
    path, (module, _, inner) = tmp_path / 'x.pdparams', name.rpartition('.')
    path.write_bytes(b'\x80\x02c%b\n%b\n' % (module.encode(), inner.encode()) + pickle.dumps(state, 2)[2:-1] + b'b.')
    with pytest.raises(CheckpointError, match='cannot read'):
        read_checkpoint(path)


# From one layout to another


@pytest.mark.parametrize('patch_size', (8, 16))
@pytest.mark.parametrize('over', ('timm', 'mmpretrain'))
@pytest.mark.parametrize('suffix', ('.pth', '.safetensors'))
def test_official_files_come_back_bit_for_bit(tmp_path, over, patch_size, suffix):
    state = official_state(patch_size)
    source = save(tmp_path / 'in1k.pth', {'model': state})
    convert(source, tmp_path / f'over{suffix}', over)
    convert(tmp_path / f'over{suffix}', tmp_path / 'back.pth', 'official')
    back = read_checkpoint(tmp_path / 'back.pth')
    assert list(back) == ['model']
    assert back['model'].keys() == state.keys() and all(torch.equal(back['model'][n], v) for n, v in state.items())


def test_tensors_that_share_memory_become_safetensors(tmp_path):
    state = official_state()
    state['blocks.0.gamma1'] = state['blocks.0.gamma2']
    state['head.weight'] = torch.randn(32, 10).t()
    convert(save(tmp_path / 'in1k.pth', {'model': state}), tmp_path / 'out.safetensors', 'official')
    out = read_checkpoint(tmp_path / 'out.safetensors')
    assert out.keys() == state.keys() and all(torch.equal(out[n], v) for n, v in state.items())


@pytest.mark.parametrize('suffix', ('.pth', '.safetensors'))
def test_dense_files_keep_pyramid_heads_and_classes(tmp_path, suffix):
    state = {**prefixed(dense_state(), 'backbone.'), **NECK}
    source = save(tmp_path / 'old.pth', {'state_dict': state, 'optimizer': {},
                                           'meta': {'CLASSES': ('cat', 'dog'), 'PALETTE': np.array([[1, 2, 3]] * 2)}})
    lines = convert(source, tmp_path / f'new{suffix}', 'dense')
    new = read_checkpoint(tmp_path / f'new{suffix}')
    assert new['state_dict'].keys() == state.keys()
    assert all(torch.equal(new['state_dict'][n], v) for n, v in state.items())
    assert classes_of_checkpoint(new, 'x') == ('cat', 'dog')
    assert np.array_equal(get_dataset_meta(new)['palette'], [[1, 2, 3]] * 2)
    assert len(lines) == 2  # nothing was left out


@pytest.mark.parametrize('target', TARGETS)
def test_what_a_layout_has_no_room_for_is_said(tmp_path, target):
    whole = {'state_dict': {**prefixed(dense_state(), 'backbone.'), **NECK}}
    classifier = {'model': official_state()}
    said = '\n'.join(convert(save(tmp_path / 'whole.pth', whole), tmp_path / 'out.pth', target))
    assert ('left out' in said) == (target != 'dense')
    if target != 'dense':
        assert 'fpn1, fpn2, neck, roi_head (13 tensors)' in said
    said = '\n'.join(convert(save(tmp_path / 'in1k.pth', classifier), tmp_path / 'out.pth', target))
    assert ('left out' in said) == (target == 'dense')
    if target == 'dense':
        assert 'cls_token, cls_attn_blocks, norm, head (33 tensors)' in said
    load_backbone(build(), tmp_path / 'out.pth')


def test_models_under_any_prefix_are_described_and_converted(tmp_path):
    state = dense_state()
    path = save(tmp_path / 'one.pth', {'state_dict': prefixed(state, 'encoder.')})
    convert(path, tmp_path / 'out.pth', 'dense')
    assert equal(read_checkpoint(tmp_path / 'out.pth')['state_dict'], prefixed(state, 'backbone.'))
    assert any('XCiT (32 channels, 4 blocks, 4 heads, patch 16) with pyramid' in line for line in inspect(path))
    path = save(tmp_path / 'two.pth', prefixed(state, 'a.net.') | prefixed(state, 'b.net.'))
    for ask in (inspect, lambda path: convert(path, tmp_path / 'out.pth', 'timm')):
        with pytest.raises(CheckpointError, match=r'two\.pth holds several XCiT, .*a\.net\., b\.net\.; .*prefix='):
            ask(path)


def test_the_size_of_a_fragment_is_told_without_an_error():
    assert Contents.of({'blocks.7.attn.temperature': torch.ones(4)}, 'x').size == \
        '(None channels, 1 blocks, None heads, patch 1)'
    assert Contents('dense', {}, {}).size == '(None channels, 0 blocks, None heads, patch 1)'


@pytest.mark.parametrize('name', arch_names())
def test_size_and_patch_are_told_from_shapes(name):
    with torch.device('meta'):
        state = XCiT(name).state_dict()
    assert Contents.of(state, 'x').size == name


def test_damage_is_not_converted(tmp_path):
    convert(save(tmp_path / 'in1k.pth', {'model': official_state()}), tmp_path / 'timm.pth', 'timm')
    state = read_checkpoint(tmp_path / 'timm.pth')
    del state['cls_attn_blocks.1.attn.q.weight']
    with pytest.raises(CheckpointError, match=r'broken\.pth is damaged: q, k and v of cls_attn_blocks\.1\.attn'):
        convert(save(tmp_path / 'broken.pth', state), tmp_path / 'out.pth', 'official')
    assert not (tmp_path / 'out.pth').exists()


@pytest.mark.parametrize('out, words', (('in1k.pth', 'the file that is read'), ('link.pth', 'the file that is read'),
                                        ('out.onnx', '.safetensors'), ('folder.pth', 'cannot write')))
def test_nothing_is_overwritten_by_mistake(tmp_path, out, words):
    source = save(tmp_path / 'in1k.pth', {'model': official_state()})
    (tmp_path / 'link.pth').symlink_to(source)
    (tmp_path / 'folder.pth').mkdir()
    before, files = source.read_bytes(), sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=words):
        convert(source, tmp_path / out, 'timm')
    assert source.read_bytes() == before and sorted(tmp_path.iterdir()) == files


def test_containers_are_chosen_and_listed(tmp_path):
    teacher, student = dense_state(), dense_state()
    path = save(tmp_path / 'dino.pth', {
        'student': prefixed(student, 'module.backbone.'), 'teacher': prefixed(teacher, 'backbone.'), 'epoch': 3})
    convert(path, tmp_path / 'default.pth', 'dense')
    convert(path, tmp_path / 'student.pth', 'dense', which='student')
    assert equal(read_checkpoint(tmp_path / 'default.pth')['state_dict'], prefixed(teacher, 'backbone.'))
    assert equal(read_checkpoint(tmp_path / 'student.pth')['state_dict'], prefixed(student, 'backbone.'))
    with pytest.raises(CheckpointError, match="no model named 'ema'; it holds teacher, student"):
        convert(path, tmp_path / 'ema.pth', 'dense', which='ema')
    said = '\n'.join(inspect(path))
    assert 'teacher: a dense file' in said and 'student: a dense file' in said and 'epoch: 3' in said


# The tool


@pytest.fixture
def tool(monkeypatch, capsys):
    """Run the tool as a user does; gives what it prints, or its exit code or error."""

    def run(*args):
        monkeypatch.setattr(sys, 'argv', ['convert_checkpoint.py', *map(str, args)])
        try:
            runpy.run_path(str(ROOT / 'tools/convert_checkpoint.py'), run_name='__main__')
        except SystemExit as stop:
            return stop.code
        return capsys.readouterr().out

    return run


def test_tool_converts_and_inspects(tmp_path, tool):
    source, out = save(tmp_path / 'in1k.pth', {'model': official_state(8), 'epoch': 3}), tmp_path / 'sub/x.safetensors'
    assert f'wrote {out}: a timm file, 169 tensors' in tool(source, out, '--to', 'timm')
    said = tool(source, '--inspect')
    for words in ('model: an official ImageNet file of XCiT (32 channels, 4 blocks, 4 heads, patch 8) with classifier',
                  '161 tensors, 88,418 parameters, 10 classes', 'epoch: 3'):
        assert words in said


@pytest.mark.parametrize('args, words', (
    (('{}', 'out.pth', '--to', 'timm'), 'resnet.pth holds no XCiT weights, but 1 tensors such as conv1.weight'),
    (('no.pth', '--inspect'), 'error: there is no file'),
    (('{}', 'out.pth'), 2),
    (('{}', '--to', 'timm'), 2),
    (('{}', 'out.pth', '--to', 'timm', '--inspect'), 2),
    (('{}', 'out.pth', '--to', 'PASSL'), "error: --to takes dense, official, timm, mmpretrain, got 'PASSL'"),
))
def test_tool_says_what_is_wrong(tmp_path, tool, args, words):
    source = save(tmp_path / 'resnet.pth', {'conv1.weight': torch.zeros(3)})
    said = tool(*(arg.format(source) for arg in args))
    assert said == words if isinstance(words, int) else words in said
