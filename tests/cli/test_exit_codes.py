"""How the tools end: 0, 1 for what a user can fix, 2 for options, 128 and the number of a signal for a stop."""
import signal
from argparse import Namespace

import pytest
from docs.documented import module_of

from helpers.paths import TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense import errors
from xcit_dense._utils import processes
from xcit_dense.cli import common, tool_names
from xcit_dense.cli.test import _check_minima, minimum
from xcit_dense.weights import newest_checkpoint

#: What each tool cannot do without.
ARGUMENTS = dict(
    adapt='config', attention='checkpoint images --out out', benchmark='', check_data='config',
    classify='checkpoint images',
    convert_checkpoint='in --inspect', export='config checkpoint out.onnx', make_demo_data='out',
    measure='config --data-root data', plot_curves='run', test='config checkpoint',
    predict='config checkpoint images --out out', train='config')
#: What each error is made of; all others are made of their text.
ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not errors.Stopped]


def raising(error):

    def run(args):
        raise error

    return run


@pytest.mark.parametrize('name', tool_names())
def test_how_every_tool_ends(name, monkeypatch):
    module, arguments, seen = module_of(name), ARGUMENTS[name].split(), []
    for run, code, words in ((seen.append, 0, ''), (raising(errors.ConfigError('fix it')), 1, 'error: fix it\n'),
                             (raising(KeyboardInterrupt()), 130, 'stopped')):
        monkeypatch.setattr(module, '_run', run)
        done = run_tool(f'{name}.py', *arguments, check=False)
        assert done.returncode == code and done.stdout.startswith(words) and done.stdout.count('\n') == bool(words)
        if words == 'stopped':
            assert ('--resume' in done.stdout) == (name == 'train')
    assert len(seen) == 1
    done = run_tool(f'{name}.py', *arguments, '--no-such-option', check=False)
    assert done.returncode == 2 and '--no-such-option' in done.stdout


def test_every_error_of_the_package_is_one_message():
    for kind in ERRORS:
        with pytest.raises(SystemExit) as end:
            common.run_tool(raising(kind('what to do')), Namespace())
        assert end.value.code == 'error: what to do', kind  # which Python prints, and ends with 1
    with pytest.raises(ZeroDivisionError):  # mistakes of the code keep their traceback
        common.run_tool(raising(ZeroDivisionError()), Namespace())


@pytest.mark.parametrize('run, code', ((lambda args: None, None),
                                       (raising(errors.Stopped('saved', signal.SIGINT)), 130),
                                       (raising(errors.Stopped('saved', signal.SIGTERM)), 143)))
def test_a_run_that_ends_in_order_leaves_its_group(run, code, monkeypatch, capsys):
    left = []
    monkeypatch.setattr(processes, 'leave_group', lambda: left.append(True))
    try:
        common.run_tool(run, Namespace())
    except SystemExit as end:
        assert end.code == code and capsys.readouterr().err == 'saved\n'
    else:
        assert code is None
    assert left == [True]


@pytest.mark.parametrize('number, code', (('SIGINT', 130), ('SIGTERM', 143)))
def test_a_training_that_is_told_to_stop(number, code, demo_data, tmp_path):
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = '{TINY_SEG_CONFIG}'\n"
                      "custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmseg', 'helpers.rank_dump'])\n"
                      f"custom_hooks = [dict(type='SignalHook', rank=0, iteration=1, number='{number}')]\n")
    done = run_tool('train.py', config, '--data-root', demo_data, '--work-dir', tmp_path / 'run', '--no-pretrained',
                    check=False)
    assert done.returncode == code and 'Traceback' not in done.stdout
    assert newest_checkpoint(tmp_path / 'run').name == 'iter_1.pth'
    last = done.stdout.splitlines()[-1]
    assert number in last and str(tmp_path / 'run/iter_1.pth') in last and '--resume' in last


NAN = float('nan')


