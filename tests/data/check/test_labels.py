"""Labels of label maps, counted one by one: the first, the last, those that are ignored and those that no class has."""

import numpy as np
import pytest
from PIL import Image

from helpers.faulty_data import coco, folders, kinds_of, rewrite
from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.check import check_data_set
from xcit_dense.data.classes import classes_of_data, take_classes
from xcit_dense.data.files import read_map
from xcit_dense.errors import DataError

NAMES = ('a', 'b', 'c')


def data_of(root, *maps):
    """A data set of some label maps, each given by pixels by label, in images that are not square."""
    for folder in ('images/training', 'annotations/training', 'images/validation', 'annotations/validation'):
        (root / folder).mkdir(parents=True)
        for number, pixels in enumerate(maps):
            labels = np.repeat(np.array(list(pixels), np.uint8), list(pixels.values())).reshape(2, -1)
            if folder.startswith('images'):
                Image.new('RGB', labels.shape[::-1]).save(root / folder / f'{number}.jpg')
            else:
                Image.fromarray(labels).save(root / folder / f'{number}.png')
    return root


def dataset_of(root, names=NAMES, **options):
    return folders(root, metainfo=dict(classes=names), **options)


@pytest.mark.parametrize('zero, ignored, classes', (
    (False, 255, [('a', 2, 11), ('b', 1, 2), ('c', 1, 4), ('(ignored)', 1, 3)]),
    (True, 255, [('a', 1, 2), ('b', 1, 4), ('c', 0, 0), ('(ignored)', 2, 14)]),
    (False, 2, [('a', 2, 11), ('b', 1, 2), ('c', 1, 4), ('(ignored)', 1, 7)]),
    (True, 0, [('a', 1, 2), ('b', 1, 4), ('c', 0, 0), ('(ignored)', 2, 14)])))
def test_labels_are_counted_for_the_right_class(tmp_path, zero, ignored, classes):
    data_of(tmp_path, {0: 1, 1: 2, 2: 4, 255: 3}, {0: 10})
    report = check_data_set(dataset_of(tmp_path, reduce_zero_label=zero, ignore_index=ignored))
    assert report.classes == classes and report.unit == 'pixels'
    assert report.counts['images'] == 2 and report.counts['classes'] == 3
    # of the second map nothing is left where 0 is unlabelled
    assert kinds_of(report) == ({'map-ignored'} if zero else set())
    assert report.counts['images without labels'] == int(zero)


@pytest.mark.parametrize('zero, label, wrong', (
    (False, 0, False), (False, 2, False), (False, 3, True), (False, 254, True), (False, 255, False),
    (True, 0, False), (True, 1, False), (True, 3, False), (True, 4, True), (True, 254, True), (True, 255, False)))
def test_labels_beside_the_first_and_the_last_class(tmp_path, zero, label, wrong):
    data_of(tmp_path, {1: 3, label: 7} if label != 1 else {1: 10})
    report = check_data_set(dataset_of(tmp_path, reduce_zero_label=zero))
    assert kinds_of(report) == ({'map-labels'} if wrong else set())
    if wrong:  # it says which labels there are, and which there may be
        value = report.findings[0].value
        assert str([label]) in value and f'{int(zero)} to {2 + zero}' in value
    assert sum(pixels for *_, pixels in report.classes) == (3 if wrong else 10)


@pytest.mark.parametrize('ignore_index, wrong', ((4, False), (3, True), (5, True)))
def test_another_label_may_be_ignored(tmp_path, ignore_index, wrong):
    data_of(tmp_path, {0: 3, 4: 5, 255: 2})
    report = check_data_set(dataset_of(tmp_path, ignore_index=ignore_index))
    assert kinds_of(report) == ({'map-labels'} if wrong else set())
    assert report.classes[-1] == ('(ignored)', 1, 2 if wrong else 7)


def test_labels_of_256_classes(tmp_path):
    """More than labels can count; 255 is ignored all the same."""
    data_of(tmp_path, {0: 3, 254: 5, 255: 2})
    report = check_data_set(dataset_of(tmp_path, tuple(map(str, range(256)))))
    assert report.findings == []
    counted = [entry for entry in report.classes if entry[2]]
    assert counted[:2] == [('0', 1, 3), ('254', 1, 5)] and counted[-1] == ('(ignored)', 1, 2)


@pytest.mark.parametrize('zero, names', ((False, ['0', '1', '2', '3']), (True, ['1', '2', '3'])))
def test_names_of_labels_without_a_list(tmp_path, zero, names):
    """Each label up to the highest is a class, also where no pixel has it."""
    data_of(tmp_path, {0: 3, 3: 5, 255: 2})
    report = check_data_set(dataset_of(tmp_path, None, reduce_zero_label=zero), from_data=True)
    assert report.findings == []
    assert [entry for entry in report.classes if entry[0] != '(ignored)'] == [
        (name, int(amount > 0), amount) for name in names for amount in [{'0': 3, '3': 5}.get(name, 0)]]


@pytest.mark.parametrize('highest, fits', ((1, True), (2, False)))
def test_a_list_of_names_has_one_for_the_highest_label(tmp_path, highest, fits):
    (data_of(tmp_path, {0: 3, highest: 5, 255: 2}) / 'classes.txt').write_text('sky\nsea\n')
    cfg = load_config(TINY_SEG_CONFIG, data_root=tmp_path, pretrained=False)
    if fits:
        take_classes(cfg)
        assert cfg.model.decode_head.num_classes == 2
        assert classes_of_data(cfg.train_dataloader.dataset) == dict(classes=('sky', 'sea'))
    else:
        with pytest.raises(DataError, match='label 2.*2 classes'):
            take_classes(cfg)


def test_a_map_is_read_label_by_label(tmp_path):
    data_of(tmp_path, {0: 1, 7: 2, 254: 4, 255: 3})
    path = tmp_path / 'annotations/training/0.png'
    assert read_map(path) == dict(size=[5, 2], mode='L', labels=[[0, 1], [7, 2], [254, 4], [255, 3]])


@pytest.mark.parametrize('size, fits', (((6, 4), True), ((4, 6), False), ((6, 5), False), ((7, 4), False)))
def test_a_map_has_the_size_of_its_image(tmp_path, size, fits):
    """Also where the image is turned on reading, and the map, which has no mark, is not."""
    data_of(tmp_path, {0: 12, 1: 12})
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (4, 6)).save(tmp_path / 'images/training/0.jpg', exif=exif)
    Image.fromarray(np.eye(*size[::-1], dtype=np.uint8)).save(tmp_path / 'annotations/training/0.png')
    report = check_data_set(dataset_of(tmp_path))
    assert kinds_of(report) == (set() if fits else {'map-size'})
    if not fits:  # width goes before height
        assert report.findings[0].value.startswith(f'{size[0]} x {size[1]}, not 6 x 4')


def test_shares_of_the_classes(root):
    """The table has images, amounts and shares of the whole, and names classes without any."""
    rewrite(root, lambda content: content.update(annotations=[
        dict(content['annotations'][0], id=i, image_id=image, category_id=category)
        for i, (image, category) in enumerate(((1, 2), (1, 2), (2, 2), (3, 5)))]))
    table = check_data_set(coco(root)).histogram().splitlines()
    assert [line.split() for line in table[1:3]] == [
        ['square', '2', '3', '75.0%', '#' * 30], ['cross', '1', '1', '25.0%', '#' * 10]]
    assert table[3].split(': ')[1] == 'disc, triangle, star'
