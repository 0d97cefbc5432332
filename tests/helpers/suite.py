"""Time of this suite: what its processes leave out, and options for one part of the tests and a limit for each."""
import argparse
import functools
import gc
import os
from importlib import metadata
from itertools import filterfalse
from types import SimpleNamespace
from zlib import crc32

import pytest
from mmengine.config import config
from mmengine.dataset import base_dataset
from mmengine.runner import loops, runner
from yapf.yapflib import yapf_api

from xcit_dense.compat import versions


def leave_out_waiting(patch):
    """Leave out what takes most of the time of a tiny training and changes no result."""
    for module in (yapf_api, config):  # mmengine's fork uses the first, the original the second
        patch.setattr(module, 'FormatCode', lambda text, **style: (text, True), raising=False)
    patch.setattr(base_dataset, 'gc', SimpleNamespace(collect=int))  # of all imports, for each data set
    patch.setattr(runner, 'collect_env', functools.cache(runner.collect_env))
    patch.setattr(loops, 'time', SimpleNamespace(sleep=lambda seconds: None))  # 2 s before each pass over the data
    patch.setattr(versions, 'metadata', SimpleNamespace(  # read from a file each time
        version=functools.cache(metadata.version), PackageNotFoundError=metadata.PackageNotFoundError))
    gc.collect()
    gc.freeze()


def pytest_addoption(parser):
    parser.addoption('--part', type=_part, metavar='K/N', help='run only part K of N parts of the tests, as in 2/3')
    parser.addoption('--at-most', type=float, metavar='SECONDS', help='fail a test that needs more processor time')


def _part(text):
    part, _, parts = text.partition('/')
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f'must be K/N with K from 1 to N, as in 2/3, got {text}')
    return int(part), int(parts)


@pytest.hookimpl(tryfirst=True)  # a random order is made after it
def pytest_collection_modifyitems(config, items):
    """Put long files first, so that no process waits for another, and keep the tests of one part.

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
