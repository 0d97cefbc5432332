"""Pascal VOC: folders of the tools, lists, names of images, and objects that are ignored or wrong."""
import json

import pytest
from annotations import exports_files as files
from annotations.exports import scenes
from annotations.placing import numbers, placed

from helpers.exports_segmentation import save
from xcit_dense.data.check.check import check_data_sets
from xcit_dense.errors import DataError

NAMES = 'disc', 'square', 'triangle'


def one(root, text, name='a', picture=None):
    """Write an image of 96 pixels and a file for it."""
    save(root / f'{name}.jpg', next(scenes(1))[0] if picture is None else picture)
    (root / f'{name}.xml').write_text(text)


def found(root, folder):
    """The sentences of the data check, and the annotations of the training data."""
    reports = check_data_sets(placed(root, folder), use_cache=False)
    return {finding.sentence for report in reports.values() for finding in report.findings}, {
        part: json.loads((folder / f'{part}.json').read_text()) for part in ('train', 'val')}


@pytest.mark.parametrize('form, train, val', (
    ('voc', 4, 2), ('devkit', 4, 2), ('roboflow', 4, 2), ('cvat', 5, 1), ('flat', 5, 1)))
def test_folders_of_the_tools(form, train, val, folder, tmp_path, capfd):
    root = files.voc(tmp_path / 'data', form)
    before = sorted(root.rglob('*'))
    assert numbers(placed(root, folder)) == (
        dict(train=(train, 3 * train), val=(val, 3 * val), test=(val, 3 * val)), NAMES)
    assert 'Pascal VOC in' in capfd.readouterr().out and sorted(root.rglob('*')) == before
    boxes = [[*box[:2], box[2] - box[0], box[3] - box[1]] for _, objects in scenes(4)
             for _, box in files.boxes(objects)]
    content = json.loads((folder / 'train.json').read_text())
    assert all(record['bbox'] in boxes and not record['segmentation'] for record in content['annotations']) or val < 2


def test_lists_say_the_part(folder, tmp_path, capfd):
    """Of all that trainval.txt names, what val.txt does not name is for training; what no list names is left out."""
    root = files.voc(tmp_path / 'data')
    lists = root / 'ImageSets/Main'
    (lists / 'train.txt').unlink()
    (lists / 'test.txt').write_text('train3\nno_xml\n')
    one(root / 'Annotations', files.xml('new.jpg', []), 'new')
    assert numbers(placed(root, folder))[0] == dict(train=(3, 9), val=(2, 6), test=(1, 3))
    assert 'left out 1 name without a file of labels in ImageSets/Main/test.txt' in capfd.readouterr().out
    for path in lists.iterdir():
        path.unlink()
    assert numbers(placed(root, folder.parent / 'b'))[0]['train'][0] == 6  # of 7, by the default share


def test_numbers_of_objects(folder, tmp_path):
    """Difficult objects are ignored regions; numbers are used as they are; parts of an object are no objects."""
    one(tmp_path / 'data/train', files.xml('a.jpg', [('cat', (1.5, 2, 30.25, 40)), ('dog', (5, 5, 20, 20))],
                                           difficult=1).replace('<difficult>1', '<difficult>0', 1))
    one(tmp_path / 'data/valid', files.xml('a.jpg', [('cat', (8, 8, 60, 60))]))
    said, content = found(tmp_path / 'data', folder)
    assert [(record['bbox'], record['iscrowd']) for record in content['train']['annotations']] == [
        ([1.5, 2, 28.75, 38], 0), ([5, 5, 15, 15], 1)]
    assert [category['name'] for category in content['val']['categories']] == ['cat', 'dog']
    assert len(said) == 1 and 'in Pascal VOC, objects that are difficult are crowds' in said.pop()
    (tmp_path / 'data/labels.txt').write_text('dog\nbird\ncat\n')  # gives the order
    assert numbers(placed(tmp_path / 'data', folder.parent / 'b'))[1] == ('dog', 'bird', 'cat')


