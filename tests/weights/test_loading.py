"""Load weights into a model: all of them, or an error that shows what does not fit."""
import sys
from functools import partial

import pytest
import torch
from mmengine.model import BaseModule
from mmengine.model.weight_init import PretrainedInit
from mmengine.registry import MODELS, DefaultScope
from safetensors.torch import save_file

from helpers.models import assert_equal, build, dense_state, official_state, prefixed, randomise, save
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.weight_files import classifier, dino, rejects, values
from xcit_dense import XCiT
from xcit_dense.config.loading import load_config
from xcit_dense.errors import CheckpointError
from xcit_dense.weights import classes_of_checkpoint, load_backbone, load_classifier, load_model, read_checkpoint
from xcit_dense.weights.convert import convert


def test_a_file_of_another_arch_is_said_with_what_takes_it(tmp_path):
    """And not as a list of the tensors, which only a file of the same arch is."""
    model = XCiT('nano_12_p16')
    other = save(tmp_path / 'other.pth', XCiT('tiny_12_p16').state_dict())
    with rejects('XCiT tiny_12_p16', 'the arch of the model is nano_12_p16', 'model.backbone.arch=tiny_12_p16'):
        load_backbone(model, other)
    state = model.state_dict()
    del state['blocks.0.norm1.weight']
    with rejects('blocks.0.norm1.weight') as caught:
        load_backbone(model, save(tmp_path / 'same.pth', state))
    assert 'the arch of the model' not in str(caught.value)


@pytest.mark.parametrize('patch_size, said', ((8, '128 of 130 tensors'), (16, '134 of 145 tensors')))
def test_official_classifier_fills_all_but_the_pyramid(tmp_path, patch_size, said, capsys):
    model, state = build(patch_size), official_state(patch_size)
    fresh = values(model)
    load_backbone(model, save(tmp_path / 'in1k.pth', {'model': state}))
    assert_equal(values(model), {n: fresh[n] if n.startswith('fpn') else state[n] for n in fresh})
    line = capsys.readouterr().out
    assert said in line and 'start fresh: fpn1' in line and '33 of the file are not used' in line


@pytest.mark.parametrize('wrap', (
    lambda s: s,
    lambda s: {'state_dict': prefixed(s, 'backbone.') | {'neck.weight': torch.zeros(1)}},
    lambda s: {'state_dict': prefixed(s, 'module.')},
    lambda s: {'state_dict': prefixed(s, 'module.backbone.') | {'module.head.fc.weight': torch.zeros(1)}},
    lambda s: {'ema_state_dict': {'steps': torch.tensor(3), **prefixed(s, 'module.')}},
    lambda s: {'n_averaged': torch.tensor(3), **prefixed(s, 'module.')},
    lambda s: prefixed(s, 'encoder.') | {'fc.weight': torch.zeros(1)},
    *(lambda s, other=other: prefixed(dense_state(), other) | prefixed(s, 'backbone.')
      for other in ('', 'ema.backbone.', 'a.')),
), ids=('bare', 'detector', 'module', 'module backbone', 'ema alone', 'swa', 'encoder', 'next to a bare one',
        'next to an average', 'next to another'))
def test_wrapped_files_fill_everything(tmp_path, wrap, capsys):
    state, model = dense_state(), build()
    load_backbone(model, save(tmp_path / 'dense.pth', wrap(state)))
    assert_equal(values(model), state)
    said = capsys.readouterr().out
    assert '145 of 145 tensors' in said and 'fresh' not in said
    fewer = build(out_indices=(0, 1), out_strides=(8, 16))
    load_backbone(fewer, tmp_path / 'dense.pth')
    assert_equal(values(fewer), {n: state[n] for n in fewer.state_dict()})


def test_safetensors_load_and_say_what_is_missing_without_the_package(tmp_path, monkeypatch):
    state, model, path = dense_state(), build(), tmp_path / 'dense.safetensors'
    save_file(state, path)
    load_backbone(model, path)
    assert_equal(values(model), state)
    monkeypatch.setitem(sys.modules, 'safetensors', None)
    with pytest.raises(CheckpointError, match='cannot read .* of safetensors'):
        read_checkpoint(path)


