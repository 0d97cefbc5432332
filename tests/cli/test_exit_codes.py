"""How the tools end: 0, 1 for what a user can fix, 2 for options, 128 and the number of a signal for a stop."""
import errno
from argparse import Namespace
from unittest.mock import Mock

import pytest
from cli.test_arguments import LEAST
from docs.documented import module_of

from helpers.paths import TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense import errors
from xcit_dense._utils import processes
from xcit_dense.cli import common, tool_names
from xcit_dense.cli.test import _check_minima, minimum
from xcit_dense.weights import newest_checkpoint

ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not errors.Stopped]


@pytest.mark.parametrize('name', tool_names())
def test_how_every_tool_ends(name, monkeypatch):
    module, arguments, seen, left = module_of(name), LEAST[name][0].split(), [], []
    monkeypatch.setattr(processes, 'leave_group', lambda: left.append(True))
    for run, code, words in (
            (seen.append, 0, ''), (Mock(side_effect=errors.ConfigError('fix it')), 1, 'error: fix it\n'),
            (Mock(side_effect=KeyboardInterrupt), 130, 'stopped')):
        monkeypatch.setattr(module, '_run', run)
        done = run_tool(f'{name}.py', *arguments, check=False)
        assert done.returncode == code and done.stdout.startswith(words) and done.stdout.count('\n') == bool(words)
        if words == 'stopped':
            assert ('--resume' in done.stdout) == (name == 'train')
        assert left == [True]  # also a run that ends in order
    assert len(seen) == 1
    done = run_tool(f'{name}.py', *arguments, '--no-such-option', check=False)
    assert done.returncode == 2 and '--no-such-option' in done.stdout


def test_every_error_of_the_package_is_one_message():
    """And one of the disk; mistakes of the code keep their traceback."""
    for error, words in ((*((kind('what to do'), 'error: what to do') for kind in ERRORS),
                          (OSError(errno.ENOSPC, 'No space left', 'a.pth'), 'error: cannot read or write a.pth: No sp'),
                          (OSError(errno.EACCES, 'Denied'), 'error: cannot read or write the results: Denied. Check'))):
        with pytest.raises(SystemExit) as end:
            common.run_tool(Mock(side_effect=error), Namespace())
        assert end.value.code.startswith(words), error  # which Python prints, and ends with 1
    for error in (ZeroDivisionError(), OSError(errno.ENOENT, 'No such file')):
        with pytest.raises(type(error)):
            common.run_tool(Mock(side_effect=error), Namespace())


@pytest.mark.parametrize('number, code', (('SIGINT', 130), ('SIGTERM', 143)))
def test_a_training_that_is_told_to_stop(number, code, demo_data, tmp_path, monkeypatch):
    left = []
    monkeypatch.setattr(processes, 'leave_group', lambda: left.append(True))
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = '{TINY_SEG_CONFIG}'\n"
                      "custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmseg', 'helpers.rank_dump'])\n"
                      f"custom_hooks = [dict(type='SignalHook', rank=0, iteration=1, number='{number}')]\n")
    done = run_tool('train.py', config, '--data-root', demo_data, '--work-dir', tmp_path / 'run', '--no-pretrained',
                    check=False)
    assert done.returncode == code and left == [True] and 'Traceback' not in done.stdout
    assert newest_checkpoint(tmp_path / 'run').name == 'iter_1.pth'
    last = done.stdout.splitlines()[-1]
    assert number in last and str(tmp_path / 'run/iter_1.pth') in last and '--resume' in last


@pytest.mark.parametrize('metrics, asked, missed', (
    (dict(mIoU=44.), 'mIoU=44', None), (dict(mIoU=44.), 'mIoU=44.0001', 'mIoU'), (dict(mIoU=-1.), 'mIoU=-1', None),
    (dict(mIoU=float('nan')), 'mIoU=-inf', 'mIoU'), (dict(mIoU=44., aAcc=80.), 'mIoU=44 aAcc=80', None),
    (dict(mIoU=44., aAcc=80.), 'mIoU=45 aAcc=80', 'mIoU'), (dict(mIoU=44., aAcc=80.), 'mIoU=44 aAcc=81', 'aAcc'),
    (dict(mIoU=44., aAcc=80.), 'mAcc=0', 'mAcc'), ({}, 'mAcc=0', 'mAcc'), ({}, '', None)))
def test_minima(metrics, asked, missed):
    minima = [minimum(text) for text in asked.split()]
    if missed is None:
        return _check_minima(metrics, minima)
    with pytest.raises(errors.MetricError) as error:
        _check_minima(metrics, minima)
    assert missed in str(error.value)
    if missed not in metrics:
        assert all(name in str(error.value) for name in metrics or ['none'])


@pytest.mark.parametrize('tool, args, words', (
    ('train', 'c --lrr 1', 'did you mean --lr instead of --lrr'),
    ('test', 'c w --image-sizes=64', 'did you mean --image-size instead of --image-sizes'),
    ('train', '--cfg-options a=1 mine.py', 'including mine.py: put it before'),
    ('train', '--train-annotations a.json mine.py', '--train-annotations reads the words after it: put it last'),
    ('train', 'c --dataroot /tmp', '--dataroot /tmp; did you mean --data-root instead of --dataroot?\n'),
    ('test', 'c w --at-least mAP', "--at-least: invalid minimum value: 'mAP'"),
    ('test', '--report w', '--report reads the word after it: put it last'),
    ('train', 'c /tmp', 'did you mean --data-root /tmp?'),
    ('train', 'c --no-such-thing-at-all', 'unrecognized arguments: --no-such-thing-at-all\n')))
def test_options_that_are_misspelt_or_swallow_the_config(tool, args, words, call_tool):
    code, message = call_tool(f'{tool}.py', *args.split())
    assert code == 2 and words in message
