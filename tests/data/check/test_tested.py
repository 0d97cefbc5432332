"""Images of classes before a test, and folders of ImageNet that are not numbered as its classes."""
from contextlib import nullcontext
from importlib import import_module

import pytest
from mmengine.config import Config
from PIL import Image

from helpers.faulty_data import kinds_of, pictures, write_list
from helpers.paths import TINY_CLS_CONFIG
from xcit_dense.data.check.check import check_before_test, check_before_training, check_data_set, warn_of_other_classes
from xcit_dense.data.class_folders import imagenet_classes
from xcit_dense.errors import DataError

pytest.importorskip('mmpretrain.datasets', reason='mmpretrain is optional')
IDS = list(imagenet_classes())


def imagenet(root, names=(), **more):
    """The config of such data, with a folder for each name and images in the first ones."""
    (root / 'val').mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(names):
        (root / 'val' / name).mkdir()
        if place < 2:
            Image.new('RGB', (9, 9), (place, 0, 0)).save(root / 'val' / name / 'a.png')
    return dict(dict(type='ImageNet', data_root=str(root), split='val', pipeline=[]), **more)


def config(dataset, count=1000):
    return Config(dict(test_dataloader=dict(dataset=dataset), model=dict(backbone=dict(
        type='XCiTClassifier', num_classes=count))))


@pytest.mark.parametrize('names, kind', (
    (IDS, None), ([f'{number:04}' for number in range(1000)], None), (list(map(str, range(1000))), 'class-numbers'),
    ([*IDS[1:], 'n99999999'], 'class-ids'), (list(map(str, range(1, 1001))), 'class-ids')))
def test_folders_of_imagenet(tmp_path, names, kind, said):
    """mmpretrain numbers them as text: 10 would be class 2."""
    dataset = imagenet(tmp_path, names)
    report = check_data_set(dataset, trained=False)
    assert kinds_of(report) == ({kind} if kind else set())
    stops = kind == 'class-numbers'
    with pytest.raises(DataError, match='as text') if stops else nullcontext():
        check_before_test(config(dataset))
    assert len(said) == (kind == 'class-ids')
    if names[-1] == 'n99999999':
        assert "'n01443537' is class 0 (n01440764)" in said[0]
    if kind:
        words = report.findings[0].sentence
        assert 'WordNet id' in words and f'{tmp_path}/meta/val.txt' in words
    # users may choose their own names
    own = dict(dataset, metainfo=dict(classes=[f'my {number}' for number in range(1000)]))
    assert check_data_set(own, trained=False).findings == []
    if stops:
        assert "'10' is class 2" in words
        cfg = Config(dict(train_dataloader=dict(dataset=dataset), model={}))
        with pytest.raises(DataError, match='as text'):
            check_before_training(cfg)
        check_before_training(cfg, 'warn')
        (tmp_path / 'meta').mkdir()
        write_list(tmp_path, '0/a.png 0\n1/a.png 1\n', 'meta/val.txt')  # for which the error asks
        assert check_data_set(dataset, trained=False).findings == []
        check_before_test(config(dataset))


def listed(label):
    return lambda root: dict(imagenet(root), ann_file=write_list(root, f'a.png 0\nb.png {label}\n'))


def custom(names=()):
    return lambda root: pictures(root, data_prefix=imagenet(root, names)['split'])


@pytest.mark.parametrize('make, count, words', (
    (lambda root: imagenet(root, IDS[100:110]), 1000, ('10 class folders', '1,000 classes', 'meta/val.txt')),
    (imagenet, 1000, ('no class folders', 'meta/val.txt', 'a.JPEG 1')),
    (custom(), 3, ('no class folders', '(ann_file of the')), (custom('abcd'), 3, ('4 class folders', '3 classes')),
    (listed(3), 3, ('line 2', 'label 3', '0 to 2')), (listed('x'), 1000, ('line 2', "x'")),
    # more names than the data set has, fewer folders than outputs, no labels, files on no disk, other data
    (listed(999), 1000, ()), (listed(5), None, ()), (custom('ab'), 3, ()),
    *((lambda root, more=more: dict(imagenet(root), **more), 3, ()) for more in (
        dict(with_label=False), dict(split='test'), dict(data_root='s3://bucket'), dict(type='CIFAR10')))))
def test_what_would_end_a_test_is_told_with_the_mend(tmp_path, make, count, words):
    with pytest.raises(DataError) if words else nullcontext() as caught:
        check_before_test(config(make(tmp_path), count))
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_tool_ends_before_the_model_is_built(call_tool, tmp_path):
    Image.new('RGB', (9, 9)).save(imagenet(tmp_path)['data_root'] + '/val/a.png')
    code, message = call_tool('test.py', TINY_CLS_CONFIG, 'absent.pth', '--data-root', tmp_path)
    assert code == 1 and 'no class folders' in message and 'ann_file' in message


def checkpoint_of(names):
    return dict(meta=dict(dataset_meta=dict(classes=tuple(names)))) if names else {}


@pytest.mark.parametrize('names, known, words', (
    (('cross', 'disc', 'star'), (), None),
    (('aaa', 'cross', 'star'), ('cross', 'disc', 'star'), ("without 'disc'", "with 'aaa'", 'empty folder')),
    (('cross', 'star'), ('cross', 'disc', 'star'), ("without 'disc'", 'run.pth')),
    (('cross', 'disc'), ('disc', 'cross'), ("class 0 is 'cross', not 'disc'", )),
    (IDS, imagenet_classes().values(), None), (IDS, ('a', 'b'), ("with 'n01440764'", ))))
def test_other_classes_than_those_of_the_checkpoint(tmp_path, names, known, words, said):
    """Figures and names would be wrong without a warning: frameworks compare numbers."""
    warn_of_other_classes(config(custom(names)(tmp_path)), checkpoint_of(known), 'run.pth')
    assert len(said) == bool(words) and all(word in said[0] for word in words or ()), said


def test_names_for_display_are_no_other_classes(tmp_path, said):
    """Of a run that gave its folders other names, or of a test that does; of a list only what it names."""
    folder, in_list = custom('ab')(tmp_path), dict(ann_file=write_list(tmp_path, 'a.png 0\n'))
    for dataset, known in ((dict(folder, metainfo=dict(classes=['x', 'y'])), 'xy'),
                           (dict(folder, classes=['x', 'y']), 'ab'), (dict(folder, **in_list), 'pq'),
                           (imagenet(tmp_path), import_module('mmpretrain.datasets.categories').IMAGENET_CATEGORIES)):
        warn_of_other_classes(config(dataset), checkpoint_of(known), 'run.pth')
    assert said == []
    (tmp_path / 'classes.txt').write_text('a\nb\n')
    warn_of_other_classes(config(dict(folder, **in_list)), checkpoint_of('ba'), 'run.pth')
    assert len(said) == 1
