"""Weights of every project and layout, strictly: models of other projects, PASSL, published files; conversion."""
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from helpers.models import TINY, Call, assert_equal, build, dense_state, official_state, prefixed, relative_error, save
from helpers.recipes import FAMILIES, mmpretrain_classifier
from helpers.weight_files import assert_same_tensors, classifier, passl_state, rejects, values, without, write_pickle
from xcit_dense import XCiT, XCiTClassifier, get_arch
from xcit_dense.errors import CheckpointError, XCiTDenseError
from xcit_dense.weights import classes_of_checkpoint, load_backbone, load_classifier, load_model, read_checkpoint
from xcit_dense.weights.contents import get_dataset_meta
from xcit_dense.weights.convert import TARGETS, convert, inspect
from xcit_dense.weights.layouts import Contents
from xcit_dense.weights.zoo import WEIGHTS


@pytest.mark.parametrize('patch_size, suffix', ((8, '.pth'), (16, '.safetensors')))
def test_one_classifier_in_timm_and_in_mmpretrain(tmp_path, patch_size, suffix):
    """Our files load into their models strictly, and both compute the same classes: the whole classifier is right."""
    mmpretrain = mmpretrain_classifier(dict(TINY, patch_size=patch_size), 10).eval()
    timm = pytest.importorskip('timm.models.xcit').Xcit(
        img_size=64, patch_size=patch_size, embed_dim=32, depth=4, num_heads=4, num_classes=10, tokens_norm=True).eval()
    source = save(tmp_path / 'in1k.pth', {'model': official_state(patch_size)})
    convert(source, tmp_path / f'timm{suffix}', 'timm')
    convert(source, tmp_path / f'mmpretrain{suffix}', 'mmpretrain')
    timm.load_state_dict(read_checkpoint(tmp_path / f'timm{suffix}'), strict=True)
    state = read_checkpoint(tmp_path / f'mmpretrain{suffix}')
    mmpretrain.load_state_dict(state.get('state_dict', state), strict=True)
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        assert relative_error(mmpretrain(images, mode='tensor'), timm(images)) < 5e-6


@pytest.mark.parametrize('protocol', (2, 3, 4, 5))
@pytest.mark.parametrize('wrap', (
    lambda s: {**s, 'StructuredToParameterName@@': dict.fromkeys(s, 'linear_0.w_0')},
    lambda s: {**prefixed({'stem.conv._mean': np.zeros(3), 'head.fc.weight': np.zeros((3, 2))}, 'Teacher.'),
               **prefixed(s, 'Student.')},
    lambda s: {'epoch': 3, 'best': np.float64(0.7), 'state_dict': {
        n: Call(tuple, ('linear_0.w_0', v)) for n, v in s.items()}},  # as PaddlePaddle pickles tensors in containers
), ids=('published', 'distilled', 'training'))
def test_passl_files(tmp_path, wrap, protocol):
    state = {name: value for name, value in official_state().items() if not name.endswith('num_batches_tracked')}
    arrays = {name: value.numpy() for name, value in passl_state(state).items()}
    path = write_pickle(wrap(arrays), tmp_path / 'xcit.pdparams', protocol)
    model = build(init_cfg=dict(type='Pretrained', checkpoint=str(path)))
    model.init_weights()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items() if name in state)
    convert(path, tmp_path / 'official.pth', 'official')
    assert_equal(read_checkpoint(tmp_path / 'official.pth')['model'], state)
    with pytest.raises(CheckpointError, match="cannot write the layout 'PASSL', only dense"):
        convert(path, tmp_path / 'again.pth', 'PASSL')


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


def test_a_run_gives_a_start(tmp_path):
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


NECK = {'neck.conv.weight': torch.ones(3), 'roi_head.bias': torch.ones(2)}


@pytest.mark.parametrize('over, patch_size, suffix', (
    ('timm', 8, '.pth'), ('mmpretrain', 16, '.pth'), ('timm', 16, '.safetensors'), ('mmpretrain', 8, '.safetensors')))