def test_safetensors_are_known_whatever_the_length_of_their_header(tmp_path):
    """A pickle begins with 0x80 too."""
    path = tmp_path / 'a.safetensors'
    save_file({'a': torch.arange(3.)}, path)
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], 'little')
    for length in (0x80, 0x180, 0xa880):
        path.write_bytes(length.to_bytes(8, 'little') + content[8:start].ljust(length) + content[start:])
        assert torch.equal(read_checkpoint(path)['a'], torch.arange(3.)), length


@pytest.mark.parametrize('kind, is_list', (
    ('Pretrained', False), ('mmengine.Pretrained', True), (PretrainedInit, True)))
def test_init_cfg_loads_strictly_and_once(tmp_path, kind, is_list):
    """A detector initialises its parts one after the other, and skips those that are initialised already."""
    state = official_state()
    init_cfg = dict(type=kind, checkpoint=str(save(tmp_path / 'in1k.pth', {'model': state})))
    init_cfg = [init_cfg] if is_list else init_cfg
    detector = BaseModule()
    detector.backbone = model = build(init_cfg=init_cfg)
    assert not model.is_init
    model.init_weights()
    assert model.is_init and torch.equal(model.blocks[2].gamma1, state['blocks.2.gamma1'])
    torch.nn.init.zeros_(model.blocks[0].gamma1)
    detector.init_weights()
    assert not model.blocks[0].gamma1.any()
    with rejects('does not fit'):
        build(8, init_cfg=init_cfg).init_weights()


def test_prefix_chooses_among_several_models(tmp_path):
    first, second = dense_state(), dense_state()
    path = save(tmp_path / 'two.pth', {'state_dict': prefixed(first, 'a.net.') | prefixed(second, 'b.net.')})
    for prefix in ('b.net', 'b.net.'):
        model = build(init_cfg=dict(type='Pretrained', checkpoint=str(path), prefix=prefix))
        model.init_weights()
        assert_equal(values(model), second)
    with pytest.raises(CheckpointError, match='no XCiT weights.*under the prefix c'):
        load_backbone(model, path, 'c')
    with pytest.raises(CheckpointError, match=r"two\.pth holds several XCiT .* a\.net\., b\.net\.\. .*prefix='a\."):
        load_backbone(model, path)


def test_other_initialisers_stay_mmengines():
    model = build(init_cfg=[dict(type='Constant', layer='Linear', val=0.5)])
    model.init_weights()
    assert (model.blocks[0].mlp.fc1.weight == 0.5).all()


def test_weights_and_models_after_fuse_are_named(tmp_path):
    fused, path = build().fuse(), save(tmp_path / 'plain.pth', dense_state())
    with pytest.raises(CheckpointError, match=r'expected XCiT .* after fuse\(\): load weights before it'):
        load_backbone(fused, path)
    path = save(tmp_path / 'fused.pth', fused.state_dict())
    for use in (partial(load_backbone, build()), partial(convert, out=tmp_path / 'new.pth', target='official')):
        with pytest.raises(CheckpointError, match=r'XCiT \(32 channels.* after fuse\(\), which cannot be undone'):
            use(source=path)
    assert not (tmp_path / 'new.pth').exists()


def test_errors_say_what_the_file_holds_and_what_was_wanted(tmp_path):
    path = save(tmp_path / 'p8.pth', {'model': official_state(8)})
    with pytest.raises(CheckpointError, match=r'p8\.pth.* official .*32 channels, 4 blocks, 4 heads, patch 8\).*'
                       r'classifier.* expected .*32 channels, 4 blocks, 4 heads, patch 16\)'):
        load_backbone(build(16), path)
    path = save(tmp_path / 'resnet.pth', {'conv1.weight': torch.zeros(3), 'bn1.weight': torch.zeros(3)})
    with pytest.raises(CheckpointError, match=r'resnet\.pth.* no XCiT.* 2 tensors.*conv1\.weight'):
        load_backbone(build(16), path)


#: Some names of the authors' whole models, as mmdet 2 and mmseg 0 wrote them.
OLD_NAMES = {
    'mmdet': ('backbone.fpn1.3.weight', 'neck.lateral_convs.0.conv.weight', 'rpn_head.rpn_cls.weight',
              'roi_head.bbox_head.shared_fcs.1.weight', 'roi_head.mask_head.convs.0.conv.weight',
              'roi_head.mask_head.upsample.weight', 'roi_head.mask_head.conv_logits.bias'),
    'mmseg': ('backbone.pos_embeder.token_projection.weight', 'decode_head.conv_seg.weight',
              'decode_head.scale_heads.0.0.conv.weight', 'decode_head.scale_heads.3.4.bn.running_mean')}


