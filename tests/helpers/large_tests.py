"""Tests of thousands of images without a model: what evaluation and report need. Run in a process of its own:

    python -m helpers.large_tests detection FOLDER
    python -m helpers.large_tests segmentation FOLDER

It generates data in FOLDER, prints seconds and memory as JSON in its last line, and leaves the report in FOLDER/report.
"""
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from mmengine.structures import PixelData
from PIL import Image
from pycocotools import mask as mask_api

from helpers.tested import runner_of
from xcit_dense.machine import own_peak_memory
from xcit_dense.report.hook import ReportHook

IMAGES, OBJECTS, CLASSES, MOST = 5000, 36_000, 80, 100
MAPS, MAP_CLASSES = 2000, 150
WIDTH, HEIGHT = 640, 480
_CORNERS = np.linspace(0, 2 * np.pi, 12, endpoint=False)


def shapes_of(boxes):
    """Return a polygon with twelve corners in each box (x, y, width, height)."""
    circle = np.stack([np.cos(_CORNERS), np.sin(_CORNERS)], 1) / 2
    return (boxes[:, None, :2] + boxes[:, None, 2:] * (circle + 0.5)).reshape(len(boxes), -1).round(1).tolist()


def random_boxes(noise, count):
    """Return boxes (x, y, width, height) of all sizes."""
    sides = np.exp(noise.uniform(np.log(6), np.log(300), (count, 2)))
    return np.hstack([noise.random((count, 2)) * ((WIDTH, HEIGHT) - sides), sides]).round(1)


def write_images(folder, count):
    """Write a photo, under many names."""
    noise = np.random.default_rng(0)
    first = folder / '000001.jpg'
    Image.fromarray(noise.integers(0, 255, (6, 8, 3), np.uint8)).resize((WIDTH, HEIGHT)).save(first)
    for number in range(2, count + 1):
        os.link(first, folder / f'{number:06}.jpg')


def write_objects(folder):
    """Write the annotations and return the objects of each image: classes, boxes."""
    noise = np.random.default_rng(1)
    of_image = np.sort(noise.integers(0, IMAGES, OBJECTS))
    labels, boxes = noise.integers(0, CLASSES, OBJECTS), random_boxes(noise, OBJECTS)
    records = [dict(id=place + 1, image_id=int(image) + 1, category_id=int(label) + 1, bbox=box.tolist(),
                    area=float(box[2] * box[3]), iscrowd=0, segmentation=[shape])
               for place, (image, label, box, shape) in enumerate(zip(of_image, labels, boxes, shapes_of(boxes),
                                                                      strict=True))]
    (folder / 'truth.json').write_text(json.dumps(dict(
        images=[dict(id=number, file_name=f'{number:06}.jpg', width=WIDTH, height=HEIGHT)
                for number in range(1, IMAGES + 1)],
        annotations=records, categories=[dict(id=label + 1, name=name) for label, name in enumerate(names(CLASSES))])))
    ends = np.searchsorted(of_image, np.arange(IMAGES + 1))
    return [(labels[start:end], boxes[start:end]) for start, end in zip(ends, ends[1:], strict=False)]


def predictions_of(objects, folder):
    """Yield what a model of mmdet returns of each image: up to 100 detections, the objects among them, with masks."""
    noise = np.random.default_rng(2)
    for number, (labels, boxes) in enumerate(objects, 1):
        count = int(noise.integers(len(boxes), MOST + 1)) if len(boxes) < MOST else MOST
        moved = boxes * (1 + noise.normal(0, 0.08, boxes.shape))
        guesses = np.where(noise.random(len(labels)) < 0.8, labels, noise.integers(0, CLASSES, len(labels)))
        found = np.concatenate([moved, random_boxes(noise, count - len(boxes))])[:count].clip(0)
        scores = np.concatenate([noise.random(len(boxes)), noise.random(count)**4])[:count]
        masks = [mask_api.frPyObjects([shape], HEIGHT, WIDTH)[0] for shape in shapes_of(found)]
        found[:, 2:] += found[:, :2]
        yield dict(img_id=number, img_path=str(folder / f'{number:06}.jpg'), ori_shape=(HEIGHT, WIDTH),
                   pred_instances=dict(
                       bboxes=torch.tensor(found, dtype=torch.float32), masks=masks,
                       labels=torch.tensor(np.concatenate([guesses, noise.integers(0, CLASSES, count)])[:count]),
                       scores=torch.tensor(scores, dtype=torch.float32)))


def label_maps(folder):
    """Yield what a model of mmseg returns of each image; one of four pixels is wrong, classes are common or rare."""
    from mmseg.structures import SegDataSample
    noise = np.random.default_rng(3)
    often = 1 / np.arange(1, MAP_CLASSES + 1)
    for number in range(1, MAPS + 1):
        small = noise.choice(MAP_CLASSES, (15, 20), p=often / often.sum()).astype(np.uint8)
        truth = torch.from_numpy(small.repeat(32, 0).repeat(32, 1))
        found = truth.roll(int(noise.integers(4, 12)), 1)
        truth, found = (PixelData(data=labels[None].long()) for labels in (truth, found))
        yield SegDataSample(metainfo=dict(img_path=str(folder / f'{number:06}.jpg'), ori_shape=(HEIGHT, WIDTH)),
                            gt_sem_seg=truth, pred_sem_seg=found)


def names(count):
    """Return names of classes."""
    return tuple(f'class {number}' for number in range(1, count + 1))


def measure(task, folder):
    """Evaluate and report; return seconds of both and the most memory, in MiB."""
    folder = Path(folder).absolute()
    log = folder / '20250101_000000/vis_data/scalars.json'  # of a long training
    log.parent.mkdir(parents=True)
    log.write_text('\n'.join(json.dumps(dict(loss=1 + 1 / step, lr=1e-4, step=step)) for step in range(50, 90_000, 50)))
    if task == 'detection':
        from mmdet.evaluation import CocoMetric
        framework, count, classes, objects = 'mmdet', IMAGES, names(CLASSES), write_objects(folder)
        metric = CocoMetric(ann_file=str(folder / 'truth.json'), metric=['bbox', 'segm'])
        samples = predictions_of(objects, folder)
    else:
        from mmseg.evaluation import IoUMetric
        framework, count, classes, metric = 'mmseg', MAPS, names(MAP_CLASSES), IoUMetric()
        samples = label_maps(folder)
    write_images(folder, count)
    runner = runner_of(framework, range(count), [metric], cfg=dict(load_from=str(folder / 'epoch_12.pth')),
                       metainfo=dict(classes=classes), data_root=str(folder))
    hook, evaluator, spent = ReportHook(str(folder / 'report')), runner.test_evaluator, dict(evaluation=0., report=0.)

    def timed(name, function, *args):
        start = time.perf_counter()
        result = function(*args)
        spent[name] += time.perf_counter() - start
        return result

    timed('report', hook.before_test, runner)
    for place, sample in enumerate(samples):
        as_dict = sample if isinstance(sample, dict) else sample.to_dict()
        timed('evaluation', evaluator.process, [as_dict], None)
        timed('report', hook.after_test_iter, runner, place, None, [sample])
    metrics = timed('evaluation', evaluator.evaluate, count)
    hook.after_test_epoch(runner, metrics)
    timed('report', hook.after_test, runner)
    warnings = [line for line in runner.said if 'report' in line and not line.startswith(('wrote', 'per class'))]
    assert not warnings, warnings
    return dict(spent, metrics={name: float(value) for name, value in metrics.items()},
                peak=own_peak_memory() / 2**20)


if __name__ == '__main__':
    print(json.dumps(measure(*sys.argv[1:])))
