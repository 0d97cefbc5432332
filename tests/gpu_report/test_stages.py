"""Stages: each check in a process that may end in any way, results that are merged and survive, the page, the tool."""
import json
import os

import pytest

from helpers.tools import run_process, run_tool
from xcit_dense.errors import ConfigError
from xcit_dense.gpu_report import page, plots, stages
from xcit_dense.gpu_report.checks import Outcome, Setting

ARGUMENTS = '--device', 'cpu', '--tiny'
ENDS = dict(passes='passed', fails='FAILED', raises='FAILED', dies='FAILED', hangs='FAILED',
            hangs_later='measured', dies_later='FAILED', raises_later='FAILED', measures='measured',
            cannot='not possible')


@pytest.fixture(autouse=True)
def own_stages(monkeypatch):
    """Stages whose checks end in every way."""
    monkeypatch.setattr(stages, 'STAGES', dict(first=('The first', 'helpers.report_checks'),
                                               second=('The second', 'helpers.report_checks')))
    monkeypatch.setattr(page, 'STAGES', stages.STAGES)


def write(out, names, **values):
    """Write results of the first stage as a run leaves them."""
    out.mkdir(exist_ok=True)
    result = dict(Outcome(True, 'as before').as_dict(), machine=dict(device='a card', torch='2.11'), seconds=1.,
                  title='It passes', device='cpu', tiny=True, date='2026-01-01 00:00', command='earlier')
    (out / stages.FILE).write_text(json.dumps(dict(first={name: dict(result, **values) for name in names})))


@pytest.mark.integration
def test_every_end_is_a_result_and_the_next_check_runs(tmp_path):
    write(tmp_path, ['of an earlier run'])
    lines = []
    results = stages.run_stages(Setting('cpu', True, tmp_path), stages.choose(['first'], []), 8, 'command',
                                lines.append)
    assert results == stages.read(tmp_path)  # whatever was kept reads as it was
    found = results['first']
    assert found.pop('of an earlier run')['text'] == 'as before'
    assert {name: stages.word_of(result) for name, result in found.items()} == ENDS
    assert found['passes']['rows'][1] == dict(what='b', limit=3) and found['passes']['facts']['gpus'] == ''
    assert found['raises']['text'] == 'ValueError: wrong'
    assert 'in two lines' in (tmp_path / 'errors/first_raises.txt').read_text()
    assert 'died (exit code 3)' in found['dies']['text'] and 'stopped after 30 s' in found['hangs']['text']
    for name, words in (('hangs_later', 'stopped after 30 s; one of two'), ('raises_later', 'ValueError: wrong'),
                        ('dies_later', 'its process died (exit code 3); its output is above; one of two')):
        assert found[name]['text'] == words and found[name]['rows'] == [dict(what='a')]  # what it found before
    with pytest.raises(ProcessLookupError):  # what a stopped check started has ended too
        os.kill(int((tmp_path / 'child').read_text()), 0)
    # checks share a process until one ends it
    assert found['passes']['facts']['process'] == found['fails']['facts']['process'] != (
        found['measures']['facts']['process'])
    assert found['passes']['command'] == 'command' and found['passes']['machine']['torch']
    assert len([line for line in lines if line.startswith('first ')]) == len(ENDS)


def test_a_stage_whose_time_is_over_loses_nothing(tmp_path):
    """What was never run is reported as such; an earlier result stays."""
    write(tmp_path, ['passes'])
    lines = []
    results = stages.run_stages(Setting('cpu', True, tmp_path), stages.choose(['first'], ['passes', 'fails']), 0,
                                'command', lines.append)
    assert results['first']['passes']['text'] == 'as before' and 'stays' in ' '.join(lines)
    assert stages.word_of(results['first']['fails']) == 'not run'
    assert stages.read(tmp_path) == results
    run_tool('gpu_report.py', '--out', tmp_path / 'out', *ARGUMENTS, '--checks', 'passes', '--minutes', 1e-9,
             check=False)
    assert 'the 1e-09 minutes of the stage were over' in (tmp_path / 'out' / page.PAGE).read_text()


