"""Images in class folders, or in a list, as the data sets of mmpretrain read them; and the classes of ImageNet-1k."""
import io
import os
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from .._utils.text import first_line
from ..errors import DataError
from .datasets import DataSet
from .files import read_class_list
from .folders import names_below

#: Labels from this one on count as mistakes.
_MOST = 1_000_000


class Line(NamedTuple):
    """A line of a list of images: its number from 1, the image name, the label, and what is wrong with it or ''."""
    number: int
    name: str
    label: int | None
    fault: str = ''


class ClassImages:
    """The images and classes of a `CustomDataset` of mmpretrain, or of a data set that lists its images like it.

    Attributes:
        folder: The folder of the images.
        list: The file that lists them, or None if their folders are their classes.
        suffixes: The suffixes of images in folders, in lower case.
        is_labelled: Whether the images have classes.
        source: Where the classes come from: the folder or the list.
        names_file: The file that may hold the class names for a list.
        advice: A sentence on how to give it the same classes as other data.
    """

    def __init__(self, dataset):
        self.dataset = dataset = DataSet.of(dataset)
        name, implied = dataset.get('ann_file'), f'meta/{dataset.get("split")}.txt'  # of ImageNet
        if not name and dataset.get('split') and dataset.file(implied).exists():
            name = implied
        self.folder, self.list = dataset.folder('img_path').absolute(), dataset.file(name) if name else None
        self.source = str(self.list or self.folder)
        self.suffixes = tuple(suffix.lower() for suffix in dataset.setting('extensions', ()))
        self.names_file = os.path.join(os.path.dirname(self.source), 'classes.txt')
        # the split of mmpretrain's ImageNet whose classes are secret
        self.is_labelled = dataset.setting('with_label', True) and dataset.get('split') != 'test'
        self.advice = '' if self.list or not self.is_labelled else (
            'Folders are numbered in the order of their names. If a class has no images, create an empty folder of '
            f'its name in {self.source}; remove folders that are not classes')

    @property
    def list_help(self) -> str:
        """A sentence on how to write a list of the images."""
        split = self.dataset.get('split')
        place = self.dataset.file(f'meta/{split}.txt') if split else 'a text file (ann_file of the data set)'
        return (f'write a line for each image into {place}: its name below {self.folder}, a space, and the number of '
                'its class from 0, as in "n01443537/a.JPEG 1" or "a.JPEG 1". For ImageNet, this number is the index of '
                'its WordNet id in sorted order')

    def classes(self, known=None) -> tuple:
        """Return the names of the classes in the order of their labels.

        Those that are ``known`` are for a list without a ``classes.txt`` next to it, where otherwise the labels are the
        names, and for images without classes. `DataError`: there are none, or the file of their names cannot be used.
        """
        if not self.is_labelled:
            return tuple(known or ())
        if not self.list:
            return self._folders
        if self.named:
            return self.named
        highest = max((line.label for line in self.lines if line.label is not None), default=-1)
        if highest >= _MOST:
            raise DataError(f'{self.source} has the label {highest}; labels must be class numbers below {_MOST:,}')
        known = tuple(known or ())
        return known + tuple(map(str, range(len(known), highest + 1)))

    @cached_property
    def named(self):
        """The names in the ``classes.txt`` next to the list; None if there is none."""
        return read_class_list(Path(self.names_file))

    @cached_property
    def _folders(self):
        try:  # hidden folders too: mmpretrain treats them as classes
            found = tuple(sorted(entry.name for entry in self.folder.iterdir() if entry.is_dir()))
        except OSError as error:
            raise DataError(f'{self.source} cannot be read: {first_line(error)}') from error
        if not found:
            raise DataError(f'{self.source} has no class folders. Make a folder for each class, named as the class; or '
                            f'{self.list_help}')
        return found

    @cached_property
    def lines(self) -> list:
        try:
            text = self.list.read_bytes().decode()
        except (OSError, ValueError) as error:
            raise DataError(f'{self.source} cannot be read: {error}') from error
        return [self._line(number, line) for number, line in enumerate(io.StringIO(text), 1)]

    def _line(self, number, text):
        text = text.rstrip('\r\n')
        if text.startswith('\ufeff'):  # the framework would read it as part of the name
            return Line(number, text[1:], None, 'it begins with a byte order mark: save the list as UTF-8 without it')
        if not self.is_labelled:
            return Line(number, text, None)
        name, _, label = text.strip().rpartition(' ')
        if not name or not label.isdecimal():
            return Line(number, name, None, f'it must be a name, a space and a number from 0, not {text!r}')
        return Line(number, name, int(label))

    def images(self) -> list:
        """Return the images in order: pairs of a path, as a string, and the label or None."""
        if self.list:
            return [(os.path.join(self.folder, line.name), line.label) for line in self.lines if not line.fault]
        return [(path, label) for label, paths in self._paths for path in paths if self._is_image(path)]

    def unread(self) -> list:
        """Return the paths of the files in the folders that the data set does not read because of their suffixes."""
        return [] if self.list else [path for _, paths in self._paths for path in paths if not self._is_image(path)]

    def _is_image(self, path):
        return path.lower().endswith(self.suffixes)

    @cached_property
    def _paths(self):
        """The files below each class folder in order, with the label."""
        if not self.is_labelled:
            return [(None, sorted(names_below(self.folder, True)))]
        return [(label, sorted(names_below(self.folder / name, True))) for label, name in enumerate(self._folders)]


@cache
def imagenet_classes() -> dict:
    """Return the names of the 1,000 classes of ImageNet-1k by their WordNet ids (``n01440764``), sorted by the ids: the
    order of the outputs of published classifiers.

    The folders of the data set are named by the ids. A name is the first synonym, unless two classes share it: every
    name is unique.
    """
    lines = Path(__file__).with_name('imagenet_classes.txt').read_text(encoding='utf-8').splitlines()
    return dict(line.split(' ', 1) for line in lines)


def are_imagenet_names(names) -> bool:
    """Whether names are those of the 1,000 classes in order, also with all synonyms, as in mmpretrain.

    A name there is ``tench, Tinca tinca``.
    """
    own = imagenet_classes().values()
    return len(names) == len(own) and all(
        {name, name.partition(' (')[0]} & {*str(theirs).split(', ')} for name, theirs in zip(own, names, strict=True))


def same_classes(names, others) -> bool:
    """Whether two lists name the same classes; ids and names of ImageNet mean the same."""
    names, others = list(names), list(others)
    return names == others or all(are_imagenet_names(some) or some == list(imagenet_classes())
                                  for some in (names, others))


def short_names(names) -> tuple:
    """Return the names of `imagenet_classes` if the names are those of ImageNet, and other names unchanged."""
    return tuple(imagenet_classes().values() if are_imagenet_names(names) else names)
