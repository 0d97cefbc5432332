"""Problems of images by class, in folders or in a list."""
import shutil

import pytest
from mmengine.config import Config
from PIL import Image

from helpers.faulty_data import kinds_in, kinds_of, only, pictures, write_list
from xcit_dense.data.check.agreement import check_classes
from xcit_dense.data.check.check import check_before_training, check_data_set, check_data_sets
from xcit_dense.data.classes import take_classes
from xcit_dense.errors import DataError

pytest.importorskip('mmpretrain.datasets', reason='mmpretrain is optional')

NAMES = ('cross', 'disc', 'square', 'star', 'triangle')


@pytest.fixture
def train(root):
    return root / 'classes/train'


def config(root, train=None, val=None, **more):
    return Config(dict(dict(classes_from_data=True, train_dataloader=dict(dataset=train or pictures(root)),
                            val_dataloader=dict(dataset=val or pictures(root, 'val')), model={}), **more))


def copy(folder, source, target):
    (folder / target).parent.mkdir(exist_ok=True)
    shutil.copy(folder / source, folder / target)


@pytest.mark.parametrize('kind, plant, words', (
    ('image-unreadable', lambda f: (f / 'star/a.jpg').write_bytes(b'no picture'), 'star/a.jpg cannot be read'),
    ('image-left-out', lambda f: (f / 'star/a.jpg').symlink_to('nowhere'), 'a broken link'),
    ('files-left-out', lambda f: [(f / f'star/{n}.gif').touch() for n in 'ab'], "2 files named *.gif; only .bmp"),
    ('files-left-out', lambda f: (f / 'star/x').touch(), '1 file without a suffix'),
    ('class-empty', lambda f: (f / 'empty').mkdir(), 'train/empty has no image'),
    ('class-hidden', lambda f: (copy(f, 'star/star_0001.jpg', '.hid/a.png'), (f / 'star/star_0001.jpg').unlink()),
     'train/.hid is a hidden folder'),
    ('image-two-classes', lambda f: copy(f, 'star/star_0002.jpg', 'disc/a.jpg'),
     "is in several classes: 'disc' (disc/a.jpg), 'star' (star/star_0002.jpg)"),
    ('class-single', lambda f: [shutil.rmtree(f / name) for name in NAMES[1:]], "has only one class, 'cross'"),
    ('no-images', lambda f: [shutil.rmtree(f / name) for name in NAMES], 'has no class folders'),
    ('not-there', shutil.rmtree, 'train does not exist')))
def test_fault_of_class_folders(root, train, kind, plant, words):
    assert check_data_set(pictures(root), True).findings == []
    plant(train)
    found = only(check_data_set(pictures(root), True), kind)
    assert words in found[0].sentence
    assert check_data_set(pictures(root), True).findings == found  # out of the cache


def test_classes_whose_files_are_all_left_out(root, train):
    """In training such a class would never be learned; elsewhere nothing is lost."""
    (train / 'webs').mkdir()
    for name in ('a.gif', 'b.GIF'):
        (train / 'webs' / name).touch()
    report = check_data_set(pictures(root), True)
    assert kinds_of(report) == {'class-unread', 'files-left-out'}
    error, = report.errors
    assert 'train/webs' in error.sentence and '2 files' in error.sentence and '.jpg' in error.sentence
    for path in train.glob('*/*'):
        path.rename(path.with_suffix('.npy'))
    assert kinds_in(pictures(root)) == {'no-images', 'files-left-out', 'class-unread'}


@pytest.mark.parametrize('kind, line, words', (
    ('list-line', 'star.jpg', "not 'star.jpg'"), ('list-line', '', "not ''"), ('list-line', 'a.jpg\t3', 'a space'),
    ('list-line', 'a.jpg -1', 'a number from 0'),
    ('list-label', 'star/star_0001.jpg 5', '5; the labels of 5 classes are 0 to 4'),
    ('image-missing', 'star/none.jpg 3', 'star/none.jpg does not exist'),
    ('image-two-classes', 'star/star_0002.jpg 1', "'disc' (star/star_0002.jpg)")))
