"""Trainings of classifiers through mmpretrain: exact resume of all that is drawn at random, and what a run tells."""
import pytest
import torch
from mmengine.hooks import Hook

from helpers.paths import TINY_CLS_CONFIG
from helpers.runs import At, assert_same_run, make_config, stop_after, train
from xcit_dense.train.startup import describe_run

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


def test_what_a_run_from_other_weights_is_told(class_folders, tmp_path, looked):
    """Which weights, that the head starts fresh, the schedule."""
    weights = {key.removeprefix('backbone.'): value for key, value in looked[0]['state_dict'].items()}
    weights.update({'head.weight': torch.zeros(7, 32), 'head.bias': torch.zeros(7)})
    torch.save(dict(model=weights), tmp_path / 'start.pth')
    cfg = make_config(TINY_CLS_CONFIG, class_folders, tmp_path / 'run', **{'train_cfg.max_epochs': 1})
    cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'start.pth'))
    told = []
    train(cfg, At(1, lambda runner: told.append(describe_run(runner))))
    lines = dict(line.split('  ', 1) for line in told[0].splitlines())
    assert 'start.pth' in lines['weights'] and 'head' in lines['weights']
    assert lines['model'].strip() == 'ImageClassifier with XCiTClassifier'
    assert '1 epoch of 3 iterations' in lines['schedule'] and 'CosineAnnealing' in lines['schedule']
    assert '3 classes' in lines['training data'] and 'mmpretrain' in lines['versions']
