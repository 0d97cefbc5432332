"""Images in folders of their classes, or in a list, as the data sets of mmpretrain read them."""
import io
import os
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from mmengine import fileio

from ..errors import DataError
from ..text import first_line
from .datasets import address_of, ann_file_of, folder_of, is_elsewhere, prefixes_of, read_elsewhere, setting_of
from .files import Unreadable, parse_class_list, read_class_list
from .folders import names_below

#: Labels from here on are taken for mistakes.
_MOST = 1_000_000


class Line(NamedTuple):
    """A line of a list of images: its number from 1, what it names, the label, and what is wrong with it or ''."""
    number: int
    name: str
    label: int | None
    fault: str = ''


class ClassImages:
    """The images of a data set and their classes.

    Args:
        dataset: The config of a `CustomDataset` of mmpretrain, or of one that lists its images in the same way.

    Attributes:
        folder: That of the images.
        list: The file that lists them, or None where their folders are their classes.
        suffixes: What the names of images in folders end with, in small letters.
        is_labelled: Whether the images have classes.
        source: What says the classes: the folder, or the list; an address where it lies on no disk.
        names_file: What may say the names of the classes of a list.
        mend: How its classes can be made those of other data, in words.
    """

    def __init__(self, dataset):
        self._dataset = dataset
        prefix = prefixes_of(dataset).get('img_path') or ''
        self.folder, self.list = folder_of(dataset, 'img_path').absolute(), None
        if name := _list_of(dataset):
            self.list = ann_file_of(dict(dataset, ann_file=name))
        self.is_elsewhere = is_elsewhere(dataset, name or prefix)
        self.source = address_of(dataset, name or prefix) if self.is_elsewhere else str(self.list or self.folder)
        self.suffixes = tuple(suffix.lower() for suffix in setting_of(dataset, 'extensions', ()))
        self.names_file = os.path.join(os.path.dirname(self.source), 'classes.txt')
        # what mmpretrain's ImageNet says of the split whose classes are secret
        self.is_labelled = setting_of(dataset, 'with_label', True) and dataset.get('split') != 'test'
        self.mend = '' if self.list or not self.is_labelled else (
            'Folders are numbered in the order of their names: where there are no images of a class, make an empty '
            f'folder of its name in {self.source}, and take out what is no class')

    @property
    def list_help(self) -> str:
        """How a list of the images is written, in words."""
        place, split = 'a text file, which the data set gets as ann_file,', self._dataset.get('split')
        if split:
            name = f'meta/{split}.txt'
            place = address_of(self._dataset, name) if self.is_elsewhere else ann_file_of(
                dict(self._dataset, ann_file=name))
        return (f'write into {place} a line for each image: its name below {self.folder}, a space, and the number of '
                'its class from 0, as in "n01443537/a.JPEG 1" or "a.JPEG 1"; for ImageNet this is the place of its '
                'WordNet id in their order')

    def classes(self, known=None) -> tuple:
        """Return the names of the classes in the order of their labels.

        Args:
            known: Names for a list without a ``classes.txt`` beside it, and for images without classes. By default
                the labels are their names.

        Raises:
            DataError: There are none, or the file of their names cannot be used.
        """
        if not self.is_labelled:
            return tuple(known or ())
        if not self.list:
            return self._folders
        if self.named:
            return self.named
        highest = max((line.label for line in self.lines if line.label is not None), default=-1)
        if highest >= _MOST:
            raise DataError(f'{self.source} has the label {highest}: labels are the numbers of classes from 0')
        known = tuple(known or ())
        return known + tuple(map(str, range(len(known), highest + 1)))

    @cached_property
    def named(self):
        """The names in the ``classes.txt`` beside the list; None where there is none."""
        file = self.names_file
        try:
            if self.is_elsewhere:
                return parse_class_list(read_elsewhere(self._dataset, file)) if fileio.exists(file) else None
            return read_class_list(Path(file))
        except Unreadable as error:
            raise DataError(f'{file} must have one class name a line, each once, none empty; got {error}') from error

    @cached_property
    def _folders(self):
        try:  # hidden folders, too: mmpretrain takes them for classes
            found = tuple(sorted(fileio.list_dir_or_file(self.source, list_file=False)))
        except Exception as error:  # whatever a backend has against it
            raise DataError(f'{self.source} cannot be read: {first_line(error)}') from error
        if not found:
            raise DataError(f'{self.source} has no folder, and each class is one, named as the class; or '
                            f'{self.list_help}')
        return found

    @cached_property
    def lines(self) -> list:
        """The lines of the list."""
        try:
            data = read_elsewhere(self._dataset, self.source) if self.is_elsewhere else self.list.read_bytes()
            text = data.decode()
        except (OSError, ValueError) as error:
            raise DataError(f'{self.source} cannot be read: {error}') from error
        return [self._line(number, line) for number, line in enumerate(io.StringIO(text), 1)]

    def _line(self, number, text):
        text = text.rstrip('\r\n')
        if not self.is_labelled:
            return Line(number, text, None)
        name, _, label = text.strip().rpartition(' ')
        if not name:
            return Line(number, name, None, f'it must have a name, a space and a number, not {text!r}')
        try:
            label = int(label)
        except ValueError:
            return Line(number, name, None, f'its label must be a number, not {label!r}')
        return Line(number, name, label, '' if label >= 0 else f'its label must be 0 or more, not {label}')

    def images(self) -> list:
        """Return the images in their order: pairs of a path, as a text, and the label or None."""
        if self.list:
            return [(os.path.join(self.folder, line.name), line.label) for line in self.lines if not line.fault]
        return [(path, label) for label, paths in self._paths for path in paths if self._is_image(path)]

    def unread(self) -> list:
        """Return the paths of the files in the folders that are no images to the data set, by their suffixes."""
        return [] if self.list else [path for _, paths in self._paths for path in paths if not self._is_image(path)]

    def beside(self) -> list:
        """Return the names of the files beside the class folders, which no data set sees."""
        return [] if self.list or not self.is_labelled else sorted(
            fileio.list_dir_or_file(str(self.folder), list_dir=False))

    def _is_image(self, path):
        return path.lower().endswith(self.suffixes)

    @cached_property
    def _paths(self):
        """The files below each class folder in their order, with its label."""
        if not self.is_labelled:
            return [(None, sorted(names_below(self.folder, True)))]
        return [(label, sorted(names_below(self.folder / name, True))) for label, name in enumerate(self._folders)]


def _list_of(dataset):
    """Return the list of images that a config names, or that ImageNet has for its split."""
    name = dataset.get('ann_file') or ''
    split = dataset.get('split')
    if not name and split:
        implied = f'meta/{split}.txt'
        root = str(dataset.get('data_root') or '')
        if fileio.exists(fileio.join_path(os.path.expanduser(root), implied)):
            return implied
    return name
