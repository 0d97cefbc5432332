"""Data that can be read in several ways or not at all: the error lists what was found and what to use."""
import shutil

import pytest
from annotations import exports, exports_files
from annotations.placing import detector, numbers, placed, read
from mmengine.config import Config

from helpers import exports_segmentation
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.annotations.coco import by_part
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import take_classes
from xcit_dense.errors import ConfigError, DataError

SEVERAL = dict(train=(12, 36), val=(12, 36), test=(12, 36))
DIVIDED = dict(train=(10, 30), val=(2, 6), test=(2, 6))


def fails(error, *words):
    return pytest.raises(error, match=''.join(f'(?=[\\s\\S]*{word})' for word in words))


def test_two_annotation_files(folder, tmp_path):
    root = exports.one_file(tmp_path / 'data')
    for name in ('train.json', 'older.json'):
        shutil.copy(root / 'annotations.json', root / name)
        with fails(DataError, 'annotations.json', name, '--train-annotations'):
            placed(root, folder)
        (root / name).rename(root / 'older.json')
    assert numbers(placed(root, folder, train_annotations='older.json'))[0] == DIVIDED
    cfg = detector(root)
    cfg.test_evaluator.ann_file = own = str(root / 'annotations.json')  # another existing file is the user's own
    assert placed(root, folder, cfg, train_annotations='older.json').test_evaluator.ann_file == own
    cfg = placed(root, tmp_path / 'other', train_annotations='older.json',
                 val_annotations=str(root / 'annotations.json'))
    assert numbers(cfg)[0] == SEVERAL
    assert numbers(placed(root, tmp_path / 'c', val_annotations='older.json'))[0] == SEVERAL  # the other one trains


def test_two_folders_of_images_or_none(folder, tmp_path):
    root = exports.one_file(tmp_path / 'data', folder='left')
    (root / 'link').symlink_to('left')
    assert len(read(placed(root, folder))['train']) == 10  # one folder by two names
    (root / 'link').unlink()
    shutil.copytree(root / 'left', root / 'right')
    with fails(DataError, 'left', 'right', '--train-images'):
        placed(root, folder)
    (root / 'right').rename(root / 'test')  # of another part
    assert placed(root, folder).train_dataloader.dataset.data_prefix.img == 'left'
    (root / 'test').rename(root / 'train')  # of its own
    assert placed(root, folder).train_dataloader.dataset.data_prefix.img == 'train'
    (root / 'train').rename(root / 'right')
    (root / 'left/003.jpg').rename(tmp_path / '003.jpg')  # the most images
    assert placed(root, folder).train_dataloader.dataset.data_prefix.img == 'right'
    (tmp_path / '003.jpg').rename(root / 'left/003.jpg')
    cfg = placed(root, folder, train_images='right')
    assert cfg.train_dataloader.dataset.data_prefix.img == cfg.val_dataloader.dataset.data_prefix.img == 'right'
    assert len(read(cfg)['train']) == 10
    (root / 'left').rename(root / 'images')  # a usual name goes first
    assert placed(root, folder).train_dataloader.dataset.data_prefix.img == 'images'
    shutil.rmtree(root / 'right')
    shutil.move(root / 'images', tmp_path / 'elsewhere')
    with fails(DataError, '000.jpg', '--train-images'):
        placed(root, folder)
    assert len(read(placed(root, folder, train_images=str(tmp_path / 'elsewhere')))['train']) == 10
    with fails(DataError, '--train-images', str(tmp_path / 'run')):
        placed(root, folder, train_images=str(tmp_path / 'run'))


def test_what_the_config_names_goes_before_what_is_found(folder, tmp_path):
    """Its file before others for the same part, and its folder of images before others with the same names."""
    root = exports.one_file(tmp_path / 'data', file='annotations/instances_train2017.json', folder='photos')
    cfg = detector(root)
    cfg.train_dataloader.dataset.data_prefix.img = 'photos/'
    for name in ('images', 'train'):
        shutil.copytree(root / 'photos', root / name)
    for name in ('instances_train2017_small.json', 'panoptic_train.json', 'instances_train2014.json'):
        shutil.copy(root / 'annotations/instances_train2017.json', root / 'annotations' / name)
    placed(root, folder, cfg)
    assert {dataset.dataset.data_prefix.img for dataset in (cfg.train_dataloader, cfg.val_dataloader)} == {'photos'}
    assert numbers(cfg)[0]['train'] == (10, 30)


