"""Folders of images and label maps: links, hidden things, lists of classes, and which map belongs to an image."""
import os
import shutil
from itertools import product
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.fileio import list_dir_or_file
from mmengine.registry import init_default_scope
from mmseg.registry import DATASETS
from PIL import Image

from helpers.faulty_data import folders, kinds_in
from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.check.check import check_data_set
from xcit_dense.data.classes import classes_of_data, take_classes
from xcit_dense.data.folders import files_below, find_images, label_map_of, seen_in
from xcit_dense.errors import DataError
from xcit_dense.predict.files import find_sources


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


def test_folders_behind_links_are_read_as_by_mmseg_and_circles_of_links_end(linked, monkeypatch):
    tree(linked, '.git/x.png', '._a.png', 'z/._d.png', 'z/.DS_Store')
    seen = ['a.png', 'again/d.png', 'e.png', 'more/10/c.png', 'more/2/b.png', 'z/d.png']
    assert names_below(linked) == seen and find_images(linked) == find_sources(linked) == (linked, files_below(linked))
    mmsegs = set(list_dir_or_file(linked, list_dir=False, recursive=True))
    assert set(names_below(linked, hidden_folders=True)) == mmsegs == {*seen, '.git/x.png'}
    (linked / 'z/up').symlink_to('..')
    (linked / 'here').symlink_to('.')
    (linked / 'more/back').symlink_to(linked)  # by way of another folder
    (linked / 'itself').symlink_to('itself')
    (linked / 'nowhere.png').symlink_to('not_there.png')
    assert names_below(linked) == sorted([*seen, 'itself', 'nowhere.png'])
    assert files_below(linked / 'a.png') == files_below(linked / 'absent') == []  # what is no folder has no files
    monkeypatch.chdir(linked / 'z')
    (linked / 'z/up').unlink()
    assert files_below('.') == [Path('d.png')]


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


def test_links_to_nowhere_and_mmsegs_hidden_folders(root):
    """mmseg leaves out the first, image folders would read it; mmseg reads the second, and would miss the label map."""
    mmsegs, ours = folders(root, type='BaseSegDataset'), folders(root)
    (root / 'images/training/x.jpg').symlink_to('not_there.jpg')
    assert kinds_in(mmsegs) == {'image-left-out'} and 'image-missing' in kinds_in(ours)
    (root / 'images/training/x.jpg').unlink()
    hidden = root / 'images/training/.ipynb_checkpoints/x.jpg'
    hidden.parent.mkdir()
    Image.new('RGB', (64, 64)).save(hidden)
    assert 'map-missing' in kinds_in(mmsegs) and kinds_in(ours) == set()


def test_what_is_seen_in_a_folder(tmp_path):
    kinds = [f'a/{number}.{kind}' for amount, kind in enumerate('abcde', 1) for number in range(amount)]
    tree(tmp_path, *kinds, 'a/.hidden', '.git/x', 'b/c/README', *(f'many/{number}/x' for number in range(99)))
    (tmp_path / 'empty').mkdir()
    assert seen_in(tmp_path).startswith(
        '- a: 5 .e, 4 .d, 3 .c, 2 .b\n- b/c: 1 README\n- empty: nothing\n- many/0: 1 x\n- many/1: 1 x\n')
    assert seen_in(tmp_path).endswith(': 1 x\n- and more')


def test_the_suffix_of_label_maps_is_what_stands_behind_the_stem():
    for name, suffix, map_suffix, wanted in (
            ('d/a.b.JPG', None, '_mask.png', 'd/a.b_mask.png'), ('d.x/a.jpg', None, '', 'd.x/a'),
            ('a_leftImg8bit.png', '_leftImg8bit.png', '_labels.png', 'a_labels.png')):
        assert label_map_of(Path('i', name), Path('i'), Path('m'), map_suffix, suffix) == Path('m', wanted)


