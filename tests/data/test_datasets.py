"""Which data sets a config has, where they are, and which images exist."""
from pathlib import Path

import pytest
from mmengine.config import Config
from PIL import Image

from helpers.paths import MAIN_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.check import check_data_set
from xcit_dense.data.datasets import (
    LOADERS,
    check_data,
    class_of,
    datasets,
    find_images,
    folder_of,
    setting_of,
    type_of,
)
from xcit_dense.errors import DataError
from xcit_dense.for_mmseg import ImageFolderDataset

#: What a data set of mmseg names in its data_prefix.
ITS_KEYS = ['img_path', 'seg_map_path']


def test_data_sets_inside_others_are_found():
    def inner(name):
        return dict(type='CocoDataset', ann_file=name)

    cfg = Config(dict(
        train_dataloader=dict(dataset=dict(type='RepeatDataset', dataset=dict(
            type='ConcatDataset', datasets=[inner('a'), dict(type='RepeatDataset', dataset=inner('b'))]))),
        val_dataloader=dict(dataset=inner('c')), test_dataloader=None))
    assert [d.ann_file for d in datasets(cfg, LOADERS)] == ['a', 'b', 'c']
    assert [d.ann_file for d in datasets(cfg, LOADERS[:1])] == ['a', 'b'] and datasets(cfg, LOADERS[2:]) == []


def test_images_are_found_in_order_below_a_folder(tmp_path):
    (tmp_path / 'deep.png').mkdir()
    (tmp_path / 'deep.png/z.JPG').touch()
    for name in ('c.webp', 'a.tif', 'b.tiff', 'd.bmp', 'e.jpeg', 'f.PNG', 'x.gif', 'y.txt', 'png'):
        (tmp_path / name).touch()
    (tmp_path / 'deep.png').rename(tmp_path / 'deep')
    folder, found = find_images(tmp_path)
    assert folder == tmp_path and [p.relative_to(tmp_path).as_posix() for p in found] == [
        'a.tif', 'b.tiff', 'c.webp', 'd.bmp', 'deep/z.JPG', 'e.jpeg', 'f.PNG']
    assert find_images(tmp_path / 'y.txt') == (tmp_path, [tmp_path / 'y.txt'])  # what is named is taken
    (tmp_path / 'none').mkdir()
    for place, word in (('none', 'png'), ('not_there', 'not_there')):
        with pytest.raises(DataError, match=word):
            find_images(tmp_path / place)


def test_missing_and_empty_are_told_apart(tmp_path):
    """Only of the given loaders; if nothing is missing, there is no message."""
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full/a').touch()

    def dataset(folder, **more):
        return dict(dataset=dict(type='CocoDataset', data_root=str(tmp_path), data_prefix=dict(img=folder), **more))

    cfg = Config(dict(train_dataloader=dataset('full', ann_file='none.json'), val_dataloader=dataset('full'),
                      test_dataloader=dataset('empty')))
    check_data(cfg, ['val_dataloader'])
    with pytest.raises(DataError) as caught:
        check_data(cfg)
    states = {Path(path).name: state for state, path in (
        line.split() for line in str(caught.value).splitlines() if line.startswith('  '))}
    assert states == {'none.json': 'missing', 'full': 'found', 'empty': 'empty'}


def test_settings_are_those_of_the_config_then_of_the_class():
    ade = dict(type='ADE20KDataset', data_prefix=dict(seg_map_path='x'))
    assert setting_of(ade, 'reduce_zero_label', False) is True
    assert setting_of(dict(ade, reduce_zero_label=False), 'reduce_zero_label', True) is False
    assert setting_of(dict(ade, seg_map_suffix=None), 'seg_map_suffix', 'y') is None
    assert setting_of(ade, 'none_has_this', 5) == 5 and setting_of(dict(type='NoSuchDataset'), 'img_suffix', 5) == 5
    assert type_of(dict(type=int)) is int and type_of(dict(type='NoSuchDataset')) is None
    assert type_of(dict(type='ImageFolderDataset')) is ImageFolderDataset
    # the same name in both frameworks: what has label maps is mmseg's
    kinds = [type_of(dict(type='ADE20KPanopticDataset')), type_of(dict(type='CityscapesDataset')),
             *(type_of(dict(type='CityscapesDataset', data_prefix={key: 'x'})) for key in ('img', *ITS_KEYS))]
    assert [kind.__module__.split('.')[0] for kind in kinds] == ['mmdet'] * 3 + ['mmseg'] * 2


@pytest.mark.parametrize('kind, keys, framework', (
    ('CityscapesDataset', ITS_KEYS, 'mmseg'), ('CityscapesDataset', ['img'], 'mmdet'),
    ('ImageFolderDataset', [], 'mmseg'),
    ('RefCocoDataset', ITS_KEYS[:1], 'mmdet'), ('ADE20KSegDataset', ITS_KEYS, 'mmdet'), ('ADE20KDataset', [], 'mmseg')))
def test_the_steps_of_a_data_set_are_of_its_own_framework(kind, keys, framework):
    found = class_of(dict(type=kind, data_prefix=dict.fromkeys(keys, 'x')), 'TRANSFORMS', 'LoadAnnotations')
    assert found.__module__.split('.')[0] == framework


def test_tested_images_without_label_maps_are_those_of_mmseg(tmp_path):
    Image.new('RGB', (8, 8)).save(tmp_path / 'a_leftImg8bit.png')
    dataset = dict(type='CityscapesDataset', data_root=str(tmp_path), data_prefix=dict(img_path=''), test_mode=True)
    report = check_data_set(dataset, use_cache=False)
    assert report.findings == [] and report.counts['images'] == 1


def test_folders_are_below_the_root():
    assert folder_of(dict(data_root='a', data_prefix=dict(img='b')), 'img') == Path('a/b')
    assert folder_of(dict(data_root='a', data_prefix=dict(img='/b')), 'img') == Path('/b')
    assert folder_of(dict(data_root=None, data_prefix=None), 'img') == Path('.')
    assert folder_of(dict(data_root='~/a'), 'img') == Path.home() / 'a'


def test_missing_data_is_one_error_with_the_layout(tmp_path):
    (tmp_path / 'annotations').mkdir()
    (tmp_path / 'annotations/instances_train2017.json').touch()
    cfg = load_config(MAIN_CONFIG, data_root=tmp_path)
    with pytest.raises(DataError) as caught:
        check_data(cfg)
    text = str(caught.value)
    assert f'found    {tmp_path}/annotations/instances_train2017.json' in text
    for part in ('annotations/instances_val2017.json', 'train2017', 'val2017'):
        assert f'missing  {tmp_path}/{part}' in text
    assert '--data-root' in text


def test_empty_folders_are_named(tmp_path):
    for part in ('images', 'annotations'):
        for split in ('training', 'validation'):
            (tmp_path / part / split).mkdir(parents=True)
    with pytest.raises(DataError, match=f'empty    {tmp_path}/images/training'):
        check_data(load_config('semfpn_xcit_n12_p16_ade20k', data_root=tmp_path))
