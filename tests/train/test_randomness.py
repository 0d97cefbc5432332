"""The random states of Python, NumPy and torch: saved, put back, kept apart, and the same after a resume."""
import pytest
import torch
from mmengine.hooks import Hook

from helpers.models import assert_equal
from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import NO_VALIDATION, SOURCES, disturb, draw, make_config, stop_after, train
from xcit_dense.errors import DataError
from xcit_dense.train.randomness import isolated_random_state, random_state, set_random_state
from xcit_dense.weights import newest_checkpoint, read_checkpoint


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
    for _ in range(700):  # both Mersenne twisters turn over, and the state that was returned is not theirs
        draw()
    set_random_state(state)
    assert draw() == wanted[0]


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
        kept = stop_after(2, cfg)['training']['loops'][0]
        assert kept['validated'] is None
        disturb()
    train(cfg, Save(), resume=resumed)
    assert_equal(states['saved']['random'], kept['random'] if resumed else states['before'], 'random')
    assert states['saved']['validated'] == 2


def test_a_resumed_run_that_saves_before_it_trains(demo_data, tmp_path):
    """Its first image cannot be read: the random numbers are those of the checkpoint still."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **NO_VALIDATION)
    kept = stop_after(1, cfg)['training']['loops'][0]
    path = newest_checkpoint(tmp_path)
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
