"""Folders of classes: the validation by its usual names."""
import shutil

import pytest
from mmengine.config import Config

from helpers.placing import placed
from xcit_dense.data.classes import take_classes
from xcit_dense.errors import ConfigError, DataError

pytest.importorskip('mmpretrain')


def classifier(root):
    data = {f'{part}_dataloader': dict(dataset=dict(
        type='CustomDataset', data_root=str(root), data_prefix=dict(img_path=name), pipeline=[]))
        for part, name in dict(train='train', val='val', test='val').items()}
    return Config(dict(data, classes_from_data=True, model={}))


def folders_in(cfg):
    return [cfg[f'{part}_dataloader'].dataset.data_prefix.img_path for part in ('train', 'val', 'test')]


@pytest.fixture
def root(class_folders, tmp_path):
    return shutil.copytree(class_folders, tmp_path / 'data')


@pytest.mark.parametrize('name', ('val', 'valid', 'validation', 'test'))
def test_the_folder_of_the_validation(name, root, tmp_path):
    (root / 'val').rename(root / name)
    cfg = placed(root, tmp_path / 'run', classifier(root))
    assert folders_in(cfg) == ['train', name, name]
    take_classes(cfg)
    assert cfg.val_dataloader.dataset.metainfo.classes == ('blue', 'green', 'red')


def test_a_folder_for_the_test(root, tmp_path):
    shutil.copytree(root / 'val', root / 'test')
    assert folders_in(placed(root, tmp_path / 'run', classifier(root))) == ['train', 'val', 'val']  # as it says
    (root / 'val').rename(root / 'valid')
    assert folders_in(placed(root, tmp_path / 'run', classifier(root))) == ['train', 'valid', 'test']


def test_options(root, tmp_path):
    (root / 'val').rename(root / 'held_out')
    cfg = placed(root, tmp_path / 'run', classifier(root), val_images='held_out')
    assert folders_in(cfg) == ['train', 'held_out', 'held_out']
    with pytest.raises(DataError, match='--val-images nowhere'):
        placed(root, tmp_path / 'run', classifier(root), val_images='nowhere')
    with pytest.raises(ConfigError, match='--val-share'):
        placed(root, tmp_path / 'run', classifier(root), val_share=0.1)


def test_what_is_not_there_is_left_to_the_check_of_the_data(root, tmp_path):
    shutil.rmtree(root / 'val')
    assert placed(root, tmp_path / 'run', classifier(root)).to_dict() == classifier(root).to_dict()


def test_a_folder_that_the_config_names_itself_is_meant(root, tmp_path):
    (root / 'val').rename(root / 'valid')
    cfg = classifier(root)
    cfg.val_dataloader.dataset.data_prefix.img_path = 'mine'
    assert folders_in(placed(root, tmp_path / 'run', cfg)) == ['train', 'mine', 'val']
