"""The generated data set: valid COCO, and the same from the same seed."""
import filecmp
import json

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

from helpers.paths import ROOT
from xcit_dense.data.demo import CLASSES, make_demo_data


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp('demo')
    make_demo_data(root, num_train=30, num_val=5, size=96, seed=3)
    return root


def test_grey_images_are_grey_with_equal_histograms(data, tmp_path):
    make_demo_data(tmp_path, num_train=2, num_val=2, size=96, seed=3, grey=True)
    for name in ('train2017/000000000001.jpg', 'images/validation/000000000002.jpg',
                 'classes/train/disc/disc_0001.jpg'):
        picture, before = (cv2.imread(str(root / name)) for root in (tmp_path, data))
        assert (picture == picture[..., :1]).all() and not (before == before[..., :1]).all()
        counts = np.histogram(picture[..., 0], 8, (0, 256))[0]
        assert counts.max() < 1.3 * counts.min()
    for name in ('annotations/training/000000000001.png', 'annotations/validation/000000000002.png'):
        assert filecmp.cmp(data / name, tmp_path / name, shallow=False)


def test_smaller_data_set_takes_the_place_of_a_larger_one(tmp_path):
    make_demo_data(tmp_path, num_train=5, num_val=1, size=48)
    (tmp_path / 'images/training/mine.jpg').touch()
    make_demo_data(tmp_path, num_train=2, num_val=1, size=48)
    for folder in ('train2017', 'images/training', 'annotations/training'):
        assert {path.stem for path in (tmp_path / folder).iterdir()} - {'mine'} == {'000000000001', '000000000002'}
    assert [path.name for path in (tmp_path / 'classes/train/star').iterdir()] == ['star_0001.jpg']
    assert (tmp_path / 'images/training/mine.jpg').is_file()


def test_wrong_numbers_and_classes_touch_nothing(data, tmp_path, call_tool):
    before = {path: path.stat().st_mtime_ns for path in data.rglob('*')}
    for option, least in dict(train=1, val=1, size=4, seed=0).items():
        for number in (-1, least - 1):
            code, message = call_tool('make_demo_data.py', data, f'--{option}', number)
            assert code == 1 and f'--{option} must be {least} or more, not {number}' in message
    assert {path: path.stat().st_mtime_ns for path in data.rglob('*')} == before
    for classes in (['star', 'moon'], ['disc', 'disc']):
        code, message = call_tool('make_demo_data.py', tmp_path / 'data', '--classes', *classes)
        assert code == 1 and '--classes' in message and 'triangle' in message and not (tmp_path / 'data').exists()


def test_annotations_are_coco_and_label_maps_hold_what_is_seen(data):
    names, compared, coco = ['background', *CLASSES], 0, COCO(data / 'annotations/instances_train2017.json')
    assert (data / 'classes.txt').read_text().split() == names
    assert [(c['id'], c['name']) for c in coco.dataset['categories']] == [*enumerate(names)][1:]
    assert 'size 96' in coco.dataset['info']['version'] and 'seed 3' in coco.dataset['info']['version']
    for image_id, image in coco.imgs.items():
        assert filecmp.cmp(data / 'train2017' / image['file_name'], data / 'images/training' / image['file_name'],
                           shallow=False)
        labels = cv2.imread(str(data / f'annotations/training/{image_id:012d}.png'), cv2.IMREAD_UNCHANGED)
        for annotation in coco.imgToAnns[image_id]:
            mask = coco.annToMask(annotation)
            assert mask.shape == labels.shape == (image['height'], image['width'])
            # an RLE is exact, a polygon runs through the middle of the pixels at the edge
            most = 0 if annotation['iscrowd'] else 0.3 * annotation['area'] + 20
            assert abs(mask.sum() - annotation['area']) <= most
            inside = cv2.erode(mask, np.ones((3, 3))).astype(bool)  # without its edge, where polygons are coarse
            if inside.any() and (annotation['iscrowd'] or len(annotation['segmentation']) == 1):
                assert (labels[inside] == annotation['category_id']).mean() > 0.95
                compared += 1
    assert compared > len(coco.anns) / 2


