"""How the tests are run: long files first, one part of them if asked for, and with a limit for the processor time."""
import argparse
import os
from itertools import filterfalse
from zlib import crc32

import pytest


def pytest_addoption(parser):
    parser.addoption('--part', type=_part, metavar='K/N', help='run only part K of N parts of the tests, as in 2/3')
    parser.addoption('--at-most', type=float, metavar='SECONDS', help='fail a test that needs more processor time')


def _part(text):
    part, _, parts = text.partition('/')
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f'must be K/N with K from 1 to N, as in 2/3, got {text}')
    return int(part), int(parts)


@pytest.hookimpl(tryfirst=True)  # before --random-order
def pytest_collection_modifyitems(config, items):
    """Put files of many bytes first, which mostly take longest, so that all processes end together; keep one part.

    Their names choose the part, so that it stays the same when others are added.
    """
    items.sort(key=lambda item: (-item.path.stat().st_size, item.path))
    if config.option.part:
        part, parts = config.option.part

        def is_left_out(item):
            return crc32(item.nodeid.encode()) % parts != part - 1

        config.hook.pytest_deselected(items=[*filter(is_left_out, items)])
        items[:] = filterfalse(is_left_out, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    start = sum(os.times()[:4])  # with that of processes that it started and that have ended
    result = yield
    seconds, limit = sum(os.times()[:4]) - start, item.config.option.at_most
    if limit is not None and seconds > limit:
        pytest.fail(f'{seconds:.1f} s of processor time, more than {limit:g}: make the test cheaper or mark it slow')
    return result
