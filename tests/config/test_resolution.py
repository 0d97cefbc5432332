"""The image size in the test pipeline of a classifier."""
import pytest
from mmengine.config import Config

from xcit_dense.config.resolution import find_resolution, set_test_size
from xcit_dense.errors import ConfigError


def data(scale=80, crop_size=64, **resize):
    return dict(pipeline=[dict(type='LoadImageFromFile'), dict(type='ResizeEdge', scale=scale, **resize),
                          dict(type='mmpretrain.CenterCrop', crop_size=crop_size)])


@pytest.mark.parametrize('crop_size', (64, (64, 64), [64, 64]))
def test_a_pair_of_equal_sides_is_a_square(crop_size):
    assert find_resolution(data(crop_size=crop_size)) == (64, 0.8)
    cfg = Config(dict(test_dataloader=dict(dataset=data(crop_size=crop_size))))
    set_test_size(cfg, 32)
    *_, resize, crop = cfg.test_dataloader.dataset.pipeline
    assert (resize.scale, crop.crop_size) == (40, 32)


@pytest.mark.parametrize('dataset, words', (
    (data(crop_size=(64, 32)), r'CenterCrop\(crop_size=\(64, 32\)\)'), (data(edge='long'), "edge='long'"),
    (data(scale=(80, 80)), r'scale=\(80, 80\)'), (data(scale=0), 'scale=0'),
    (dict(pipeline=[]), 'no steps'), ({}, 'no steps'),
    (dict(pipeline=[dict(type='Resize', scale=3)]), 'has Resize\\.')))
def test_a_pipeline_that_tells_none(dataset, words):
    assert find_resolution(dataset) == (None, 1.) and find_resolution(dataset, 5, 0.5) == (5, 0.5)
    with pytest.raises(ConfigError, match=words):
        set_test_size(Config(dict(test_dataloader=dict(dataset=dataset))), 32)


@pytest.mark.parametrize('options, words', ((dict(size=0), 'got 0'), (dict(crop_ratio=0.), 'got 0'),
                                            (dict(crop_ratio=1.5), 'at most 1.*1.5')))
@pytest.mark.parametrize('dataset', (None, data()))
def test_options_that_cannot_be(dataset, options, words):
    with pytest.raises(ConfigError, match=words):
        find_resolution(dataset, **options)
