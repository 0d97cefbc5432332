"""Images of classes, in folders or in a list: they are read and numbered as by mmpretrain."""
import shutil
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest
from mmengine.config import Config

from helpers.faulty_data import built, pictures, write_list
from xcit_dense.data.check.check import check_data_set
from xcit_dense.data.class_folders import ClassImages, are_imagenet_names, imagenet_classes
from xcit_dense.data.classes import classes_of_data, heads_of_classes, take_classes
from xcit_dense.data.datasets import DataSet, check_data
from xcit_dense.errors import CheckpointError, DataError

mmpretrain = pytest.importorskip('mmpretrain.datasets', reason='mmpretrain is optional')

NAMES = ('cross', 'disc', 'square', 'star', 'triangle')


def config(train, val=None, model=None, **more):
    return Config(dict(classes_from_data=True, train_dataloader=dict(dataset=train),
                       val_dataloader=dict(dataset=val or train), model=model or {}, **more))


def assert_same(dataset):
    """Paths, labels and names are those of mmpretrain's own data set."""
    own, its = ClassImages(dataset), built(dataset)
    infos = [its.get_data_info(i) for i in range(len(its))]
    assert own.images() == [(info['img_path'], info.get('gt_label')) for info in infos] and infos
    if own.is_labelled and not own.list and dataset['type'] == 'CustomDataset':
        assert own.classes() == tuple(its.CLASSES)
    return own


def test_class_folders_are_read_as_mmpretrain_reads_them(root):
    assert assert_same(pictures(root)).classes() == NAMES
    folder = root / 'classes/train'
    (folder / 'star/deep/.hidden').mkdir(parents=True)
    for name in ('star/deep/a.JPEG', 'star/deep/.hidden/b.png', 'disc/.c.jpg', 'disc/Z.TIF', 'disc/d.webp',
                 'disc/e.npy', 'disc/jpg', 'beside.jpg', 'disc/a b 3.jpg'):
        shutil.copy(folder / 'disc/disc_0001.jpg', folder / name)
    (folder / '.ipynb_checkpoints').mkdir()
    (folder / 'linked').symlink_to(folder / 'square')
    (folder / 'Upper').mkdir()
    own = assert_same(pictures(root))
    assert own.classes() == ('.ipynb_checkpoints', 'Upper', 'cross', 'disc', 'linked', 'square', 'star', 'triangle')
    assert {path.rpartition('/')[2] for path in own.unread()} == {'d.webp', 'e.npy', 'jpg'}
    for where, options in ((root, dict(extensions=('.npy', '.WEBP'))), (root, dict(with_label=False)),
                           (root, dict(data_prefix=dict(img_path='classes/train'))),
                           (f'{root}/classes/train', dict(data_prefix='')), ('', dict(data_prefix=str(folder)))):
        assert_same(pictures(where, **options))


def test_lists_are_read_as_mmpretrain_reads_them(root):
    (root / 'classes.txt').unlink()  # that of the scenes
    lines = [('star/star_0001.jpg', 3), ('disc/disc_0001.jpg', 0), ('a b 3.jpg', 1), ('star/star_0001.jpg', 3)]
    listed = pictures(root, ann_file=write_list(root, lines))
    assert assert_same(listed).classes() == ('0', '1', '2', '3')
    (root / 'classes.txt').write_text('\n'.join(NAMES))
    assert ClassImages(listed).classes() == NAMES
    assert_same(pictures(root, ann_file=write_list(root, 'a.jpg\nb c.jpg\r\nd.jpg'), with_label=False))


