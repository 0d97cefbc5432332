"""What label maps measure."""
import numpy as np
import pytest

from helpers.boxes import config_for, write_maps
from helpers.paths import ROOT
from xcit_dense.fit.maps import measure_maps

SEG = ROOT / 'configs/semfpn_xcit_n12_p16_small.py'


def band(width, label=1, size=(40, 60), void=0):
    """A map of class 0 with a band of a width, and some columns without a class."""
    labels = np.zeros(size, np.uint8)
    labels[:, 20:20 + width] = label
    labels[:, :void] = 255
    return labels


@pytest.mark.parametrize('width, wanted', ((2, 2), (3, 3), (4, 4), (8, 8)))
def test_the_width_of_a_band(width, wanted, tmp_path):
    found = measure_maps(config_for(write_maps(tmp_path, band(width), band(width)), SEG))
    assert found.widths['b'] == pytest.approx(wanted)
    assert found.images.tolist() == [[60, 40, 2]] and found.count == 2


def test_pixels_and_images_of_classes_without_those_that_are_ignored(tmp_path):
    root = write_maps(tmp_path, band(6), band(6, 2, void=10), band(0, void=60), names=('a', 'b', 'c', 'd'))
    found = measure_maps(config_for(root, SEG))
    total = 60 + 50
    assert found.classes == dict(a=(pytest.approx(98 / total), 2), b=(pytest.approx(6 / total), 1),
                                 c=(pytest.approx(6 / total), 1), d=(0, 0))
    assert 'd' not in found.widths


def test_labels_that_the_config_leaves_out(tmp_path):
    root = write_maps(tmp_path, band(6), names=('a', 'b'))
    cfg = config_for(root, SEG)
    for head in (cfg.model.decode_head, ):
        head.ignore_index = 1
    found = measure_maps(cfg)
    assert list(found.classes) == ['a'] and found.classes['a'] == (1, 1)


@pytest.mark.parametrize('break_it', ('elsewhere', 'gone', 'colour'))
def test_maps_that_cannot_be_measured(break_it, tmp_path):
    root = write_maps(tmp_path, band(3))
    cfg = config_for(root, SEG)
    if break_it == 'elsewhere':
        cfg.train_dataloader.dataset.data_root = 's3://bucket/'
    for path in (root / 'annotations/training').iterdir():
        if break_it == 'gone':
            path.unlink()
        elif break_it == 'colour':
            write_maps(root, np.zeros((9, 9, 3)))
    assert measure_maps(cfg) is None


def test_maps_of_a_list(tmp_path):
    root = write_maps(tmp_path, band(3), band(5), band(5))
    cfg = config_for(root, SEG)
    for kind, suffix in (('BaseSegDataset', ''), ('ImageFolderDataset', '.jpg')):
        (root / 'train.txt').write_text(f'0{suffix}\n2{suffix}\n')
        cfg.train_dataloader.dataset.update(type=kind, ann_file='train.txt')
        assert measure_maps(cfg).count == 2
