"""Labels of YOLO: forms of the description, numbers of boxes and polygons, what cannot be read."""
import json
import shutil

import numpy as np
import pytest
import yaml
from annotations import exports
from annotations.placing import detector, numbers, placed
from PIL import Image

from xcit_dense.annotations.yolo import read_yolo
from xcit_dense.data.check.check import check_data_sets
from xcit_dense.errors import DataError

NAMES = 'disc', 'square', 'triangle'


def one(folder, text, **description):
    """Write a data set of an image of 40 x 20 pixels with such labels, and read it."""
    exports.save(folder / 'data/images/a.png', np.zeros((20, 40, 3), np.uint8))
    (folder / 'data/labels').mkdir(exist_ok=True)
    (folder / 'data/labels/a.txt').write_text(text)
    (folder / 'data/data.yaml').write_text(yaml.safe_dump({'train': 'images', 'names': ['x', 'y'], **description}))
    return read_yolo(folder / 'data/data.yaml', folder / 'data')['train'].content


def test_images_of_other_formats_are_named(tmp_path):
    one(tmp_path, '0 .5 .5 .5 .5')
    for name in ('b.heic', 'c.gif'):
        (tmp_path / 'data/images' / name).write_bytes(b'GIF89a')
    shutil.copy(tmp_path / 'data/images/a.png', tmp_path / 'data/images/d.png')
    (tmp_path / 'data/images/d.txt').write_text('1 .5 .5 .5 .5')  # labels are in the folder for them
    part = read_yolo(tmp_path / 'data/data.yaml', tmp_path / 'data')['train']
    assert part.notes == ['ignored 2 images that cannot be read: images/b.heic, images/c.gif; convert GIF, HEIC and '
                          'such to PNG or JPEG', 'no objects in 1 image without a label file: images/d.png']
    assert [image['file_name'] for image in part.content['images']] == ['a.png', 'd.png']