@pytest.mark.parametrize('metrics, asked, missed', (
    (dict(mIoU=44.), ['mIoU=44'], None), (dict(mIoU=44.), ['mIoU=44.0001'], 'mIoU'),
    (dict(mIoU=43.9999), ['mIoU=44'], 'mIoU'), (dict(mIoU=44.), ['mIoU=1'], None),
    (dict(mIoU=NAN), ['mIoU=0'], 'mIoU'), (dict(mIoU=NAN), ['mIoU=-inf'], 'mIoU'),
    (dict(mIoU=-1.), ['mIoU=-1'], None), (dict(mIoU=-1.), ['mIoU=0'], 'mIoU'),
    (dict(mIoU=44., aAcc=80.), ['mIoU=44', 'aAcc=80'], None),
    (dict(mIoU=44., aAcc=80.), ['mIoU=45', 'aAcc=80'], 'mIoU'),
    (dict(mIoU=44., aAcc=80.), ['mIoU=44', 'aAcc=81'], 'aAcc'),
    (dict(mIoU=44., aAcc=NAN), ['mIoU=44', 'aAcc=0'], 'aAcc'),
    (dict(mIoU=44.), ['mAcc=0'], 'mAcc'), ({}, ['mAcc=0'], 'mAcc'), ({}, [], None)))
def test_minima(metrics, asked, missed):
    minima = [minimum(text) for text in asked]
    if missed is None:
        return _check_minima(metrics, minima)
    with pytest.raises(errors.MetricError) as error:
        _check_minima(metrics, minima)
    assert missed in str(error.value)
    if missed not in metrics:
        assert all(name in str(error.value) for name in metrics or ['none'])


@pytest.mark.parametrize('tool, args, words', (
    ('train', 'configs/nothing.py', 'there is no config'),
    ('train', 'maskrcnn_xcit_s12_p8_coco --data-root nowhere', 'there is no folder'),
    ('test', 'maskrcnn_xcit_n12_p16_small no.pth --data-root DATA', 'there is no file'),
    ('predict', 'maskrcnn_xcit_s12_p8_coco no.pth DATA --out x', 'there is no file'),
    ('predict', 'maskrcnn_xcit_s12_p8_coco no.pth DATA --out x --score-thr 30', 'from 0 to 1, got 30'),
    ('predict', 'maskrcnn_xcit_s12_p8_coco no.pth nowhere --out x', 'there is no image or folder'),
    ('plot_curves', 'nowhere', 'no log of a training run')))
def test_mistakes_end_in_one_message(tool, args, words, demo_data, tmp_path, monkeypatch, call_tool):
    monkeypatch.chdir(tmp_path)
    code, message = call_tool(f'{tool}.py', *args.replace('DATA', str(demo_data)).split())
    assert code == 1 and message.startswith('error: ') and words in message


@pytest.mark.parametrize('tool, args, words', (
    ('train', 'c --lrr 1', 'did you mean --lr instead of --lrr'),
    ('test', 'c w --image-sizes=64', 'did you mean --image-size instead of --image-sizes'),
    ('predict', 'c w i --out o --overwite', 'did you mean --overwrite'),
    ('check_data', 'c --data-rot d', 'did you mean --data-root'),
    ('classify', 'w i --tpo 3', 'did you mean --top instead of --tpo'),
    ('train', '--cfg-options a=1 mine.py', 'including mine.py: put it before'),
    ('train', '--train-annotations a.json mine.py', '--train-annotations reads the words after it: put it last'),
    ('train', 'c --dataroot /tmp', '--dataroot /tmp; did you mean --data-root instead of --dataroot?\n'),
    ('test', 'c w --at-least mAP', "--at-least: invalid minimum value: 'mAP'"),
    ('train', 'c /tmp', 'did you mean --data-root /tmp?'),
    ('train', 'c --no-such-thing-at-all', 'unrecognized arguments: --no-such-thing-at-all\n')))
def test_options_that_are_misspelt_or_swallow_the_config(tool, args, words, call_tool):
    code, message = call_tool(f'{tool}.py', *args.split())
    assert code == 2 and words in message
