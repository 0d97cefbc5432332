"""What an evaluation with pycocotools needs of an annotation file, and a training does not."""
import math
from contextlib import redirect_stdout
from io import StringIO
from numbers import Real


def complete_annotations(evaluator):
    """Make metrics that have read a COCO file take it as a training does; the numbers are the same where they could.

    pycocotools takes an object with the id 0 for no object, so that whatever finds it counts as wrong, and it needs
    numbers for ids and ``iscrowd`` of every object. Ids become 1, 2, ... where it could not use them, and ``iscrowd``
    0 where it is not there.

    Args:
        evaluator: mmengine's; its metrics may hold annotations in any attribute.
    """
    for metric in evaluator.metrics:
        for api in vars(metric).values():
            if _is_coco(api):
                _complete(api)


def _is_coco(api):
    """Whether an object is pycocotools' with its own index: that of panoptic data has no objects of this kind."""
    return any(kind.__module__ == 'pycocotools.coco' and type(api).createIndex is kind.createIndex
               for kind in type(api).__mro__ if 'createIndex' in vars(kind))


def _complete(api):
    annotations = api.dataset.get('annotations') or []
    for annotation in annotations:
        if annotation.get('iscrowd') is None:
            annotation['iscrowd'] = 0
    if all(_is_usable(annotation['id']) for annotation in annotations):
        return
    for number, annotation in enumerate(annotations, 1):
        annotation['id'] = number
    with redirect_stdout(StringIO()):  # it tells each time that it is done
        api.createIndex()
    for name, index in (('img_ann_map', 'imgToAnns'), ('cat_img_map', 'catToImgs')):  # mmdet's names for them
        if hasattr(api, name):
            setattr(api, name, getattr(api, index))


def _is_usable(id):
    """Whether pycocotools can keep an id in an array of numbers where 0 is none."""
    return isinstance(id, Real) and not math.isnan(id) and id != 0
