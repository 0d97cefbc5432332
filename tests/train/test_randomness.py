"""The random states of Python, NumPy and torch: saved, put back, kept apart, and the same after a resume."""
import os
import random
import signal

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook

from helpers.models import assert_equal
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import make_config, train
from xcit_dense.errors import DataError, Stopped
from xcit_dense.train.randomness import isolated_random_state, random_state, set_random_state
from xcit_dense.weights import newest_checkpoint, read_checkpoint

#: What draws from a generator of its own, or from what it keeps: both normals are drawn in pairs, one of them kept.
SOURCES = dict(python=random.random, python_gauss=lambda: random.gauss(0, 1), numpy=np.random.rand,
               numpy_gauss=np.random.randn, torch=lambda: torch.rand(()).item(),
               torch_normal=lambda: torch.randn(()).item())


def draw():
    """One number of every source."""
    return {name: float(source()) for name, source in SOURCES.items()}


def disturb():
    """Leave every generator with another state, at another position, with another number kept."""
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    draw()


@pytest.mark.parametrize('drawn', (0, 1, 2))  # of 1 a normal number is kept
def test_states_go_round(drawn, tmp_path):
    """Through a file that is read without pickles too."""
    for _ in range(drawn):
        draw()
    state = random_state()
    assert state['numpy']['has_gauss'] == drawn % 2 == int(state['python']['gauss'] is not None)
    wanted = [draw() for _ in range(3)]
    assert len({tuple(numbers.values()) for numbers in wanted}) == 3
    torch.save(state, tmp_path / 'state.pth')
    for back in (state, torch.load(tmp_path / 'state.pth', weights_only=True)):
        disturb()
        set_random_state(back)
        assert [draw() for _ in range(3)] == wanted


def test_a_state_is_not_changed_by_what_is_drawn_after():
    state = random_state()
    wanted = draw()
    for _ in range(700):  # both Mersenne twisters turn over
        draw()
    set_random_state(state)
    assert draw() == wanted


@pytest.mark.parametrize('drawn', (0, 1))
@pytest.mark.parametrize('fails', (False, True))
def test_isolated_numbers_change_nothing_outside(drawn, fails):
    for _ in range(drawn):
        draw()
    state = random_state()
    wanted = [draw() for _ in range(3)]
    set_random_state(state)
    try:
        with isolated_random_state(1, 2, 3):
            disturb()
            assert not fails, 'to see what an error leaves'
    except AssertionError:
        assert fails
    assert [draw() for _ in range(3)] == wanted


def test_isolated_numbers_depend_on_every_seed_number_alone():

    def inside(*seed):
        with isolated_random_state(*seed):
            return draw()

    first = inside(1, 2, 3)
    disturb()
    assert inside(1, 2, 3) == first  # a normal number that was kept outside is none inside
    others = [inside(*seed) for seed in ((0, 2, 3), (1, 0, 3), (1, 2, 0), (3, 2, 1), (1, 2, 2**40))]
    for name in SOURCES:
        assert len({numbers[name] for numbers in (first, *others)}) == 1 + len(others), name


class Draw(Hook):
    """Draw from every source at every iteration, and during validation, as a model or a hook of a user's might."""

    def __init__(self, stop=None, during='train'):
        self.drawn, self.stop, self.during = {}, stop, during

    def after_train_iter(self, runner, *_, **__):
        self.drawn[runner.iter + 1] = draw()
        if self.during == 'train' and runner.iter + 1 == self.stop:
            os.kill(os.getpid(), signal.SIGTERM)

    def after_val_iter(self, runner, batch_idx, *_, **__):
        draw()
        if self.during == 'val' and (runner.iter, batch_idx) == (self.stop, 1):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope='module')
def drawn_in_whole_run(demo_data, tmp_path_factory):
    """A function that gives what a run that nothing stopped draws at each iteration."""
    known = {}

    def drawn(config):
        if config not in known:
            whole = Draw()
            train(make_config(config, demo_data, tmp_path_factory.mktemp('whole')), whole)
            known[config] = whole.drawn
        return known[config]

    return drawn


@pytest.mark.parametrize(('config', 'last', 'stop', 'during', 'evaluates'), (
    (TINY_CONFIG, 6, 2, 'train', True), (TINY_SEG_CONFIG, 4, 1, 'train', True), (TINY_SEG_CONFIG, 4, 2, 'val', True),
    (TINY_SEG_CONFIG, 4, 3, 'train', False)))
def test_every_generator_goes_on_where_the_run_stopped(config, last, stop, during, evaluates, demo_data, tmp_path,
                                                       drawn_in_whole_run):
    """After an odd number of draws a normal number is kept; validation draws and changes nothing."""
    changes = {} if evaluates else dict(val_cfg=None, val_dataloader=None, val_evaluator=None)
    before, after = Draw(stop, during), Draw()
    cfg = make_config(config, demo_data, tmp_path / 'run', **changes)
    with pytest.raises(Stopped):
        train(cfg, before)
    if during == 'val':  # a second time at the same place
        with pytest.raises(Stopped):
            train(cfg, again := Draw(stop, during), resume=True)
        assert again.drawn == {}
    disturb()
    train(cfg, after, resume=True)
    assert list(before.drawn) == list(range(1, stop + 1)) and list(after.drawn) == list(range(stop + 1, last + 1))
    assert {**before.drawn, **after.drawn} == drawn_in_whole_run(config)


@pytest.mark.parametrize('resumed', (False, True))
def test_what_hooks_save_in_validation_is_where_the_training_stands(resumed, demo_data, tmp_path):
    """With the random numbers of before, and not to be validated again."""
    states, cfg = {}, make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'train_cfg.max_iters': 2})

    class Save(Hook):

        def before_val(self, runner):
            states['before'] = random_state()
            disturb()

        def after_val_epoch(self, runner, metrics):
            states['saved'] = runner.train_loop.state_dict()

    if resumed:
        with pytest.raises(Stopped):
            train(cfg, Draw(stop=2))
        kept = read_checkpoint(newest_checkpoint(tmp_path))['training']['loops'][0]
        assert kept['validated'] is None
        disturb()
    train(cfg, Save(), resume=resumed)
    assert_equal(states['saved']['random'], kept['random'] if resumed else states['before'], 'random')
    assert states['saved']['validated'] == 2


def test_a_resumed_run_that_saves_before_it_trains(demo_data, tmp_path):
    """Its first image cannot be read: the random numbers are those of the checkpoint still."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, val_cfg=None, val_dataloader=None, val_evaluator=None)
    with pytest.raises(Stopped):
        train(cfg, Draw(stop=1))
    path = newest_checkpoint(tmp_path)
    kept = read_checkpoint(path)['training']['loops'][0]
    path.rename(tmp_path / 'kept.pth')

    class Unreadable(Hook):

        def before_train(self, runner):
            dataset = runner.train_dataloader.dataset.inner.inner
            dataset.__class__ = type('Unreadable', (type(dataset), ), {})  # has no items
            type(dataset).__getitem__ = None
            disturb()

    with pytest.raises(DataError, match='Saved .*iter_1.pth'):
        train(cfg, Unreadable(), resume=True)
    assert_equal(read_checkpoint(path)['training']['loops'][0], kept, 'training')
