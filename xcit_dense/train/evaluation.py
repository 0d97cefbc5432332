"""What a test does: COCO evaluation of all that a training takes, faster by hotcoco; classifiers at several sizes."""
import copy
import datetime
import json
import logging
import math
import time
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from io import StringIO
from numbers import Real
from pathlib import Path

import numpy as np
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from pycocotools.cocoeval import COCOeval

from .._utils.files import OwnFiles, atomic_write
from .._utils.processes import is_first_process, run_on_first
from .._utils.text import counted
from ..compat.patches import evaluations_made_by
from ..config.options import add_hook
from ..config.testing import set_test_size
from ..data.evaluators import evaluators, metric_class
from ..draw.plots import INK, legend_below, line_style, name_axes, new_figure
from ..errors import ConfigError, OutputError, SetupError

_SIZE_FILES = ('sizes.json', 'sizes.png')


def complete_annotations(evaluator):
    """Make metrics that have read a COCO file accept what a training accepts; valid files give the same numbers.

    pycocotools ignores an object with the id 0, so that every detection of it counts as wrong. It also needs numeric
    ids, and ``iscrowd`` for every object. If it cannot use some ids, all are replaced by 1, 2, ..., with a warning; a
    missing ``iscrowd`` becomes 0.

    Args:
        evaluator: mmengine's evaluator; its metrics may hold annotations in any attribute.
    """
    # the index of panoptic data, of another class, has no such objects
    for api in (value for metric in evaluator.metrics for value in vars(metric).values()
                if getattr(getattr(value, 'createIndex', None), '__module__', '') == 'pycocotools.coco'):
        annotations = api.dataset.get('annotations') or []
        for annotation in annotations:
            if annotation.get('iscrowd') is None:
                annotation['iscrowd'] = 0
        # it keeps ids in an array of numbers, in which 0 means no object
        unusable = [id for id in (annotation['id'] for annotation in annotations)
                    if not isinstance(id, Real) or math.isnan(id) or id == 0]
        if not unusable:
            continue
        for number, annotation in enumerate(annotations, 1):
            annotation['id'] = number
        with redirect_stdout(StringIO()):  # it prints that it is done
            api.createIndex()
        for name, index in (('img_ann_map', 'imgToAnns'), ('cat_img_map', 'catToImgs')):  # mmdet's names for them
            if hasattr(api, name):
                setattr(api, name, getattr(api, index))
        print_log(f'pycocotools cannot use the ids of {counted(len(unusable), "objects")} in the annotations, such as '
                  f'{unusable[0]!r}. This evaluation uses the ids 1, 2, ... instead', logger='current',
                  level=logging.WARNING)


_PARAMS = ('imgIds', 'catIds', 'iouThrs', 'recThrs', 'maxDets', 'areaRng', 'areaRngLbl', 'useCats')
_FIELDS = ('id', 'image_id', 'category_id', 'bbox', 'area', 'score')


def set_fast_evaluation(cfg):
    """Let hotcoco evaluate in a test, as ``--coco-eval hotcoco`` asks.

    Raises:
        ConfigError: The test has no metric that pycocotools would evaluate.
        SetupError: hotcoco is not installed.
    """
    kinds = [metric_class(metric) for _, metric in evaluators(cfg, ['test_dataloader'])]
    if not any('CocoMetric' in [base.__name__ for base in getattr(kind, '__mro__', ())] for kind in kinds):
        raise ConfigError('--coco-eval hotcoco is for tests with a CocoMetric, and test_evaluator has none')
    if find_spec('hotcoco') is None:
        raise SetupError('--coco-eval hotcoco needs hotcoco: pip install hotcoco')
    # after the hook of the report, which then watches hotcoco's evaluation
    add_hook(cfg, 'FastEvaluationHook', priority='LOW')


@HOOKS.register_module()
class FastEvaluationHook(Hook):
    """Lets hotcoco compute what the COCO metrics of a test would compute with pycocotools."""

    def before_test(self, runner):
        """Change the metrics."""
        for metric in runner.test_loop.evaluator.metrics:
            metric.compute_metrics = partial(_compute, metric, metric.compute_metrics)


def _compute(metric, compute, results):
    with evaluations_made_by(lambda built_by, *args, **options: FastCOCOeval(*args, **options), metric):
        return compute(results)


