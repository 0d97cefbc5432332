"""Which fields of a COCO annotation file are read, and for what use."""
from typing import NamedTuple

from ...text import shown
from ..files import parse_json, read_json

PARTS = dict(
    images=dict(id='id', file_name='text', width='number', height='number'),
    categories=dict(id='id', name='text'),
    annotations=dict(id='id', image_id='id', category_id='id', bbox='box', area='number'),
)


class Use(NamedTuple):
    """How an annotation file is used.

    Args:
        masks: Whether the pipeline reads the masks.
        tested: Whether it is test data: nothing is filtered out then.
        evaluated: Whether the metric reads the masks, including those that the data set drops.
        classes: The names that the config wants, or None if any will do. Objects of other classes are ignored.
    """
    masks: bool
    tested: bool = False
    evaluated: bool = False
    classes: tuple | None = None


def read_coco(path, tested: bool = True, data=None):
    """Return the content of an annotation file, and what is wrong with the file or None.

    Args:
        path: The file.
        tested: Whether it may lack the list of annotations, as COCO's own file for the test images does.
        data: Its bytes, if it is not on a disk.
    """
    try:
        content = read_json(path) if data is None else parse_json(data)
    except (OSError, RecursionError) as error:
        return None, f'it cannot be read: {error}'
    except ValueError as error:
        return None, f'it is not valid JSON: {error}'
    if not isinstance(content, dict):
        return None, f'it must be an object, not {shown(content)}'
    if tested:
        content.setdefault('annotations', [])
    for part in PARTS:
        if not isinstance(content.get(part), list):
            return None, f'it has no list {part!r}'
        if not content[part] and part != 'annotations':
            return None, f'its list {part!r} is empty'
    return content, None