def test_fault_of_a_list(root, kind, line, words):
    (root / 'classes.txt').write_text('\n'.join(NAMES))
    good = 'star/star_0001.jpg 3\nstar/star_0002.jpg 3\n'
    write_list(root, good)
    dataset = pictures(root / 'classes', ann_file=f'{root}/list.txt', data_prefix='train')
    assert check_data_set(dataset, True).findings == []
    write_list(root, f'{good}{line}\n')
    found = only(check_data_set(dataset, True), kind)
    assert words in found[0].sentence
    if found[0].part == 'lines':
        assert f'{root}/list.txt: line 3 ' in found[0].sentence


def test_lists_that_cannot_be_used_at_all(root):
    dataset = pictures(root, ann_file=write_list(root, 'star/star_0001.jpg 3\n'))
    (root / 'classes.txt').write_text('a\na\n')
    assert f"{root}/classes.txt must have one unique class name per line and no empty lines: ['a', 'a']" in only(
        check_data_set(dataset, True), 'class-list')[0].sentence
    for content, words in ((b'\xef\xbb\xbfstar/star_0001.jpg 3\nstar/star_0002.jpg 3\n',
                            'line 1 cannot be used: it begins with a byte order mark'),
                           (b'\xff', 'list.txt has no image'), (b'', 'list.txt has no image')):
        (root / 'list.txt').write_bytes(content)
        assert words in check_data_set(dataset, True).findings[-1].sentence
    assert kinds_in(dataset, from_data=True) == {'class-list', 'no-images'}
    (root / 'list.txt').unlink()
    assert 'list.txt does not exist' in check_data_set(dataset, True).findings[-1].sentence


def test_one_image_in_training_and_validation(root, train, monkeypatch):
    for name in NAMES:
        copy(root / 'classes', f'train/{name}/{name}_0001.jpg', f'val/{name}/copy.jpg')
    (root / 'classes/val/star/same_size.jpg').write_bytes(  # a byte in the middle differs
        (data := bytearray((train / 'star/star_0002.jpg').read_bytes()))[:300] + bytes([data[300] ^ 1]) + data[301:])
    report = check_data_sets(config(root))['val_dataloader']
    found = only(report, 'image-in-training')
    assert [finding.file for finding in found] == [f'{root}/classes/val/{name}/copy.jpg' for name in NAMES]
    assert found[0].value == f'{train}/cross/cross_0001.jpg'
    monkeypatch.setattr('xcit_dense.data.check.class_images.hash_of', lambda path: pytest.fail(f'{path} is read again'))
    assert check_data_sets(config(root))['val_dataloader'].findings == found
    report = check_data_sets(config(root, val=pictures(root)))['val_dataloader']  # nothing is to be compared
    assert [f.value for f in only(report, 'image-in-training')] == ['the same file'] * report.counts['images']


def test_parts_of_one_data_set_are_not_compared_and_files_that_end_differently_not_read(root, monkeypatch):
    """Which of its images are in which part is the data set's own matter."""
    monkeypatch.setattr('xcit_dense.data.check.class_images.hash_of', lambda path: pytest.fail(f'{path} is read'))
    check_data_sets(config(root), use_cache=False)
    monkeypatch.undo()
    for train, val in ([pictures(root, indices=[number]) for number in (3, 5)], [
            dict(type='KFoldDataset', fold=0, test_mode=tested, dataset=pictures(root)) for tested in (False, True)]):
        assert all(report.findings == [] for report in check_data_sets(config(root, train, val)).values()), train


def test_second_look_opens_nothing_and_huge_images_are_taken(root, monkeypatch):
    """A validation data set with an empty folder is good too."""
    shutil.rmtree(root / 'classes/val/star')
    (root / 'classes/val/star').mkdir()
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 100)  # OpenCV reads such images
    first = check_data_sets(config(root))
    monkeypatch.setattr(Image, 'open', None)
    again = check_data_sets(config(root))
    assert again == first and [report.findings for report in again.values()] == [[], []]
    assert again['val_dataloader'].classes[3] == ('star', 0, 0) and len(again['train_dataloader'].images) == 15


