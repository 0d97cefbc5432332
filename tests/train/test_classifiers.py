"""Trainings of classifiers through mmpretrain: exact resume of all that is drawn at random."""
import pytest
import torch
from mmengine.hooks import Hook

from helpers.paths import TINY_CLS_CONFIG
from helpers.runs import assert_same_run, make_config, stop_after, train

pytest.importorskip('mmpretrain')
pytestmark = pytest.mark.filterwarnings('ignore')


class Look(Hook):
    """The names and pixels of the images of a run, and its parameters at the start."""

    def before_train(self, runner):
        self.names, self.pictures = [], []
        self.parameters = {key: value.detach().clone() for key, value in runner.model.named_parameters()}

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.names.extend(sample.img_path for sample in data_batch['data_samples'])
        self.pictures.extend(data_batch['inputs'])


@pytest.fixture(scope='module')
def looked(class_folders, tmp_path_factory):
    """The end of the run that nothing stopped, and what was seen of it."""
    look = Look()
    return train(make_config(TINY_CLS_CONFIG, class_folders, tmp_path_factory.mktemp('whole')), look), look


@pytest.mark.parametrize(('stop', 'workers'), ((2, 2), (3, 0)))
def test_stopped_and_resumed_is_the_same_to_the_last_bit(stop, workers, looked, class_folders, tmp_path):
    """RandAugment, erasing, mixing, repeated augmentation and the average, with workers too, and nano's class token."""
    whole, _ = looked
    assert whole['meta']['iter'] == 6 and whole['ema_state_dict']['steps'] == 6
    cfg = make_config(TINY_CLS_CONFIG, class_folders, tmp_path, workers)
    stop_after(stop, cfg)
    cfg.randomness = dict(seed=None)  # it is the checkpoint's
    assert_same_run(train(cfg, resume=True), whole)


def test_each_image_comes_in_several_versions_and_every_parameter_learns(looked):
    """Of a third of the images in an epoch, and of others in the next."""
    whole, look = looked
    first, second = look.names[:12], look.names[12:]
    assert [first.count(path) for path in dict.fromkeys(first)] == [3, 3, 3, 3] and first != second
    assert not torch.equal(look.pictures[0], look.pictures[1])
    assert look.parameters and not [key for key, value in look.parameters.items()
                                    if torch.equal(value, whole['state_dict'][key])]