def test_coco_and_yolo(folder, tmp_path):
    root = exports.one_file(exports.yolo(tmp_path / 'data'), folder='.')
    with fails(DataError, 'annotations.json', 'data.yaml', '--train-annotations'):
        placed(root, folder)
    assert numbers(placed(root, folder, train_annotations='data.yaml'))[0]['train'] == (8, 24)
    assert numbers(placed(root, tmp_path / 'b', train_annotations='annotations.json'))[0] == DIVIDED


def test_what_is_not_used_is_named(folder, tmp_path, capfd):
    """COCO and YOLO come before files for each image; of two of these, the user chooses."""
    for make in (exports.one_file, exports.yolo):
        root = exports_files.labelme(make(tmp_path / make.__name__), apart=True)
        assert numbers(placed(root, folder / make.__name__))
        said = capfd.readouterr().out
        assert 'LabelMe in labels; to use it: --train-annotations DIR' in said and 'data        LabelMe' not in said
        placed(root, tmp_path / f'{make.__name__}/a', train_annotations='labels')
        assert 'data        LabelMe' in capfd.readouterr().out
    with fails(DataError, 'several formats', 'Pascal VOC in .', 'LabelMe in .', '--train-annotations'):
        placed(exports_files.labelme(exports_files.voc(tmp_path / 'both', 'flat')), folder)


def test_options_that_cannot_be(folder, tmp_path):
    root, other = exports.one_file(tmp_path / 'data'), exports.roboflow(tmp_path / 'other', 2, 2, 0)
    (root / 'list.json').write_text('[]')
    (tmp_path / 'empty/photos').mkdir(parents=True)
    for options, error, *words in (
            (dict(train_annotations='no.json'), DataError, '--train-annotations no.json', 'there is no file or folder'),
            (dict(val_images='no'), DataError, '--val-images no', 'there is no folder'),
            (dict(train_annotations='images/000.jpg'), DataError, 'images/000.jpg cannot be read'),
            (dict(train_annotations='list.json'), DataError, '--train-annotations', 'images, annotations and categor'),
            (dict(palette='p.json'), ConfigError, '--palette', 'segmentation'),
            (dict(ignore_label=(3, )), ConfigError, '--ignore-label', 'segmentation'),
            (dict(val_share=0.), ConfigError, '--val-share', 'above 0'),
            (dict(val_share=1.5), ConfigError, '--val-share', 'below 1')):
        with fails(error, *words):
            placed(root, folder, **options)
    with fails(ConfigError, '--val-share', 'no effect'):  # there is validation data
        placed(other, folder, val_share=0.3)
    with fails(DataError, 'photos: nothing', '--train-annotations'):
        placed(tmp_path / 'empty', folder, train_images='photos')
    (tmp_path / 'empty/notes.json').write_text('{}')  # nothing that is known is left to the framework
    assert placed(tmp_path / 'empty', folder).to_dict() == detector(tmp_path / 'empty').to_dict()


def test_a_file_of_no_part_or_of_two_does_not_count_beside_those_of_each(tmp_path):
    root = tmp_path / 'val'  # whose own name says nothing
    files = [(root / name, {}) for name in ('train.json', 'val2017.json', 'train_val.json', 'mine.json')]
    assert by_part(files, root) == dict(train=files[0], val=files[1])
    assert by_part(files[1:], root, ['train']) == dict(val=files[1])


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
    for name in (str(tmp_path / 'absent.json'), 'absent.json'):
        cfg = detector(root)
        cfg.val_dataloader.dataset.ann_file = name
        cfg.val_evaluator.ann_file = str(root / name)  # another one would be the user's own, which stays
        with fails(DataError, f'COCO annotations in .*{name}', '--train-annotations FILE'):  # where none is there
            placed(root, folder, cfg)
        cfg.train_dataloader.dataset.ann_file = exports.ROBOFLOW['train']
        before = cfg.copy().to_dict()
        assert placed(root, folder, cfg).to_dict() == before
    cfg = placed(root, folder, cfg, train_annotations=exports.ROBOFLOW['train'])
    assert numbers(cfg)[0]['val'] == (4, 12)