def test_what_is_wrong_is_found_by_file_and_object(folder, tmp_path):
    root = tmp_path / 'data'
    one(root / 'valid', files.xml('a.jpg', [('cat', (8, 8, 60, 60))]))
    one(root / 'train', files.xml('a.jpg', [('cat', (8, 8, 60, 60)), ('cat', (40, 8, 20, 60)),
                                            ('cat', (200, 8, 220, 30)), ('cat', (60, 60, 120, 90))]))
    one(root / 'train', files.xml('b.jpg', [('cat', (8, 8, 60, 60))], (0, 0), 'a.jpg'), 'b')
    one(root / 'train', files.xml('c.jpg', [('cat', (8, 8, 60, 60))], (48, 96), ''), 'c')
    said, _ = found(root, folder)
    a, b, c = (root / f'train/{name}.xml' for name in 'abc')
    for words in (f'{a}, object 2 has the box [40, 8, -20, 52]', f'{a}, object 3 has the box [200, 8, 20, 22]',
                  f'{a}, object 4 has the box [60, 60, 60, 30] in an image of 96 x 96: it extends',
                  f"{b} names the image 'a.jpg'", f'{c} names no image',
                  f'{root / "train/c.jpg"}: image 3 has a different size than in the annotation file'):
        assert any(words in sentence for sentence in said), (words, said)
    one(root / 'train', files.xml('b.jpg', [('cat', (8, 8, 60, 60))], (0, 0)), 'b')
    assert any(f'{b} gives the image a size of 0 x 0' in sentence for sentence in found(root, folder)[0])


def test_what_cannot_be_read(folder, tmp_path):
    root = files.voc(tmp_path / 'data', 'flat')
    good = (root / 'train0.xml').read_text()
    for text, words in ((good[:300], 'it is not XML'), (f'<!DOCTYPE a>{good}', 'DOCTYPE'),
                        (good.replace('<name>disc</name>', '<name/>').replace('<name>square</name>', '<name/>').replace(
                            '<name>triangle</name>', '<name/>'), 'object 1 has no name'),
                        (good.replace('<xmin>', '<xmin>x', 1), "bndbox/xmin of object 1 must be a number, not 'x"),
                        (good.replace('<ymax>', '<ymax>nan', 1).replace('nan', 'nan<!--', 1).replace(
                            '</ymax>', '--></ymax>', 1), "bndbox/ymax of object 1 must be a number, not 'nan'")):
        (root / 'train0.xml').write_text(text)
        with pytest.raises(DataError, match=f'1 file of Pascal VOC cannot be read.*train0.xml: .*{words}'):
            placed(root, folder)
    (root / 'train0.xml').unlink()
    (root / 'val1.jpg').unlink()
    numbers(placed(root, folder))
    for path in root.glob('*.jpg'):
        path.unlink()
    with pytest.raises(DataError, match='5 files of Pascal VOC .* none has an image.*--train-images DIR'):
        placed(root, folder.parent / 'b')


def test_options_name_folders(folder, tmp_path):
    """Of labels alone, of images too, and of several jobs."""
    root = files.voc(tmp_path / 'data')
    images = (root / 'JPEGImages').rename(tmp_path / 'elsewhere')
    cfg = placed(root, folder, train_images=str(images), val_images=str(images))
    assert numbers(cfg)[0] == dict(train=(4, 12), val=(2, 6), test=(2, 6))
    files.voc(root / 'one', 'flat')
    again = files.voc(root / 'two', 'roboflow')
    cfg = placed(root, folder.parent / 'b', train_annotations=('one', 'two/train'), val_annotations='two/valid')
    assert numbers(cfg)[0] == dict(train=(10, 30), val=(2, 6), test=(2, 6)) and again
    with pytest.raises(DataError, match='has two Pascal VOC files'):
        placed(root, folder.parent / 'c', train_annotations=('one', 'one'))
