"""A model starts from one with other classes: rows by class name, the rest strictly."""
from zlib import crc32

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from models.forms import assert_close
from torch import nn

from helpers.models import assert_equal, dense_state, official_state, prefixed, save
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.weight_files import classifier, rejects, values
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import set_classes
from xcit_dense.train.init_from import ClassRows, find_class_rows, match_classes, start_model
from xcit_dense.weights import load_classifier, load_model, read_checkpoint
from xcit_dense.weights.load import spread_channels

OLD, NEW = ('dog', 'cat', 'bird'), ('bird', 'fish', 'DOG', 'ant')
NECK, HEAD = 'neck.lateral_convs.0.conv', 'roi_head.bbox_head.fc_cls'


def make(config, classes, **changes):
    torch.manual_seed(crc32(repr(classes).encode()))  # other values for other classes
    cfg = load_config(config, pretrained=False, cfg_options=changes)
    set_classes(cfg, classes)
    init_default_scope(cfg.default_scope)
    return MODELS.build(cfg.model)


def rows_of(model, config, classes, **changes):
    return find_class_rows(model, make(config, (*classes, 'one more'), **changes), len(classes))


def start(config, old, new, known=None, spoil=lambda state: None, **changes):
    """Return the tensors of the trained and the new model, the new before, the class rows, and the new model."""
    trained, model = make(config, old, **changes), make(config, new, **changes)
    before = values(model)
    state = trained.state_dict()
    spoil(state)
    rows = rows_of(model, config, new, **changes)
    start_model(model, dict(state_dict=state), 'file', rows, old if known is None else known, new)
    return trained.state_dict(), model.state_dict(), before, rows, model


def test_heads_of_anchors_have_rows_by_anchor():
    changes = {'model.backbone.arch': 'nano_12_p16', 'model.neck.in_channels': [128] * 3}
    old, got, before, rows, model = start('retinanet_xcit_s12_p16_coco', OLD, NEW, **changes)
    assert rows == {f'bbox_head.retina_cls.{kind}': ClassRows(0, 9, False, True) for kind in ('weight', 'bias')}
    assert ClassRows(0, 3, True, True).rows(1, 4) == [1, 6, 11]  # with a background, as SSD has
    # as mmdet reads them: places, anchors, classes
    trained, now, fresh = (state['bbox_head.retina_cls.weight'].unflatten(0, (9, -1)) for state in (old, got, before))
    assert torch.equal(now[:, 0], trained[:, 2]) and torch.equal(now[:, 2], trained[:, 0])
    assert torch.equal(now[:, [1, 3]], fresh[:, [1, 3]])
    assert '2 tensors of the classes' in model.weights_from and 'bird, DOG' in model.weights_from


def test_rows_of_softmax_boxes_and_masks():
    old, got, before, found, _ = start(TINY_CONFIG, OLD, NEW)
    for name, rows in found.items():
        trained, now, fresh = (state[name].unflatten(0, (-1, rows.each)) for state in (old, got, before))
        assert torch.equal(now[[0, 2]], trained[[2, 0]]), name
        assert torch.equal(now[[1, 3]], fresh[[1, 3]]), name
        assert not rows.background or torch.equal(now[4], trained[3])
    for name in got.keys() - found.keys():
        assert torch.equal(got[name], old[name]), name


def test_every_stage_and_auxiliary_head_is_found():
    cascade, upernet = 'cascade_maskrcnn_xcit_s12_p16_coco', 'upernet_xcit_n12_p16_ade20k'
    nano = {'model.backbone.arch': 'nano_12_p16', 'model.neck.in_channels': [128] * 4}
    found = rows_of(make(cascade, OLD, **nano), cascade, OLD, **nano)
    assert {f'roi_head.bbox_head.{stage}.fc_cls.weight' for stage in range(3)} < set(found)
    assert not any('fc_reg' in name for name in found)  # one box for all classes
    found = rows_of(make(upernet, OLD), upernet, OLD)
    assert {name.rpartition('.')[0] for name in found} == {'decode_head.conv_seg', 'auxiliary_head.conv_seg'}


def test_a_file_in_a_half_type_starts_a_model_in_float32():
    def halve(state):
        state.update({name: value.bfloat16() for name, value in state.items() if value.is_floating_point()})

    old, got, *_ = start(TINY_SEG_CONFIG, OLD, NEW, spoil=halve)
    trained, now = (state['decode_head.conv_seg.weight'] for state in (old, got))
    assert now.dtype == torch.float32 and torch.equal(now[[0, 2]], trained[[2, 0]].bfloat16().float())


def test_rows_that_fit_no_number_of_classes_belong_to_none():
    """Each of three classes has two rows here, and the background would have one."""
    assert find_class_rows(nn.Linear(8, 7), nn.Linear(8, 9), 3) == dict(weight=None, bias=None)
    assert find_class_rows(nn.Linear(8, 8), nn.Linear(8, 10), 3)['bias'] == ClassRows(0, 2, True, False)