@pytest.mark.parametrize('split, with_list', (('train', False), ('val', True), ('test', True), ('test', False)))
def test_splits_of_imagenet(root, split, with_list):
    (root / 'classes/test').mkdir()
    shutil.copy(root / 'classes/val/star/star_0001.jpg', root / 'classes/test/b.jpg')
    dataset = dict(type='ImageNet', data_root=str(root / 'classes'), split=split, metainfo=dict(classes=NAMES))
    if with_list:
        (root / 'classes/meta').mkdir()
        write_list(root, 'star/star_0001.jpg 3\n' if split != 'test' else 'b.jpg\n', f'classes/meta/{split}.txt')
    own = assert_same(dataset)
    assert (own.list is not None) == with_list and own.is_labelled == (split != 'test')
    assert DataSet(dataset).folder('img_path') == root / 'classes' / split
    check_data(config(dataset))
    shutil.rmtree(root / 'classes' / split)
    with pytest.raises(DataError, match=f'missing  {root}/classes/{split}'):
        check_data(config(dataset))


def test_what_is_not_there_is_named(root):
    """Class folders have no annotations to name."""
    for dataset, words in ((pictures(root, 'none'), fr'incomplete\.[\s\S]*missing  {root}/classes/none'),
                           (pictures(root / 'none', data_prefix=''),
                            fr'^there is no folder {root}/none\.[\s\S]*missing  {root}/none'),
                           (pictures(root, ann_file='no.txt'), f'missing  {root}/no.txt')):
        with pytest.raises(DataError, match=words) as caught:
            check_data(config(dataset))
        assert '--train-annotations' not in str(caught.value)
    check_data(config(dict(type='CIFAR10', data_root=str(root), data_prefix='none')))  # it would fetch them


def test_mmpretrain_is_asked_for_its_own_data_sets_alone(monkeypatch):
    for kind in ('CustomDataset', 'mmpretrain.CUB', 'CUB'):
        assert DataSet(dict(type=kind)).class_of('TRANSFORMS', 'RandomErasing').__module__.startswith('mmpretrain.')
    monkeypatch.setattr('xcit_dense.data.datasets.import_module', lambda name: (
        import_module(name) if 'mmpretrain' not in name else pytest.fail('it takes seconds to import')))
    for kind, prefix in (('CocoDataset', 'img'), ('ADE20KDataset', 'img_path')):
        dataset = DataSet(dict(type=kind, data_prefix={prefix: 'x'}))
        assert dataset.type and dataset.class_of('TRANSFORMS', 'NoSuchStep') is None


def test_data_sets_of_others_are_unknown(monkeypatch, root):
    """A custom data set of somebody else, and all without mmpretrain; the files of splits differ."""
    def load(self):
        raise NotImplementedError

    load.__qualname__ = 'CustomDataset.load_data_list'
    kinds = type('Other', (), dict(load_data_list=load)), type('Mine', (mmpretrain.CustomDataset, ), {})
    assert [DataSet(dict(type=kind)).reader for kind in kinds] == ['', 'CustomDataset']
    for kind in ('ImageNet', 'CUB'):
        assert DataSet(dict(type=kind, split='train')).files != DataSet(dict(type=kind, split='test')).files
    monkeypatch.setattr('xcit_dense.data.datasets.import_module', Mock(side_effect=ImportError))
    check_data(config(pictures(root, 'none')))  # to install it comes first
    finding, = check_data_set(pictures(root)).findings
    assert finding.kind == 'not-checked' and "'CustomDataset' is of no installed framework" in finding.sentence


def test_class_folders_give_their_classes_to_every_part_that_counts_them(root):
    model = dict(type='ImageClassifier', backbone=dict(type='XCiTClassifier'), data_preprocessor=dict(num_classes=1000),
                 head=dict(type='LogitsHead', loss=dict(type='LabelSmoothLoss', num_classes=1000)))
    cfg = config(pictures(root), pictures(root, 'val'), model, data_preprocessor=dict(num_classes=7))
    take_classes(cfg)
    assert cfg.train_dataloader.dataset.metainfo.classes == cfg.val_dataloader.dataset.metainfo.classes == NAMES
    assert cfg.model.backbone.num_classes == cfg.model.head.loss.num_classes == 5
    assert cfg.model.data_preprocessor.num_classes == cfg.data_preprocessor.num_classes == 5
    # a classifier without a head has no classes of its own
    model = dict(backbone=dict(type='XCiTClassifier', num_classes=0), head=dict(type='LinearClsHead', num_classes=9))
    assert [head['type'] for head in heads_of_classes(model)] == ['LinearClsHead']
    assert list(heads_of_classes(dict(backbone=dict(type='ResNet', num_classes=9)))) == []


