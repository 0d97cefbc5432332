"""Tests of thousands of images without a model: what evaluation and report need. Run in a process of its own:

    python -m report.large_tests detection FOLDER
    python -m report.large_tests segmentation FOLDER

It generates data in FOLDER, prints seconds and memory as JSON in its last line, and leaves the report in FOLDER/report.
"""
import json
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.structures import PixelData
from report.detections import many, metric_of, sample, write_truth
from report.tested import runner_of

from xcit_dense._utils.machine import own_peak_memory
from xcit_dense.report.hooks import ReportHook

IMAGES, CLASSES, MOST = 5000, 80, 100
MAPS, MAP_CLASSES, SIZE = 2000, 150, (480, 640)


def detections(folder):
    """Return a metric, and yield samples with 50 detections on average, the objects of the image among them."""
    noise = np.random.default_rng(1)
    truth, predictions = many(IMAGES, classes=CLASSES)
    file = write_truth(folder, truth, names(CLASSES), with_files=True)

    def samples():
        for number, found in enumerate(predictions, 1):
            count = max(int(noise.integers(MOST)) - len(found), 0)
            more = np.hstack([noise.integers(0, CLASSES, (count, 1)), noise.uniform(5, 45, (count, 4)),
                              noise.random((count, 1))**4])
            yield sample(number, [*found, *more], with_masks=True, folder=folder)

    return metric_of(file, metric=['bbox', 'segm']), samples()


def label_maps(folder):
    """Return a metric, and yield samples of which every fourth pixel is wrong, with common and rare classes."""
    from mmseg.evaluation import IoUMetric
    from mmseg.structures import SegDataSample
    noise, often = np.random.default_rng(3), 1 / np.arange(1, MAP_CLASSES + 1)

    def samples():
        for number in range(1, MAPS + 1):
            path = str(folder / f'{number}.png')
            cv2.imwrite(path, np.full((*SIZE, 3), 90, np.uint8))
            small = noise.choice(MAP_CLASSES, (15, 20), p=often / often.sum())
            truth = torch.from_numpy(small.repeat(32, 0).repeat(32, 1))
            yield SegDataSample(metainfo=dict(img_path=path, ori_shape=SIZE), gt_sem_seg=PixelData(data=truth[None]),
                                pred_sem_seg=PixelData(data=truth.roll(int(noise.integers(4, 12)), 1)[None]))

    return IoUMetric(), samples()


def names(count):
    """Return names of classes."""
    return tuple(f'class {number}' for number in range(1, count + 1))


def measure(task, folder):
    """Evaluate and report; return seconds of both and the most memory, in MiB."""
    folder = Path(folder).absolute()
    log = folder / '20250101_000000/vis_data/scalars.json'  # of a long training
    log.parent.mkdir(parents=True)
    log.write_text('\n'.join(json.dumps(dict(loss=1 + 1 / step, lr=1e-4, step=step)) for step in range(50, 90_000, 50)))
    framework, count, classes, make = dict(detection=('mmdet', IMAGES, CLASSES, detections),
                                           segmentation=('mmseg', MAPS, MAP_CLASSES, label_maps))[task]
    metric, samples = make(folder)
    runner = runner_of(framework, range(count), [metric], cfg=dict(load_from=str(folder / 'epoch_12.pth')),
                       metainfo=dict(classes=names(classes)), data_root=str(folder))
    hook, evaluator, spent = ReportHook(str(folder / 'report')), runner.test_evaluator, dict(evaluation=0., report=0.)

    def timed(name, function, *args):
        start = time.perf_counter()
        result = function(*args)
        spent[name] += time.perf_counter() - start
        return result

    timed('report', hook.before_test, runner)
    for place, each in enumerate(samples):
        as_dict = each if isinstance(each, dict) else each.to_dict()
        timed('evaluation', evaluator.process, [as_dict], None)
        timed('report', hook.after_test_iter, runner, place, None, [each])
    metrics = timed('evaluation', evaluator.evaluate, count)
    hook.after_test_epoch(runner, metrics)
    timed('report', hook.after_test, runner)
    table, done = runner.said  # and no warning
    assert table.startswith('per class') and done.startswith('wrote'), runner.said
    return dict(spent, metrics={name: float(value) for name, value in metrics.items()},
                peak=own_peak_memory() / 2**20)


if __name__ == '__main__':
    print(json.dumps(measure(*sys.argv[1:])))
