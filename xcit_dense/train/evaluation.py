"""Fields of an annotation file that pycocotools needs for an evaluation, and a training does not."""
import logging
import math
from contextlib import redirect_stdout
from io import StringIO
from numbers import Real

from mmengine.logging import print_log

from ..text import counted


def complete_annotations(evaluator, config=None):
    """Make metrics that have read a COCO file accept what a training accepts; valid files give the same numbers.

    pycocotools ignores an object with the id 0, so that every detection of it counts as wrong. It also needs numeric
    ids, and ``iscrowd`` for every object. If it cannot use some ids, all are replaced by 1, 2, ...; a missing
    ``iscrowd`` becomes 0. A warning reports new ids, once for each file.

    Args:
        evaluator: mmengine's evaluator; its metrics may hold annotations in any attribute.
        config: The config it was built from, which names their files.
    """
    told = set()
    for metric, file in zip(evaluator.metrics, _files(config, len(evaluator.metrics)), strict=True):
        for api in vars(metric).values():
            if _is_coco(api) and (unusable := _complete(api)) and (file is None or file not in told):
                told.add(file)
                _tell(file or f'the annotations of {type(metric).__name__}', unusable)


def _tell(file, unusable):
    print_log(f'{file}: {counted(len(unusable), "objects")} with ids that pycocotools cannot use, such as '
              f'{unusable[0]!r}. This evaluation uses the ids 1, 2, ... instead. pycocotools by itself ignores an '
              'object with the id 0, and fails on ids that are not numbers.', logger='current', level=logging.WARNING)


def _files(config, count):
    """Return the annotation file of each metric in a config, or None."""
    parts = config.get('metrics', config) if isinstance(config, dict) else config
    parts = parts if isinstance(parts, (list, tuple)) else [parts]
    files = [part.get('ann_file') if isinstance(part, dict) else None for part in parts]
    return files if len(files) == count else [None] * count


def _is_coco(api):
    """Whether an object is a COCO of pycocotools with its own index: the one of panoptic data has no such objects."""
    return any(kind.__module__ == 'pycocotools.coco' and type(api).createIndex is kind.createIndex
               for kind in type(api).__mro__ if 'createIndex' in vars(kind))


def _complete(api):
    """Complete annotations; return the ids that pycocotools cannot use."""
    annotations = api.dataset.get('annotations') or []
    for annotation in annotations:
        if annotation.get('iscrowd') is None:
            annotation['iscrowd'] = 0
    unusable = [annotation['id'] for annotation in annotations if not _is_usable(annotation['id'])]
    if not unusable:
        return []
    for number, annotation in enumerate(annotations, 1):
        annotation['id'] = number
    with redirect_stdout(StringIO()):  # it prints that it is done
        api.createIndex()
    for name, index in (('img_ann_map', 'imgToAnns'), ('cat_img_map', 'catToImgs')):  # mmdet's names for them
        if hasattr(api, name):
            setattr(api, name, getattr(api, index))
    return unusable


def _is_usable(id):
    """Whether pycocotools can keep an id in an array of numbers in which 0 means no object."""
    return isinstance(id, Real) and not math.isnan(id) and id != 0
