"""Trainings that begin with a model of other classes: rows by class name, the rest strictly; how they go on."""
import json
import re
from argparse import Namespace
from zlib import crc32

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from helpers.models import assert_close, assert_equal, build, dense_state, official_state, prefixed, save
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import NO_VALIDATION, At, assert_same_run, make_config, stop_after, terminate, train
from helpers.tools import run_tool
from helpers.weight_files import classifier, rejects, values
from xcit_dense.cli.train import _check_start
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import set_classes
from xcit_dense.data.demo import make_demo_data
from xcit_dense.errors import CheckpointError, Stopped
from xcit_dense.train import build_runner
from xcit_dense.train.init_from import ClassRows, find_class_rows, match_classes, start_model
from xcit_dense.weights import (
    best_checkpoint,
    load_backbone,
    load_classifier,
    load_model,
    newest_checkpoint,
    read_checkpoint,
    zoo,
)
from xcit_dense.weights.load import spread_channels

BOXES = 'roi_head.bbox_head.fc_cls.weight'
OLD, NEW = ('dog', 'cat', 'bird'), ('bird', 'fish', 'DOG', 'ant')
NECK, HEAD = 'neck.lateral_convs.0.conv', 'roi_head.bbox_head.fc_cls'


def rename_classes(root, names):
    for path in root.glob('annotations/instances_*.json'):
        content = json.loads(path.read_text())
        for category, name in zip(content['categories'], names, strict=True):
            category['name'] = name
        path.write_text(json.dumps(content))


@pytest.fixture(scope='module')
def other_data(tmp_path_factory):
    """Three classes, of which one has another case."""
    root = tmp_path_factory.mktemp('other')
    make_demo_data(root, num_train=6, num_val=3, size=64, classes=('star', 'disc', 'cross'))
    (root / 'classes.txt').write_text('background\nstar\nmoon\nCross\n')
    rename_classes(root, ('star', 'moon', 'Cross'))
    return root


def begin(cfg):
    """Return the state of the model before its first step, and the runner."""
    found = {}

    def look(runner):
        found.update({name: value.clone() for name, value in runner.model.state_dict().items()})
        terminate(runner)

    runner = build_runner(cfg)
    runner.register_hook(At(1, look, where='before_train_iter'))
    runner.register_hook(At(1, lambda _: pytest.fail('it may be of other classes'), where='after_load_checkpoint'))
    with pytest.raises(Stopped):
        runner.train()
    return found, runner


def test_a_detector_of_other_classes(trained, other_data, tmp_path):
    old = read_checkpoint(best_checkpoint(trained[0]))['state_dict']
    got, runner = begin(make_config(TINY_CONFIG, other_data, tmp_path, init_from=str(trained[0]),
                                    **{'model.rpn_head.anchor_generator.scales': [3, 6]}))
    classes = ('disc', 'square', 'triangle', 'star', 'cross')
    assert torch.equal(got[BOXES][0], old[BOXES][classes.index('star')])
    assert torch.equal(got[BOXES][2], old[BOXES][classes.index('cross')])  # Cross
    assert torch.equal(got[BOXES][3], old[BOXES][5])  # the background
    assert not any(torch.equal(got[BOXES][1], row) for row in old[BOXES])
    for name in ('backbone.blocks.0.gamma1', 'rpn_head.rpn_conv.weight'):
        assert torch.equal(got[name], old[name])
    rows = 'rpn_head.rpn_cls.weight'  # of the anchors, of which there are twice as many
    assert len(got[rows]) == 2 * len(old[rows]) and not torch.equal(got[rows][:len(old[rows])], old[rows])
    assert not runner.resumes and runner.iter == 1