def whole_model(scope):
    cfg = load_config(dict(mmdet=TINY_CONFIG, mmseg=TINY_SEG_CONFIG)[scope], pretrained=False)
    with DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(cfg.model)


@pytest.mark.parametrize('scope', OLD_NAMES)
def test_whole_models_of_old_frameworks_load_by_name(tmp_path, scope, capsys):
    model = whole_model(scope)
    state = values(randomise(whole_model(scope)))
    assert set(OLD_NAMES[scope]) <= set(state)
    path = save(tmp_path / 'old.pth', {
        'meta': {'CLASSES': ('cat', 'dog'), 'PALETTE': [[0, 0, 0], [1, 1, 1]], 'config': 'raise SystemExit\n'},
        'state_dict': prefixed(state, 'module.'), 'optimizer': {'state': {}, 'param_groups': []}})
    checkpoint = read_checkpoint(path)
    load_model(model, checkpoint, path)
    assert_equal(values(model), state)
    assert f'{len(state)} of {len(state)} tensors' in capsys.readouterr().out
    assert classes_of_checkpoint(checkpoint, path) == ('cat', 'dog')


@pytest.mark.parametrize('content, words', (
    (lambda: {'model': official_state()}, ' official .*classifier.* expected .*MaskRCNN'),
    (lambda: {'state_dict': prefixed(dense_state(8), 'backbone.') | {'decode_head.conv_seg.bias': torch.zeros(2)}},
     r' dense .* patch 8\).*pyramid, decode_head.* expected .*MaskRCNN'),
    (lambda: {'weight': torch.zeros(2)}, 'no XCiT.* 1 tensor such as weight'),
), ids=('classifier', 'segmentor', 'foreign'))
def test_whole_models_reject_other_files_by_their_content(content, words):
    with pytest.raises(CheckpointError, match=words):
        load_model(whole_model('mmdet'), content(), 'some.pth')


@pytest.mark.parametrize('names, words', (
    (('weight', 'scale'), '1 missing in the file .bias.*1 unknown to the model .scale'),
    # no tensor next to `module.` is lost
    *((('module.weight', 'module.bias', other), r'1 unknown to the model .*weight')
      for other in ('other.weight', 'weight'))))
def test_whole_models_load_strictly(names, words):
    with pytest.raises(CheckpointError, match=words):
        load_model(torch.nn.Linear(3, 2), {'state_dict': {
            name: torch.zeros(2) if name.endswith('bias') else torch.zeros(2, 3) for name in names}}, 'some.pth')


def test_classes_of_checkpoint():
    assert classes_of_checkpoint({'meta': {'dataset_meta': {'classes': ['a', 'b']}}}, 'x') == ('a', 'b')
    assert classes_of_checkpoint({'meta': {'CLASSES': 'cat'}}, 'x') == ('cat', )  # of mmdet 2, where there is one
    with rejects('x holds no class names'):
        classes_of_checkpoint({'meta': {}}, 'x')


def load_whole(model, path):
    load_model(model, read_checkpoint(path), path)


@pytest.mark.parametrize('change, words', (
    (lambda v: v.long(), 'int64'),
    (lambda v: v.to(torch.complex64), 'complex'), (lambda v: v.to(torch.bfloat16).view(torch.uint16), 'uint16'),
    (lambda v: v.index_fill(0, torch.tensor([1]), float('nan')), 'NaN'),
    (lambda v: v.index_fill(0, torch.tensor([1]), -float('inf')), 'infinite'), (lambda v: v.to_sparse(), 'not dense'),
    (lambda v: torch.quantize_per_tensor(v, 0.1, 0, torch.qint8), 'not dense'), (lambda v: v.to('meta'), 'not dense'),
    (lambda v: torch.nested.nested_tensor([v, v]), 'not dense')))
@pytest.mark.parametrize('load', (load_backbone, load_whole))
def test_tensors_that_are_no_weights_change_nothing(load, change, words, tmp_path):
    """The last tensor of the file, so that all others would have been loaded before it."""
    state = {n: v for n, v in dense_state().items() if v.dtype == torch.float32}
    name = list(state)[-1]
    path, model = save(tmp_path / 'odd.pth', {**state, name: change(state[name])}), build()
    with rejects(path, name, words, model=model):
        load(model, path)


def remove(name):
    return lambda state: state.pop(name)


