"""What the stages that measure share: the rates of the device, and as many measurements as there is time for."""
import gc
import time
from functools import cache

import torch

from ..benchmark.cells import DTYPES
from ..benchmark.costs import copy_rate, matrix_rate
from ..text import first_line, listed
from .checks import Outcome

#: What everything is measured in.
DTYPE = 'bfloat16'


@cache
def rates() -> dict:
    """Return ``'matrix'``, multiply-adds per second, and ``'copy'``, bytes per second, measured once in a process."""
    return dict(matrix=matrix_rate(DTYPES[DTYPE]), copy=copy_rate())


def describe(rates) -> str:
    """Return `rates` in words."""
    return f'measured: {rates["matrix"] / 1e12:.3g} T multiply-adds/s, copies {rates["copy"] / 1e9:.4g} GB/s'


def in_time(setting, jobs, outcome_of) -> Outcome:
    """Run jobs one after the other as long as there is time for another like the longest so far.

    Args:
        setting: The `Setting`.
        jobs: Pairs of a label and a function.
        outcome_of: Function to the outcome from the results of the jobs, and a list of sentences about what is
            missing: errors, and labels that there was no time for. The outcome so far is kept after each job, so that
            a job that takes too long costs only itself.

    Raises:
        RuntimeError: An error after which the GPU cannot be used in this process.
    """
    found, missing, longest = [], [], 0
    for place, (label, call) in enumerate(jobs):
        start = time.monotonic()
        if start + 1.3 * longest > setting.end:
            missing.append(_no_time_for(jobs[place:]))
            break
        try:
            found.append(call())
        except torch.AcceleratorError:
            raise
        except RuntimeError as error:  # one of them does not cost the others
            missing.append(f'{label} failed: {first_line(error)}')
        if setting.is_cuda:
            gc.collect()  # compiled models refer to themselves
            torch.cuda.empty_cache()
        longest = max(longest, time.monotonic() - start)
        if place + 1 < len(jobs):
            setting.keep(outcome_of(found, [*missing, _no_time_for(jobs[place + 1:])]))
    return outcome_of(found, missing)


def _no_time_for(jobs):
    return f'no time for {listed((label for label, _ in jobs), len(jobs))}'
