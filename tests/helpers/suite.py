"""Options of pytest for this suite: one part of the tests, and a limit for the processor time of each."""
import os
from itertools import filterfalse
from zlib import crc32

import pytest


def pytest_addoption(parser):
    parser.addoption('--part', metavar='K/N', help='run only part K of N parts of the tests, for example 2/3')
    parser.addoption('--at-most', type=float, metavar='SECONDS', help='fail a test that needs more processor time')


def pytest_collection_modifyitems(config, items):
    """Keep the tests of one part. Their names choose it, so that it stays the same when others are added."""
    if config.option.part:
        part, parts = map(int, config.option.part.split('/'))
        if not 1 <= part <= parts:
            raise pytest.UsageError(f'--part {config.option.part}: must be from 1/{parts} to {parts}/{parts}')

        def is_left_out(item):
            return crc32(item.nodeid.encode()) % parts != part - 1

        config.hook.pytest_deselected(items=[*filter(is_left_out, items)])
        items[:] = filterfalse(is_left_out, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    start = sum(os.times()[:4])  # with that of processes that it starts
    result = yield
    seconds, limit = sum(os.times()[:4]) - start, item.config.option.at_most
    if limit is not None and seconds > limit:
        pytest.fail(f'{seconds:.1f} s of processor time, more than {limit:g}: make the test cheaper or mark it slow')
    return result