@pytest.mark.parametrize('classes, kind, words', (
    ([f'my {name}' for name in NAMES], None, ''),
    (NAMES[::-1], 'class-order', "class 0 is 'cross', not 'triangle'"), (('a', *NAMES[:-1]), 'class-order', 'triangle'),
    (NAMES[:-1], 'class-count', "has 5 class folders, but the config has 4 classes: with 'triangle'"),
    ('abcdef', 'class-count', 'has 5 class folders, but the config has 6 classes')))
def test_classes_of_the_config(root, classes, kind, words):
    """mmpretrain counts the folders; other names are for display."""
    for where in (dict(metainfo=dict(classes=tuple(classes))), dict(classes=list(classes))):
        report = check_data_set(pictures(root, **where))
        assert [(found.kind, words in found.sentence) for found in report.findings] == [(kind, True)] * bool(kind)
        assert kind or [name for name, *_ in report.classes] == list(classes)


def test_folders_that_differ_are_found_without_classes_from_data_too(root):
    """Every label behind the missing folder would be another's, without a warning."""
    cfg = config(root, classes_from_data=False)
    assert check_classes(cfg) == []
    shutil.rmtree(root / 'classes/val/disc')
    for loader, kind in (('val_dataloader', 'class-count'), ('test_dataloader', 'class-test')):
        cfg = config(root, classes_from_data=False, val=pictures(root), **{loader: dict(dataset=pictures(root, 'val'))})
        finding, = check_classes(cfg)
        assert finding.kind == kind and "without 'disc'" in finding.sentence and 'empty folder' in finding.sentence
    assert check_classes(config(root)) == []  # `take_classes` tells


def test_the_number_of_classes_of_the_model(root):
    (root / 'classes.txt').unlink()
    listed = pictures(root, ann_file=write_list(root, [('star/star_0001.jpg', 4)]))
    for given, kinds in ((dict(num_classes=5), []), (dict(num_classes=4), ['class-count']),
                         (dict(num_classes=1000), ['class-spare']), ({}, [])):
        model = dict(type='ImageClassifier', backbone=dict(type='XCiTClassifier', **given))
        assert check_classes(config(root, model=model)) == []
        for train in (None, listed):
            found = check_classes(config(root, train, classes_from_data=False, model=model))
            assert [finding.kind for finding in found] == kinds, (given, train)


def test_training_stops_at_what_would_end_it(root, train):
    (train / 'star/a b.jpg').write_bytes(b'no picture')
    copy(train, 'star/star_0002.jpg', 'disc/twice.jpg')
    copy(train, 'star/star_0001.jpg', '../val/star/copy.jpg')
    cfg = config(root)
    with pytest.raises(DataError, match=r'1 error (.|\n)*a b.jpg cannot be read(.|\n)*Mend or delete'):
        check_before_training(cfg)
    (train / 'star/a b.jpg').unlink()
    check_before_training(cfg)
    take_classes(cfg)
    assert cfg.train_dataloader.dataset.metainfo.classes == NAMES


def test_histogram_and_samples_show_the_classes(root):
    report = check_data_set(pictures(root))
    assert {sample['label'] for sample in report.samples} == set(NAMES)
    report.classes = [(f'c{number}', number, number) for number in range(1000)]
    lines = report.histogram().splitlines()
    assert len(lines) == 202 and 'c999 ' in lines[1] and 'c1 ' in lines[200] and 'without images: c0' in lines[201]
    report = check_data_set(pictures(root, data_prefix='train2017', with_label=False), trained=False)
    assert report.findings == [] and report.counts == dict(images=6) and report.histogram() == ''
    only(check_data_set(pictures(root, data_root='s3://bucket/')), 'not-checked')
