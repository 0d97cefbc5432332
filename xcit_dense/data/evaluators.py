"""The evaluators of a config: which metrics evaluate which data, and whether the files that they read exist."""
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log

from .._utils.text import packages_in, type_name
from .datasets import LOADERS, class_in, is_elsewhere


def evaluators(cfg: Config, loaders=LOADERS[1:]) -> list:
    """Return the metrics that evaluate a model on the data of some loaders: pairs of key and config."""
    keys = [loader.replace('dataloader', 'evaluator') for loader in loaders]
    return [pair for key in keys for pair in _metrics(cfg.get(key), key)]


def key_metric(cfg: Config) -> str | None:
    """Return the name of the metric that says how good a training is, or None if it is unknown.

    It is what ``save_best`` names, else the main one of the first evaluator of the validation that has one here: mask
    AP, or box AP without masks; mIoU; top-1.
    """
    named = _listed(((cfg.get('default_hooks') or {}).get('checkpoint') or {}).get('save_best'))[0]
    if named and named != 'auto':
        return named
    for _, metric in evaluators(cfg, LOADERS[1:2]) if cfg.get('val_cfg') is not None else ():
        kind, wanted = type_name(metric.get('type')), _listed(metric.get('metric', 'bbox'))
        prefix, name = {
            'CocoMetric': ('coco', next((f'{part}_mAP' for part in ('segm', 'bbox') if part in wanted), None)),
            'IoUMetric': (None, 'mIoU' if 'mIoU' in _listed(metric.get('iou_metrics', 'mIoU')) else None),
            'Accuracy': ('accuracy', None if metric.get('thrs') else f'top{min(_listed(metric.get("topk", 1)))}'),
        }.get(kind, (None, None))
        if name:
            return '/'.join(filter(None, (metric.get('prefix') or prefix, name)))
    return None


def _listed(value):
    return value if isinstance(value, (list, tuple)) else (value, )


def set_top_k(cfg: Config, count: int):
    """Measure top-1 and top-5, unless a metric says otherwise, and no top-k that ``count`` classes always reach.

    If k is larger than the number of classes, mmpretrain fails at the end of the first validation.
    """
    for key, metric in evaluators(cfg):
        if type_name(metric.get('type')) == 'Accuracy' and count > 5 and not {'topk', 'thrs'} & metric.keys():
            metric['topk'] = (1, 5)
        ks = tuple(_listed(metric.get('topk', ())))
        if type_name(metric.get('type')) == 'Accuracy' and ks != (1, ) and max(ks, default=0) >= count:
            metric['topk'] = tuple(k for k in ks if k < count) or (1, )
            print_log(f'{key}.topk = {metric["topk"]} instead of {ks}: there are only {count} classes',
                      logger='current')


def annotation_files(cfg: Config, loaders=LOADERS[1:]) -> list:
    """Return the metrics of the frameworks that read an annotation file from a disk: pairs of key and path.

    Metrics of other packages may read anything, and are not returned.
    """
    return [(key, Path(metric['ann_file'])) for key, metric in evaluators(cfg, loaders)
            if isinstance(metric.get('ann_file'), str) and not is_elsewhere(metric)
            and packages_in(class_in(('mmdet', 'mmseg'), 'METRICS', metric.get('type')))[:1] in (['mmdet'], ['mmseg'])]


def _metrics(node, key):
    if isinstance(node, (list, tuple)):
        for i, part in enumerate(node):
            yield from _metrics(part, f'{key}.{i}')
    elif isinstance(node, dict) and 'metrics' in node:
        yield from _metrics(node['metrics'], f'{key}.metrics')
    elif isinstance(node, dict):
        yield key, node
