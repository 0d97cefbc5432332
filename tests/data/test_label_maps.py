"""Label maps as the check and the classes read them: the two agree, and nothing is asked twice."""
import importlib
from contextlib import nullcontext

import cv2
import numpy as np
import pytest
from mmcv.transforms import BaseTransform
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from helpers.faulty_data import coco, fields, folders, image_and_map, kinds_of, only, rewrite
from xcit_dense.data import pipelines
from xcit_dense.data.check import check_data_set, files
from xcit_dense.data.classes import classes_of_data
from xcit_dense.data.label_maps import LabelMaps
from xcit_dense.data.pipelines import map_loader
from xcit_dense.errors import DataError


class Tens(LoadAnnotations):
    """Reads the tens of the first channel; where it stands depends on the image, as with a folder for each."""

    def _load_seg_map(self, results):
        Image.open(results['img_path']).close()
        pixels = np.asarray(Image.open(results['seg_map_path']))
        results['gt_seg_map'] = (pixels if pixels.ndim == 2 else pixels[..., 0]) // 10


class ReadMasks(BaseTransform):
    """Nothing is known of what it reads."""

    def transform(self, results):
        return results


def in_tens(root, colours):
    for path in (root / 'annotations/training').iterdir():
        labels = np.asarray(Image.open(path)) * 10
        Image.fromarray(np.stack([labels, labels * 0, labels * 0], 2) if colours else labels).save(path)


STEPS = [dict(type='LoadImageFromFile'), dict(type=Tens)]


@pytest.fixture
def asked(monkeypatch):
    """What loaders are asked of."""
    records, ask = [], pipelines.Loader.ask
    monkeypatch.setattr(pipelines.Loader, 'ask', lambda self, **record: records.append(record) or ask(self, **record))
    return records


