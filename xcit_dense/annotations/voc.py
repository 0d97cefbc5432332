"""Pascal VOC: an XML file for each image, as LabelImg, CVAT and Roboflow write them too."""
from contextlib import suppress
from math import isfinite
from xml.etree import ElementTree

from ..data.files import Unreadable
from .objects import box


def read_labels(path) -> dict | None:
    """Read a file for `xcit_dense.annotations.label_files`; None if it is XML of another kind.

    Coordinates are used as they are. In the data sets of VOC they begin at 1, in what other tools write at 0: all boxes
    of the former are one pixel further to the right and down, in training and test alike.
    """
    try:
        with open(path, 'rb') as file:
            text = file.read()
        if b'<!DOCTYPE' in text or b'<!ENTITY' in text:  # entities may grow without end
            raise Unreadable('it has a DOCTYPE, which files with labels do not need')
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise Unreadable(f'it is not XML: {error}') from None
    if root.tag != 'annotation':
        return None
    objects = [_object(node, number) for number, node in enumerate(root.findall('object'), 1)]
    size = [_number(root, f'size/{side}', 0, 'the image') for side in ('width', 'height')]
    return dict(image=root.findtext('filename') or '', path=root.findtext('path') or '', size=size, objects=objects)


def _object(node, number):
    where = f'object {number}'
    sides = [_number(node, f'bndbox/{side}', None, where) for side in ('xmin', 'ymin', 'xmax', 'ymax')]
    if not (name := (node.findtext('name') or '').strip()):
        raise Unreadable(f'{where} has no name')
    return dict(box(*sides), label=name, label_place=where, iscrowd=int(bool(_number(node, 'difficult', 0, where))))


def _number(node, path, default, where):
    """Return a number in a node; its parts, which are nodes in it, may have numbers of their own."""
    text = (node.findtext(path) or '').strip()
    if not text and default is not None:
        return default
    with suppress(ValueError):
        if isfinite(number := float(text)):
            return int(number) if number.is_integer() and abs(number) < 2**53 else number
    raise Unreadable(f'{path} of {where} must be a number, not {text!r}')
