"""Load weights into a model: all of them, or an error that shows what does not fit."""
import argparse
import sys
from functools import partial

import pytest
import torch
from mmengine.model import BaseModule
from mmengine.model.weight_init import PretrainedInit
from mmengine.registry import MODELS, DefaultScope
from safetensors.torch import save_file

from helpers.models import TINY, assert_equal, build, dense_state, official_state, prefixed, randomise, save
from helpers.paths import ROOT, TINY_CONFIG
from helpers.weight_files import logged, rejects, values
from xcit_dense.config.loading import load_config
from xcit_dense.errors import CheckpointError
from xcit_dense.weights import classes_of_checkpoint, load_backbone, load_model, read_checkpoint
from xcit_dense.weights.convert import convert


@pytest.mark.parametrize('patch_size, said', ((8, '128 of 130 tensors'), (16, '134 of 145 tensors')))
def test_official_classifier_fills_all_but_the_pyramid(tmp_path, patch_size, said):
    model, state = build(patch_size), official_state(patch_size)
    fresh = values(model)
    with logged() as log:
        load_backbone(model, save(tmp_path / 'in1k.pth', {'model': state}))
    assert_equal(values(model), {n: fresh[n] if n.startswith('fpn') else state[n] for n in fresh})
    line = log[-1]
    assert said in line and 'start fresh: fpn1' in line and '33 of the file are not used' in line


@pytest.mark.parametrize('wrap', (
    lambda s: s,
    lambda s: {'state_dict': prefixed(s, 'backbone.') | {'neck.weight': torch.zeros(1)}},
    lambda s: {'state_dict': prefixed(s, 'module.')},
    lambda s: {'state_dict': prefixed(s, 'module.backbone.') | {'module.head.fc.weight': torch.zeros(1)}},
    lambda s: {'teacher': prefixed(s, 'backbone.') | {'head.mlp.0.weight': torch.zeros(1)},
               'student': prefixed(dense_state(), 'module.backbone.'), 'dino_loss': {'center': torch.zeros(1)},
               'args': argparse.Namespace(arch='xcit'), 'epoch': 1},
    lambda s: {'ema_state_dict': {'steps': torch.tensor(3), **prefixed(s, 'module.')}},
    lambda s: {'n_averaged': torch.tensor(3), **prefixed(s, 'module.')},
    lambda s: prefixed(s, 'encoder.') | {'fc.weight': torch.zeros(1)},
    lambda s: {'state_dict': prefixed(s, 'backbone.'),
               'ema_state_dict': prefixed(dense_state(), 'module.backbone.')},
    lambda s: {'model': s, 'model_ema': dense_state(), 'optimizer': {'state': {}, 'param_groups': []}},
    lambda s: prefixed(s, 'teacher.backbone.') | prefixed(dense_state(), 'student.backbone.'),
    *(lambda s, other=other: prefixed(dense_state(), other) | prefixed(s, 'backbone.')
      for other in ('', 'ema.backbone.', 'a.')),
), ids=('bare', 'detector', 'module', 'module backbone', 'dino', 'ema alone', 'swa', 'encoder', 'averaged', 'deit',
        'halves', 'next to a bare one', 'next to an average', 'next to another'))
def test_wrapped_files_fill_everything(tmp_path, wrap):
    state, model = dense_state(), build()
    with logged() as log:
        load_backbone(model, save(tmp_path / 'dense.pth', wrap(state)))
    assert_equal(values(model), state)
    assert '145 of 145 tensors' in log[-1] and 'fresh' not in log[-1]


def test_safetensors_load_and_say_what_is_missing_without_the_package(tmp_path, monkeypatch):
    state, model, path = dense_state(), build(), tmp_path / 'dense.safetensors'
    save_file(state, path)
    load_backbone(model, path)
    assert_equal(values(model), state)
    monkeypatch.setitem(sys.modules, 'safetensors', None)
    with pytest.raises(CheckpointError, match='pip install safetensors'):
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


