"""Data that can be read in several ways: the error lists what was found and the options, which then decide."""
import shutil

import pytest

from helpers import exports
from helpers.placing import detector, numbers, placed, read
from xcit_dense.errors import ConfigError, DataError


@pytest.fixture
def folder(tmp_path):
    return tmp_path / 'run/data'


def fails(error, *words):
    return pytest.raises(error, match=''.join(f'(?=[\\s\\S]*{word})' for word in words))


def test_two_annotation_files(folder, tmp_path):
    root = exports.one_file(tmp_path / 'data')
    shutil.copy(root / 'annotations.json', root / 'older.json')
    with fails(DataError, 'annotations.json', 'older.json', '--train-annotations'):
        placed(root, folder)
    cfg = placed(root, folder, train_annotations='older.json')
    assert numbers(cfg)[0] == dict(train=(10, 30), val=(2, 6), test=(2, 6))
    cfg = placed(root, tmp_path / 'other', train_annotations='older.json',
                 val_annotations=str(root / 'annotations.json'))
    assert numbers(cfg)[0] == dict(train=(12, 36), val=(12, 36), test=(12, 36))


def test_one_for_training_and_one_for_all(folder, tmp_path):
    root = exports.one_file(tmp_path / 'data')
    shutil.copy(root / 'annotations.json', root / 'train.json')
    with fails(DataError, 'annotations.json', 'train.json'):
        placed(root, folder)


def test_two_folders_of_images(folder, tmp_path):
    root = exports.one_file(tmp_path / 'data', folder='left')
    shutil.copytree(root / 'left', root / 'right')
    with fails(DataError, 'left', 'right', '--train-images'):
        placed(root, folder)
    cfg = placed(root, folder, train_images='right')
    assert cfg.train_dataloader.dataset.data_prefix.img == cfg.val_dataloader.dataset.data_prefix.img == 'right'
    assert len(read(cfg)['train']) == 10


def test_images_by_a_usual_name_go_first(folder, tmp_path):
    root = exports.one_file(tmp_path / 'data')
    shutil.copytree(root / 'images', root / 'masks')
    assert placed(root, folder).train_dataloader.dataset.data_prefix.img == 'images'


def test_images_that_are_nowhere(folder, tmp_path):
    root = exports.one_file(tmp_path / 'data')
    shutil.move(root / 'images', tmp_path / 'elsewhere')
    with fails(DataError, '000.jpg', '--train-images'):
        placed(root, folder)
    cfg = placed(root, folder, train_images=str(tmp_path / 'elsewhere'))
    assert len(read(cfg)['train']) == 10
    with fails(DataError, '--train-images', str(tmp_path / 'run')):
        placed(root, folder, train_images=str(tmp_path / 'run'))


def test_coco_and_yolo(folder, tmp_path):
    root = exports.one_file(exports.yolo(tmp_path / 'data'), folder='.')
    with fails(DataError, 'annotations.json', 'data.yaml', '--train-annotations'):
        placed(root, folder)
    assert numbers(placed(root, folder, train_annotations='data.yaml'))[0]['train'] == (8, 24)
    assert numbers(placed(root, tmp_path / 'b', train_annotations='annotations.json'))[0]['train'] == (10, 30)


@pytest.mark.parametrize('options, error, words', (
    (dict(train_annotations='no.json'), DataError, ['--train-annotations no.json', 'there is no file']),
    (dict(val_images='no'), DataError, ['--val-images no', 'there is no folder']),
    (dict(train_annotations='images/000.jpg'), DataError, ['--train-annotations', 'cannot be read']),
    (dict(train_annotations='list.json'), DataError, ['--train-annotations', 'images, annotations and categories']),
    (dict(palette='p.json'), ConfigError, ['--palette', 'segmentation']),
    (dict(ignore_label=(3, )), ConfigError, ['--ignore-label', 'segmentation']),
    (dict(val_share=0.), ConfigError, ['--val-share', 'above 0']),
    (dict(val_share=1.5), ConfigError, ['--val-share', 'below 1'])))
def test_options_that_cannot_be(options, error, words, folder, tmp_path):
    root = exports.one_file(tmp_path / 'data')
    (root / 'list.json').write_text('[]')
    with fails(error, *words):
        placed(root, folder, **options)


def test_a_share_where_there_is_validation_data(folder, tmp_path):
    with fails(ConfigError, '--val-share', 'no effect'):
        placed(exports.roboflow(tmp_path / 'data'), folder, val_share=0.3)


def test_options_for_a_folder_without_data(folder, tmp_path):
    (tmp_path / 'data/photos').mkdir(parents=True)
    with fails(DataError, 'photos/', '--train-annotations'):
        placed(tmp_path / 'data', folder, train_images='photos')


@pytest.mark.parametrize('change, words', (
    (lambda cfg: cfg.train_dataloader.dataset.update(type='CocoPanopticDataset'), 'unknown or different kinds'),
    (lambda cfg: cfg.train_dataloader.dataset.update(backend_args=dict(backend='petrel')), 'on a disk'),
    (lambda cfg: cfg.train_dataloader.update(dataset=dict(type='ConcatDataset', datasets=[
        dict(cfg.train_dataloader.dataset)] * 2)), 'several')))
def test_what_is_left_as_it_is(change, words, folder, tmp_path):
    root = exports.roboflow(tmp_path / 'data')
    cfg = detector(root)
    change(cfg)
    before = cfg.copy().to_dict()
    assert placed(root, folder, cfg).to_dict() == before
    with fails(ConfigError, '--train-images', words):
        placed(root, folder, cfg, train_images='train')


def test_a_file_that_the_config_names_itself_is_meant(folder, tmp_path):
    """Where it is not there, no other takes its place unseen."""
    root = exports.roboflow(tmp_path / 'data')
    cfg = detector(root)
    cfg.val_dataloader.dataset.ann_file = 'absent.json'
    cfg.val_evaluator.ann_file = str(root / 'absent.json')  # another one would be the user's own, which stays
    before = cfg.copy().to_dict()
    assert placed(root, folder, cfg).to_dict() == before
    cfg = placed(root, folder, cfg, train_annotations=exports.ROBOFLOW['train'])
    assert numbers(cfg)[0]['val'] == (4, 12)
