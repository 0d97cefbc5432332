"""The loaders and pipelines of --knn and --linear, and the features that they give."""
from types import SimpleNamespace

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from helpers.paths import TINY_CLS_CONFIG
from xcit_dense.config.features import set_knn, set_linear
from xcit_dense.config.loading import load_config
from xcit_dense.config.resolution import set_test_size
from xcit_dense.errors import DataError
from xcit_dense.selfsup.features import Features, seed_of
from xcit_dense.train.runner import DenseRunner

pytest.importorskip('mmpretrain')
pytestmark = pytest.mark.filterwarnings('ignore')


@pytest.fixture
def cfg(class_folders):
    """The tiny config for 12 training and 6 test images of three classes, in order."""
    return load_config(TINY_CLS_CONFIG, data_root=class_folders)


def hook_of(cfg):
    return cfg.custom_hooks[-1]


def features(cfg, loader, num_classes=3, **options):
    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    runner = SimpleNamespace(model=MODELS.build(cfg.model), build_dataloader=DenseRunner.build_dataloader)
    return Features(runner, loader, num_classes, **options)


def test_each_image_counts_once_in_order(cfg):
    """Though a wrapper repeats the first data set, and images that are not cropped differ in size."""
    del cfg.test_dataloader.dataset.pipeline[2]
    set_knn(cfg, 5)
    loader = hook_of(cfg).loader
    found, labels, numbers = (torch.cat(parts) for parts in zip(*features(cfg, loader), strict=True))
    assert numbers.tolist() == list(range(12)) and labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert found.shape == (12, 32) and found.dtype == torch.float32
    alone = torch.cat([batch[0] for batch in features(cfg, dict(loader, batch_size=1))])
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)
    both = load_config(TINY_CLS_CONFIG)
    del both.test_dataloader.dataset.pipeline[2]
    first, second = cfg.train_dataloader.dataset, cfg.test_dataloader.dataset
    both.train_dataloader.dataset = dict(type='ConcatDataset', datasets=[
        dict(type='RepeatDataset', times=3, dataset=first), second])
    set_knn(both, 5)
    joined, labels, numbers = (torch.cat(parts) for parts in zip(*features(both, hook_of(both).loader), strict=True))
    assert numbers.tolist() == list(range(18)) and labels[12:].tolist() == [0, 0, 1, 1, 2, 2]
    torch.testing.assert_close(joined[:12], found)


def test_passes_are_augmented_anew_and_the_same_with_the_same_seed(cfg):
    set_linear(cfg, 2)

    def passes(seed):
        batches = features(cfg, hook_of(cfg).loader, seed=seed)
        return [[torch.cat(parts) for parts in zip(*batches, strict=True)] for _ in range(2)]

    first, again, other = passes(1), passes(1), passes(5)
    for (a, labels, numbers), (b, *_) in zip(first, again, strict=True):
        assert torch.equal(a, b) and sorted(numbers.tolist()) == list(range(12))
        assert torch.equal(labels, numbers // 4)
    orders = [numbers.tolist() for *_, numbers in (*first, *other)]
    assert len(set(map(tuple, orders))) == 4
    sorted_features = [part[0][part[2].argsort()] for part in first]
    assert not torch.allclose(*sorted_features, atol=1e-3)


def test_every_tenth_image_is_held_out_as_it_is_in_the_test(cfg):
    set_linear(cfg, 2)
    (found, labels, numbers), = features(cfg, hook_of(cfg).held_out_loader, step=10)
    assert numbers.tolist() == [0, 10] and labels.tolist() == [0, 2]
    set_knn(cfg, 5)
    whole = torch.cat([batch[0] for batch in features(cfg, hook_of(cfg).loader)])
    torch.testing.assert_close(found, whole[[0, 10]])


def test_a_label_without_a_class_names_the_image(cfg, class_folders):
    set_knn(cfg, 5)
    with pytest.raises(DataError, match=f'{class_folders}/train/red/0.png has the label .2.*from 0 to 1'):
        list(features(cfg, hook_of(cfg).loader, num_classes=2, step=2))


def test_the_linear_layer_sees_crops_of_the_size_of_the_test(cfg):
    set_test_size(cfg, 48, 0.875)
    set_linear(cfg, 7)
    steps = hook_of(cfg).loader.dataset.pipeline
    assert [step.type for step in steps] == ['LoadImageFromFile', 'RandomResizedCrop', 'RandomFlip', 'PackInputs']
    assert (steps[1].scale, steps[1].interpolation, steps[2].prob, hook_of(cfg).epochs) == (48, 'bicubic', 0.5, 7)
    held_out = hook_of(cfg).held_out_loader.dataset.pipeline
    assert (held_out[1].scale, held_out[2].crop_size) == (55, 48)
    assert cfg.test_dataloader.dataset.pipeline[2].crop_size == 48  # the test itself does not change


def test_the_model_has_neither_a_head_of_its_own_nor_what_only_a_training_needs(cfg):
    cfg.model.backbone.drop_path_rate = 0.3
    set_knn(cfg, 5)
    assert cfg.model.backbone.num_classes == 0 and not cfg.model.backbone.drop_path_rate
    assert cfg.model.head == dict(type='KNNHead', num_classes=3) and 'train_cfg' not in cfg.model


@pytest.mark.parametrize('randomness, wanted', ((None, 0), (dict(seed=None), 0), (dict(seed=4), 4)))
def test_without_a_seed_it_is_always_the_same(randomness, wanted):
    assert seed_of(SimpleNamespace(cfg=dict(randomness=randomness))) == wanted
