"""Images of classes before a test, and folders of ImageNet that are not numbered as its classes."""
import pytest
from mmengine.config import Config
from PIL import Image

from helpers.faulty_data import kinds_of, pictures, write_list
from helpers.paths import TINY_CLS_CONFIG
from xcit_dense.data.check import (
    check_before_test,
    check_before_training,
    check_data_set,
    warn_of_other_classes,
)
from xcit_dense.data.imagenet import imagenet_classes
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


@pytest.fixture
def warned(monkeypatch):
    said = []
    monkeypatch.setattr('xcit_dense.data.check.tested.print_log', lambda text, **how: said.append(text))
    return said


@pytest.mark.parametrize('names, kind', (
    (IDS, None), ([f'{number:04}' for number in range(1000)], None), (list(map(str, range(1000))), 'class-numbers'),
    ([*IDS[1:], 'n99999999'], 'class-ids'), (list(map(str, range(1, 1001))), 'class-ids')))
def test_folders_of_imagenet(tmp_path, names, kind):
    """mmpretrain numbers them as text: 10 would be class 2."""
    dataset = imagenet(tmp_path, names)
    report = check_data_set(dataset, trained=False)
    assert kinds_of(report) == ({kind} if kind else set())
    if kind:
        words = report.findings[0].sentence
        assert 'WordNet id' in words and f'{tmp_path}/meta/val.txt' in words
        assert kind != 'class-numbers' or "'10' is class 2" in words
    if kind == 'class-numbers':
        with pytest.raises(DataError, match='as text'):
            check_before_test(config(dataset))
    else:
        check_before_test(config(dataset))
    # users may choose their own names
    own = dict(dataset, metainfo=dict(classes=[f'my {number}' for number in range(1000)]))
    assert check_data_set(own, trained=False).findings == []


def test_a_warning_on_other_folders_is_logged(tmp_path, warned):
    check_before_test(config(imagenet(tmp_path, [*IDS[1:], 'n99999999'])))
    assert len(warned) == 1 and "'n01443537' is class 0 (n01440764)" in warned[0]


def test_numbers_as_folders_stop_a_training(tmp_path):
    dataset = imagenet(tmp_path, map(str, range(1000)))
    cfg = Config(dict(train_dataloader=dict(dataset=dataset), model={}))
    with pytest.raises(DataError, match='as text'):
        check_before_training(cfg)
    check_before_training(cfg, 'warn')


def test_the_list_that_the_error_asks_for_mends_it(tmp_path):
    dataset = imagenet(tmp_path, map(str, range(1000)))
    (tmp_path / 'meta').mkdir()
    write_list(tmp_path, '0/a.png 0\n1/a.png 1\n', 'meta/val.txt')
    assert check_data_set(dataset, trained=False).findings == []
    check_before_test(config(dataset))


def flat(root):
    return imagenet(root)


def listed(label):
    return lambda root: dict(imagenet(root), ann_file=write_list(root, f'a.png 0\nb.png {label}\n'))


@pytest.mark.parametrize('make, count, words', (
    (lambda root: imagenet(root, IDS[100:110]), 1000, ('10 class folders', '1,000 classes', 'meta/val.txt')),
    (flat, 1000, ('no class folders', 'meta/val.txt', 'a.JPEG 1')),
    (lambda root: pictures(root, data_prefix=imagenet(root)['split']), 3, ('no class folders', '(ann_file of the')),
    (listed(1000), 1000, ('line 2', 'label 1000', '0 to 999')), (listed(3), 3, ('line 2', 'label 3', '0 to 2')),
    (listed(-1), 1000, ('line 2', '0 or more')), (listed('x'), 1000, ('line 2', "'x'")),
    (lambda root: pictures(root, data_prefix=imagenet(root, 'abcd')['split']), 3, ('4 class folders', '3 classes'))))
def test_what_would_end_a_test_is_told_with_the_mend(tmp_path, make, count, words):
    with pytest.raises(DataError) as caught:
        check_before_test(config(make(tmp_path), count))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize('make, count', (
    (listed(999), 1000), (listed(1000), 1001), (listed(5), None),
    (lambda root: pictures(root, data_prefix=imagenet(root, 'ab')['split']), 3),
    (lambda root: dict(imagenet(root), with_label=False), 3), (lambda root: dict(imagenet(root), split='test'), 3),
    (lambda root: dict(imagenet(root), data_root='s3://bucket'), 3),
    (lambda root: dict(type='CIFAR10', data_root=str(root)), 3)))
def test_what_a_test_survives_is_left_to_it(tmp_path, make, count):
    """More names than the data set has, fewer folders than outputs, no labels, files on no disk, other data."""
    check_before_test(config(make(tmp_path), count))


def test_the_tool_ends_before_the_model_is_built(call_tool, tmp_path):
    imagenet(tmp_path)
    Image.new('RGB', (9, 9)).save(tmp_path / 'val/a.png')
    code, message = call_tool('test.py', TINY_CLS_CONFIG, 'absent.pth', '--data-root', tmp_path)
    assert code == 1 and 'no class folders' in message and 'ann_file' in message


def checkpoint_of(names):
    return dict(meta=dict(dataset_meta=dict(classes=tuple(names)))) if names else {}


@pytest.mark.parametrize('names, known, words', (
    (('cross', 'disc', 'star'), ('cross', 'disc', 'star'), None), (('cross', 'disc', 'star'), (), None),
    (('aaa', 'cross', 'star'), ('cross', 'disc', 'star'), ("without 'disc'", "with 'aaa'", 'empty folder')),
    (('cross', 'star'), ('cross', 'disc', 'star'), ("without 'disc'", 'run.pth')),
    (('cross', 'disc'), ('disc', 'cross'), ("class 0 is 'cross', not 'disc'", )),
    (IDS, imagenet_classes().values(), None), (IDS, ('a', 'b'), ("with 'n01440764'", ))))
def test_other_classes_than_those_of_the_checkpoint(tmp_path, names, known, words, warned):
    """Figures and names would be wrong without a warning: frameworks compare numbers."""
    dataset = pictures(tmp_path, data_prefix=imagenet(tmp_path, names)['split'])
    warn_of_other_classes(config(dataset), checkpoint_of(known), 'run.pth')
    assert len(warned) == bool(words) and all(word in warned[0] for word in words or ()), warned


def test_names_for_display_are_no_other_classes(tmp_path, warned):
    """Of a run that gave its folders other names, or of a test that does; of a list only what it names."""
    folder = pictures(tmp_path, data_prefix=imagenet(tmp_path, 'ab')['split'])
    for dataset, known in ((dict(folder, metainfo=dict(classes=['x', 'y'])), 'xy'), (dict(folder, classes=['x', 'y']),
                           'ab'), (dict(folder, ann_file=write_list(tmp_path, 'a.png 0\n')), 'pq'), (imagenet(
                               tmp_path), mmpretrain_names())):
        warn_of_other_classes(config(dataset), checkpoint_of(known), 'run.pth')
    assert warned == []
    (tmp_path / 'classes.txt').write_text('a\nb\n')
    warn_of_other_classes(config(dict(folder, ann_file='list.txt')), checkpoint_of('ba'), 'run.pth')
    assert len(warned) == 1


def mmpretrain_names():
    from mmpretrain.datasets.categories import IMAGENET_CATEGORIES
    return IMAGENET_CATEGORIES
