"""The states of all random number generators: save, restore, isolate."""
import random
from contextlib import contextmanager

import numpy as np
import torch


def random_state() -> dict:
    """Return the states of Python's, NumPy's and torch's generators as tensors and numbers."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
    state = dict(
        python=dict(version=version, words=torch.tensor(words), gauss=gauss),
        numpy=dict(keys=torch.from_numpy(keys.astype(np.int64)), position=position, has_gauss=has_gauss,
                   cached=float(cached)),
        torch=torch.get_rng_state())
    if torch.cuda.is_available():
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict):
    """Restore what `random_state` returned."""
    python, numpy = state['python'], state['numpy']
    random.setstate((python['version'], tuple(python['words'].tolist()), python['gauss']))
    np.random.set_state(('MT19937', numpy['keys'].numpy().astype(np.uint32), numpy['position'], numpy['has_gauss'],
                         numpy['cached']))
    torch.set_rng_state(state['torch'].cpu())
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'].cpu())


@contextmanager
def kept_random_state():
    """Context in which code may draw random numbers that a training must not miss."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


@contextmanager
def isolated_random_state(*seed: int):
    """Context whose random numbers depend only on ``seed`` and change nothing outside.

    The generators of GPUs are not isolated: code in this context belongs to a data set or draws nothing on a GPU.
    """
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        a, b, c, d = np.random.SeedSequence(seed).generate_state(4).tolist()
        random.seed(a)
        np.random.seed(b)
        torch.default_generator.manual_seed(c << 32 | d)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
