"""How the tools end: 0, 1 for what a user can fix, 2 for options, 128 and the number of a signal for a stop."""
import signal
from argparse import Namespace
from importlib import import_module
from types import SimpleNamespace

import pytest

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense import errors
from xcit_dense.cli import common, tool_names
from xcit_dense.cli.test import _check_minima, _parse_minimum
from xcit_dense.train import runner as runner_module
from xcit_dense.weights import newest_checkpoint

#: What each tool cannot do without.
ARGUMENTS = dict(
    attention=('checkpoint', 'images', '--out', 'out'), benchmark=(), check_data=('config', ),
    classify=('checkpoint', 'images'), convert_checkpoint=('in', '--inspect'),
    export=('config', 'checkpoint', 'out.onnx'),
    gpu_report=('--out', 'out'),
    make_demo_data=('out', ), measure=('config', '--data-root', 'data'), plot_curves=('run', ),
    test=('config', 'checkpoint'), predict=('config', 'checkpoint', 'images', '--out', 'out'), train=('config', ))
#: What each error is made of; all others are made of their text.
ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not errors.Stopped]


def raising(error):

    def run(args):
        raise error

    return run


@pytest.mark.parametrize('name', tool_names())
def test_how_every_tool_ends(name, monkeypatch):
    module = import_module(f'xcit_dense.cli.{name}')
    seen = []
    for run, code, words in (
            (seen.append, 0, ''), (raising(errors.ConfigError('fix it')), 1, 'error: fix it\n'),
            (raising(errors.Stopped('saved', signal.SIGTERM)), 143, 'saved\n'),
            (raising(errors.Stopped('saved', signal.SIGINT)), 130, 'saved\n'),
            (raising(KeyboardInterrupt()), 130, 'stopped')):
        monkeypatch.setattr(module, '_run', run)
        done = run_tool(f'{name}.py', *ARGUMENTS[name], check=False)
        assert done.returncode == code and done.stdout.startswith(words) and done.stdout.count('\n') == bool(words)
        if words == 'stopped':
            assert ('--resume' in done.stdout) == (name == 'train')
    assert len(seen) == 1
    done = run_tool(f'{name}.py', *ARGUMENTS[name], '--no-such-option', check=False)
    assert done.returncode == 2 and '--no-such-option' in done.stdout
    if ARGUMENTS[name]:
        assert run_tool(f'{name}.py', check=False).returncode == 2


@pytest.mark.parametrize('kind', ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_of_the_package_is_one_message(kind):
    with pytest.raises(SystemExit) as end:
        common.run_tool(raising(kind('what to do')), Namespace())
    assert end.value.code == 'error: what to do'  # which Python prints, and ends with 1


def test_mistakes_of_the_code_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        common.run_tool(raising(ZeroDivisionError()), Namespace())


@pytest.mark.parametrize('run, code', ((lambda args: None, None),
                                       (raising(errors.Stopped('saved', signal.SIGTERM)), 143)))
def test_a_run_that_ends_in_order_leaves_its_group(run, code, monkeypatch):
    from xcit_dense import processes
    left = []
    monkeypatch.setattr(processes, 'leave_group', lambda: left.append(True))
    try:
        common.run_tool(run, Namespace())
    except SystemExit as end:
        assert end.code == code
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
    minima = [_parse_minimum(text) for text in asked]
    if missed is None:
        return _check_minima(metrics, minima)
    with pytest.raises(errors.MetricError) as error:
        _check_minima(metrics, minima)
    assert missed in str(error.value)
    if missed not in metrics:
        assert all(name in str(error.value) for name in metrics or ['none'])


@pytest.mark.parametrize('text', ('mIoU', 'mIoU=', 'mIoU=nan', 'mIoU=high', '=', 'mIoU=1=2'))
def test_minima_that_are_none(text):
    with pytest.raises(errors.ConfigError, match=f'--at-least accepts METRIC=VALUE.*{text!r}'):
        _parse_minimum(text)


@pytest.mark.parametrize('value, code', ((NAN, 1), (0.4699, 1), (0.47, 0), (0.48, 0)))
def test_the_test_tool_ends_with_what_the_metrics_reach(value, code, demo_data, tmp_path, monkeypatch):
    metrics = {'coco/bbox_mAP': value, 'coco/segm_mAP': 0.3}
    monkeypatch.setattr(runner_module, 'build_runner', lambda cfg: SimpleNamespace(test=lambda: metrics, hooks=[]))
    monkeypatch.setattr('xcit_dense.weights.read_checkpoint', lambda path: dict(meta=dict(dataset_meta={})))
    monkeypatch.setattr('xcit_dense.data.classes.take_classes', lambda *_, **__: None)
    done = run_tool('test.py', TINY_CONFIG, 'a.pth', '--data-root', demo_data, '--work-dir', tmp_path, '--at-least',
                    'coco/segm_mAP=0.3', 'coco/bbox_mAP=0.47', check=False)
    assert done.returncode == code and 'Traceback' not in done.stdout
    assert ('coco/bbox_mAP' in done.message) == bool(code)
