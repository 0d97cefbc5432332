"""What an evaluation with pycocotools needs of an annotation file, and a training does not."""
import logging
import math
from contextlib import redirect_stdout
from io import StringIO
from numbers import Real

from mmengine.logging import print_log

from ..text import counted


def complete_annotations(evaluator, config=None):
    """Make metrics that have read a COCO file take it as a training does; the numbers are the same where they could.

    pycocotools takes an object with the id 0 for no object, so that whatever finds it counts as wrong, and it needs
    numbers for ids and ``iscrowd`` of every object. Ids become 1, 2, ... where it could not use them, and ``iscrowd``
    0 where it is not there. New ids are told in the log, once for each file.

    Args:
        evaluator: mmengine's; its metrics may hold annotations in any attribute.
        config: What it was built from, which names their files.
    """
    told = set()
    for metric, file in zip(evaluator.metrics, _files(config, len(evaluator.metrics)), strict=True):
        for api in vars(metric).values():
            if _is_coco(api) and (unusable := _complete(api)) and (file is None or file not in told):
                told.add(file)
                _tell(file or f'the annotations of {type(metric).__name__}', unusable)


def _tell(file, unusable):
    print_log(f'{file}: {counted(len(unusable), "objects")} with ids that pycocotools cannot use, such as '
              f'{unusable[0]!r}. The evaluation numbers all 1, 2, ...; pycocotools alone takes one with the id 0 '
              'for none, and ends on ids that are no numbers.', logger='current', level=logging.WARNING)


def _files(config, count):
    """The annotation files that a config names for its metrics, None of those for which it names none."""
    parts = config.get('metrics', config) if isinstance(config, dict) else config
    parts = parts if isinstance(parts, (list, tuple)) else [parts]
    files = [part.get('ann_file') if isinstance(part, dict) else None for part in parts]
    return files if len(files) == count else [None] * count


def _is_coco(api):
    """Whether an object is pycocotools' with its own index: that of panoptic data has no objects of this kind."""
    return any(kind.__module__ == 'pycocotools.coco' and type(api).createIndex is kind.createIndex
               for kind in type(api).__mro__ if 'createIndex' in vars(kind))


def _complete(api):
    """Complete annotations; return the ids that were none."""
    annotations = api.dataset.get('annotations') or []
    for annotation in annotations:
        if annotation.get('iscrowd') is None:
            annotation['iscrowd'] = 0
    unusable = [annotation['id'] for annotation in annotations if not _is_usable(annotation['id'])]
    if not unusable:
        return []
    for number, annotation in enumerate(annotations, 1):
        annotation['id'] = number
    with redirect_stdout(StringIO()):  # it tells each time that it is done
        api.createIndex()
    for name, index in (('img_ann_map', 'imgToAnns'), ('cat_img_map', 'catToImgs')):  # mmdet's names for them
        if hasattr(api, name):
            setattr(api, name, getattr(api, index))
    return unusable


def _is_usable(id):
    """Whether pycocotools can keep an id in an array of numbers where 0 is none."""
    return isinstance(id, Real) and not math.isnan(id) and id != 0
