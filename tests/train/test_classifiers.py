"""Trainings of classifiers through mmpretrain: exact resume of all that is drawn at random."""
import pytest

from helpers.paths import TINY_CLS_CONFIG
from helpers.runs import assert_same_run, make_config, stop_after, train

pytest.importorskip('mmpretrain')
pytestmark = pytest.mark.filterwarnings('ignore')


@pytest.fixture(scope='module')
def whole(class_folders, tmp_path_factory):
    """The end of the run that nothing stopped."""
    return train(make_config(TINY_CLS_CONFIG, class_folders, tmp_path_factory.mktemp('whole')))


@pytest.mark.parametrize(('stop', 'workers'), ((2, 2), (3, 0)))
def test_stopped_and_resumed_is_the_same_to_the_last_bit(stop, workers, whole, class_folders, tmp_path):
    """RandAugment, erasing, mixing, repeated augmentation and the average, with workers too, and nano's class token."""
    assert whole['meta']['iter'] == 6 and whole['ema_state_dict']['steps'] == 6
    cfg = make_config(TINY_CLS_CONFIG, class_folders, tmp_path, workers)
    stop_after(stop, cfg)
    cfg.randomness = dict(seed=None)  # it is the checkpoint's
    assert_same_run(train(cfg, resume=True), whole)
