"""The metrics on some training images next to those of a test: is a longer run wanted, or more data?"""
import copy
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from mmengine.dist import get_world_size
from mmengine.registry import DATASETS

from .._utils.text import counted, first_line
from ..data.batches import unwrapped
from ..data.datasets import LOADERS, datasets
from ..data.evaluators import evaluators
from ..data.files import read_json

#: The metrics that are compared, by the ends of their names, and what each can reach.
_COMPARED = dict(mAP=1., mIoU=100., top1=100.)
#: More images take long and say hardly more.
_MOST = 200


def write_part(content, ids, file) -> str:
    """Write the images of a COCO file with some ids, and their objects; return the path of the new file."""
    content['images'] = [image for image in content['images'] if image['id'] in ids]
    content['annotations'] = [found for found in content['annotations'] if found['image_id'] in ids]
    file.write_text(json.dumps(content))
    return str(file)


def compare_with_training(runner, content):
    """Put the metrics on training images into the `Content` of a test, for models with classes from the data.

    The images are evenly spaced, as many as were tested but at most 200, prepared as in the test. Where there are none,
    or they cannot be tested, nothing happens but a line in the log.
    """
    head = getattr(unwrapped(runner.model), 'head', None)
    if not runner.cfg.get('classes_from_data') or get_world_size() > 1 or hasattr(head, 'facts'):
        return  # a head with facts has learned from training images before the test
    try:
        count, content.trained = _test_on_training(runner, copy.deepcopy(runner.cfg))
    except Exception as error:  # of any type: data sets and metrics may be users' classes
        runner.logger.info(f'no metrics on training images: {first_line(error)}')
        return
    if said := verdict(content.metrics, content.trained, counted(count, 'training images')):
        content.notes.append(said)
        runner.logger.info(said)


def _test_on_training(runner, cfg):
    """Return the number of images, and the metrics on them."""
    (trained, ), (tested, ) = (datasets(cfg, [loader]) for loader in (LOADERS[0], LOADERS[2]))
    dataset = DATASETS.build(dict(trained.data, pipeline=tested['pipeline'], test_mode=True))
    count = min(len(dataset), len(runner.test_dataloader.dataset), _MOST)
    dataset.get_subset_(np.linspace(0, len(dataset) - 1, count).astype(int).tolist())
    runner.logger.info(f'the same on {counted(count, "training images")}:')
    with TemporaryDirectory() as folder:
        for _, metric in evaluators(cfg, LOADERS[2:]):
            if metric.get('ann_file'):  # the metric counts all images in it
                ids = {dataset.get_data_info(place)['img_id'] for place in range(count)}
                metric.ann_file = write_part(read_json(trained.ann_file), ids, Path(folder, 'sample.json'))
        evaluator = runner.build_evaluator(cfg.test_evaluator)
        evaluator.dataset_meta = dataset.metainfo
        with torch.no_grad():
            for batch in runner.build_dataloader(dict(cfg.test_dataloader, dataset=dataset), runner.seed):
                evaluator.process(data_batch=batch, data_samples=runner.model.test_step(batch))
        return count, evaluator.evaluate(count)


def verdict(tested: dict, trained: dict, images: str) -> str:
    """Return a sentence on what would raise a metric: how much of what it lacks is lacking on training images too?"""
    found = [(name, best) for name in tested for end, best in _COMPARED.items() if name.endswith(end)]
    name, best = found[0] if found else ('', 1.)
    new, seen = (float(metrics.get(name, -1)) / best for metrics in (tested, trained))
    if not min(new, seen) >= 0:  # nan too
        return ''
    said = f'on {images} {name} is {best * seen:.3g}, on the test images {best * new:.3g}'
    if seen - new > max((1 - seen) / 2, 0.05):
        return f'{said}: the model has learned its training images but not others like them, so more data would help'
    if seen < 0.7:
        return f'{said}: it has learned neither to the end, so a longer training helps before more data does'
    return f'{said}: about as good on both'
