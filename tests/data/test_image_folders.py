"""Data sets of images and label maps in folders."""
import shutil

import cv2
import numpy as np
import pytest
from mmengine.registry import DATASETS, init_default_scope

from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import take_classes
from xcit_dense.errors import DataError


def folders(root, names=('a', 'b'), suffix='.png', labels=(0, 1, 255)):
    """A data set of two images and label maps."""
    for part in ('training', 'validation'):
        (root / 'images' / part).mkdir(parents=True)
        (root / 'annotations' / part).mkdir(parents=True)
        for name in names:
            cv2.imwrite(str(root / 'images' / part / f'{name}{suffix}'), np.zeros((4, 6, 3), np.uint8))
            maps = np.resize(np.array(labels, np.uint8), (4, 6))
            cv2.imwrite(str(root / 'annotations' / part / f'{name}.png'), maps)
    return root


def config_of(root):
    return load_config(TINY_SEG_CONFIG, data_root=root)


def test_class_names_come_from_the_list(tmp_path):
    (folders(tmp_path) / 'classes.txt').write_text('\ufeffsky\nsea\nboat\n\n')  # marked, as Windows writes it
    cfg = config_of(tmp_path)
    take_classes(cfg)
    assert cfg.val_dataloader.dataset.metainfo.classes == ('sky', 'sea', 'boat')
    assert cfg.model.decode_head.num_classes == 3


def test_without_a_list_classes_are_the_labels(tmp_path):
    cfg = config_of(folders(tmp_path, labels=(0, 4, 255)))
    take_classes(cfg)
    assert cfg.train_dataloader.dataset.metainfo.classes == ('0', '1', '2', '3', '4')


@pytest.mark.parametrize('text, words', (
    (b'sky\nsky\n', 'unique'), (b'sky\n\nsea\n', 'no empty lines'), (b'', 'no empty lines'), (b'\xff\xfe', 'decode')))
def test_bad_list_of_classes(tmp_path, text, words):
    (folders(tmp_path) / 'classes.txt').write_bytes(text)
    with pytest.raises(DataError, match=words):
        take_classes(config_of(tmp_path))


@pytest.mark.parametrize('listed', (True, False))
@pytest.mark.parametrize('part', ('training', 'validation'))
def test_label_maps_that_cannot_be_used_are_named(listed, part, tmp_path):
    folders(tmp_path)
    if listed:
        (tmp_path / 'classes.txt').write_text('sky\nsea\n')
    path = tmp_path / f'annotations/{part}/b.png'
    cv2.imwrite(str(path), np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(DataError, match=f'{path} is not a label map.*RGB'):
        take_classes(config_of(tmp_path))
    cv2.imwrite(str(path), np.full((4, 6), 7, np.uint8))
    if listed or part == 'validation':
        with pytest.raises(DataError, match=f'{path} has the label 7, but the 2 classes have'):
            take_classes(config_of(tmp_path))
    path.write_bytes(b'no picture')
    with pytest.raises(DataError, match=f'{path} cannot be read'):
        take_classes(config_of(tmp_path))


def test_label_maps_may_be_links_and_have_a_suffix_of_their_own(tmp_path):
    """As when the framework reads them; links out of the data root are for the data check."""
    folders(tmp_path / 'data', labels=(0, 1, 2))
    for path in (tmp_path / 'data').glob('annotations/*/*.png'):
        kept = tmp_path / f'{path.parent.name}_{path.name}'
        path.rename(kept)
        path.with_name(f'{path.stem}_labels.png').symlink_to(kept)
    cv2.imwrite(str(tmp_path / 'data/annotations/training/a_colours.png'), np.zeros((4, 6, 3), np.uint8))
    cfg = config_of(tmp_path / 'data')
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.seg_map_suffix = '_labels.png'
    take_classes(cfg)
    assert cfg.model.decode_head.num_classes == 3
    (tmp_path / 'training_b.png').unlink()
    with pytest.raises(DataError, match='b_labels.png cannot be read'):
        take_classes(cfg)


@pytest.mark.parametrize('labels', ((255, ), (0, 255)))
def test_one_class_is_refused(labels, tmp_path):
    with pytest.raises(DataError, match='segmentation needs at least two.*255 is ignored'):
        take_classes(config_of(folders(tmp_path, labels=labels)))


def build_dataset(root):
    cfg = config_of(root)
    take_classes(cfg)
    init_default_scope('mmseg')
    return DATASETS.build(cfg.train_dataloader.dataset)


@pytest.mark.parametrize('suffix', ('.png', '.jpg', '.bmp', '.TIF'))
def test_images_of_any_format(tmp_path, suffix):
    dataset = build_dataset(folders(tmp_path, suffix=suffix))
    records = [dataset.get_data_info(i) for i in range(len(dataset))]
    assert [r['img_path'] for r in records] == [str(tmp_path / f'images/training/{n}{suffix}') for n in 'ab']
    assert [r['seg_map_path'] for r in records] == [str(tmp_path / f'annotations/training/{n}.png') for n in 'ab']


def test_image_without_label_map_is_named(tmp_path):
    (folders(tmp_path) / 'annotations/training/b.png').unlink()
    with pytest.raises(DataError, match=r'training/b\.png has no label map'):
        build_dataset(tmp_path)


def test_two_images_for_one_label_map_are_named(tmp_path):
    folders(tmp_path)
    shutil.copy(tmp_path / 'images/training/a.png', tmp_path / 'images/training/a.bmp')
    with pytest.raises(DataError, match=r'a\.bmp and .*a\.png have the same label map'):
        build_dataset(tmp_path)
