"""Images of classes before a test, and folders of ImageNet that are not numbered as its classes."""
import pytest
from mmengine.config import Config
from PIL import Image

from helpers.faulty_data import kinds_of, pictures, write_list
from helpers.paths import TINY_CLS_CONFIG
from xcit_dense.data.check import check_before_test, check_before_training, check_data_set
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
    # names of one's own are one's own matter
    own = dict(dataset, metainfo=dict(classes=[f'my {number}' for number in range(1000)]))
    assert check_data_set(own, trained=False).findings == []


def test_a_warning_on_other_folders_is_logged(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr('xcit_dense.data.check.tested.print_log', lambda text, **how: said.append(text))
    check_before_test(config(imagenet(tmp_path, [*IDS[1:], 'n99999999'])))
    assert len(said) == 1 and "'n01443537' is class 0 (n01440764)" in said[0]


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
    (flat, 1000, ('no folder', 'meta/val.txt', 'a.JPEG 1')),
    (lambda root: pictures(root, data_prefix=imagenet(root)['split']), 3, ('no folder', 'as ann_file')),
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
    assert code == 1 and 'no folder' in message and 'ann_file' in message
