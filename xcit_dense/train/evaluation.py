"""What pycocotools needs of annotations to judge whatever a training accepts."""
import math
from contextlib import redirect_stdout
from io import StringIO
from numbers import Real


def complete_annotations(evaluator):
    """Make metrics that have read a COCO file accept what a training accepts; valid files give the same numbers.

    pycocotools ignores an object with the id 0, so that every detection of it counts as wrong. It also needs numeric
    ids, and ``iscrowd`` for every object. If it cannot use some ids, all are replaced by 1, 2, ...; a missing
    ``iscrowd`` becomes 0.

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
        ids = [annotation['id'] for annotation in annotations]
        if all(isinstance(id, Real) and id != 0 and not math.isnan(id) for id in ids):
            continue
        for number, annotation in enumerate(annotations, 1):
            annotation['id'] = number
        with redirect_stdout(StringIO()):  # it prints that it is done
            api.createIndex()