@pytest.mark.parametrize('polygons', (False, True))
@pytest.mark.parametrize('form', ('ultralytics', 'roboflow', 'lists', 'bare'))
def test_forms(form, polygons, folder, tmp_path, capfd):
    root = exports.yolo(tmp_path / 'images/data', form=form, polygons=polygons)  # below a folder named images
    before = sorted(root.rglob('*'))
    cfg = placed(root, folder, detector(root, with_mask=True))
    assert numbers(cfg) == (dict(train=(8, 24), val=(4, 12), test=(4, 12)), NAMES)
    assert any(report.errors for report in check_data_sets(cfg, use_cache=False).values()) != polygons  # of masks
    said = capfd.readouterr().out
    assert 'YOLO' in said and ('polygons' if polygons else 'boxes') in said
    assert sorted(root.rglob('*')) == before
    content = json.loads((folder / 'train.json').read_text())
    assert all(bool(a['segmentation']) == polygons for a in content['annotations'])
    assert [(a['id'], a['image_id']) for a in content['annotations']] == [(n, (n + 2) // 3) for n in range(1, 25)]


@pytest.mark.parametrize('form', ('lists', 'roboflow', 'bare', 'cvat'))
def test_files_that_were_written_on_windows(form, folder, tmp_path):
    """Byte order marks, line ends and separators, also below a folder named images. CVAT's labels are beside them."""
    root = (exports.yolo_of_cvat(tmp_path / 'images/data') if form == 'cvat' else
            exports.yolo(tmp_path / 'images/data', ('train', ), (4, ), form=form))
    for path in root.rglob('*'):
        if path.suffix in ('.txt', '.yaml', '.names', '.data'):
            path.write_text(path.read_text().replace('/', '\\'), encoding='utf-8-sig', newline='\r\n')
    assert numbers(placed(root, folder)) == (dict(train=(3, 9), val=(1, 3), test=(1, 3)), NAMES)
    if form == 'cvat':
        (root / 'obj.names').unlink()
        with pytest.raises(DataError, match='obj.names'):
            placed(root, folder)


def test_parts(folder, tmp_path):
    """Also none, as Label Studio exports: names in classes.txt."""
    root = exports.yolo(tmp_path / 'data', ('train', 'val', 'test'), (5, 2, 3))
    assert numbers(placed(root, folder))[0] == dict(train=(5, 15), val=(2, 6), test=(3, 9))
    (root / 'inner').mkdir()  # folders below the path of the description
    for name in ('images', 'labels'):
        (root / name).rename(root / 'inner' / name)
    (root / 'images/train').mkdir(parents=True)  # another one beside it
    description = (root / 'data.yaml').read_text().replace('path: .', 'path: inner').replace('val:', 'validation:')
    (root / 'data.yaml').write_text(description)
    assert numbers(placed(root, tmp_path / 'b'))[0] == dict(train=(5, 15), val=(2, 6), test=(3, 9))
    cfg = placed(root, tmp_path / 'c', train_images='inner/images/test')
    assert numbers(cfg)[0] == dict(train=(3, 9), val=(2, 6), test=(3, 9))
    for part, form in (('train', 'ultralytics'), ('.', 'bare')):
        root = exports.yolo(tmp_path / form, (part, ), (10, ), form=form)
        assert numbers(placed(root, tmp_path / 'b' / form)) == (dict(train=(8, 24), val=(2, 6), test=(2, 6)), NAMES)


@pytest.mark.parametrize('line, box, area, polygon', (
    ('1 0.5 0.5 0.5 0.5', [10, 5, 20, 10], 200, []),
    ('1 0.95 0.5 0.2 0.5', [34, 5, 6, 10], 60, []),  # parts outside the image are clipped
    ('1 -0.01 0 0.5 -0.005 0.5 1', [0, 0, 20, 20], 200, [[0, 0, 20, 0, 20, 20]]),
    ('1 0 0 1.01 0 1 1 0 1', [0, 0, 40, 20], 800, [[0, 0, 40, 0, 40, 20, 0, 20]]),
    ('1.0 0.5 0.5 0.5 0.5\n\n', [10, 5, 20, 10], 200, []),
    ('1 0.5 0.5 0.5 0.5 0.1 0.2 2 0.3 0.4 1', [10, 5, 20, 10], 200, [])))  # of a skeleton
def test_numbers_of_an_object(line, box, area, polygon, tmp_path):
    content = one(tmp_path, line, **dict(kpt_shape=[2, 3]) if line.endswith(' 0.4 1') else {})
    assert content['categories'] == [dict(id=1, name='x'), dict(id=2, name='y')]
    found, = content['annotations']
    assert (found['category_id'], found['segmentation']) == (2, polygon)
    np.testing.assert_allclose(found['bbox'], box)
    assert found['area'] == pytest.approx(area)


def test_labels_that_cannot_be_read(tmp_path):
    numbers = ('0 0.5 0.5 0.5', '0 0.5 0.5 0.5 0.5 0.9', '0 0.1 0.1 0.2 0.2 0.3 0.3 0.4',
               '0 1.02 1 .5 .5', '0 .5 -.02 .5 .5', '0 1 nan 1 1')
    kinds = [f'{number} 0.5 0.5 0.5 0.5' for number in ('0.5', '-1', 'nan', 'inf')]
    for text, words in (
            ('0 0.5 0.5 0.5 0.5\n0 0.5 a 0.5 0.5', "line 2: a label is .*; got '0 0.5 a 0.5 0.5'"),
            *((label, f"line 1: a label is .*; got '{label}'") for label in (*numbers, *kinds)),
            ('0 0.5 0.5 0.5 0.5\n\n2 0.5 0.5 0.5 0.5', 'line 3: it has the class 2, but .* has 2 classes: 0 to 1')):
        with pytest.raises(DataError, match=f'a.txt, {words}'):
            one(tmp_path, text)


def test_descriptions_that_cannot_be(folder, tmp_path):
    for description, words in (
            (dict(names={0: 'a', 2: 'b'}), 'names must be a list of class names, or have the keys 0, 1'),
            (dict(names={'a': 'x'}), 'have the keys 0, 1'), (dict(names='ab'), 'must be a list'),
            (dict(names=None, nc=2), 'data.yaml has no class names: .*data/classes.txt, one per line'),
            (dict(train='nowhere'), 'training images \'nowhere\'.*--train-images')):
        with pytest.raises(DataError, match=words):
            one(tmp_path, '0 0.5 0.5 0.5 0.5', **description)
    root = tmp_path / 'data'
    for text in ('- a', 'train: [', 'train: !!python/object/apply:os.system [exit]'):
        (root / 'data.yaml').write_text(text)
        with pytest.raises(DataError, match='data.yaml'):
            placed(root, folder)
    (root / 'classes.txt').write_text('b\na\n')
    for names, wanted in (({0: 'b', 1: 'a'}, ['b', 'a']), ({'1': 'b', '0': 'a'}, ['a', 'b']), (None, ['b', 'a']),
                          ([7, True], ['7', 'True'])):  # these can be
        assert [each['name'] for each in one(tmp_path, '1 0.5 0.5 0.5 0.5', names=names)['categories']] == wanted
    (root / 'classes.txt').rename(root / 'labels/classes.txt')  # as LabelImg writes it
    assert [each['name'] for each in one(tmp_path, '0 .5 .5 .5 .5', names=None)['categories']] == ['b', 'a']
    (root / 'data.yaml').unlink()
    (root / 'labels/classes.txt').unlink()
    with pytest.raises(DataError, match='data has no class names: .*data/classes.txt, one per line'):
        placed(root, folder)


def test_labels_and_images_that_are_nowhere_or_cannot_be_read(folder, tmp_path, capfd):
    root = exports.yolo(tmp_path / 'data')
    (root / 'images/train/003.jpg').write_bytes(b'no')
    shutil.rmtree(root / 'labels/val')
    assert numbers(placed(root, folder))[0]['train'] == (7, 21)
    said = capfd.readouterr().out
    assert 'ignored 1 image that cannot be read: images/train/003.jpg' in said
    assert 'no object in the validation data, so its AP is -1' in said
    (root / 'labels').rename(tmp_path / 'labels')
    with pytest.raises(DataError, match='(?s)none of .* images has a label.*000.txt'):
        placed(root, folder)


def test_two_descriptions_and_images_that_are_turned(folder, tmp_path):
    """Boxes are for what people see; the size is that of the image as the pipeline reads it."""
    root = exports.yolo(tmp_path / 'data')
    text = (root / 'data.yaml').read_text() + 'test: images/none\n'
    (root / 'dataset.yaml').write_text(text.replace('images/val', '[images/val, images/train]'))
    with pytest.raises(DataError, match='data.yaml, dataset.yaml.*--train-annotations'):
        placed(root, folder)
    marked = Image.new('RGB', (40, 20))
    marked.getexif()[0x0112] = 6
    marked.save(root / 'images/train/000.jpg', exif=marked.getexif())
    assert numbers(placed(root, folder, train_annotations='dataset.yaml'))[0]['val'] == (12, 36)
    image = json.loads((folder / 'train.json').read_text())['images'][0]
    assert (image['width'], image['height']) == (20, 40)


def test_a_box_among_polygons_is_found_by_its_line(folder, tmp_path, capfd):
    """Where masks are read; a detector without masks takes both."""
    root = exports.yolo(tmp_path / 'data', polygons=True)
    label = root / 'labels/val/001.txt'
    label.write_text(f'\n{label.read_text()}\n0 0.5 0.5 0.2 0.2\n')
    for with_mask in (True, False):
        reports = check_data_sets(placed(root, folder, detector(root, with_mask=with_mask)), use_cache=False)
        found = {finding.sentence for report in reports.values() for finding in report.errors}
        assert 'boxes of data.yaml' not in capfd.readouterr().out and len(found) == with_mask
        assert all(f'{label}, line {len(label.read_text().splitlines())} has no segmentation' in said for said in found)