def test_the_tool_and_what_it_says(trained_segmentor, other_data, tmp_path):
    weights, args = trained_segmentor[0], (TINY_SEG_CONFIG, '--data-root', other_data, '--work-dir', tmp_path)
    said = run_tool('train.py', *args, '--init-from', weights, '--cfg-options', 'train_cfg.max_iters=1',
                    # of parts are not fetched: they would be replaced
                    'model.backbone.init_cfg.type=Pretrained',
                    'model.backbone.init_cfg.checkpoint=/not/there.pth').stdout
    assert re.search(r'conv_seg.weight: rows of background, star, Cross\b.* taken .*moon start fresh', said)
    assert re.search(r'\nweights .*iter_4\.pth .*2 tensors of the classes: .*star', said)
    dumped = Config.fromfile(tmp_path / TINY_SEG_CONFIG.name, import_custom_modules=False)
    assert dumped.init_from == str(weights) and dumped.load_from is None
    # what was dumped is a config again, also for a test, which takes its own weights
    run_tool('test.py', tmp_path / TINY_SEG_CONFIG.name, tmp_path, '--data-root', other_data)
    # and a run that goes on takes nothing from where it began
    said = run_tool('train.py', *args, '--init-from', 'not_there.pth', '--resume', '--cfg-options',
                    'train_cfg.max_iters=2').stdout
    assert 'iteration 1' in said and 'start fresh' not in said


@pytest.mark.slow
def test_stopped_and_resumed_is_the_same(trained_segmentor, other_data, tmp_path):
    """Without the weights that the run began with. Averages begin with the model, not with those of other classes."""
    old = read_checkpoint(newest_checkpoint(trained_segmentor[0]))
    old['ema_state_dict'] = {f'module.{name}': value for name, value in old['state_dict'].items()}
    old['ema_state_dict']['steps'] = torch.tensor(9)
    torch.save(old, weights := tmp_path / 'weights.pth')
    changes = {**NO_VALIDATION, 'init_from': str(weights), 'custom_hooks': [dict(type='EMAHook')]}
    with pytest.raises(CheckpointError, match='decode_head.conv_seg'):  # load_from is for the same classes
        train(make_config(TINY_SEG_CONFIG, other_data, tmp_path / 'strict', load_from=str(weights)))
    whole, cfg = (make_config(TINY_SEG_CONFIG, other_data, tmp_path / name, **changes) for name in ('whole', 'run'))
    wanted = train(whole)
    assert wanted['ema_state_dict']['steps'] == 4
    stop_after(2, cfg)
    weights.unlink()
    assert_same_run(train(cfg, resume=True), wanted)


def test_the_random_numbers_of_a_run_are_those_without(trained_segmentor, demo_data, tmp_path):
    """With the same classes it is what load_from does, to the last bit, which goes before weights of the config."""
    weights = str(newest_checkpoint(trained_segmentor[0]))
    starts = dict(a=dict(init_from=weights), b=dict(load_from=weights, init_from='not_there.pth'))
    assert_same_run(*(train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path / name, **start, **NO_VALIDATION))
                      for name, start in starts.items()))


def test_two_starts_are_an_error(trained_segmentor, demo_data, tmp_path, call_tool):
    """As are another kind of model, and an address that does not answer; its error names the way out."""
    args = 'train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path / 'run'
    for options in (['--init-from', 'b.pth', '--no-pretrained'],
                    ['--no-pretrained', '--cfg-options', 'init_from=a.pth'],
                    *(['--init-from', 'b.pth', '--cfg-options', f'{key}=a.pth'] for key in ('load_from', 'init_from'))):
        code, message = call_tool(*args, *options)
        assert code == 1 and 'both set the weights' in message, options
        assert options[0] in message and options[-1].partition('=')[0] in message
    # it has its weights
    _check_start(Namespace(init_from='a', no_pretrained=True, cfg_options={}, resume='auto', minutes=None))
    code, message = call_tool(*args, '--init-from', trained_segmentor[0])
    assert code == 1 and 'decode_head' in message and 'init_cfg.checkpoint' in message
    code, message = call_tool(*args, '--init-from', 'https://127.0.0.1:9/a.pth')
    assert code == 1 and 'cannot fetch' in message
    assert message.rstrip().endswith('To train without it, omit --init-from or load_from, or use --no-pretrained')


