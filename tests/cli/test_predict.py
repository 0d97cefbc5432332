"""The predict tool as a user runs it on images."""
import json
import re
import shutil

import cv2
import numpy as np
import pytest
import torch
from pycocotools import mask as mask_api
from pycocotools.coco import COCO

from helpers.onnx_files import write_detector
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense._utils.files import RECORD
from xcit_dense.annotations.conversion import names_beside
from xcit_dense.annotations.yolo import read_yolo
from xcit_dense.data.demo import CLASSES
from xcit_dense.weights import best_checkpoint


def test_prediction_writes_pictures_and_coco_results(trained, demo_data, tmp_path):
    """With the category ids of the data of the training."""
    checkpoint = torch.load(best_checkpoint(trained[0]), weights_only=False)
    assert tuple(checkpoint['meta']['dataset_meta']['category_ids']) == (1, 2, 3, 4, 5)
    ids = checkpoint['meta']['dataset_meta']['category_ids'] = (7, 30, 2, 90, 41)
    torch.save(checkpoint, tmp_path / 'other.pth')
    for out, weights in (('out', trained[0]), ('other', tmp_path / 'other.pth')):
        done = run_tool('predict.py', TINY_CONFIG, weights, demo_data / 'val2017', '--out', out, '--score-thr', 0,
                        '--cfg-options', 'model.test_cfg.rcnn.score_thr=0', cwd=tmp_path)
        assert '3 pictures' in done.stdout
    image = cv2.imread(str(demo_data / 'val2017/000000000001.jpg'))
    picture = cv2.imread(str(tmp_path / 'out/000000000001.jpg'))
    assert picture.shape == image.shape and (picture != image).any()
    records, others = (json.loads((tmp_path / f'{out}/results.json').read_text()) for out in ('out', 'other'))
    assert [ids[record['category_id'] - 1] for record in records] == [record['category_id'] for record in others]
    truth = COCO(str(demo_data / 'annotations/instances_val2017.json'))
    assert len(truth.loadRes(str(tmp_path / 'out/results.json')).anns) == len(records) > 0  # COCO's own reader
    for record in records:
        info = truth.imgs[record['image_id']]
        assert record['file_name'] == info['file_name']
        assert record['category_name'] == truth.cats[record['category_id']]['name']
        assert record['segmentation']['size'] == [info['height'], info['width']]
        x, y, width, height = record['bbox']
        assert 0 <= x <= x + width <= info['width'] + 1e-3 and 0 <= y <= y + height <= info['height'] + 1e-3


def test_a_segmentor_writes_pictures_and_label_maps(trained_segmentor, demo_data, tmp_path):
    """Numbered as the data: the evaluation of the tool and one by hand from the written label maps agree."""
    arguments, images, right, total = (TINY_SEG_CONFIG, trained_segmentor[0]), demo_data / 'images/validation', 0, 0
    done = run_tool('predict.py', *arguments, images, '--out', tmp_path / 'out', cwd=tmp_path)
    assert '3 pictures and 3 label maps' in done.stdout
    names = json.loads((tmp_path / 'out/classes.json').read_text())['classes']
    assert names == {str(i): name for i, name in enumerate(('background', *CLASSES))}
    for path in images.iterdir():
        labels, truth = (cv2.imread(str(folder / f'{path.stem}.png'), cv2.IMREAD_UNCHANGED)
                         for folder in (tmp_path / 'out/labels', demo_data / 'annotations/validation'))
        picture, image = (cv2.imread(str(file)) for file in (tmp_path / 'out' / path.name, path))
        assert labels.shape == picture.shape[:2] == image.shape[:2]
        assert labels.dtype == np.uint8 and labels.max() < len(names)
        right, total = right + (labels == truth).sum(), total + truth.size
    done = run_tool('test.py', *arguments, '--data-root', demo_data, '--work-dir', tmp_path / 'test')
    accuracy = float(re.search(r'Iter\(test\).*aAcc: ([\d.]+)', done.stdout)[1])
    assert accuracy == pytest.approx(100 * right / total, abs=0.011)  # the log rounds


@pytest.mark.parametrize('readable', (0, 1))
def test_prediction_lists_all_that_cannot_be_read(readable, trained, demo_data, tmp_path, call_tool):
    images, out = tmp_path / 'images', tmp_path / 'out'
    (images / 'deep').mkdir(parents=True)
    names = [f'broken_{i}.jpg' for i in range(7)]
    for name in names:
        (images / name).write_bytes(b'no image')
    if readable:
        cv2.imwrite(str(images / 'deep/x.png'), cv2.imread(str(demo_data / 'val2017/000000000001.jpg')))
    code, message = call_tool('predict.py', TINY_CONFIG, trained[0], images, '--out', out)
    assert code == 1 and message.startswith(f'error: 7 of {7 + readable} images could not be predicted. Wrote ')
    for line, name in zip(message.splitlines()[1:], names, strict=True):
        path, reason = line.strip().split(': ', 1)
        assert path == f'{images / name} cannot be read' and reason
    if readable:
        assert ': 1 picture and ' in message and (out / 'deep/x.jpg').is_file()
        assert {p.name for p in out.iterdir()} == {'deep', 'results.json', 'classes.json', RECORD}
    else:
        assert '. Wrote nothing. ' in message and not out.exists()


