"""Files below a folder: links, circles of them, hidden things; and which label map belongs to an image."""
import os
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.fileio import list_dir_or_file
from mmengine.registry import init_default_scope
from mmseg.registry import DATASETS
from PIL import Image

from helpers.faulty_data import folders, kinds_of
from xcit_dense.data.check import check_data_set
from xcit_dense.data.classes import classes_of_data
from xcit_dense.data.datasets import find_images
from xcit_dense.data.folders import files_below, label_map_of
from xcit_dense.errors import DataError


def tree(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def names_below(folder, **kwargs):
    return [path.relative_to(folder).as_posix() for path in files_below(folder, **kwargs)]


@pytest.fixture
def linked(tmp_path):
    """Images next to a link to a folder elsewhere, and a link to one of them."""
    tree(tmp_path / 'elsewhere', '2/b.png', '10/c.png')
    root = tree(tmp_path / 'root', 'a.png', 'z/d.png')
    (root / 'more').symlink_to(tmp_path / 'elsewhere')
    (root / 'again').symlink_to('z')  # the same files by two names, as in mmseg
    (root / 'e.png').symlink_to('a.png')
    return root


HIDDEN = '.git/x.png', '.ipynb_checkpoints/a-checkpoint.png', '._a.png', 'z/._d.png', 'z/.DS_Store'


def test_folders_behind_links_are_read_as_by_mmseg(linked):
    tree(linked, *HIDDEN)
    seen = ['a.png', 'again/d.png', 'e.png', 'more/10/c.png', 'more/2/b.png', 'z/d.png']
    assert names_below(linked) == seen and files_below(linked) == sorted(files_below(linked))
    assert find_images(linked) == (linked, files_below(linked))
    mmsegs = set(list_dir_or_file(linked, list_dir=False, recursive=True))
    assert set(names_below(linked, hidden_folders=True)) == mmsegs
    assert mmsegs - set(seen) == set(HIDDEN[:2])


def test_circles_of_links_end(linked):
    seen = names_below(linked)
    (linked / 'z/up').symlink_to('..')
    (linked / 'here').symlink_to('.')
    (linked / 'more/back').symlink_to(linked)  # by way of another folder
    (linked / 'itself').symlink_to('itself')
    (linked / 'nowhere.png').symlink_to('not_there.png')
    assert names_below(linked) == sorted([*seen, 'itself', 'nowhere.png'])


def test_what_is_no_folder_has_no_files(tmp_path, monkeypatch):
    assert files_below(tree(tmp_path, 'a') / 'a') == files_below(tmp_path / 'b') == []
    monkeypatch.chdir(tmp_path)
    assert files_below('.') == [Path('a')]


@pytest.mark.skipif(os.geteuid() == 0, reason='root may read everything')
def test_a_folder_that_may_not_be_read_is_named(linked):
    (linked / 'z').chmod(0)
    with pytest.raises(DataError, match='cannot be read.*z'):
        files_below(linked)


@pytest.mark.parametrize('kind', ('ImageFolderDataset', 'BaseSegDataset'))
def test_all_that_read_a_folder_see_linked_folders(kind, root):
    """Data set, check and classes: the same images and maps; hidden copies of them are none."""
    images, maps = root / 'images/training', root / 'annotations/training'
    for folder in (images, maps):
        folder.rename(root / folder.parent.name / 'elsewhere')
        folder.mkdir()
        (folder / 'part').symlink_to('../elsewhere')
        tree(folder, '._000000000001.jpg', '._000000000001.png')
    (root / 'classes.txt').unlink()
    names = ['0', '1', '2', '3', '4', '5']
    config = folders(root, type=kind, metainfo=dict(classes=names))
    report = check_data_set(config)
    assert report.findings == [] and report.counts['images'] == 6
    assert list(classes_of_data(Config(config))['classes']) == names
    init_default_scope('mmseg')
    dataset = DATASETS.build(dict(config, pipeline=[]))
    assert [dataset.get_data_info(i)['seg_map_path'] for i in range(len(dataset))] == list(
        map(str, files_below(maps)))


def test_a_link_that_leads_nowhere_is_left_out_where_mmseg_does(root):
    """And is missing where the data set of image folders would read it."""
    (root / 'images/training/x.jpg').symlink_to('not_there.jpg')
    assert kinds_of(check_data_set(folders(root, type='BaseSegDataset'))) == {'image-left-out'}
    assert 'image-missing' in kinds_of(check_data_set(folders(root)))


def test_mmsegs_hidden_folders_are_checked(root):
    """mmseg reads the files in them, and would miss the label map in the middle of a training."""
    hidden = root / 'images/training/.ipynb_checkpoints/x.jpg'
    hidden.parent.mkdir()
    Image.new('RGB', (64, 64)).save(hidden)
    assert 'map-missing' in kinds_of(check_data_set(folders(root, type='BaseSegDataset')))
    assert check_data_set(folders(root)).findings == []


@pytest.mark.parametrize('name, suffix, map_suffix, wanted', (
    ('a.jpg', None, '.png', 'a.png'), ('a.b.jpg', None, '.png', 'a.b.png'),
    ('d/a.JPG', None, '_mask.png', 'd/a_mask.png'), ('d.x/a.jpg', None, '', 'd.x/a'),
    ('a_leftImg8bit.png', '_leftImg8bit.png', '_labels.png', 'a_labels.png')))
def test_the_suffix_of_label_maps_is_what_stands_behind_the_stem(name, suffix, map_suffix, wanted):
    assert label_map_of(Path('i', name), Path('i'), Path('m'), map_suffix, suffix) == Path('m', wanted)


def test_label_maps_with_more_in_their_names_than_a_format(root):
    """In the data set and in its check."""
    for path in (root / 'annotations/training').iterdir():
        path.rename(path.with_name(f'{path.stem}_mask.png'))
    config = folders(root, seg_map_suffix='_mask.png')
    assert check_data_set(config).findings == []
    init_default_scope('mmseg')
    dataset = DATASETS.build(dict(config, pipeline=[]))
    assert dataset.get_data_info(0)['seg_map_path'].endswith('training/000000000001_mask.png')