@pytest.mark.integration
def test_the_tool_ends_with_1_and_the_names_of_what_failed(tmp_path):
    done = run_tool('gpu_report.py', '--out', tmp_path, *ARGUMENTS, '--stages', 'first', 'second', '--checks', 'passes',
                    'fails', check=False)
    assert done.returncode == 1 and '2 checks failed: fails, fails' in done.message and page.PAGE in done.message
    text = (tmp_path / page.PAGE).read_text()
    assert 'python -m xcit_dense gpu_report --out' in text and 'gpu_report gpu_report' not in text
    assert '## The first' in text and '## The second' in text
    done = run_tool('gpu_report.py', '--out', tmp_path, *ARGUMENTS, '--stages', 'second', '--checks', 'cannot')
    found = stages.read(tmp_path)
    assert list(found['first']) == ['passes', 'fails'] and list(found['second']) == ['passes', 'fails', 'cannot']
    assert f'wrote {tmp_path / page.PAGE}' in done.stdout


def test_the_checks_are_listed(tmp_path):
    done = run_tool('gpu_report.py', '--out', tmp_path / 'out', '--list', '--checks', 'hangs', 'dies')
    assert done.stdout.count('    hangs ') == 2 and 'It dies' in done.stdout and 'passes' not in done.stdout
    assert 'The second' in done.stdout and not (tmp_path / 'out').exists()


@pytest.mark.parametrize('args, words', (
    (['--stages', 'frist'], 'first'), (['--checks', 'pases'], 'did you mean passes?'),
    (['--checks', 'zzz'], 'there are passes, fails'), (['--data', 'nowhere'], 'nowhere'),
    (['--minutes', '0'], '--minutes must be above 0, got 0'), (['--overwrite'], 'another --out'), ([], '--overwrite')))
def test_what_is_refused(args, words, tmp_path):
    write(tmp_path, ['passes'])
    done = run_tool('gpu_report.py', '--out', tmp_path, '--device', 'cpu', *args, check=False)
    assert done.returncode == 1 and words in done.message and 'Traceback' not in done.stdout


def test_results_of_another_device_are_not_mixed(tmp_path):
    write(tmp_path, ['passes'], device='cuda', tiny=False)
    with pytest.raises(ConfigError, match='--device cuda'):
        stages.check_same(stages.read(tmp_path), Setting('cpu', True, tmp_path))
    stages.check_same(stages.read(tmp_path), Setting('cuda', False, tmp_path))
    stages.check_same({}, Setting('cpu', True, tmp_path))


def test_the_page_says_how_each_check_ended(tmp_path, monkeypatch):
    write(tmp_path, ['passes', 'raises'], rows=[dict(what='a', error='1e-7'), dict(what='b', limit=3)])
    results = stages.read(tmp_path)
    results['first']['raises'].update(passed=False, text='ValueError: wrong', machine=None, rows=[])

    def plot(found, file):
        assert found is results
        file.write_bytes(b'png')
        return True

    monkeypatch.setattr(plots, 'PLOTS', {'a_plot.png': plot, 'without.png': lambda *_: False})
    assert page.write_page(results, tmp_path) == [tmp_path / page.PAGE, tmp_path / 'a_plot.png']
    text = (tmp_path / page.PAGE).read_text()
    assert 'device a card; torch 2.11' in text and '**Tiny models' in text
    assert 'FAILED' in text.partition('## The first')[0].split('raises')[1].splitlines()[0]
    assert 'not run' in text.partition('## The first')[0].split('measures')[1].splitlines()[0]
    assert 'Passed: as before' in text and 'Failed: ValueError: wrong' in text
    assert '![a plot](a_plot.png)' in text and 'without' not in text and '`earlier`' in text
    table = [line for line in text.splitlines() if line.startswith(('| a', '| b'))]
    assert ['1e-7' in line for line in table] == [True, False] and '3' in table[1]
    assert '## The second' not in text
    results['first']['passes']['tiny'] = results['first']['raises']['tiny'] = False
    assert '**Tiny' not in page.markdown(results)


@pytest.mark.integration
def test_a_whole_check_through_the_tool(tmp_path):
    """With the stages of the package, in a process of its own, as a user runs it."""
    done = run_process('gpu_report.py', '--out', tmp_path, *ARGUMENTS, '--stages', 'right', '--checks', 'golden')
    assert 'passed' in done.stdout
    assert stages.read(tmp_path)['right']['golden']['passed'] is True
