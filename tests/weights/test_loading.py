"""Load weights into a model: all of them, or an error that shows what does not fit."""
import argparse
import logging
import sys
from functools import partial

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.model import BaseModule
from mmengine.model.weight_init import PretrainedInit
from mmengine.registry import MODELS, DefaultScope
from safetensors.torch import save_file

from helpers.models import TINY, assert_equal, build, dense_state, official_state, prefixed, randomise, save
from helpers.paths import ROOT, TINY_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.errors import CheckpointError
from xcit_dense.weights import (
    classes_of_checkpoint,
    load_backbone,
    load_model,
    read_checkpoint,
)
from xcit_dense.weights.convert import convert


def values(model):
    return {n: v.clone() for n, v in model.state_dict().items()}


@pytest.fixture
def log():
    """What is written to mmengine's log."""
    lines = []

    class Handler(logging.Handler):

        def emit(self, record):
            lines.append(record.getMessage())

    logger, handler = MMLogger.get_current_instance(), Handler()
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


@pytest.mark.parametrize('patch_size, said', ((8, '128 of 130 tensors'), (16, '134 of 145 tensors')))
def test_official_classifier_fills_all_but_the_pyramid(tmp_path, log, patch_size, said):
    model, state = build(patch_size), official_state(patch_size)
    fresh = values(model)
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
), ids=('bare', 'detector', 'module', 'module backbone', 'dino', 'ema alone', 'swa', 'encoder', 'averaged', 'deit',
        'halves'))
def test_wrapped_files_fill_everything(tmp_path, log, wrap):
    state, model = dense_state(), build()
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


@pytest.mark.parametrize('length', (0x80, 0x180, 0xa880))
def test_safetensors_are_known_whatever_the_length_of_their_header(length, tmp_path):
    """A pickle begins with 0x80 too."""
    path = tmp_path / 'a.safetensors'
    save_file({'a': torch.arange(3.)}, path)
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], 'little')
    path.write_bytes(length.to_bytes(8, 'little') + content[8:start].ljust(length) + content[start:])
    assert torch.equal(read_checkpoint(path)['a'], torch.arange(3.))


@pytest.mark.parametrize('kind', ('Pretrained', 'mmengine.Pretrained', PretrainedInit))
@pytest.mark.parametrize('wrap', (lambda cfg: cfg, lambda cfg: [cfg]), ids=('dict', 'list'))
def test_init_cfg_loads_strictly_through_init_weights(tmp_path, kind, wrap):
    path = save(tmp_path / 'in1k.pth', {'model': official_state()})
    model = build(init_cfg=wrap(dict(type=kind, checkpoint=str(path))))
    model.init_weights()
    assert torch.equal(model.blocks[2].gamma1, read_checkpoint(path)['model']['blocks.2.gamma1'])
    wrong = build(8, init_cfg=wrap(dict(type=kind, checkpoint=str(path))))
    with pytest.raises(CheckpointError, match='does not fit'):
        wrong.init_weights()


def test_a_backbone_that_is_loaded_is_not_loaded_again_by_its_detector(tmp_path):
    """A detector initialises its parts one after the other, and skips those that are initialised already."""
    model = build(init_cfg=dict(type='Pretrained', checkpoint=str(save(tmp_path / 'in1k.pth', dense_state()))))
    detector = BaseModule()
    detector.backbone = model
    assert not model.is_init
    model.init_weights()
    assert model.is_init
    torch.nn.init.zeros_(model.blocks[0].gamma1)
    detector.init_weights()
    assert not model.blocks[0].gamma1.any()


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


@pytest.mark.parametrize('other', ('', 'ema.backbone.', 'a.'))
def test_of_several_models_the_backbone_is_meant(tmp_path, other):
    state, model = dense_state(), build()
    load_backbone(model, save(tmp_path / 'two.pth', prefixed(dense_state(), other) | prefixed(state, 'backbone.')))
    assert_equal(values(model), state)


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


@pytest.mark.parametrize('change, words', (
    (lambda s: s.pop('blocks.3.gamma2'), ('1 missing', 'blocks.3.gamma2')),
    (lambda s: s.update({'blocks.4.gamma1': torch.zeros(32)}), ('1 unknown', 'blocks.4.gamma1', '5 blocks')),
    (lambda s: s.update({'blocks.0.mlp.fc1.bias': torch.zeros(48)}), ('1 of another shape', '(48,)', '(128,)')),
    (lambda s: s.update(extra=torch.zeros(1)), ('unknown', 'extra')),
    (lambda s: s.update({'fpn2.0.weight': torch.zeros(32, 32, 2, 2)}), ('missing', 'fpn1.0.weight')),
), ids=('missing', 'deeper', 'wider', 'foreign', 'half a pyramid'))
def test_files_of_another_model_are_rejected(tmp_path, change, words):
    model, state = build(), official_state()
    change(state)
    before = values(model)
    with pytest.raises(CheckpointError) as caught:
        load_backbone(model, save(tmp_path / 'other.pth', {'model': state}))
    assert all(word in str(caught.value) for word in (*words, 'other.pth')), caught.value
    assert_equal(values(model), before)


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
def test_whole_models_of_old_frameworks_load_by_name(tmp_path, log, scope):
    model = whole_model(scope)
    state = values(randomise(whole_model(scope)))
    assert set(OLD_NAMES[scope]) <= set(state)
    path = save(tmp_path / 'old.pth', {
        'meta': {'CLASSES': ('cat', 'dog'), 'PALETTE': [[0, 0, 0], [1, 1, 1]], 'config': 'raise SystemExit\n'},
        'state_dict': prefixed(state, 'module.'), 'optimizer': {'state': {}, 'param_groups': []}})
    checkpoint = read_checkpoint(path)
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


@pytest.mark.parametrize('beside', ('other.weight', 'weight'))
def test_no_tensor_next_to_module_is_lost(beside):
    state = {'module.weight': torch.zeros(2, 3), 'module.bias': torch.zeros(2), beside: torch.zeros(2, 3)}
    with pytest.raises(CheckpointError, match=r'1 unknown to the model .*weight'):
        load_model(torch.nn.Linear(3, 2), {'state_dict': state}, 'some.pth')


def test_whole_models_load_strictly(tmp_path):
    model = torch.nn.Linear(3, 2)
    with pytest.raises(CheckpointError, match='1 missing in the file .bias.*1 unknown to the model .scale'):
        load_model(model, {'state_dict': {'weight': torch.zeros(2, 3), 'scale': torch.zeros(2)}}, 'some.pth')


def test_classes_of_checkpoint():
    assert classes_of_checkpoint({'meta': {'dataset_meta': {'classes': ['a', 'b']}}}, 'x') == ('a', 'b')
    assert classes_of_checkpoint({'meta': {'CLASSES': 'cat'}}, 'x') == ('cat', )  # of mmdet 2, where there is one
    with pytest.raises(CheckpointError, match='class names'):
        classes_of_checkpoint({'meta': {}}, 'x')
