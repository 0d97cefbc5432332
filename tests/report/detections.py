"""Detections without a model: they go through mmdet's metric and the recorder of the report as those of a test."""
import json
from types import SimpleNamespace

import numpy as np
import torch
from mmengine.dist import get_rank, get_world_size
from PIL import Image
from pycocotools import mask as mask_api
from report.tested import runner_of

from xcit_dense.report.detection import DetectionRecorder

WIDTH, HEIGHT = 100, 110


def write_truth(folder, images, classes=('cat', 'dog', 'newt'), with_files=False):
    """Write a COCO file of objects by image: class, x, y, width, height, and perhaps ``crowd``; return its path."""
    content = dict(images=[], annotations=[], categories=[dict(id=10 * i, name=name)
                                                          for i, name in enumerate(classes, 1)])
    for number, objects in enumerate(images, 1):
        content['images'].append(dict(id=number, file_name=f'{number}.png', width=WIDTH, height=HEIGHT))
        if with_files:
            Image.new('RGB', (WIDTH, HEIGHT), (90, 120, 90)).save(folder / f'{number}.png')
        for label, x, y, width, height, *crowd in objects:
            content['annotations'].append(dict(
                id=len(content['annotations']) + 1, image_id=number, category_id=10 * label + 10, area=width * height,
                bbox=[x, y, width, height], iscrowd=int(bool(crowd)), segmentation=encoded(x, y, width, height)
                if crowd else [[x, y, x + width, y, x + width, y + height, x, y + height]]))
    (folder / 'truth.json').write_text(json.dumps(content))
    return folder / 'truth.json'


def encoded(x, y, width, height):
    """Return a rectangle as RLE."""
    mask = np.zeros((HEIGHT, WIDTH), np.uint8, order='F')
    mask[int(y):int(y + height), int(x):int(x + width)] = 1
    code = mask_api.encode(mask)
    return dict(size=code['size'], counts=code['counts'].decode())


def sample(number, objects, with_masks=False, folder=None):
    """Return what a model of mmdet returns of an image: class number, x, y, width, height and score of each object."""
    rows = np.array(objects, np.float64).reshape(-1, 6)
    boxes = rows[:, 1:5] + np.hstack([np.zeros((len(rows), 2)), rows[:, 1:3]])
    found = dict(bboxes=torch.tensor(boxes, dtype=torch.float32), labels=torch.tensor(rows[:, 0]).long(),
                 scores=torch.tensor(rows[:, 5], dtype=torch.float32))
    if with_masks:
        found['masks'] = [encoded(*row[1:5]) for row in rows]
    return dict(img_id=number, img_path=f'{folder or "images"}/{number}.png', ori_shape=(HEIGHT, WIDTH),
                pred_instances=found)


def metric_of(file, **options):
    from mmdet.evaluation import CocoMetric
    return CocoMetric(ann_file=str(file), **options)


def evaluated(metrics, samples, classes=('cat', 'dog', 'newt'), palette=None):
    """Evaluate samples; return the `Content`, the metrics, what was logged, and the recorder."""
    runner = runner_of('mmdet', samples, metrics, metainfo=dict(classes=classes, palette=palette))
    found, evaluator = DetectionRecorder(runner), runner.test_loop.evaluator
    rank, processes = get_rank(), get_world_size()
    for place in range(rank, -(-len(samples) // processes) * processes, processes):
        each = samples[place % len(samples)]
        evaluator.process([each], None)
        found.see(None, [each])
    figures = evaluator.evaluate(len(samples))
    return SimpleNamespace(content=found.content(figures), metrics=figures, said=runner.said, recorder=found)


def evaluated_in_parts(file, samples):
    """Evaluate samples in a process group; return the tables and the matrix, None if this is not the first process."""
    content = evaluated([metric_of(file)], samples).content
    return None if content is None else (content.classes, content.images, content.confusion)


def many(count, seed=0, classes=3):
    """Return random objects and predictions of some images: most found, some missed, confused, twice or invented."""
    noise = np.random.default_rng(seed)
    truth, predictions = [], []
    for _ in range(count):
        objects, found = [], []
        for _ in range(noise.integers(0, 6)):
            box = *noise.uniform(0, 50, 2).round(1), *noise.uniform(8, 45, 2).round(1)
            label = int(noise.integers(classes))
            objects.append((label, *box, *['crowd'] * bool(noise.random() < 0.3)))
            for _ in range(noise.integers(0, 3)):
                guess = label if noise.random() < 0.8 else int(noise.integers(classes))
                found.append((guess, *(np.array(box) + noise.normal(0, 2, 4)), round(float(noise.random()), 2)))
        for _ in range(noise.integers(0, 3)):
            found.append((int(noise.integers(classes)), *noise.uniform(5, 45, 4), round(float(noise.random()), 2)))
        truth.append(objects)
        predictions.append(found)
    return truth, predictions
