"""Folders with more than one tool writes: links, strays, parts that do not match, files that say two things."""
import json
import os

import numpy as np
import pytest
from annotations import exports
from annotations import exports_files as files
from annotations.placing import detector, numbers, placed, segmentor
from PIL import Image

from helpers import exports_segmentation
from helpers.exports_segmentation import save
from xcit_dense._utils.files import OwnFiles
from xcit_dense.annotations.coco import folders_of
from xcit_dense.errors import ConfigError, DataError


def classes(cfg):
    return cfg.train_dataloader.dataset.metainfo.classes


def changed(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_links_are_followed_once(folder, tmp_path):
    root = files.labelme(tmp_path / 'data', dict(train=4, valid=2))
    (root / 'train/back').symlink_to('..')
    (root / 'more').symlink_to('train')
    assert numbers(placed(root, folder))[0] == dict(train=(4, 12), val=(2, 6), test=(2, 6))
    assert len(folders_of(root)) == len(folders_of(root, all_of_them=True)) == 3


def test_lists_with_suffixes_and_of_other_data(folder, tmp_path, capfd):
    root = files.voc(tmp_path / 'data')
    for path in (root / 'ImageSets/Main').glob('*.txt'):
        path.write_text(path.read_text().replace('\n', '.jpg\n'))
    for options in ({}, dict(train_annotations='Annotations')):  # the lists divide what is named too
        assert numbers(placed(root, folder, **options))[0] == dict(train=(4, 12), val=(2, 6), test=(2, 6))
    (root / 'ImageSets/Main/trainval.txt').unlink()
    (root / 'ImageSets/Main/train.txt').write_text('train0\n')
    assert numbers(placed(root, folder.parent / 'b'))[0]['train'] == (1, 3)
    said = capfd.readouterr().out
    assert 'left out 3 files that no list names: Annotations/train1.xml' in said and 'without a file' not in said
    for path in (root / 'ImageSets/Main').glob('*.txt'):
        path.write_text('another\n')
    with pytest.raises(DataError, match='ImageSets/Main/train.txt.* no name there is that of a file in Annotations'):
        placed(root, folder.parent / 'c')


def test_images_of_another_part_are_not_taken(folder, tmp_path, capfd):
    root = files.voc(tmp_path / 'data', 'roboflow')
    path = next((root / 'train').glob('*.jpg'))
    (root / 'test').mkdir()
    path.rename(root / 'test' / path.name)
    assert numbers(placed(root, folder))[0]['train'] == (3, 9)
    assert f'left out 1 file without an image: train/{path.stem}.xml' in capfd.readouterr().out


def test_strays_and_predictions(folder, tmp_path, capfd):
    """What is no file of the data is left out, and what nobody corrected; a folder of predictions alone is read."""
    root = files.labelme(tmp_path / 'data')
    (root / 'settings.json').write_text('{"shapes": [], // a comment\n}')
    (root / 'labels.txt').write_text('disc\n\ndisc\nsquare\ntriangle\n')
    with OwnFiles(root / 'out', 'predict') as own:
        own.claim('labels/a0.json', 'labels/a1.json')
        for name in ('a0', 'a1'):
            (root / 'out/labels').mkdir(exist_ok=True)
            (root / f'out/labels/{name}.json').write_text((root / f'{name}.json').read_text())
    assert numbers(placed(root, folder)) == (
        dict(train=(5, 15), val=(1, 3), test=(1, 3)), ('disc', 'square', 'triangle'))
    said = capfd.readouterr().out
    assert 'left out 2 predictions: out/labels/a0.json' in said and 'settings.json' in said
    assert numbers(placed(root / 'out', folder.parent / 'b', train_images=str(root)))[0]['train'] == (1, 3)
    changed(root / 'out/labels/a0.json', lambda content: content['shapes'].pop())
    with pytest.raises(DataError, match='two LabelMe files: .*Remove one, or choose a folder'):
        placed(root, folder.parent / 'c')


def test_images_in_some_of_the_files(folder, tmp_path):
    """The same images are held out wherever the work dir is; images of one name in two folders stay two."""
    for place in 'ab':
        files.labelme(tmp_path / 'data' / place, embed=True)
    for number in range(3):
        save(tmp_path / f'data/a/a{number}.jpg', np.zeros((96, 96, 3), np.uint8))
    held = []
    for name in ('x', 'deeper/y'):
        assert numbers(placed(tmp_path / 'data', tmp_path / name))[0]['train'][0] == 10
        held.append({image['file_name'] for image in json.loads((tmp_path / name / 'val.json').read_text())['images']})
    assert held[0] == held[1] and len(held[0]) == 2
    for bad in ('no image', True):
        changed(tmp_path / 'data/a/a4.json', lambda content, bad=bad: content.update(imageData=bad))
        with pytest.raises(DataError, match='a4.json: the image in it cannot be read'):
            placed(tmp_path / 'data', folder)


def test_names_of_classes_of_other_tools_stay(tmp_path, capfd):
    """Label maps of one class are not taken for masks in black and white; blanks around names mean nothing."""
    root = files.labelme(tmp_path / 'a')
    for number, path in enumerate(root.glob('*.json')):
        changed(path, lambda content, number=number: [
            shape.update(label='cat ' if number % 2 else 'cat') for shape in content['shapes']])
    assert classes(segmentor(root, tmp_path / 'run')) == ('_background_', 'cat')
    changed(root / 'a0.json', lambda content: content['shapes'][0].update(label='Cat'))
    placed(root, tmp_path / 'b')
    assert 'classes whose names differ only in case: cat' in capfd.readouterr().out
    with pytest.raises(ConfigError, match='--class-name is for masks in black and white'):
        segmentor(exports_segmentation.camvid(tmp_path / 'c'), tmp_path / 'run2', class_name='x')
    with pytest.raises(ConfigError, match='--instances is only for detection'):
        segmentor(root, tmp_path / 'run2', instances='number')


def test_numbers_that_no_image_can_have(folder, tmp_path):
    root = files.labelme(tmp_path / 'data')
    changed(root / 'a0.json', lambda content: content['shapes'][0].update(
        points=[[1e9, 1], [5, 1e9], [1, 1]], group_id=1))
    changed(root / 'a1.json', lambda content: content['shapes'][0].update(points=[]))
    changed(root / 'a2.json', lambda content: content.update(imageWidth=None))
    assert classes(segmentor(root, tmp_path / 'run'))[1:] == ('disc', 'square', 'triangle')
    changed(root / 'a2.json', lambda content: content.update(imageWidth=10**6))
    with pytest.raises(DataError, match='a2.json: imageWidth and imageHeight are 1000000'):
        placed(root, folder)
    many = files.labelme(tmp_path / 'many')
    changed(many / 'a0.json', lambda content: content.update(
        shapes=[dict(content['shapes'][0], label=f'c{number}') for number in range(256)]))
    with pytest.raises(DataError, match='classes, but label maps have room for only 255'):
        segmentor(many, tmp_path / 'run')


def test_label_maps_beside_other_pictures(folder, tmp_path):
    """JPEG, arrays and LabelMe's files beside label maps, and labels of YOLO in two places, change nothing."""
    root = exports_segmentation.pairs(tmp_path / 'data', 'images', 'masks', 'abcd')
    for number, name in enumerate('abcd'):
        save(root / f'annotations/{name}.jpg', exports_segmentation.scene(number)[0])
        (root / 'labels').mkdir(exist_ok=True)
        np.save(root / f'labels/{name}.npy', np.zeros(9))
        (root / f'masks/{name}.json').write_text(json.dumps(files.labels(f'{name}.jpg', [])))
    for options in ({}, dict(train_images='images', train_annotations='masks')):
        cfg = segmentor(root, tmp_path / 'run', **options)
        assert cfg.train_dataloader.dataset.data_prefix.seg_map_path == 'masks'
    yolo = exports.yolo_of_cvat(tmp_path / 'yolo')
    (yolo / 'labels').mkdir()
    (yolo / 'labels/000.txt').write_text('0 .5 .5 .1 .1\n')
    counts = numbers(placed(yolo, folder))[0]
    assert counts['train'][1] + counts['val'][1] == 12


def test_soft_masks(tmp_path, capfd):
    root = exports_segmentation.pairs(tmp_path / 'data', 'images', 'masks', exports_segmentation.names(4), change=soft)
    assert classes(segmentor(root, tmp_path / 'run')) == ('background', 'data')
    assert 'masks are cut at half of white' in capfd.readouterr().out
    labels = np.asarray(Image.open(tmp_path / 'run/data/maps/train/s000.png'))
    assert (labels == (exports_segmentation.scene(0)[1] == 3)).all()


def soft(labels):
    """White where the label is 3, with an edge of many greys."""
    mask = (labels == 3) * 255
    edge = np.roll(mask, 1, 0) ^ mask
    greys = 20 + 4 * (np.arange(labels.shape[1]) % 25)
    return np.where(edge > 0, np.where(mask > 0, 255 - greys // 3, greys), mask).astype(np.uint8)


def test_folders_of_objects_with_other_pictures(folder, tmp_path, capfd):
    """A soft rim is one object; an image without masks stays; a second picture is an error."""
    root = files.folders_of_objects(tmp_path / 'data')
    for path in (root / 'stage1_train').glob('*/masks/*.png'):
        pixels = np.asarray(Image.open(path)).astype(int)
        Image.fromarray(np.clip(pixels - np.arange(96) % 90, 0, 255).astype(np.uint8)).save(path)
    first = sorted((root / 'stage1_train').iterdir())[0]
    for path in (first / 'masks').iterdir():
        path.unlink()
    counts, _ = numbers(placed(root, folder, detector(root, with_mask=True)))
    assert counts['train'][0] + counts['val'][0] == 5 and counts['train'][1] + counts['val'][1] == 12
    said = capfd.readouterr().out
    assert 'no object in 1 image without a mask' in said and '--class-name gives another name' in said
    save(first / 'images/thumb.png', np.zeros((9, 9), np.uint8))
    with pytest.raises(DataError, match='a folder for each image must have one picture in images/'):
        placed(root, folder)
    pairs = files.numbers(tmp_path / 'pairs', 'pairs')
    (pairs / 'masks/000.png').unlink()
    os.rename(pairs, tmp_path / 'renamed')
    placed(tmp_path / 'renamed', folder)
    assert 'no object in 1 image without a mask' in capfd.readouterr().out
    with pytest.raises(DataError, match='masks as pictures, set --train-images too'):
        placed(tmp_path / 'renamed', folder, train_annotations='masks')
    with pytest.raises(DataError, match=f'did you mean {os.getcwd()}/tests'):
        placed(tmp_path / 'renamed', folder, train_images='tests')
