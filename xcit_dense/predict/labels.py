"""Predictions as label files, which annotation tools open, so that people correct them instead of drawing anew."""
import json
import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import yaml

from .._utils.files import atomic_write
from .._utils.text import counted, listed
from ..errors import ConfigError
from .polygons import joined

#: By task the forms of labels.
FORMS = dict(detection=('labelme', 'coco', 'yolo', 'voc'), segmentation=('labelme', 'maps'))
#: By form the folder and the suffix of the files of images, and the files that are written at the end.
_FILES = dict(labelme=('labels', '.json', ()), yolo=('labels', '.txt', ('train.txt', 'data.yaml')),
              voc=('Annotations', '.xml', ()), coco=('', '', ('annotations.json', )), maps=('', '', ('classes.txt', )))
#: By form how the files are used next.
_USES = dict(
    labelme='open them with: labelme "{images}" --output "{out}/labels", and train with --data-root "{out}"',
    coco='import the file into your tool, or train with --data-root "{out}" --train-images "{images}"',
    yolo='copy labels/ next to the folder of the images for your tool, or train with --data-root "{out}"',
    voc='open "{images}" in your tool with Annotations/ as the folder of its files, train with --data-root "{out}"',
    maps='train with --data-root "{out}" --train-images "{images}" --train-annotations labels')


def check_form(form, task: str):
    """Raise `ConfigError` if a task has no labels of a form, from `FORMS`; None is no form."""
    if form is not None and form not in FORMS[task]:
        raise ConfigError(f'--labels {form} does not work for {task}, which has these forms: {listed(FORMS[task])}')


class LabelFiles:
    """Writes the labels of image files in one form.

    Args:
        form: One of `FORMS`.
        classes: The `xcit_dense.predict.classes.Classes` of the model.
    """

    def __init__(self, form: str, classes):
        self._form, self._classes, self._count = form, classes, 0
        self._folder, self._suffix, self.last_files = _FILES[form]
        self._sizes, self._records = {}, []

    def begin(self, names, paths, ids=None):
        """Announce image files, by the names that `write` gets, with their ids if the form has any."""
        self._paths = dict(zip(names, (Path(os.path.abspath(path)) for path in paths), strict=True))
        self._ids = ids
        self._images = self._paths[names[0]].parents[len(Path(names[0]).parts) - 1]

    def files_of(self, name) -> list:
        """Return the label file of an image, relative to the output folder, in a list; none if there is one for all."""
        return [Path(self._folder, name).with_suffix(self._suffix).as_posix()] if self._suffix else []

    def write(self, labels, name, size, out_dir):
        """Write the `xcit_dense.predict.polygons.Label`s of an image of a size (height, width), some at `close`."""
        self._sizes[name] = size
        self._count += len(labels)
        for file in self.files_of(name):
            path = Path(out_dir, file)
            write_text(path, getattr(self, f'_{self._form}')(labels, name, size, path))
        if self._form == 'coco':
            for place, (left, top, right, bottom), pieces, score, area in labels:
                self._records.append(dict(
                    id=len(self._records) + 1, image_id=self._ids[name], category_id=self._classes.numbers[place],
                    bbox=[left, top, round(right - left, 3), round(bottom - top, 3)], area=area, iscrowd=0,
                    segmentation=[piece.ravel().tolist() for piece in pieces], score=score))

    def close(self, out_dir) -> str:
        """Write the files at the end, and return what was written, and how it is used next."""
        for file in self.last_files:
            text = getattr(self, f'_{file.replace(".", "_")}')(Path(os.path.abspath(out_dir)))
            write_text(Path(out_dir, file), text)
        where = f'{self._folder}/' if self._suffix else self.last_files[0]
        what = 'class names' if self._form == 'maps' else f'{counted(self._count, "labels")} ({self._form})'
        return f'{what} in {where}: {_USES[self._form].format(images=self._images, out=out_dir)}'

    def _labelme(self, labels, name, size, path):
        image = os.path.relpath(self._paths[name], os.path.realpath(path.parent))  # ".." does not lead back from links
        shapes = []
        for number, (place, box, pieces, score, _) in enumerate(labels):
            scored = {} if score is None else dict(score=round(score, 4))
            points = [piece.tolist() for piece in pieces] or [[list(box[:2]), list(box[2:])]]
            shapes += [dict(label=str(self._classes.names[place]), points=corners,
                            group_id=number if len(points) > 1 else None, description='',
                            shape_type='polygon' if pieces else 'rectangle', flags={}, **scored) for corners in points]
        return json.dumps(dict(version='5.5.0', flags={}, shapes=shapes, imagePath=Path(image).as_posix(),
                               imageData=None, imageHeight=size[0], imageWidth=size[1]), ensure_ascii=False, indent=1)

    def _yolo(self, labels, name, size, path):
        lines = []
        for place, (left, top, right, bottom), pieces, *_ in labels:
            box = [((left + right) / 2, (top + bottom) / 2), (right - left, bottom - top)]
            shares = (np.array(joined(pieces) if pieces else box) / size[::-1]).ravel().tolist()
            lines.append(' '.join([str(place), *(f'{share:.6f}' for share in shares)]) + '\n')
        return ''.join(lines)

    def _voc(self, labels, name, size, path):
        image = self._paths[name]
        objects = [('object', [('name', self._classes.names[label.place]), ('pose', 'Unspecified'), ('truncated', 0),
                               ('difficult', 0), ('bndbox', zip(('xmin', 'ymin', 'xmax', 'ymax'), label.box,
                                                                strict=True))]) for label in labels]
        root = _element('annotation', [
            ('folder', image.parent.name), ('filename', image.name), ('path', image),
            ('source', [('database', 'Unknown')]),
            ('size', [('width', size[1]), ('height', size[0]), ('depth', 3)]), ('segmented', 0), *objects])
        ElementTree.indent(root)
        return ElementTree.tostring(root, 'unicode') + '\n'

    def _annotations_json(self, out_dir):
        images = [dict(id=self._ids[name], file_name=Path(name).as_posix(), width=width, height=height)
                  for name, (height, width) in self._sizes.items()]
        kinds = zip(self._classes.numbers, self._classes.names, strict=True)
        return json.dumps(dict(images=images, annotations=self._records,
                               categories=[dict(id=number, name=name) for number, name in kinds]), ensure_ascii=False)

    def _train_txt(self, out_dir):
        return ''.join(f'{self._paths[name]}\n' for name in self._sizes)

    def _data_yaml(self, out_dir):
        # labels is read by `annotations.yolo`: next to the images may be others
        return yaml.safe_dump(dict(path=str(self._images), train=str(out_dir / 'train.txt'), labels='labels',
                                   names=dict(enumerate(map(str, self._classes.names)))),
                              allow_unicode=True, sort_keys=False)

    def _classes_txt(self, out_dir):
        names = dict(zip(self._classes.numbers, self._classes.names, strict=True))
        return ''.join(f'{names.get(label, f"ignored {label}" if label else "unlabelled")}\n'
                       for label in range(max(names, default=-1) + 1))


def _element(tag, content):
    """Return an XML element with a text, or with elements from pairs of tag and content."""
    element = ElementTree.Element(tag)
    if isinstance(content, (list, zip)):
        element.extend(_element(*child) for child in content)
    else:
        element.text = str(content)
    return element


def write_text(path, text):
    """Write a text as UTF-8, completely or not at all."""
    with atomic_write(path) as part:
        part.write_text(text, 'utf-8')
