"""Checks that end in every way: each is a result, the others run, and nothing that was found is lost."""
import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial

import pytest

from gpu.checking import Check
from gpu.page import NOT_RUN, Results
from gpu.tools import MARGIN, ToolError, Tools, complaint
from helpers.paths import ROOT
from helpers.tools import environment

CHECKS = '''"""Ends of every kind."""
import os, subprocess, sys, time
import pytest
pytestmark = pytest.mark.gpu

def test_passes(check):
    """It passes."""
    check.judge([], f'on the {check.device}', [dict(what='a', error='1e-7'), dict(what='b', limit=3)])

def test_fails(check):
    """It fails."""
    check.judge(['beyond its limit'], '', [dict(what='a')])

def test_raises(check):
    """It raises."""
    check.record('one of two', [dict(what='a')])
    raise ValueError('wrong\\nin two lines')

def test_dies(check):
    """It dies."""
    check.record('one of two', [dict(what='a')])
    os._exit(3)

@pytest.mark.minutes(MINUTES)
def test_hangs(check):
    """It hangs, with a process of its own, as a training has workers."""
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
    check.record(str(child.pid), [dict(what='a')])
    time.sleep(600)

def test_cannot(check):
    """It cannot."""
    pytest.skip('no such device')
'''


@pytest.fixture
def run(tmp_path):
    """A function that runs the checks of ``run.folder`` as a user does: code, output, results by stage and name."""
    def run(*words):
        done = subprocess.run([sys.executable, '-m', 'pytest', '-m', 'gpu', 'tests', f'--gpu-out={tmp_path}', *words],
                              cwd=run.folder.parent, env=environment(), text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        file = tmp_path / 'gpu_report.json'
        return done.returncode, done.stdout, json.loads(file.read_text()) if file.exists() else {}

    run.folder = tmp_path / 'project/tests'
    run.folder.mkdir(parents=True)
    shutil.copy(ROOT / 'pyproject.toml', run.folder.parent)
    shutil.copy(ROOT / 'tests/gpu/conftest.py', run.folder)
    (run.folder / 'test_right.py').write_text(CHECKS.replace('MINUTES', '1'))
    return run


@pytest.mark.integration
def test_every_end_is_a_result_and_the_next_check_runs(run, tmp_path):
    cpu = '--gpu-device', 'cpu', '--tiny'
    code, said, found = run(*cpu, '-k', 'not hangs')
    assert code == 1, said
    # however busy the machine is: three times as long as the slowest, and a CPU gets ten times the minutes
    minutes = 3 * max(result['seconds'] for result in found['right'].values()) / 60 / 10
    (run.folder / 'test_right.py').write_text(CHECKS.replace('MINUTES', f'{minutes:.3f}'))
    code, said, both = run(*cpu, '-k', 'hangs')
    assert code == 1 and found['right'].items() <= both['right'].items(), said
    found = both['right']
    assert {name: result['outcome'] for name, result in found.items()} == dict(
        passes='passed', fails='failed', raises='failed', dies='failed', hangs='failed', cannot='skipped'), said
    assert found['passes']['text'] == 'on the cpu' and found['passes']['machine']['torch']
    assert found['fails']['text'] == 'beyond its limit' and found['cannot']['text'] == 'no such device'
    assert found['raises']['text'] == 'ValueError: wrong; one of two'
    assert 'in two lines' in (tmp_path / 'logs/right_raises.txt').read_text()
    assert 'died (exit code 3)' in found['dies']['text'] and found['dies']['text'].endswith('; one of two')
    assert found['hangs']['text'].startswith('stopped after ')
    assert all(found[name]['rows'] == [dict(what='a')] for name in ('fails', 'raises', 'dies', 'hangs'))
    with pytest.raises(ProcessLookupError):  # what a stopped check started has ended too
        for _ in range(200):  # the system may take a moment
            os.kill(int(found['hangs']['text'].split()[-1]), 0)
            time.sleep(0.05)
    page = (tmp_path / 'gpu_report.md').read_text()
    assert '## Ends of every kind' in page and '### `fails`: It fails\n\nFailed: beyond its limit' in page
    assert '**Tiny models' in page and 'Not possible: no such device' in page and 'torch 2' in page

    # another run keeps what it has no time for
    code, said, again = run(*cpu, '-k', 'passes or fails', '--minutes', '1e-9')
    assert code == 0 and again['right'] == found and 'not run (0 s): the 1e-09 minutes were over' in said
    code, said, _ = run(*cpu, '--gpu-data', 'nowhere')
    assert code == 4 and 'no folder nowhere' in said


@pytest.mark.integration
def test_without_a_gpu_they_are_skipped(run, monkeypatch):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    code, said, found = run('-rs')
    assert code == 0 and '6 skipped' in said and 'there is no GPU' in said
    assert {result['outcome'] for result in found.get('right', {}).values()} <= {'not run'}


def test_the_page_says_how_each_check_ended(tmp_path):
    """What has not been run replaces no earlier result."""
    results = Results(tmp_path, 'cpu', True, ['-m', 'gpu'], 1e-9)
    over = dict(outcome=NOT_RUN, text='the time was over', rows=[], facts={}, seconds=0)
    for name in 'ab':
        results.expect('right', name, 'Ends', f'It is {name}')
    results.add('right', 'a', dict(over, outcome='passed', text='x', rows=[dict(what=1, limit=2), dict(what=3)]))
    for name in 'ab':
        results.add('right', name, over)
    page = (tmp_path / 'gpu_report.md').read_text()
    assert '### `a`: It is a\n\nPassed: x' in page and '### `b`: It is b\n\nNot run: the time was over' in page
    again = Results(tmp_path, 'cpu', True, [], 5)
    assert again.found == results.found and len(again.write_page(with_plots=True)) == 2
    for args, words in ((('cuda', True, [], 5), r'results of another kind \(--gpu-device cpu --tiny\)'),
                        (('cpu', False, [], 5), 'another kind'), (('cpu', True, [], 0), 'must be above 0')):
        with pytest.raises(pytest.UsageError, match=words):
            Results(tmp_path, *args)


def test_the_last_error_of_a_tool_is_told():
    assert complaint('start\nerror: no GPU\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n'
                     '====\n') == 'error: no GPU'
    assert complaint('Traceback\n  File "x"\nRuntimeError: a\ntorch.OutOfMemoryError: b\nbye\n') == (
        'torch.OutOfMemoryError: b')
    assert complaint('one\nKilled\n\n') == 'Killed' and complaint('') == ''


@pytest.mark.integration
def test_tools_that_fail_hang_or_end_early(tmp_path):
    check = Check('cpu', True, tmp_path, tmp_path / 'found.json')
    run = Tools(check, 'short').run
    with pytest.raises(ToolError, match=r'^wrong: error: --train must be 1 or more, not 0$'):
        run('wrong', 'make_demo_data', tmp_path / 'x', '--train', 0)
    with pytest.raises(ToolError, match='^early: the run was over before it could be stopped'):
        run('early', 'make_demo_data', tmp_path / 'y', '--train', 1, '--val', 1, '--size', 16, until=lambda: False)
    late = Tools(Check('cpu', True, tmp_path, tmp_path / 'found.json', end=time.monotonic() + MARGIN + 0.5), 'late')
    with pytest.raises(ToolError, match='^slow: stopped, as the time of the check was over'):
        late.run('slow', 'make_demo_data', tmp_path / 'z', '--train', 10**5)
    assert (tmp_path / 'logs/short_wrong.txt').read_text().startswith('error: --train')
    done = Tools(check, 'all').together(dict(a=lambda: 1, b=partial(late.run, 'slow', 'make_demo_data'), c=lambda: 3))
    assert done[0] == dict(a=1, c=3) and 'the time of the check was over' in done[1][0]
