"""How the tests are run: in parts, by file in each process, and with a limit for their processor time."""
import re
import subprocess
import sys

import pytest

from helpers.suite import scaled_time
from helpers.tools import environment

pytestmark = pytest.mark.integration

TESTS = r'''
import os, pytest

@pytest.mark.parametrize('number', range(10))
def test_it(number):
    open('ran.txt', 'a').write(f'{__name__} {number} {os.getpid()}\n')
'''
BUSY = r'''
import subprocess, sys, time
WORK = 'import time\nwhile time.process_time() < {}: pass'

def test_quick():
    time.sleep(0.4)

def test_busy():
    exec(WORK.format(time.process_time() + 0.4))

def test_its_child_is_busy():
    subprocess.run([sys.executable, '-c', WORK.format(0.4)])
'''
MEASURED = r'''
from helpers import suite
from helpers.suite import *

def measured(known=suite._rates):
    open('measured.txt', 'a').write('.')
    return known()

suite._rates = measured
'''
EVERY = {f'test_{file} {number}' for file in 'ab' for number in range(10)}


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


def test_long_files_come_first_and_parts_have_each_test_once(suite, tmp_path):
    with open(tmp_path / 'test_b.py', 'a') as file:
        file.write('# longer\n')
    _, ran = suite()
    assert [*ran] == [f'test_{file} {number}' for file in 'ba' for number in range(10)]
    parts = [set(suite('--part', f'{part}/3')[1]) for part in (1, 2, 3)]
    assert set.union(*parts) == EVERY and sum(map(len, parts)) == len(EVERY) and all(parts)
    for wrong in ('4/3', '0/3', '2', 'a/b'):
        assert f'must be K/N with K from 1 to N, as in 2/3, got {wrong}' in suite('--part', wrong)[0]


@pytest.mark.parametrize('options', ((), ('-n', '2', '--dist', 'loadfile')))
def test_processor_time_is_limited(suite, tmp_path, options):
    """A file is run by one process, so that its fixtures are made once."""
    (tmp_path / 'test_busy.py').write_text(BUSY)
    said, ran = suite('--at-most', '0.3', '--all-at-most', '0.01', *options)
    assert {*re.findall(r'FAILED test_busy.py::(\w+) - Failed: 0\.\d s of processor time, more than 0.3', said)} == {
        'test_busy', 'test_its_child_is_busy'}
    assert '21 passed' in said and re.search('error: .* at most 0 s. Make tests cheaper', said) and suite.code
    said, _ = suite('test_a.py', '--all-at-most', '0.01', *options)
    assert '10 passed' in said and 'error: ' in said and suite.code == 1
    (tmp_path / 'conftest.py').write_text(MEASURED)
    said, ran = suite('--all-at-most', '9999', *options)
    assert '23 passed' in said and 'wanted: 9999 s, at most 11499 s\n' in said and suite.code == 0
    assert float(re.search(r'([\d.]+) s of processor time', said)[1]) >= 1
    assert (tmp_path / 'measured.txt').read_text() == '...'  # after each of three files
    for file in 'ab':
        assert len({process for name, process in ran.items() if name.startswith(f'test_{file}')}) == 1
    assert ran.keys() == EVERY and len(set(ran.values())) == (2 if options else 1)


def test_the_limit_is_for_a_core_of_a_certain_speed():
    """A moment in which the machine is slow, or fast, does not count."""
    assert scaled_time(600., [(110e9, 4.5e6), (1e9, 9e6), (120e9, 3e6)]) == (900., 110e9, 4.5e6)
    assert scaled_time(600., [(27.5e9, 4.5e6)])[0] == 300.
