"""Data that is not on a disk: any backend of mmengine, its own or a user's."""
import json
from pathlib import Path

import pytest
from mmengine import fileio
from mmengine.config import Config, ConfigDict

from helpers.faulty_data import ANNOTATIONS, coco, fields, folders, kinds_of, only, rewrite
from helpers.paths import TINY_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.config.options import set_data_root
from xcit_dense.data.check import check_before_training, check_data_set
from xcit_dense.data.classes import classes_of_data, take_classes
from xcit_dense.data.datasets import address_of, check_data, is_elsewhere
from xcit_dense.data.demo import CLASSES
from xcit_dense.errors import DataError


@pytest.fixture
def shelf(root):
    """A user's backend with the name ``shelf``, for addresses ``shelf://``, that holds the data."""

    class Shelf(fileio.BaseStorageBackend):
        def get(self, filepath):
            return (root / filepath.removeprefix('shelf://').removeprefix('data/')).read_bytes()

        def get_text(self, filepath, encoding='utf-8'):
            return self.get(filepath).decode(encoding)

    fileio.register_backend('shelf', Shelf, force=True, prefixes='shelf')
    yield root
    for known in (fileio.backends.backends, fileio.backends.prefix_to_backends):
        known.pop('shelf')
    fileio.io.backend_instances.clear()


#: What a config says of data that is elsewhere.
WAYS = {'backend': dict(data_root='data', backend_args=dict(backend='shelf')),
        'address': dict(data_root='shelf://data/'), 'parts': dict(data_root=None, ann_file=f'shelf://data/{ANNOTATIONS}',
                                                               data_prefix=dict(img='shelf://data/train2017/'))}


@pytest.mark.parametrize('way', WAYS)
def test_annotations_are_checked_through_their_backend_and_images_are_not(shelf, way):
    dataset = coco(shelf, **WAYS[way])
    assert kinds_of(check_data_set(dataset)) == {'not-checked'}
    assert check_data_set(dataset).counts['images'] == 6
    rewrite(shelf, fields('annotations', 0, segmentation='x'))
    assert kinds_of(check_data_set(dataset)) == {'not-checked', 'mask-malformed'}
    assert classes_of_data(ConfigDict(dataset))['classes'] == CLASSES
    check_data(Config(dict(train_dataloader=dict(dataset=dataset))))


@pytest.mark.parametrize('backend', (
    dict(backend='petrel'), dict(backend='of nobody'), dict(backend='lmdb', db_path='x'), dict(backend='http'),
    dict(backend='memcached', server_list_cfg='x')))
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # mmengine's own for LMDB, half built
def test_a_backend_that_does_not_answer_is_said_and_refuses_nothing(root, backend):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.update(backend_args=backend, metainfo=dict(classes=CLASSES))
    cfg.classes_from_data = False
    cfg.val_evaluator.ann_file = 's3://bucket/annotations.json'
    check_data(cfg, ['train_dataloader', 'val_dataloader'])
    check_before_training(cfg)
    only(check_data_set(cfg.train_dataloader.dataset), 'not-checked')
    only(check_data_set(folders(root, backend_args=backend)), 'not-checked')
    cfg.classes_from_data = True
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.metainfo = {}
    with pytest.raises(DataError, match='cannot be read'):  # there are no others
        take_classes(cfg)


def test_images_alone_may_be_elsewhere(root):
    """Where the step that loads maps their paths to another place."""
    (root / 'train2017').rename(root / 'kept')
    for step in (dict(type='LoadImageFromFile', backend_args=dict(backend='petrel', path_mapping={'a': 's3://a'})),
                 dict(type='LoadImageFromFile', file_client_args=dict(backend='petrel'))):
        dataset = coco(root, pipeline=[step])
        check_data(Config(dict(train_dataloader=dict(dataset=dataset))))
        assert kinds_of(check_data_set(dataset)) == {'not-checked'}
    local = coco(root, pipeline=[dict(type='LoadImageFromFile', backend_args=dict(backend='local'))],
                 backend_args=dict(backend='local'))
    assert kinds_of(check_data_set(local)) == {'image-missing'}
    with pytest.raises(DataError, match='train2017'):
        check_data(Config(dict(train_dataloader=dict(dataset=local))))


def test_classes_of_label_maps_elsewhere_are_those_of_the_list(shelf):
    dataset = ConfigDict(folders(shelf, **WAYS['address']))
    assert classes_of_data(dataset)['classes'] == ('background', *CLASSES)
    for text in ('a\nb\na\n', 'a\n\nb\n', 'a\n', '', b'\xff\n'):  # as on a disk
        (shelf / 'classes.txt').write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(DataError, match=r'shelf://data/classes\.txt must'):
            classes_of_data(dataset)
    (shelf / 'classes.txt').unlink()
    with pytest.raises(DataError, match=r'shelf://data/classes\.txt'):
        classes_of_data(dataset)


def test_an_address_is_joined_and_not_made_a_path():
    for root, part, wanted in (('s3://a/', 'b/c', 's3://a/b/c'), ('s3://a', 'b', 's3://a/b'), ('a', 's3://b', 's3://b'),
                               (None, 's3://b', 's3://b'), ('s3://a', '/b', '/b')):
        dataset = dict(data_root=root)
        assert is_elsewhere(dataset, part) == wanted.startswith('s3') and address_of(dataset, part) == wanted
    cfg = Config(dict(train_dataloader=dict(dataset=dict(type='x', data_root='data/old', ann_file='a.json')),
                      val_evaluator=dict(ann_file='data/old/b/c.json')))
    set_data_root(cfg, 's3://bucket/new/')
    assert cfg.train_dataloader.dataset.data_root == 's3://bucket/new/'
    assert cfg.val_evaluator.ann_file == 's3://bucket/new/b/c.json'


def test_what_is_missing_is_told_and_the_run_goes_on_where_that_is_asked(root, tmp_path, caplog):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    content = json.loads((root / ANNOTATIONS).read_text())
    content['categories'].reverse()
    Path(root, ANNOTATIONS.replace('train', 'val')).write_text(json.dumps(content))
    with pytest.raises(DataError, match='a different order'):
        take_classes(cfg)
    take_classes(cfg, on_findings='warn')
    assert cfg.model.roi_head.bbox_head.num_classes == 5
    cfg.val_dataloader.dataset.data_prefix.img = 'none'
    with pytest.raises(DataError, match='none'):
        check_data(cfg, ['val_dataloader'])
    check_data(cfg, ['val_dataloader'], 'warn')