def test_official_files_come_back_bit_for_bit(tmp_path, over, patch_size, suffix):
    state = official_state(patch_size)
    convert(save(tmp_path / 'in1k.pth', {'model': state}), tmp_path / f'over{suffix}', over)
    convert(tmp_path / f'over{suffix}', tmp_path / 'back.pth', 'official')
    back = read_checkpoint(tmp_path / 'back.pth')
    assert list(back) == ['model']
    assert_same_tensors(back['model'], state)
    # each third of a tensor is one of its own: sharing memory, it would be written and kept with the other two
    out = read_checkpoint(tmp_path / f'over{suffix}')
    thirds = [value for name, value in out.get('state_dict', out).items() if name.endswith('attn.k.weight')]
    assert len(thirds) == 2
    assert all(value.untyped_storage().nbytes() == value.numel() * value.element_size() for value in thirds)
    if patch_size == 16:
        whole = torch.nn.ModuleDict(dict(backbone=classifier()))
        load_model(whole, out, 'other.pth')  # as a test does
        assert_same_tensors(values(whole.backbone), state)


def test_tensors_that_share_memory_become_safetensors(tmp_path):
    state = official_state()
    state['blocks.0.gamma1'] = state['blocks.0.gamma2']
    state['head.weight'] = torch.randn(32, 10).t()
    convert(save(tmp_path / 'in1k.pth', {'model': state}), tmp_path / 'out.safetensors', 'official')
    assert_same_tensors(read_checkpoint(tmp_path / 'out.safetensors'), state)


@pytest.mark.parametrize('target', TARGETS)
def test_what_a_layout_has_no_room_for_is_said(tmp_path, target):
    whole = {'state_dict': {**prefixed(dense_state(), 'backbone.'), **NECK}}
    classifier, out = {'model': official_state()}, tmp_path / 'out.pth'
    _, *left_out, _ = convert(save(tmp_path / 'whole.pth', whole), out, target)
    words = f'left out, because the layout {target} cannot hold it: '
    assert left_out == ([] if target == 'dense' else [words + 'fpn1, fpn2, neck, roi_head (13 tensors)'])
    _, *left_out, _ = convert(save(tmp_path / 'in1k.pth', classifier), out, target)
    assert left_out == [words + 'cls_token, cls_attn_blocks, norm, head (33 tensors)'] * (target == 'dense')
    load_backbone(build(), out)


def test_models_under_any_prefix_are_described_and_converted(tmp_path):
    state = dense_state()
    path = save(tmp_path / 'one.pth', {'state_dict': prefixed(state, 'encoder.')})
    convert(path, tmp_path / 'out.pth', 'dense')
    assert_equal(read_checkpoint(tmp_path / 'out.pth')['state_dict'], prefixed(state, 'backbone.'))
    assert any('XCiT (32 channels, 4 blocks, 4 heads, patch 16) with pyramid' in line for line in inspect(path))
    assert Contents.of({'blocks.7.attn.temperature': torch.ones(4)}, 'x').size == \
        '(None channels, 1 blocks, None heads, patch 1)'
    for arch in (get_arch('nano_12_p16'), replace(get_arch('nano_12_p16'), qkv_bias=False)):
        assert Contents.of(XCiT(arch).state_dict(), 'x').arch.qkv_bias == arch.qkv_bias


def test_damage_is_not_converted(tmp_path):
    convert(save(tmp_path / 'in1k.pth', {'model': official_state()}), tmp_path / 'timm.pth', 'timm')
    state = read_checkpoint(tmp_path / 'timm.pth')
    third = 'cls_attn_blocks.1.attn.q.weight'
    for name, content in (('broken.pth', without(state, third)), ('odd.pth', state | {third: torch.zeros(32, 16)})):
        with rejects(name, 'damaged', 'q, k and v', 'cls_attn_blocks.1.attn'):
            convert(save(tmp_path / name, content), tmp_path / 'out.pth', 'official')
    assert not (tmp_path / 'out.pth').exists()


@pytest.mark.parametrize('out, words', (('in1k.pth', 'in1k.pth is the input'), ('link.pth', 'link.pth is the input'),
                                        ('out.onnx', 'out.onnx.*.safetensors'),
                                        ('folder.pth', 'cannot write.*folder.pth')))
def test_nothing_is_overwritten_by_mistake(tmp_path, out, words):
    source = save(tmp_path / 'in1k.pth', {'model': official_state()})
    (tmp_path / 'link.pth').symlink_to(source)
    (tmp_path / 'folder.pth').mkdir()
    before, files = source.read_bytes(), sorted(tmp_path.iterdir())
    with pytest.raises(XCiTDenseError, match=words):
        convert(source, tmp_path / out, 'timm')
    assert source.read_bytes() == before and sorted(tmp_path.iterdir()) == files


