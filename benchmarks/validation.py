"""Time and memory of what follows the network when a detector is validated: mmdet's way, and ours.

python -m benchmarks.validation [--runs N]
"""
import argparse
import contextlib
import copy
import io
import json
import multiprocessing
import re
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import torch
from mmengine.config import ConfigDict

import xcit_dense  # noqa: F401  mmdet's operators
from xcit_dense.compat.evaluation import evaluate_fast
from xcit_dense.compat.masks import cut_masks

#: Objects, height, width, classes, and the shortest and longest sides of boxes, in pixels.
MASKS = {'300 masks of 15 to 30 pixels, 1024 x 1024': (300, 1024, 1024, 1, 15, 30),
         '500 masks of 15 to 30 pixels, 1024 x 1024': (500, 1024, 1024, 1, 15, 30),
         '100 masks of 8 to 320 pixels, 640 x 480': (100, 480, 640, 80, 8, 320)}
#: Images, height, width, objects and classes; there are two predictions for each object.
EVALUATIONS = {'8 images with 200 objects of one class': (8, 1040, 1388, 200, 1),
               '300 images with 8 objects of 80 classes': (300, 480, 640, 8, 80)}


def heads():
    """Return two mask heads of mmdet, the second with our way."""
    from mmdet.models import FCNMaskHead
    from mmdet.registry import MODELS
    theirs = FCNMaskHead(num_classes=80)

    class Detector(MODELS.get('MaskRCNN')):
        def __init__(self):
            torch.nn.Module.__init__(self)
            self.mask_head = copy.deepcopy(theirs)

    model = Detector()
    cut_masks(model)
    return theirs, model.mask_head


def objects_of(count, height, width, classes, least, most):
    """Return boxes with sides that are evenly spread on a logarithmic scale, logits of round objects, and labels."""
    torch.manual_seed(0)
    sides = least * (most / least) ** torch.rand(count, 2)
    middle = torch.rand(count, 2) * torch.tensor([width, height])
    boxes = torch.cat([middle - sides / 2, middle + sides / 2], 1)
    boxes[:, ::2].clamp_(0, width)
    boxes[:, 1::2].clamp_(0, height)
    away = torch.linspace(-1, 1, 28).square()
    noise = torch.nn.functional.interpolate(torch.randn(count, classes, 5, 5), size=(28, 28), mode='bilinear')
    return 3 - 4 * (away[:, None] + away) + noise, boxes, torch.randint(classes, (count, ))


def masks_of(head, logits, boxes, labels, height, width):
    """Return what a metric keeps of an image, and the processor time."""
    from mmdet.structures.mask import encode_mask_results
    began = time.process_time()
    found = head._predict_by_feat_single(logits, boxes.clone(), labels, dict(
        scale_factor=(1., 1.), ori_shape=(height, width)), ConfigDict(mask_thr_binary=0.5), True)
    codes = [dict(mask) for mask in (encode_mask_results(found.cpu().numpy()) if isinstance(found, torch.Tensor) else
                                     found)]
    return codes, time.process_time() - began


def memory_of(name, place):
    """Return by how many MiB a process grows that makes the masks of an image."""
    torch.set_num_threads(1)
    head, (count, height, width, *rest) = heads()[place], MASKS[name]
    logits, boxes, labels = objects_of(count, height, width, *rest)
    masks_of(head, logits[:2], boxes[:2], labels[:2], height, width)
    before = _peak()
    masks_of(head, logits, boxes, labels, height, width)
    return _peak() - before


def _peak():
    return int(re.search(r'VmHWM:\s+(\d+)', Path('/proc/self/status').read_text())[1]) / 1024


def evaluation_of(folder, images, height, width, count, classes):
    """Return two metrics of mmdet, the second with our way, and predictions to evaluate."""
    from mmdet.evaluation import CocoMetric
    from pycocotools import mask as mask_api
    random, results = np.random.default_rng(0), []
    truth = dict(images=[], annotations=[], categories=[dict(id=i, name=str(i)) for i in range(1, classes + 1)])
    for image in range(1, images + 1):
        truth['images'].append(dict(id=image, file_name=f'{image}.jpg', height=height, width=width))
        sides = random.uniform(15, 35, (count, 2))
        boxes = np.concatenate([random.uniform(0, 1, (count, 2)) * ([width, height] - sides), sides], 1)
        labels = random.integers(classes, size=count)
        truth['annotations'] += [dict(id=len(truth['annotations']) + place, image_id=image, category_id=int(label) + 1,
                                      iscrowd=0, bbox=box.tolist(), area=float(box[2:].prod()),
                                      segmentation=[[*box[:2], box[0] + box[2], box[1], *(box[:2] + box[2:]),
                                                     box[0], box[1] + box[3]]])
                                 for place, (box, label) in enumerate(zip(boxes, labels, strict=True), 1)]
        found = np.repeat(boxes, 2, 0) + random.normal(size=(2 * count, 4)).clip(-3, 3)
        corners = [[[x, y, x + w, y, x + w, y + h, x, y + h]] for x, y, w, h in found.tolist()]
        results.append((dict(img_id=image, width=width, height=height), dict(
            img_id=image, bboxes=np.concatenate([found[:, :2], found[:, :2] + found[:, 2:]], 1).astype(np.float32),
            scores=random.random(2 * count).astype(np.float32), labels=np.repeat(labels, 2),
            masks=[mask_api.merge(mask_api.frPyObjects(polygon, height, width)) for polygon in corners])))
    path = Path(folder, 'truth.json')
    path.write_text(json.dumps(truth, default=float))
    metrics = [CocoMetric(ann_file=str(path), metric=['bbox', 'segm']) for _ in range(2)]
    for metric in metrics:
        metric.dataset_meta = dict(classes=[part['name'] for part in truth['categories']])
    evaluate_fast(SimpleNamespace(metrics=[metrics[1]]))
    return metrics, results


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--runs', type=int, default=9, help='of each way, interleaved (default: %(default)s)')
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, (count, height, width, *rest) in MASKS.items():
        inputs, seconds = objects_of(count, height, width, *rest), ([], [])
        for _ in range(args.runs):
            (theirs, old), (ours, new) = (masks_of(head, *inputs, height, width) for head in heads())
            assert theirs == ours, 'the masks differ'
            seconds[0].append(old)
            seconds[1].append(new)
        with multiprocessing.get_context('spawn').Pool(1, maxtasksperchild=1) as pool:
            memory = [pool.apply(memory_of, (name, place)) for place in (0, 1)]
        rows.append((name, seconds, ' / '.join(f'{mib:.0f}' for mib in memory)))
    for name, options in EVALUATIONS.items():
        seconds = ([], [])
        with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            metrics, results = evaluation_of(folder, *options)
            for _ in range(max(args.runs // 3, 1)):
                found = []
                for metric, times in zip(metrics, seconds, strict=True):
                    began = time.process_time()
                    found.append(metric.compute_metrics(copy.deepcopy(results)))
                    times.append(time.process_time() - began)
                assert str(found[0]) == str(found[1]), 'the metrics differ'
        rows.append((name, seconds, '-'))
    print('| what | mmdet, s | ours, s | times as fast | memory, MiB |\n|---|---|---|---|---|')
    for name, seconds, memory in rows:
        old, new = map(statistics.median, seconds)
        print(f'| {name} | {old:.3g} | {new:.2g} | {old / new:.2g} | {memory} |')


if __name__ == '__main__':
    main()