@pytest.mark.parametrize('new, taken', ((OLD[::-1], True), (NEW, False)))
@pytest.mark.parametrize('known', ((), ('only', 'two')))
def test_a_file_without_names_or_with_those_of_another(known, new, taken):
    """Equal shapes are taken as they are, others start fresh."""
    trained, now, before, rows, model = start(TINY_SEG_CONFIG, OLD, new, known=known)
    for name in rows:
        assert torch.equal(now[name], (trained if taken else before)[name])
    # and the start block claims nothing else
    assert 'by name' not in model.weights_from and 'fish start fresh' not in model.weights_from
    assert f'{len(known)} names of classes in the file' in model.weights_from


def change(name, value=None):
    return lambda state: state.pop(name) if value is None else state.update({name: value})


@pytest.mark.parametrize('spoil, words', (
    (change(f'{NECK}.weight'), f'{NECK}.weight'), (change(f'{NECK}.bias', torch.ones(3)), '(3,) in the file'),
    (change(f'{HEAD}.weight'), f'missing in the file ({HEAD}.weight'), (change('more', torch.ones(1)), 'model (more'),
    (change(f'{HEAD}.weight', torch.ones(4, 8)), 'fc_cls.weight (4, 8)'),
    (change(f'{HEAD}.bias', torch.ones(4).long()), 'fc_cls.bias'),
    (change(f'{HEAD}.bias', torch.full((4, ), torch.nan)), 'NaN')))
def test_everything_else_must_fit(spoil, words):
    with rejects(words, 'init_cfg.checkpoint'):
        start(TINY_CONFIG, OLD, NEW, spoil=spoil)


def test_no_backbone_is_offered_out_of_a_file_that_has_none():
    def other(state):
        for name in [name for name in state if name.startswith('backbone.')]:
            del state[name]
        state['backbone.layer1.0.conv1.weight'] = torch.ones(4, 4, 1, 1)

    with rejects('holds no XCiT') as raised:
        start(TINY_CONFIG, OLD, NEW, spoil=other)
    assert 'init_cfg' not in str(raised.value)


@pytest.mark.parametrize('state', (dense_state, official_state))
def test_a_file_of_only_a_backbone_fills_the_backbone(state, tmp_path):
    """The file of a classifier, or of a backbone: neck and heads start fresh."""
    state, model = state(), make(TINY_CONFIG, NEW)
    path, before = save(tmp_path / 'backbone.pth', state), values(model)
    start_model(model, read_checkpoint(path), path, rows_of(model, TINY_CONFIG, NEW), (), NEW)
    taken = prefixed(state, 'backbone.')
    assert_equal(values(model), {name: taken.get(name, value) for name, value in before.items()})


@pytest.mark.parametrize('old, new, pairs', (
    (('a', 'b'), ('b', 'a', 'c'), {0: 1, 1: 0}),
    (('Person', 'car'), ('CAR', 'person'), {0: 1, 1: 0}),
    (('a', 'A'), ('A', 'x'), {0: 1}),  # the same to the letter goes first
    (('a', 'A'), ('á', 'a', 'A'), {1: 0, 2: 1}),
    (('Cat', 'CAT'), ('cat', ), {}),  # which of the two?
    (('cat', ), ('Cat', 'CAT'), {}),
    (('cat', 'dog'), ('cat', 'CAT'), {0: 0})))
def test_names_are_matched(old, new, pairs):
    assert match_classes(old, new) == pairs


def test_a_grey_image_looks_as_before():
    weight, grey = torch.randn(8, 3, 3, 3, dtype=torch.float64), torch.randn(1, 1, 9, 9, dtype=torch.float64)
    wanted = torch.nn.functional.conv2d(grey.expand(-1, 3, -1, -1), weight)
    for channels in (1, 2, 3, 4, 5, 6, 13):
        got = spread_channels(weight, channels)
        assert got.shape == (8, channels, 3, 3)
        assert_close([torch.nn.functional.conv2d(grey.expand(-1, channels, -1, -1), got)], [wanted], 1e-7, channels)


@pytest.mark.parametrize('channels', (1, 5))
def test_the_stem_is_spread_wherever_weights_start_a_model(channels, tmp_path):
    name = 'patch_embed.proj.0.0.weight'
    model, state = classifier(in_channels=channels), official_state()
    load_classifier(model, save(tmp_path / 'rgb.pth', state))
    assert torch.equal(model.state_dict()[name], spread_channels(state[name], channels))
    trained, model = make(TINY_CONFIG, OLD), make(TINY_CONFIG, OLD, **{'model.backbone.in_channels': channels})
    start_model(model, dict(state_dict=trained.state_dict()), 'file', rows_of(model, TINY_CONFIG, OLD), OLD, OLD)
    assert torch.equal(model.state_dict()[f'backbone.{name}'],
                       spread_channels(trained.state_dict()[f'backbone.{name}'], channels))
    with rejects('of another shape'):  # a whole model for a test must be just that
        load_model(model, dict(state_dict=trained.state_dict()), 'file')