def make(root, suffix='.png', labels=(0, 1, 255)):
    """A data set of two images and label maps, and its config."""
    for part, name in product(('training', 'validation'), 'ab'):
        for file, pixels in ((f'images/{part}/{name}{suffix}', np.zeros((4, 6, 3), np.uint8)),
                             (f'annotations/{part}/{name}.png', np.resize(np.array(labels, np.uint8), (4, 6)))):
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(root / file), pixels)
    return load_config(TINY_SEG_CONFIG, data_root=root)


def test_class_names_come_from_the_list_or_are_the_labels(tmp_path):
    cfg = make(tmp_path, labels=(0, 4, 255))
    take_classes(cfg)
    assert cfg.train_dataloader.dataset.metainfo.classes == ('0', '1', '2', '3', '4')
    cv2.imwrite(str(tmp_path / 'annotations/training/b.png'), np.full((4, 6), 6, np.uint8))
    (tmp_path / 'list.txt').write_text('a.png\n')  # a class may be only in an image that was held out
    listed = dict(cfg.train_dataloader.dataset, ann_file='list.txt')
    assert classes_of_data(listed)['classes'] == tuple('0123456')
    (tmp_path / 'classes.txt').write_text('\n'.join('abcde'))
    assert classes_of_data(listed)['classes'] == tuple('abcde')  # with names, other images do not count
    (tmp_path / 'classes.txt').write_text('\ufeff  sky \ntraffic light\r\nboat\n\n')  # marked, as Windows writes it
    cfg = make(tmp_path)
    take_classes(cfg)
    assert cfg.val_dataloader.dataset.metainfo.classes == ('sky', 'traffic light', 'boat')
    assert cfg.model.decode_head.num_classes == 3
    for text, words in ((b'sky\nsky\n', 'unique'), (b'sky\n\nsea\n', 'no empty lines'), (b'', 'no empty lines'),
                        (b'\xff\xfe', 'decode')):
        (tmp_path / 'classes.txt').write_bytes(text)
        with pytest.raises(DataError, match=words):
            take_classes(make(tmp_path))
    (tmp_path / 'classes.txt').unlink()
    for labels, amount in (((255, ), 'no class'), ((0, 255), 'only one class')):
        with pytest.raises(DataError, match=f'have {amount}, but segmentation needs at least two.*255 is ignored'):
            take_classes(make(tmp_path, labels=labels))


def test_label_maps_that_cannot_be_used_are_named(tmp_path):
    """Also where nothing has checked the data before."""
    cfg, path = make(tmp_path), tmp_path / 'annotations/validation/b.png'
    cv2.imwrite(str(path), np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(DataError, match=f'{path} is not a label map.*RGB'):
        take_classes(cfg)
    path.write_bytes(b'no picture')
    with pytest.raises(DataError, match=f'{path} cannot be read'):
        take_classes(cfg)


def test_images_of_any_format_and_those_without_a_label_map_of_their_own(tmp_path):
    def build(root):
        take_classes(cfg := load_config(TINY_SEG_CONFIG, data_root=root))
        init_default_scope('mmseg')
        return DATASETS.build(cfg.train_dataloader.dataset)

    make(tmp_path, suffix='.TIF')
    images, maps = tmp_path / 'images/training', tmp_path / 'annotations/training'
    records = [*map((dataset := build(tmp_path)).get_data_info, range(len(dataset)))]
    assert [(r['img_path'], r['seg_map_path']) for r in records] == [
        (f'{images}/{name}.TIF', f'{maps}/{name}.png') for name in 'ab']
    shutil.copy(images / 'a.TIF', images / 'a.bmp')
    with pytest.raises(DataError, match=r'a\.TIF and .*a\.bmp have the same label map'):
        build(tmp_path)
    (images / 'a.bmp').unlink()
    (maps / 'b.png').unlink()
    with pytest.raises(DataError, match=r'training/b\.TIF has no label map'):
        build(tmp_path)
