"""How the tests are run: in parts, by file in each process, and with a limit for their processor time."""
import re
import subprocess
import sys

import pytest

from helpers.tools import environment

pytestmark = pytest.mark.integration

TESTS = '''
import os, pytest

@pytest.mark.parametrize('number', range(10))
def test_it(number):
    open('ran.txt', 'a').write(f'{__name__} {number} {os.getpid()}\\n')
'''
BUSY = '''
import subprocess, sys, time

def spend(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def test_quick():
    time.sleep(0.4)

def test_busy():
    spend(0.4)

def test_its_child_is_busy():
    subprocess.run([sys.executable, '-c', 'import time\\nwhile time.process_time() < 0.4: pass'])
'''


@pytest.fixture
def suite(tmp_path):
    """A function that runs pytest on two small files; it returns the output, and the name and process of each test."""
    (tmp_path / 'conftest.py').write_text('from helpers.suite import *')
    for name in ('test_a.py', 'test_b.py'):
        (tmp_path / name).write_text(TESTS)

    def run(*options):
        (tmp_path / 'ran.txt').write_text('')
        done = subprocess.run([sys.executable, '-m', 'pytest', *options], cwd=tmp_path, env=environment(COLUMNS=200),
                              text=True, capture_output=True)
        run.code = done.returncode
        ran = [line.rsplit(maxsplit=1) for line in (tmp_path / 'ran.txt').read_text().splitlines()]
        return done.stdout + done.stderr, dict(ran)

    return run


def test_long_files_come_first(suite, tmp_path):
    with open(tmp_path / 'test_b.py', 'a') as file:
        file.write('# longer\n')
    _, ran = suite()
    assert [*ran] == [f'test_{file} {number}' for file in 'ba' for number in range(10)]


def test_parts_have_each_test_once(suite):
    every = {f'test_{file} {number}' for file in 'ab' for number in range(10)}
    parts = [set(suite('--part', f'{part}/3')[1]) for part in (1, 2, 3)]
    assert set.union(*parts) == every and sum(map(len, parts)) == len(every) and all(parts)
    for wrong in ('4/3', '0/3', '2', '1/0', 'a/b'):
        assert f'must be K/N with K from 1 to N, as in 2/3, got {wrong}' in suite('--part', wrong)[0]


def test_processor_time_is_limited(suite, tmp_path):
    (tmp_path / 'test_busy.py').write_text(BUSY)
    said, _ = suite('--at-most', '0.3')
    assert re.findall(r'FAILED test_busy.py::(\w+) - Failed: 0\.\d s of processor time, more than 0.3', said) == [
        'test_busy', 'test_its_child_is_busy']
    assert '22 passed' not in said and '21 passed' in said


@pytest.mark.parametrize('options', ((), ('-n', '2')))
def test_processor_time_of_all_tests_is_limited(suite, tmp_path, options):
    (tmp_path / 'test_busy.py').write_text(BUSY)
    for limit, words in (('0.01', 'are wanted. Make tests cheaper'), ('9999', '9999 are wanted\n')):
        said, _ = suite('--all-at-most', limit, *options)
        assert '23 passed' in said and words in said and suite.code == (limit == '0.01')
        assert float(re.search(r'([\d.]+) s of processor time', said)[1]) >= 1


def test_a_file_is_run_by_one_process(suite):
    """So that its fixtures are made once. Marks for groups did nothing with some versions of pytest-xdist."""
    _, ran = suite('-n', '2', '--dist', 'loadfile')
    for file in 'ab':
        assert len({process for name, process in ran.items() if name.startswith(f'test_{file}')}) == 1
    assert len(set(ran.values())) == 2