@pytest.mark.parametrize('colours', (False, True))
@pytest.mark.parametrize('listed', (False, True))
def test_classes_are_those_that_the_own_step_of_the_pipeline_reads(root, colours, listed):
    in_tens(root, colours)
    if not listed:
        (root / 'classes.txt').unlink()
    own = folders(root, pipeline=STEPS)
    for _ in 'ab':  # and again, out of the cache
        assert check_data_set(own).findings == [] and len(classes_of_data(own)['classes']) == 6
    standard = dict(own, pipeline=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')])
    only(check_data_set(standard), 'map-colour' if colours else 'map-labels')
    if listed or colours:
        with pytest.raises(DataError, match='mode RGB' if colours else 'has the label'):
            classes_of_data(standard)
    unknown = dict(own, pipeline=[dict(type='LoadImageFromFile'), dict(type=ReadMasks)])
    if colours:  # maps that an unknown step reads are not judged, but nothing else says the classes
        assert check_data_set(unknown).findings == []
        with pytest.raises(DataError, match='mode RGB') if not listed else nullcontext():
            assert len(classes_of_data(unknown)['classes']) == 6


@pytest.mark.parametrize('listed', (False, True))
def test_without_the_label_zero_classes_begin_at_one(tmp_path, listed):
    for folder, pixel in (('images/training', (1, 2, 3)), ('annotations/training', None)):
        (tmp_path / folder).mkdir(parents=True)
        Image.new('RGB', (8, 8), pixel).save(tmp_path / folder / 'a.png')
    labels = np.arange(64, dtype=np.uint8).reshape(8, 8) % 4
    Image.fromarray(labels).save(tmp_path / 'annotations/training/a.png')
    names = ('1', '2', '3')
    if listed:
        (tmp_path / 'classes.txt').write_text('\n'.join(names))
    dataset = folders(tmp_path, reduce_zero_label=True, metainfo={})
    report = check_data_set(dataset)
    assert report.findings == [] and [name for name, *_ in report.classes][:3] == list(names)
    assert classes_of_data(dataset)['classes'] == names
    Image.fromarray(labels + 1).save(tmp_path / 'annotations/training/a.png')
    if listed:
        assert kinds_of(check_data_set(dataset)) == {'map-labels'}
        with pytest.raises(DataError, match='has the label 4, but the 3 classes have the labels 1 to 3'):
            classes_of_data(dataset)


def test_what_is_ignored_and_which_image_a_map_has(root):
    """By the data set's own label, and by a label of the heads, which they see after the pipeline; in any suffix."""
    for zero in (False, True):
        ignored = LabelMaps(folders(root, reduce_zero_label=zero, ignore_index=200), [77]).ignored
        assert ignored == ({200, 255, 78, 0} if zero else {200, 255, 77})
    image, path = image_and_map(root)
    labels = dict(LabelMaps(folders(root)).read([path])[0].content['labels'])
    zero = LabelMaps(folders(root, pipeline=[*STEPS[:1], dict(type='LoadAnnotations')], reduce_zero_label=True))
    assert dict(zero.ask(path).content['labels']) == {label or 255: count for label, count in labels.items()}
    for name in ('b.JPG', 'c.webp'):
        image = image.rename(image.with_name(name))
        path = path.rename(path.with_name(f'{image.stem}.png'))
        assert LabelMaps(folders(root, pipeline=STEPS)).ask(path).content['mode'] == 'L'
    image.unlink()
    assert LabelMaps(folders(root, pipeline=STEPS)).ask(path) is None


def test_maps_in_doubt_are_asked_of_once(root, asked):
    in_tens(root, True)
    own = folders(root, pipeline=STEPS)
    report = check_data_set(own)
    assert len(asked) == 6 and check_data_set(own).classes == report.classes and len(asked) == 6
    classes_of_data(own)
    assert len(asked) == 6
    _, path = image_and_map(root)
    Image.fromarray(np.asarray(Image.open(path))[..., 0] * 0).save(path)  # good as it is
    path.with_name('000000000002.png').write_bytes(b'bad')
    for amount in (7, 8):  # what cannot be read may be there next time
        only(check_data_set(own), 'map-unreadable')
        assert len(asked) == amount
    check_data_set(own, use_cache=False)
    assert len(asked) == 8 + 5


def to_hdr(folder):
    """Write images that OpenCV reads and PIL does not."""
    for path in sorted(folder.glob('*.jpg')):
        cv2.imwrite(str(path.with_suffix('.hdr')), cv2.imread(str(path)).astype(np.float32))


def rasters(root):
    to_hdr(root / 'train2017')
    rewrite(root, lambda content: [i.update(file_name=i['file_name'].replace('jpg', 'hdr')) for i in content['images']])
    step = dict(type='LoadImageFromFile', color_type='unchanged')
    return coco(root, pipeline=[step, dict(type='LoadAnnotations', with_mask=True)])


def test_images_in_doubt_are_asked_of_once(root, asked):
    dataset = rasters(root)
    for amount in (6, 6):
        assert check_data_set(dataset).findings == [] and len(asked) == amount
    (root / 'train2017/000000000003.hdr').write_bytes(b'bad')
    for amount in (7, 8):
        only(check_data_set(dataset), 'image-unreadable')
        assert len(asked) == amount
    rewrite(root, fields('images', 0, width=9))  # what was found of the file is compared with what is said now
    assert {'image-unreadable', 'image-size'} < kinds_of(check_data_set(dataset))
    dataset['pipeline'][0] = dict(dataset['pipeline'][0], imdecode_backend='pillow')
    before = len(asked)
    check_data_set(dataset)
    assert len(asked) == before + 6  # another step may see it otherwise


def test_after_enough_good_ones_of_a_suffix_the_others_are_believed(root, asked, monkeypatch):
    monkeypatch.setattr(files, '_ENOUGH', 2)
    dataset = rasters(root)
    (root / 'train2017/x.jpg').write_bytes(b'bad')
    rewrite(root, fields('images', 5, file_name='x.jpg'))
    only(check_data_set(dataset), 'image-unreadable')
    assert [record['img_path'][-5:] for record in asked] == ['1.hdr', '2.hdr', '3.hdr', 'x.jpg']


def test_the_key_of_a_step_changes_with_its_code(root, tmp_path, monkeypatch):
    module = tmp_path / 'my_steps.py'
    module.write_text('from mmseg.datasets.transforms import LoadAnnotations\nclass Mine(LoadAnnotations):\n    pass\n')
    monkeypatch.syspath_prepend(tmp_path)
    dataset = folders(root, pipeline=[dict(type=importlib.import_module('my_steps').Mine)])
    before = map_loader(dataset)
    assert before.has_key and before.key() == map_loader(dataset).key()
    module.write_text(module.read_text() + '# changed\n')
    assert before.key() != map_loader(dataset).key()
    typed_in = type('Mine', (LoadAnnotations, ), dict(__module__='__main__'))
    monkeypatch.delattr('__main__.__file__', raising=False)
    assert not map_loader(folders(root, pipeline=[dict(type=typed_in)])).has_key


def test_images_of_folders_in_doubt_are_asked_of_once(root, asked):
    to_hdr(root / 'images/training')
    steps = [dict(type='LoadImageFromFile', color_type='unchanged'), dict(type='LoadAnnotations')]
    dataset = folders(root, type='BaseSegDataset', img_suffix='.hdr', pipeline=steps)
    for _ in 'ab':
        only(check_data_set(dataset), 'image-left-out')  # the others
        assert len(asked) == 6