def test_a_seed_gives_the_data_that_it_always_gave(tmp_path):
    """What was measured on it holds today. Another NumPy may draw, another OpenCV fill polygons otherwise."""
    make_demo_data(tmp_path, num_train=8, num_val=2, size=96, seed=5)
    wanted, pictures = json.loads((ROOT / 'tests/golden/demo_data.json').read_text()).values()
    content = json.loads((tmp_path / 'annotations/instances_train2017.json').read_text())
    assert [image['file_name'] for image in content['images']] == [*wanted]
    for image in content['images']:
        golden, name = wanted[image['file_name']], image['file_name'].replace('jpg', 'png')
        objects = [a for a in content['annotations'] if a['image_id'] == image['id']]
        assert [image['height'], image['width']] == golden['size']
        assert [[a['category_id'], a['iscrowd'], *a['bbox']] for a in objects] == golden['objects']
        labels = cv2.imread(str(tmp_path / 'annotations/training' / name), cv2.IMREAD_UNCHANGED)
        assert np.bincount(labels.ravel(), minlength=6).tolist() == golden['pixels_of_labels']
        compare(tmp_path / 'train2017' / image['file_name'], golden)
    assert {f'{path.relative_to(tmp_path)}' for path in tmp_path.glob('classes/*/*/*')} == set(pictures)
    for name, golden in pictures.items():
        compare(tmp_path / name, golden)
        assert cv2.imread(str(tmp_path / name)).shape == (48, 48, 3)


def compare(path, golden):
    picture = cv2.imread(str(path)).astype(float)
    got = dict(mean=picture.mean((0, 1)), deviation=picture.std((0, 1)), steps=[  # which tell how textures lie
        np.abs(np.diff(picture, axis=axis)).mean() for axis in (0, 1)])
    for name, values in got.items():
        assert np.abs(values - np.array(golden[name])).max() < 0.5, name  # as far as JPEG and resizing may differ


def test_one_tiny_scene_has_a_picture_of_each_class(tmp_path):
    make_demo_data(tmp_path, num_train=1, num_val=2, size=4, seed=3)
    pictures = {path.parent: cv2.imread(str(path)) for path in tmp_path.glob('classes/*/*/*_0001.jpg')}
    assert {path.name for path in pictures} == set(CLASSES) and len(pictures) == 2 * len(CLASSES)
    assert {picture.shape for picture in pictures.values()} == {(4, 4, 3)}
    assert len({picture.tobytes() for picture in pictures.values()}) == len(pictures)


def test_chosen_classes_alone_are_drawn(tmp_path, call_tool, demo_data):
    options = ['--train', 6, '--val', 3, '--size', 64, '--classes', 'star', 'disc']
    assert call_tool('make_demo_data.py', tmp_path / 'data', *options)[0] == 0
    content = json.loads((tmp_path / 'data/annotations/instances_train2017.json').read_text())
    assert [(c['id'], c['name']) for c in content['categories']] == [(1, 'star'), (2, 'disc')]
    assert {a['category_id'] for a in content['annotations']} == {1, 2}
    assert (tmp_path / 'data/classes.txt').read_text().split() == ['background', 'star', 'disc']
    maps = [cv2.imread(str(path), cv2.IMREAD_UNCHANGED) for path in tmp_path.glob('data/annotations/*/*.png')]
    assert {label for labels in maps for label in np.unique(labels)} == {0, 1, 2}
    assert {path.name for path in tmp_path.glob('data/classes/*/*')} == {'star', 'disc'}
    name = 'classes/train/star/star_0001.jpg'  # the same objects in class folders as with all classes
    assert filecmp.cmp(tmp_path / 'data' / name, demo_data / name, shallow=False)
