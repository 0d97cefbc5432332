"""Mistakes at the command line end in one message."""
import pytest

from helpers.paths import MAIN_CONFIG, SMALL_CONFIG
from helpers.tools import run_tool


@pytest.mark.parametrize('tool, args, words', (
    ('train.py', ['configs/nothing.py'], 'there is no config'),
    ('train.py', [MAIN_CONFIG, '--data-root', 'nowhere'], 'missing'),
    ('test.py', [SMALL_CONFIG, 'no.pth', '--data-root', '{data}'], 'there is no file'),
    ('test.py', [SMALL_CONFIG, 'no.pth', '--data-root', '{data}', '--at-least', 'mAP'], "got 'mAP'"),
    ('predict.py', [MAIN_CONFIG, 'no.pth', '{data}', '--out', 'x'], 'there is no file'),
    ('predict.py', [MAIN_CONFIG, 'no.pth', '{data}', '--out', 'x', '--score-thr', '30'], 'from 0 to 1, got 30'),
    ('predict.py', [MAIN_CONFIG, 'no.pth', 'nowhere', '--out', 'x'], 'there is no image or folder'),
    ('plot_curves.py', ['nowhere'], 'no log of a training run'),
))
def test_mistakes_end_in_one_message(tool, args, words, demo_data, tmp_path, monkeypatch, call_tool):
    monkeypatch.chdir(tmp_path)
    code, message = call_tool(tool, *(demo_data if a == '{data}' else a for a in args))
    assert code == 1 and message.startswith('error: ') and words in message


def test_tools_run_without_the_checkout_as_working_folder(tmp_path):
    run_tool('make_demo_data.py', tmp_path / 'data', '--train', 1, '--val', 1, '--size', 48, cwd=tmp_path)
    assert (tmp_path / 'data/annotations/instances_val2017.json').is_file()


@pytest.mark.parametrize('tool, args, words', (
    ('train.py', ['c', '--lrr', '1'], 'did you mean --lr instead of --lrr'),
    ('test.py', ['c', 'w', '--image-sizes=64'], 'did you mean --image-size instead of --image-sizes'),
    ('predict.py', ['c', 'w', 'i', '--out', 'o', '--overwite'], 'did you mean --overwrite'),
    ('check_data.py', ['c', '--data-rot', 'd'], 'did you mean --data-root'),
    ('classify.py', ['w', 'i', '--tpo', '3'], 'did you mean --top instead of --tpo'),
    ('train.py', ['--cfg-options', 'a=1', 'mine.py'], 'including mine.py: put CONFIG'),
    ('train.py', ['c', '--no-such-thing-at-all'], 'unrecognized arguments: --no-such-thing-at-all\n')))
def test_options_that_are_misspelt_or_swallow_the_config(tool, args, words, call_tool):
    code, message = call_tool(tool, *args)
    assert code == 2 and words in message