def put(name, *shape):
    return lambda state: state.update({name: torch.zeros(shape)})


BACKBONE, CLASSIFIER, DINO = (build, load_backbone, None), (classifier, load_classifier, None), (
    (build, load_backbone, ''), (build, load_backbone, 'student'), (classifier, load_classifier, 'teacher.backbone'))


@pytest.mark.parametrize('kind, load, prefix, change, words', [(*way, *row) for ways, *row in (
    ((BACKBONE, *DINO), remove('blocks.3.gamma2'), ('1 missing', 'blocks.3.gamma2')),
    ((BACKBONE, *DINO), put('blocks.4.gamma1', 32), ('1 unknown', 'blocks.4.gamma1')),
    ((BACKBONE, *DINO), put('blocks.0.mlp.fc1.bias', 48), ('1 of another shape', '(48,)', '(128,)')),
    ((BACKBONE, ), put('blocks.4.gamma1', 32), ('5 blocks', )),
    ((BACKBONE, ), put('fpn2.0.weight', 32, 32, 2, 2), ('missing', 'fpn1.0.weight')),
    ((CLASSIFIER, ), remove('cls_token'), ('1 missing', 'cls_token')),
    ((CLASSIFIER, ), remove('head.weight'), ('1 missing', 'head.weight')),
    ((CLASSIFIER, ), put('head.weight', 10, 31), ('head.weight (10, 31)', '(10, 32)')),
    ((CLASSIFIER, ), put('cls_token', 1, 1, 31), ('cls_token (1, 1, 31)', )),
    ((CLASSIFIER, ), put('cls_attn_blocks.2.gamma1', 32), ('1 unknown', 'cls_attn_blocks.2.gamma1')),
    ((CLASSIFIER, ), lambda s: [s.pop(n) for n in list(s) if n.startswith(('cls', 'norm', 'head'))],
     ('the dense layout', 'cls_token', 'with classifier'))) for way in ways])
def test_files_of_another_model_are_rejected(kind, load, prefix, change, words, tmp_path):
    states, model = (official_state(), official_state()), kind()
    for state in states:
        change(state)
    path = save(tmp_path / 'odd.pth', {'model': states[0]} if prefix is None else {'state_dict': dino(*states)})
    title = '' if prefix is None else f'the {(prefix or "teacher").partition(".")[0]} of '
    with rejects(f'{title}{path}', *words, model=model):
        load(model, path, prefix)


def test_floating_types_convert(tmp_path):
    """Counters too, which some tools save with the rest."""
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn):
        state, model = {n: v.to(dtype) for n, v in dense_state().items()}, build()
        load_backbone(model, save(tmp_path / 'other.pth', state))
        for name, value in model.state_dict().items():
            assert torch.equal(value, state[name].to(value.dtype)), (dtype, name)


def test_infinite_buffers_and_large_weights_are_loaded():
    model = torch.nn.Linear(2, 2)
    model.register_buffer('mask', torch.zeros(2))
    large = torch.full((2, 2), 3e38)  # the sum is infinite
    load_model(model, {'mask': torch.tensor([0, -float('inf')]), 'weight': large, 'bias': large[0]}, 'file')
    assert model.mask.isinf().any() and torch.equal(model.weight, large)


def test_a_parameter_of_two_names_is_one_under_both():
    model = torch.nn.Module()
    model.first = model.second = torch.nn.Linear(2, 2, bias=False)
    with rejects('second.weight: infinite', model=model):
        load_model(model, {'first.weight': torch.zeros(2, 2), 'second.weight': torch.full((2, 2), torch.inf)}, 'file')


@pytest.mark.parametrize('kind, value, words', (
    ('num_batches_tracked', float('nan'), 'NaN'), ('running_var', -1e-3, 'negative'),
    ('running_var', float('inf'), 'infinite'), ('running_mean', -float('inf'), 'infinite')))
def test_statistics_are_possible(tmp_path, kind, value, words):
    state = dense_state()
    name = [name for name in state if name.endswith(kind)][-1]
    path = save(tmp_path / 'odd.pth', {**state, name: state[name].float().index_fill(-1, torch.tensor([0]), value)})
    for load in (load_backbone, load_whole):
        with rejects(f'{name}: {words}'):
            load(build(), path)
    load_backbone(build(), save(tmp_path / 'flat.pth', {**state, name: torch.zeros_like(state[name])}))