def test_published_models_have_known_classes(trained, other_data, tmp_path, monkeypatch):
    """Their files name none: those of COCO."""
    calls = []
    monkeypatch.setattr('xcit_dense.train.init_from.start_model', lambda *args: calls.append(args))
    state = read_checkpoint(newest_checkpoint(trained[0]))['state_dict']
    torch.save(dict(state_dict=state), tmp_path / 'published.pth')
    monkeypatch.setattr('xcit_dense.train.runner.fetch', lambda *_: tmp_path / 'published.pth')
    begin(make_config(TINY_CONFIG, other_data, tmp_path / 'run', init_from='xcit://maskrcnn_tiny_12_p16'))
    (_, _, _, rows, old, new), = calls
    assert len(old) == 80 and old[0] == 'person' and new == ('star', 'moon', 'Cross') and len(rows) == 6
    assert 'maskrcnn_tiny_12_p16' in zoo.WEIGHTS and match_classes(old, ('Person', )) == {0: 0}


def test_class_names_that_are_numbers(trained, root, tmp_path):
    """As COCO files may have them; and a checkpoint of another tool."""
    state = read_checkpoint(newest_checkpoint(trained[0]))['state_dict']
    torch.save(dict(state_dict=state, meta=dict(dataset_meta=dict(classes=[1, 2, 3, 4, 5]))), tmp_path / 'old.pth')
    rename_classes(root, (5, 4, 3, 2, 1))
    got, _ = begin(make_config(TINY_CONFIG, root, tmp_path / 'run', init_from=str(tmp_path / 'old.pth')))
    assert torch.equal(got[BOXES][:5], state[BOXES][:5].flip(0))


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
    old, got, *_ = start(TINY_SEG_CONFIG, OLD, NEW, spoil=lambda state: state.update(
        {name: value.bfloat16() for name, value in state.items() if value.is_floating_point()}))
    trained, now = (state['decode_head.conv_seg.weight'] for state in (old, got))
    assert now.dtype == torch.float32 and torch.equal(now[[0, 2]], trained[[2, 0]].bfloat16().float())


def test_rows_that_fit_no_number_of_classes_belong_to_none():
    """Each of three classes has two rows here, and the background would have one."""
    assert find_class_rows(nn.Linear(8, 7), nn.Linear(8, 9), 3) == dict(weight=None, bias=None)
    assert find_class_rows(nn.Linear(8, 8), nn.Linear(8, 10), 3)['bias'] == ClassRows(0, 2, True, False)


@pytest.mark.parametrize('old, new, taken', ((OLD, NEW, False), ((), NEW, True), (OLD, (), True), (OLD, OLD, True)))
def test_tensors_of_unknown_rows_start_fresh_where_both_names_are_known(old, new, taken):
    model, other = nn.Linear(8, 7), nn.Linear(8, 7)
    before, rows = model.weight.clone(), dict(weight=None, bias=None)
    start_model(model, dict(state_dict=other.state_dict()), 'file', rows, old, new)
    assert torch.equal(model.weight, other.weight if taken else before)


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
        if channels == 5:
            assert torch.equal(got[:, 0], weight[:, 0] / 2) and torch.equal(got[:, 4], weight[:, 1] / 2)
            assert torch.equal(got[:, 2], weight[:, 2])


@pytest.mark.parametrize('channels', (1, 5))
def test_the_stem_is_spread_wherever_weights_start_a_model(channels, tmp_path):
    name = 'patch_embed.proj.0.0.weight'
    for kind, load, state in ((build, load_backbone, dense_state()), (classifier, load_classifier, official_state())):
        model = kind(in_channels=channels)
        load(model, save(tmp_path / 'rgb.pth', state))
        assert torch.equal(model.state_dict()[name], spread_channels(state[name], channels))
    trained, model = make(TINY_CONFIG, OLD), make(TINY_CONFIG, OLD, **{'model.backbone.in_channels': channels})
    start_model(model, dict(state_dict=trained.state_dict()), 'file', rows_of(model, TINY_CONFIG, OLD), OLD, OLD)
    assert torch.equal(model.state_dict()[f'backbone.{name}'],
                       spread_channels(trained.state_dict()[f'backbone.{name}'], channels))
    with rejects('of another shape'):  # a whole model for a test must be just that
        load_model(model, dict(state_dict=trained.state_dict()), 'file')