class FastCOCOeval(COCOeval):
    """pycocotools' evaluation of boxes or masks, with its arrays computed by hotcoco.

    The summary is pycocotools' own. ``evalImgs`` and ``ious`` stay empty.
    """

    def evaluate(self):
        """Match predictions and objects."""
        import hotcoco
        params = self.params
        params.imgIds, params.maxDets = list(np.unique(params.imgIds)), sorted(params.maxDets)
        if params.useCats:
            params.catIds = list(np.unique(params.catIds))
        print_log(f'hotcoco {hotcoco.__version__} evaluates', logger='current')
        self._fast = hotcoco.COCOeval(*(hotcoco.COCO(_plain(api.dataset, params.iouType))
                                        for api in (self.cocoGt, self.cocoDt)), params.iouType)
        for name in _PARAMS:
            value = getattr(params, name)
            if isinstance(value, (list, np.ndarray)):
                value = np.array(value).tolist()
            setattr(self._fast.params, name, value)
        self._fast.evaluate()

    def accumulate(self, p=None):
        """Fill ``eval``."""
        self._fast.accumulate()
        arrays = {name: np.asarray(self._fast.eval[name]) for name in ('precision', 'recall', 'scores')}
        now = datetime.datetime.now().strftime('%Y-%m-%d %H:%M:%S')
        self.eval = dict(params=self.params, counts=list(arrays['precision'].shape), date=now, **arrays)


def _plain(dataset, kind):
    """Return a data set with what pycocotools reads of it: it ignores objects for ``iscrowd`` alone."""
    fields = (*_FIELDS, 'segmentation') if kind == 'segm' else _FIELDS
    objects = [dict({name: found[name] for name in fields if name in found}, iscrowd=int(found.get('iscrowd') or 0))
               for found in dataset.get('annotations', ())]
    return dict(images=dataset['images'], categories=dataset['categories'], annotations=objects)


def test_at_sizes(runner, sizes, crop_ratio: float = None, overwrite: bool = False) -> str:
    """Test at each size; after each one update ``sizes.json`` and the plot ``sizes.png`` in the work dir.

    Args:
        runner: A runner that has not tested yet.
        sizes: Different sides of the crop, in pixels.
        crop_ratio: As for `set_test_size`.
        overwrite: Whether to replace files of these names that no earlier test wrote.

    Returns:
        A table with a line for each size: its metrics, seconds and images per second.

    Raises:
        ConfigError: As for `set_test_size`.
        OutputError: There are such files, or they cannot be written.
    """
    own, rows, loader = OwnFiles(runner.work_dir, 'test', overwrite), [], runner.cfg.test_dataloader
    run_on_first(own.claim, *_SIZE_FILES)
    try:
        for size in sizes:
            runner.cfg.test_dataloader = copy.deepcopy(loader)
            set_test_size(runner.cfg, size, crop_ratio)
            runner.test_loop.dataloader = runner.build_dataloader(runner.cfg.test_dataloader, runner.seed)
            runner.load_or_resume()  # not part of the measured time
            start = time.perf_counter()
            metrics = runner.test()
            seconds = time.perf_counter() - start
            images = len(runner.test_dataloader.dataset)
            rows.append(dict(size=size, **metrics, seconds=seconds, images_per_second=images / seconds))
            run_on_first(_write_sizes, rows, Path(runner.work_dir))
    finally:
        if is_first_process():
            own.close()
    return _table_of(rows)


test_at_sizes.__test__ = False  # not a test of pytest


def _write_sizes(rows, folder):
    try:
        with atomic_write(folder / _SIZE_FILES[0]) as part:
            part.write_text(json.dumps(rows, indent=1) + '\n')
        with atomic_write(folder / _SIZE_FILES[1]) as part:
            _plot_sizes(rows, part)
    except OSError as error:
        raise OutputError(f'cannot write to {folder}: {error}') from error


def _table_of(rows):
    names = {name: name.rpartition('/')[2] for name in rows[0]}
    names.update(images_per_second='images/s')
    lines = [list(names.values())]
    lines += [[f'{value:.2f}' if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return '\n'.join('  '.join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def _plot_sizes(rows, file):
    rows = sorted(rows, key=lambda row: row['size'])
    figure, (left, right) = new_figure(1, 2, size=(5, 4.2))
    sizes = [row['size'] for row in rows]
    for place, name in enumerate(name for name in rows[0] if name.startswith('accuracy/')):
        left.plot(sizes, [row[name] for row in rows], label=name.replace('accuracy/top', 'top-'), **{
            **line_style(place), 'marker': 'o', 'markevery': None})
    right.plot(sizes, [row['images_per_second'] for row in rows], marker='o', markersize=4, color=INK)
    name_axes(left, 'accuracy', 'image size (pixels)', 'accuracy (%)')
    name_axes(right, 'speed, including data loading', 'image size (pixels)', 'images per second')
    right.set_ylim(0, None)
    for axes in (left, right):
        axes.set_xticks(sizes)
    if left.lines:
        legend_below(left)
    figure.savefig(file, dpi=110, format='png')