def test_prediction_overwrites_nothing(trained_segmentor, demo_data, tmp_path, call_tool):
    """A label map that cannot be written is no success."""
    images = tmp_path / 'images'
    images.mkdir()
    for suffix in ('jpg', 'JPG'):
        shutil.copy(demo_data / 'images/validation/000000000001.jpg', images / f'a.{suffix}')
    model, taken = (TINY_SEG_CONFIG, trained_segmentor[0]), tmp_path / 'labels/a.png'
    taken.mkdir(parents=True)
    for source, out, words in ((images, images, 'would be overwritten'), (images, tmp_path / 'out', 'differ only in'),
                               (images / 'a.jpg', tmp_path, f'cannot write {taken}')):
        code, message = call_tool('predict.py', *model, source, '--out', out)
        assert code == 1 and message.startswith('error: ') and words in message
    assert sorted(p.name for p in images.iterdir()) == ['a.JPG', 'a.jpg']


@pytest.mark.parametrize('exports', (False, True))
def test_labels_of_objects_for_a_tool(exports, trained, demo_data, tmp_path, call_tool):
    """Of checkpoints and exported files, whole and in tiles; what somebody corrected is not overwritten."""
    model = [TINY_CONFIG, trained[0]]
    if exports:
        pytest.importorskip('onnxruntime')
        boxes = np.float32([[0.25, 0.5, 0.75, 1, 0.9], [0, 0, 0.5, 0.5, 0.4], [0, 0.1, 0.8, 0.4, 0.05]])
        masks = np.ones((3, 28, 28), np.float32)
        model = [write_detector(tmp_path / 'detector.onnx', boxes, np.array([2, 0, 1]), masks)]
    arguments = [*model, demo_data / 'val2017/000000000001.jpg', '--out', tmp_path / 'out', '--score-thr', 0.15]
    for tile in ((), ('--tile', 40)):
        done = run_tool('predict.py', *arguments, '--labels', 'yolo', *tile)
        records = [record for record in json.loads((tmp_path / 'out/results.json').read_text())
                   if record['score'] >= 0.15 and mask_api.area(record['segmentation'])]
        assert f'\n{len(records)} labels (yolo) in labels/: ' in done.stdout and len(records) > 1
        content = read_yolo(tmp_path / 'out/data.yaml', tmp_path / 'out')['train'].content
        ids = {image['id']: image['file_name'] for image in content['images']}
        for record, label in zip(records, content['annotations'], strict=True):
            assert (record['file_name'], record['category_id']) == (ids[label['image_id']], label['category_id'])
            drawn = mask_api.frPyObjects(label['segmentation'], *record['segmentation']['size'])
            assert mask_api.iou(drawn, [record['segmentation']], [0])[0, 0] > 0.98
    for form, file in (('labelme', 'labels/000000000001.json'), ('coco', 'annotations.json')):
        (tmp_path / 'out' / file).write_text('mine')
        code, message = call_tool('predict.py', *arguments, '--labels', form)
        assert code == 1 and f'did not write or finish, or that changed since: {file}.' in message
        assert (tmp_path / 'out' / file).read_text() == 'mine'


def test_labels_of_pixels_for_a_tool(trained_segmentor, demo_data, tmp_path):
    arguments = TINY_SEG_CONFIG, trained_segmentor[0], demo_data / 'images/validation', '--out', tmp_path / 'out'
    done = run_tool('predict.py', *arguments, '--labels', 'maps')
    assert 'class names in classes.txt' in done.stdout
    assert names_beside([tmp_path / 'out']) == (('background', *CLASSES), tmp_path / 'out/classes.txt')
    run_tool('predict.py', *arguments, '--labels', 'labelme')
    for path in (tmp_path / 'out/labels').glob('*.json'):
        labels, found = cv2.imread(str(path.with_suffix('.png')), cv2.IMREAD_UNCHANGED), json.loads(path.read_text())
        for number, name in enumerate(CLASSES, 1):
            polygons = [sum(shape['points'], []) for shape in found['shapes'] if shape['label'] == name]
            drawn = mask_api.decode(mask_api.frPyObjects(polygons, *labels.shape)).any(-1) if polygons else False
            assert (drawn != (labels == number)).sum() <= 0.03 * (labels == number).sum()
        assert {shape['label'] for shape in found['shapes']} <= {*CLASSES} and found['shapes']


def test_labels_that_cannot_be(trained, trained_segmentor, demo_data, tmp_path, call_tool):
    (tmp_path / 'a.mp4').touch()
    detector, segmentor = (TINY_CONFIG, trained[0]), (TINY_SEG_CONFIG, trained_segmentor[0])
    for model, source, form, words in (
            (detector, demo_data / 'val2017', 'maps', 'these forms: labelme, coco, yolo, voc'),
            *((segmentor, demo_data / 'val2017', name, 'forms: labelme, maps') for name in ('coco', 'yolo', 'voc')),
            (detector, tmp_path / 'a.mp4', 'coco', 'only for images')):
        code, message = call_tool('predict.py', *model, source, '--out', tmp_path / 'out', '--labels', form)
        assert code == 1 and '--labels' in message and words in message and not (tmp_path / 'out').exists()