@pytest.mark.parametrize('kind', ('Pretrained', 'mmengine.Pretrained', PretrainedInit))
@pytest.mark.parametrize('wrap', (lambda cfg: cfg, lambda cfg: [cfg]), ids=('dict', 'list'))
def test_init_cfg_loads_strictly_and_once(tmp_path, kind, wrap):
    """A detector initialises its parts one after the other, and skips those that are initialised already."""
    state = official_state()
    init_cfg = wrap(dict(type=kind, checkpoint=str(save(tmp_path / 'in1k.pth', {'model': state}))))
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


@pytest.mark.parametrize('init_cfg', (
    dict(type='Pretrained'),
    dict(type='Pretrained', checkpoint=None),
    dict(type='Pretrained', checkpoint='a.pth', map_location='cuda'),
    [dict(type='TruncNormal', layer='Linear'), dict(type='Pretrained', checkpoint='a.pth')],
    [dict(type='Pretrained', checkpoint='a.pth'), dict(type='TruncNormal', layer='Linear')],
))
def test_init_cfg_that_cannot_be_followed_fails_at_construction(init_cfg):
    with pytest.raises(ValueError, match='init_cfg must be'):
        build(init_cfg=init_cfg)


def test_other_initialisers_stay_mmengines():
    model = build(init_cfg=[dict(type='Constant', layer='Linear', val=0.5)])
    model.init_weights()
    assert (model.blocks[0].mlp.fc1.weight == 0.5).all()


def test_fewer_levels_and_blocks_take_their_part_of_a_dense_file(tmp_path):
    state = dense_state()
    model = build(out_indices=(0, 1), out_strides=(8, 16))
    load_backbone(model, save(tmp_path / 'dense.pth', {'state_dict': state}))
    assert_equal(values(model), {n: state[n] for n in model.state_dict()})


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
    'mmdet': ('backbone.fpn1.3.weight', 'neck.lateral_convs.0.conv.weight', 'neck.fpn_convs.3.conv.bias',
              'rpn_head.rpn_conv.weight', 'rpn_head.rpn_cls.weight', 'rpn_head.rpn_reg.bias',
              'roi_head.bbox_head.fc_cls.weight', 'roi_head.bbox_head.fc_reg.bias',
              'roi_head.bbox_head.shared_fcs.1.weight', 'roi_head.mask_head.convs.0.conv.weight',
              'roi_head.mask_head.upsample.weight', 'roi_head.mask_head.conv_logits.bias'),
    'mmseg': ('backbone.pos_embeder.token_projection.weight', 'neck.lateral_convs.0.conv.weight',
              'decode_head.conv_seg.weight', 'decode_head.scale_heads.0.0.conv.weight',
              'decode_head.scale_heads.3.4.bn.running_mean'),
}


def whole_model(scope):
    if scope == 'mmdet':
        cfg = load_config(TINY_CONFIG, pretrained=False)
    else:
        cfg = load_config(ROOT / 'configs/semfpn_xcit_n12_p16_small.py', cfg_options={
            'model.backbone.arch': dict(_delete_=True, **TINY), 'model.neck.in_channels': [32] * 4})
    with DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(cfg.model)


@pytest.mark.parametrize('scope', OLD_NAMES)
def test_whole_models_of_old_frameworks_load_by_name(tmp_path, scope):
    model = whole_model(scope)
    state = values(randomise(whole_model(scope)))
    assert set(OLD_NAMES[scope]) <= set(state)
    path = save(tmp_path / 'old.pth', {
        'meta': {'CLASSES': ('cat', 'dog'), 'PALETTE': [[0, 0, 0], [1, 1, 1]], 'config': 'raise SystemExit\n'},
        'state_dict': prefixed(state, 'module.'), 'optimizer': {'state': {}, 'param_groups': []}})
    checkpoint = read_checkpoint(path)
    with logged() as log:
        load_model(model, checkpoint, path)
    assert_equal(values(model), state)
    assert f'{len(state)} of {len(state)} tensors' in log[-1]
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
    with pytest.raises(CheckpointError, match='class names'):
        classes_of_checkpoint({'meta': {}}, 'x')
