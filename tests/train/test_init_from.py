"""Trainings that begin with a model of other classes: what they start with, what they say, how they go on."""
import json
import re

import pytest
import torch
from mmengine.config import Config

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import NO_VALIDATION, At, assert_same_run, make_config, stop_after, terminate, train
from helpers.tools import run_tool
from xcit_dense.data.demo import make_demo_data
from xcit_dense.errors import CheckpointError, Stopped
from xcit_dense.train import build_runner, init_from
from xcit_dense.weights import best_checkpoint, newest_checkpoint, read_checkpoint, zoo

BOXES = 'roi_head.bbox_head.fc_cls.weight'


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
                    ['--init-from', 'b.pth', '--cfg-options', 'load_from=a.pth'],
                    ['--init-from', 'b.pth', '--cfg-options', 'init_from=a.pth'],
                    ['--no-pretrained', '--cfg-options', 'init_from=a.pth']):
        code, message = call_tool(*args, *options)
        assert code == 1 and 'both set the weights' in message, options
        assert options[0] in message and options[-1].partition('=')[0] in message
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
    assert 'maskrcnn_tiny_12_p16' in zoo.WEIGHTS and init_from.match_classes(old, ('Person', )) == {0: 0}


def test_class_names_that_are_numbers(trained, root, tmp_path):
    """As COCO files may have them; and a checkpoint of another tool."""
    state = read_checkpoint(newest_checkpoint(trained[0]))['state_dict']
    torch.save(dict(state_dict=state, meta=dict(dataset_meta=dict(classes=[1, 2, 3, 4, 5]))), tmp_path / 'old.pth')
    rename_classes(root, (5, 4, 3, 2, 1))
    got, _ = begin(make_config(TINY_CONFIG, root, tmp_path / 'run', init_from=str(tmp_path / 'old.pth')))
    assert torch.equal(got[BOXES][:5], state[BOXES][:5].flip(0))
