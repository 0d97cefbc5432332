"""The evaluators of a config: which there are, and whether the files that they read are there."""
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import METRICS

from ..errors import DataError
from .check.keys import class_of, is_known

EVALUATORS = ('val_evaluator', 'test_evaluator')


def evaluators(cfg: Config, names=EVALUATORS):
    """Yield the path and the dict of each metric of some evaluators; one may hold several."""
    for name in names:
        yield from _metrics(cfg.get(name), name)


def check_evaluators(cfg: Config, names=EVALUATORS):
    """Check that the annotation files are there that metrics of the frameworks read.

    Raises:
        DataError: It names those that are not.
    """
    lines = []
    for path, metric in evaluators(cfg, names):
        file, kind = metric.get('ann_file'), class_of(metric.get('type'), METRICS, cfg.get('default_scope'))
        # those of others may read what they like, and other places cannot be looked at
        is_local = isinstance(file, str) and '://' not in file and not metric.get('backend_args')
        if is_local and kind is not None and is_known(kind) and not Path(file).exists():
            lines.append(f'  {path}.ann_file = {file!r}: there is no {Path(file).absolute()}')
    if lines:
        raise DataError('what the evaluation compares with is not there:\n' + '\n'.join(lines) + '\nGive the folder of '
                        'the data set with --data-root DIR, or set these with --cfg-options.')


def _metrics(node, path):
    if isinstance(node, (list, tuple)):
        for i, part in enumerate(node):
            yield from _metrics(part, f'{path}.{i}')
    elif isinstance(node, dict):
        yield path, node
        yield from _metrics(node.get('metrics'), f'{path}.metrics')