@pytest.mark.parametrize('harm, words', (
    (lambda folder: shutil.rmtree(folder / 'star'), "without 'star'"),
    (lambda folder: (folder / 'star').rename(folder / 'stars'), "without 'star' and with 'stars'"),
    (lambda folder: (folder / '.ipynb_checkpoints').mkdir(), "with '.ipynb_checkpoints'")))
def test_classes_that_differ_are_told_with_the_mend(root, harm, words):
    cfg = config(pictures(root), pictures(root, 'val'))
    harm(root / 'classes/val')
    with pytest.raises(DataError, match=f'val_dataloader .*has different classes.*{words}.*empty folder') as caught:
        take_classes(cfg)
    assert str(root / 'classes/val') in str(caught.value)
    take_classes(cfg, on_findings='warn')
    with pytest.raises(DataError, match=f'different classes than x.pth.*{words}'):
        take_classes(cfg, dict(meta=dict(dataset_meta=dict(classes=NAMES))), 'x.pth', loaders=['val_dataloader'])


def test_a_list_takes_the_names_of_the_training_data(root):
    val = pictures(root, 'val', ann_file=write_list(root, [('star/star_0001.jpg', 3)], 'val.txt'))
    (root / 'classes.txt').unlink()  # that of the scenes
    cfg = config(pictures(root), val)
    take_classes(cfg)
    assert cfg.val_dataloader.dataset.metainfo.classes == NAMES
    write_list(root, [('star/star_0001.jpg', 5)], 'val.txt')
    with pytest.raises(DataError, match="val_dataloader .*has different classes.*with '5'"):
        take_classes(cfg)
    write_list(root, 'a.jpg 1000000000', 'val.txt')
    with pytest.raises(DataError, match='label 1000000000'):
        classes_of_data(val)


def test_an_empty_folder_mends_a_class_without_images(root):
    """Which mmpretrain takes; without it every label behind would be another."""
    shutil.rmtree(root / 'classes/val/disc')
    (root / 'classes/val/disc').mkdir()
    take_classes(config(pictures(root), pictures(root, 'val')))
    assert [label for _, label in assert_same(pictures(root, 'val')).images()] == [0, 2, 3, 4]


def test_no_class_folders_at_all(root):
    for name in NAMES:
        shutil.rmtree(root / 'classes/train' / name)
    with pytest.raises(DataError, match='classes/train has no class folders. Make a folder for each class'):
        take_classes(config(pictures(root), pictures(root, 'val')))
    with pytest.raises(DataError, match='cannot be read'):
        classes_of_data(pictures(root, 'none'))
    with pytest.raises(CheckpointError, match='no class names'):
        take_classes(config(pictures(root)), {}, 'x.pth')


def test_names_of_imagenet():
    """A thousand ids in order, as timm has them, with a name of its own each, as mmpretrain has them."""
    classes, categories = imagenet_classes(), import_module('mmpretrain.datasets.categories').IMAGENET_CATEGORIES
    assert list(classes) == sorted(classes)
    assert len({name.lower() for name in classes.values()}) == 1000  # Cardigan, a dog, and cardigan are two
    info = Path(pytest.importorskip('timm').__file__).parent / 'data/_info/imagenet_synsets.txt'
    assert info.read_text().split() == list(classes)
    assert classes['n02012849'] == 'crane (bird)' and classes['n02963159'] == 'cardigan'
    own = tuple(classes.values())  # known with all synonyms and with one
    assert are_imagenet_names(categories) and are_imagenet_names(own)
    assert not any(map(are_imagenet_names, (own[:999], own[::-1], list(classes))))
