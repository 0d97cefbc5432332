"""How the tests are run: long files first, one part of them if asked for, and with limits for the processor time."""
import argparse
import os
import time
from zlib import crc32

import numpy as np
import pytest
import torch

#: Float32 multiply-adds, and steps of Python, a second on a core of the processor that the limit for all tests is meant
#: for; and by how much it may be exceeded, as processors differ in more than that.
_RATE, _STEPS, _SLACK = 55e9, 3e6, 1.15
#: Processor time of processes that are no children of this one, and so are not in its own: see `two_processes`.
elsewhere = [0.]


def pytest_addoption(parser):
    parser.addoption('--part', type=_part, metavar='K/N', help='run only part K of N parts of the tests, as in 2/3')
    parser.addoption('--at-most', type=float, metavar='SECONDS', help='fail a test that needs more processor time')
    parser.addoption('--all-at-most', type=float, metavar='SECONDS', help='fail if all tests together need over 15 '
                     'percent more processor time, on a core of 55 G float32 multiply-adds or 3 M steps of Python a '
                     'second')


def _part(text):
    part, _, parts = text.partition('/')
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f'must be K/N with K from 1 to N, as in 2/3, got {text}')
    return int(part), int(parts)


@pytest.hookimpl(tryfirst=True)  # before --random-order
def pytest_collection_modifyitems(config, items):
    """Put files of many bytes first, which mostly take longest, so that all processes end together; keep one part."""
    items.sort(key=lambda item: (-item.path.stat().st_size, item.path))
    if config.option.part:
        part, parts = config.option.part
        kept = [item for item in items if crc32(item.nodeid.encode()) % parts == part - 1]  # the same if others come
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    start = _spent()
    result = yield
    seconds, limit = _spent() - start, item.config.option.at_most
    if limit is not None and seconds > limit:
        pytest.fail(f'{seconds:.1f} s of processor time, more than {limit:g}: make the test cheaper or mark it slow')
    return result


def _spent():
    return sum(os.times()[:4]) + sum(elsewhere)  # with that of children that have ended


def pytest_configure(config):
    config.pluginmanager.register(_ProcessorTime(config))


class _ProcessorTime:
    """Adds up the processor time of all processes, and fails the run if it is beyond the limit."""

    def __init__(self, config):
        self._config, self._of_others, self._said = config, 0., ''
        self._rates = []  # measured after each file, while other processes run, as the speed of a machine changes

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item, nextitem):
        if self._config.option.all_at_most is not None and (nextitem is None or nextitem.path != item.path):
            self._rates.append(_rates())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """Add that of a process of pytest-xdist."""
        output = getattr(node, 'workeroutput', {})
        self._of_others += output.get('processor_seconds', 0.)
        self._rates += output.get('rates', ())

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        limit = self._config.option.all_at_most
        if hasattr(self._config, 'workeroutput'):
            self._config.workeroutput.update(processor_seconds=_spent(), rates=self._rates)
        elif limit is not None:
            # the children of pytest-xdist have added their own
            seconds = self._of_others + sum(os.times()[:2]) if self._of_others else _spent()
            scaled, rate, steps = scaled_time(seconds, self._rates or [_rates()])
            self._said = (f'{seconds:.0f} s of processor time at {rate / 1e9:.0f} G multiply-adds and '
                          f'{steps / 1e6:.1f} M steps of Python a second on a core are {scaled:.0f} s at '
                          f'{_RATE / 1e9:.0f} G or {_STEPS / 1e6:g} M; wanted: {limit:g} s, at most '
                          f'{_SLACK * limit:.0f} s')
            if scaled > _SLACK * limit:
                self._said = (f'error: {self._said}. Make tests cheaper (--durations=40 lists the longest): share what '
                              'is trained, use smaller data, or mark them slow')
                session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self._said:
            terminalreporter.write_line(self._said, red=self._said.startswith('error'))


def scaled_time(seconds, rates):
    """Return the processor time on the core that the limit is for, with the medians of the `_rates` on this one."""
    rate, steps = np.median(rates, 0)
    # a core that multiplies twice as fast does not run the tests twice as fast, nor one that is fast at Python
    return seconds * min(rate / _RATE, steps / _STEPS), rate, steps


def _rates():
    """Return the multiply-adds and the steps of Python that one core does in a second."""
    matrix, threads, count = torch.ones(768, 768), torch.get_num_threads(), 15_000
    torch.set_num_threads(1)
    seconds = [min(_seconds(work) for _ in range(3)) for work in (lambda: matrix @ matrix, lambda: _count(count))]
    torch.set_num_threads(threads)
    return len(matrix)**3 / seconds[0], count / seconds[1]


def _seconds(work):
    start = time.process_time()
    work()
    return time.process_time() - start


def _count(steps):
    table = {}
    for number in range(steps):
        table[f'key {number % 997}'] = table.get(f'key {number % 91}', 0) + number