def test_tool_converts_and_inspects(tmp_path, call_tool):
    source, out = save(tmp_path / 'in1k.pth', {'model': official_state(8), 'epoch': 3}), tmp_path / 'sub/x.safetensors'
    code, said = call_tool('convert_checkpoint.py', source, out, '--to', 'timm')
    assert code == 0 and all(words in said for words in (str(source), str(out), 'timm', '169 tensors'))
    assert inspect(source) == [
        str(source), 'model: weights in the official ImageNet layout of XCiT (32 channels, 4 blocks, 4 heads, patch 8) '
        'with classifier', '    161 tensors, 88,418 parameters, 10 classes', 'epoch: 3']


def test_inspect_shows_the_classes_and_leaves_out_what_no_terminal_should_print(tmp_path):
    names = [f'class {number}' for number in range(7)]
    lines = inspect(save(tmp_path / 'run.pth', {
        'state_dict': prefixed(dense_state(), 'backbone.'), 'note': 'red \x1b[31m',
        'meta': {'dataset_meta': {'classes': names}, 'epoch': 3, 'seed': 0.5, 'time': 'noon'}}))
    told = next(line for line in lines if names[0] in line)
    assert told == 'classes of the data: 7 (class 0, class 1, class 2, class 3, class 4 and 2 more)'
    assert {'epoch: 3', 'seed: 0.5', 'time: noon'} <= set(lines)
    assert not any('note' in line for line in lines)


@pytest.mark.parametrize('suffix, meta', (
    ('.pth', {'CLASSES': ('cat', ), 'PALETTE': np.array([[1, 2, 3]])}),
    ('.safetensors', {'dataset_meta': {'classes': {'cat'}, 'palette': [[1, 2, 3]], 'ids': np.array([5])}})))
def test_pyramid_heads_and_classes_stay_only_in_dense_files(tmp_path, suffix, meta):
    """Names and colours in any container of Python or NumPy."""
    state, out = {**prefixed(dense_state(), 'backbone.'), **NECK}, tmp_path / f'out{suffix}'
    source = save(tmp_path / 'run.pth', {'state_dict': state, 'optimizer': {}, 'meta': meta})
    assert len(convert(source, out, 'dense')) == 2  # nothing was left out
    content = read_checkpoint(out)
    assert set(content) == {'state_dict', 'meta'} and classes_of_checkpoint(content, 'x') == ('cat', )
    assert_same_tensors(content['state_dict'], state)
    found = get_dataset_meta(content)
    assert np.array_equal(found['palette'], [[1, 2, 3]]) and list(found.get('ids', [5])) == [5]
    convert(source, out, 'official')
    content = read_checkpoint(out)
    assert 'meta' not in content and not any('fpn' in name for name in content.get('model', content))


@pytest.mark.parametrize('target, suffix, count, kept', (
    ('official', '.pth', 10, True), ('mmpretrain', '.pth', 10, True), ('timm', '.safetensors', 10, True),
    ('timm', '.pth', 10, False), ('official', '.pth', 9, False)))
def test_a_classifier_keeps_the_names_of_its_classes(tmp_path, target, suffix, count, kept):
    names = [f'class {number}' for number in range(count)]
    source = save(tmp_path / 'run.pth', {'state_dict': prefixed(official_state(num_classes=10), 'backbone.'),
                                         'meta': {'dataset_meta': {'classes': names}}})
    lines = convert(source, tmp_path / f'out{suffix}', target)
    assert list(get_dataset_meta(read_checkpoint(tmp_path / f'out{suffix}')).get('classes', ())) == names * kept
    said = 'left out: the class names' + ', for which only .safetensors has a place here' * (count == 10)
    assert lines[1:-1] == [said] * (not kept)


@pytest.mark.parametrize('error', (OSError, RuntimeError, TypeError))
def test_a_file_that_cannot_be_written_is_one_error_and_no_file(tmp_path, monkeypatch, error):
    """Any error that torch raises for a full disk, or JSON for a value that it cannot write."""
    source = save(tmp_path / 'in1k.pth', {'model': official_state()})
    monkeypatch.setattr(torch, 'save', Mock(side_effect=error('no space left')))
    with rejects('cannot write ', 'out.pth', 'no space left'):
        convert(source, tmp_path / 'out.pth', 'timm')
    assert list(tmp_path.iterdir()) == [source]