@pytest.mark.parametrize('make, config, words', (
    (exports.yolo, TINY_SEG_CONFIG, 'YOLO labels in data.yaml.*fasterrcnn_xcit_n12_p16_small'),
    (lambda root: exports.yolo(root, form='bare'), 'semfpn_xcit_s12_p16_custom',
     'YOLO labels in . .*fasterrcnn_xcit_s12_p16_custom'),
    (exports.roboflow, TINY_SEG_CONFIG, "COCO annotations in .*_annotations.coco.json.*maskrcnn_xcit_n12_p16_small"),
    (lambda root: exports_segmentation.pairs(root, 'images', 'labels', 'ab'), TINY_CONFIG,
     'label maps in labels for images in images .use semfpn_xcit_n12_p16_small'),
    (exports_segmentation.label_studio, TINY_CONFIG, 'Label Studio.*semfpn_xcit_n12_p16_small'),
    *((None, config, 'for each class in train .use xcit_n12_p8_small')
      for config in (TINY_CONFIG, TINY_SEG_CONFIG))))
def test_data_for_other_models(make, config, words, tmp_path, class_folders):
    with pytest.raises(DataError, match=words):
        load_config(config, data_root=make(tmp_path / 'data') if make else class_folders, work_dir=tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG))
def test_no_folder(config, tmp_path):
    (tmp_path / 'file').touch()
    (tmp_path / 'photos').mkdir()
    for name, words in (('photo', 'there is no folder .*photo; did you mean photos.$'),
                        ('file', 'there is no folder .*file$')):
        with pytest.raises(DataError, match=f'^--data-root: .*{words}'):
            load_config(config, data_root=tmp_path / name, work_dir=tmp_path / 'run')


@pytest.mark.parametrize('make, config, part', (
    (exports.roboflow, TINY_CONFIG, 'train'), (exports.yolo, TINY_CONFIG, 'images/train'),
    (exports_segmentation.camvid, TINY_SEG_CONFIG, 'train'), (None, TINY_SEG_CONFIG, 'train')))
def test_one_part_of_a_data_set_is_not_taken_for_all_of_it(make, config, part, tmp_path, class_folders):
    root = make(tmp_path / 'data') if make else class_folders
    with fails(DataError, f'{root}/{part} is only the training part', f'give {root}[.]', '--val-share'):
        load_config(config, data_root=root / part, work_dir=tmp_path / 'run')


def test_one_part_is_taken_where_it_is_asked_for(folder, tmp_path):
    root = exports.roboflow(tmp_path / 'data', 8, 4, 0)
    assert numbers(placed(root / 'train', folder, val_share=0.25))[0] == dict(train=(6, 18), val=(2, 6), test=(2, 6))
    (root / 'valid').rename(root / 'other')
    assert numbers(placed(root / 'train', folder))[0]['train'][0] < 8


def test_class_folders(class_folders, tmp_path):
    pytest.importorskip('mmpretrain')

    def classes(name, *more, change=lambda cfg: None, **options):
        """Copy data with another name for its validation, and return the folders of a placed config."""
        root = shutil.copytree(class_folders, tmp_path / '_'.join((name, *more)), dirs_exist_ok=True)
        (root / 'val').rename(root / name)
        for other in more:
            shutil.copytree(root / name, root / other)
        cfg = Config(dict({f'{part}_dataloader': dict(dataset=dict(
            type='CustomDataset', data_root=str(root), data_prefix=dict(img_path=folder), pipeline=[]))
            for part, folder in dict(train='train', val='val', test='val').items()}, classes_from_data=True, model={}))
        change(cfg)
        placed(root, tmp_path / 'run', cfg, **options)
        if (root / cfg.val_dataloader.dataset.data_prefix.img_path).is_dir():
            take_classes(cfg)
            assert cfg.val_dataloader.dataset.metainfo.classes == ('blue', 'green', 'red')
        return [cfg[f'{part}_dataloader'].dataset.data_prefix.img_path for part in ('train', 'val', 'test')]

    for name in ('val', 'valid', 'validation', 'test'):
        assert classes(name) == ['train', name, name]
    assert classes('val', 'test') == ['train', 'val', 'val']  # as the config says
    assert classes('valid', 'test') == ['train', 'valid', 'test']
    assert classes('x') == ['train', 'val', 'val']  # left to the check of the data
    assert classes('held_out', val_images='held_out') == ['train', 'held_out', 'held_out']
    with pytest.raises(DataError, match='--val-images nowhere'):
        classes('a', val_images='nowhere')
    with pytest.raises(ConfigError, match='--val-share'):
        classes('b', val_share=0.1)
    # a folder that the config names itself is meant
    assert classes('valid', 'd', change=lambda cfg: cfg.val_dataloader.dataset.update(ann_file='mine.txt')) == [
        'train', 'val', 'val']
    assert classes('valid', 'c', change=lambda cfg: cfg.val_dataloader.dataset.data_prefix.update(
        img_path='mine')) == ['train', 'mine', 'val']
