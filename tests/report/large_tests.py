"""A test of thousands of images without a model: what evaluation and report need. Run in a process of its own:

    python -m report.large_tests FOLDER

It generates data in FOLDER, prints seconds and memory as JSON in its last line, and leaves the report in FOLDER/report.
"""
import json
import sys
import time
from pathlib import Path

import numpy as np
from report.detections import many, metric_of, sample, write_truth
from report.tested import runner_of

from xcit_dense._utils.machine import own_peak_memory
from xcit_dense.report.hooks import ReportHook

IMAGES, CLASSES, MOST = 5000, 80, 100


def samples(predictions, folder):
    """Yield samples with 50 detections on average, the objects of the image among them."""
    noise = np.random.default_rng(1)
    for number, found in enumerate(predictions, 1):
        count = max(int(noise.integers(MOST)) - len(found), 0)
        more = np.hstack([noise.integers(0, CLASSES, (count, 1)), noise.uniform(5, 45, (count, 4)),
                          noise.random((count, 1))**4])
        yield sample(number, [*found, *more], with_masks=True, folder=folder)


def measure(folder):
    """Evaluate and report; return seconds of both and the most memory, in MiB."""
    log = folder / '20250101_000000/vis_data/scalars.json'  # of a long training
    log.parent.mkdir(parents=True)
    log.write_text('\n'.join(json.dumps(dict(loss=1 + 1 / step, lr=1e-4, step=step)) for step in range(50, 90_000, 50)))
    names = tuple(f'class {number}' for number in range(1, CLASSES + 1))
    truth, predictions = many(IMAGES, classes=CLASSES)
    metric = metric_of(write_truth(folder, truth, names, with_files=True), metric=['bbox', 'segm'])
    runner = runner_of('mmdet', range(IMAGES), [metric], cfg=dict(load_from=str(folder / 'epoch_12.pth')),
                       metainfo=dict(classes=names), data_root=str(folder))
    hook, evaluator, spent = ReportHook(str(folder / 'report')), runner.test_evaluator, dict(evaluation=0., report=0.)

    def timed(name, function, *args):
        start = time.perf_counter()
        result = function(*args)
        spent[name] += time.perf_counter() - start
        return result

    timed('report', hook.before_test, runner)
    for place, each in enumerate(samples(predictions, folder)):
        timed('evaluation', evaluator.process, [each], None)
        timed('report', hook.after_test_iter, runner, place, None, [each])
    metrics = timed('evaluation', evaluator.evaluate, IMAGES)
    hook.after_test_epoch(runner, metrics)
    timed('report', hook.after_test, runner)
    table, done = runner.said  # and no warning
    assert table.startswith('per class') and done.startswith('wrote'), runner.said
    return dict(spent, metrics={name: float(value) for name, value in metrics.items()},
                peak=own_peak_memory() / 2**20)


if __name__ == '__main__':
    print(json.dumps(measure(Path(sys.argv[1]).absolute())))
