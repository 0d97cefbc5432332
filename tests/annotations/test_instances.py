"""Masks of objects as pictures: a file for each object, numbers in pixels, and how they differ from label maps."""
import json

import numpy as np
import pytest
from annotations import exports_files as files
from annotations.exports import scenes
from annotations.placing import detector, numbers, placed
from PIL import Image
from pycocotools import mask as mask_api

from helpers import exports_segmentation
from helpers.exports_segmentation import save
from xcit_dense.data.check.check import check_data_sets
from xcit_dense.errors import ConfigError, DataError


def masked(root, folder, **options):
    return placed(root, folder, detector(root, with_mask=True), **options)


def masks(folder, part='train'):
    """The masks of an annotation file by image, and the names of their classes."""
    content = json.loads((folder / f'{part}.json').read_text())
    names, found = {c['id']: c['name'] for c in content['categories']}, {}
    images = {image['id']: image['file_name'] for image in content['images']}
    for record in content['annotations']:
        found.setdefault(images[record['image_id']], []).append(
            (names[record['category_id']], mask_api.decode(record['segmentation']).astype(bool)))
    return found


@pytest.mark.parametrize('make, counts', (
    (files.folders_of_objects, ((4, 12), (1, 3), (1, 3))),
    *((lambda root, form=form: files.numbers(root, form), ((5, 14), (1, 3), (1, 3))) for form in (
        'cellpose', 'pairs', 'npy')),
    (lambda root: files.numbers(root, 'tiff'), ((3, 9), (1, 3), (2, 5)))))
def test_forms(make, counts, folder, tmp_path):
    root = make(tmp_path / 'nuclei')
    cfg = masked(root, folder)
    assert numbers(cfg) == (dict(zip(('train', 'val', 'test'), counts, strict=True)), ('nuclei', ))
    assert not any(report.findings for report in check_data_sets(cfg, use_cache=False).values())
    wanted = [mask for _, objects in scenes(6) for _, mask in objects]
    assert all(any((mask == other).all() for other in wanted) for found in masks(folder).values() for _, mask in found)


def test_pieces_and_neighbours(folder, tmp_path):
    """Objects that touch are two, one in two pieces is one; the name of the class is that of the folder."""
    labels = np.zeros((96, 96), np.uint8)
    labels[10:20, 10:20], labels[20:30, 10:20], labels[50:60, 10:20], labels[50:60, 80:] = 1, 2, 7, 7
    for name, pixels in (('a', labels), ('b', np.minimum(labels, 1))):
        save(tmp_path / f'data/images/{name}.png', next(scenes(1))[0])
        save(tmp_path / f'data/cells/{name}.png', pixels)
    numbers(masked(tmp_path / 'data', folder, train_images='images', train_annotations='cells', instances='number',
                   val_share=0.5))
    found = {**masks(folder), **masks(folder, 'val')}
    assert [(name, [(mask == (labels == number)).all() for mask in (one, )]) for (name, one), number in zip(
        found['a.png'], (1, 2, 7), strict=True)] == [('cells', [True])] * 3
    assert found['b.png'][0][1].sum() == (labels > 0).sum()


def test_classes_by_folder(folder, tmp_path):
    for number, (picture, objects) in enumerate(scenes(4)):
        save(tmp_path / f'a/images/{number}.jpg', picture)
        for kind, part in (('disc', objects[:1]), ('other', objects[1:])):
            save(tmp_path / f'a/masks/{kind}/{number}.png', files.numbered(part[:1] if number > 2 else part))
            for place, (_, mask) in enumerate(part):
                save(tmp_path / f'b/train/{number}/images/x.jpg', picture)
                save(tmp_path / f'b/train/{number}/masks/{kind}/{place}.png', mask.astype(np.uint8) * 255)
    for root, total in (('a', 11), ('b', 12)):
        counts, names = numbers(masked(tmp_path / root, folder.parent / root))
        assert names == ('disc', 'other') and counts['train'][1] + counts['val'][1] == total


@pytest.mark.parametrize('form, first, classes', (('class*1000+number', 0, ('2', '5')),
                                                  ('class*256+number', 1, ('car', 'dog'))))
def test_numbers_with_classes(form, first, classes, folder, tmp_path):
    """Cityscapes' numbers begin at 0, and what has none is a class alone; in KITTI, 0 is no object."""
    factor = int(form.split('*')[1].split('+')[0])
    for number, (picture, objects) in enumerate(scenes(4)):
        pixels = np.full((96, 96), 7 if first == 0 else 7 * factor, np.uint16)
        for place, (_, mask) in enumerate(objects):
            pixels[mask] = (2, 5, 5)[place] * factor + first + place // 2
        name = f'leftImg8bit/train/town/{number}_leftImg8bit.png'
        save(tmp_path / 'data' / name, picture)
        for kind, values in dict(instanceIds=pixels, labelIds=(pixels > 9).astype(np.uint8)).items():
            save(tmp_path / f'data/gtFine/train/town/{number}_gtFine_{kind}.png', values)
    if first:
        (tmp_path / 'data/classes.txt').write_text('a\nb\ncar\nc\nd\ndog\n')
    counts, names = numbers(masked(tmp_path / 'data', folder, instances=form))
    assert names == classes and (counts['train'], counts['val']) == ((3, 9), (1, 3))


def test_label_maps_are_no_objects(folder, tmp_path):
    """Nor are masks of one class; the error says how to use them all the same."""
    many = exports_segmentation.pairs(tmp_path / 'many', 'images', 'masks', 'abcdef')
    one = exports_segmentation.pairs(tmp_path / 'one', 'images', 'masks', 'abcdef',
                                     change=lambda labels: (labels == 3).astype(np.uint8) * 255)
    for root in (many, one):
        with pytest.raises(DataError, match='label maps in masks .*semfpn.*--instances number'):
            masked(root, folder)
    assert numbers(masked(one, folder, instances='number', class_name='car')) == (
        dict(train=(5, 5), val=(1, 1), test=(1, 1)), ('car', ))


def test_what_cannot_be_read(folder, tmp_path):
    root = files.numbers(tmp_path / 'data', 'pairs')
    with pytest.raises(ConfigError, match="--instances must be number, or class.*not 'numbers'"):
        masked(root, folder, instances='numbers')
    Image.fromarray(np.zeros((50, 96), np.uint8)).save(root / 'masks/000.png')
    picture = np.array(Image.open(root / 'masks/001.png'))
    Image.fromarray(picture[:50]).save(root / 'masks/001.png')
    reports = check_data_sets(masked(root, folder, instances='number'), use_cache=False)
    assert any(f'{root / "masks"}, 001.png, number 1 has a mask (RLE) of a different size' in finding.sentence
               for report in reports.values() for finding in report.errors)
    save(root / 'masks/002.png', next(scenes(1))[0])
    with pytest.raises(DataError, match='1 file with masks cannot be read: .*002.png .*one whole number'):
        masked(root, folder, instances='number')
    with pytest.raises(ConfigError, match='--class-name is for masks as pictures, and .* has Pascal VOC'):
        placed(files.voc(tmp_path / 'voc'), folder, class_name='cat')
