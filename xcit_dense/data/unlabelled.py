"""Images without labels: all those below a folder of any layout, except label maps and held-out images."""
import logging
import os
import re
from collections import defaultdict
from fnmatch import translate

from mmengine import fileio
from mmengine.dataset import BaseDataset
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from PIL import Image

from ..errors import DataError
from ..text import counted, listed
from .class_folders import ClassImages
from .datasets import IMAGE_SUFFIXES
from .folders import names_below
from .left_out import find_left_out

#: Suffixes of images by default; upper or lower case.
SUFFIXES = (*IMAGE_SUFFIXES, '.ppm', '.pgm')


@DATASETS.register_module()
class UnlabelledImages(BaseDataset):
    """All images below a folder, in the order of their paths. Their folders mean nothing.

    Links to folders are followed; files and folders whose names begin with a dot are ignored.

    Args:
        extensions: Suffixes of images, in lower case; in the data they may be in upper case.
        left_out: Patterns of paths to ignore, below the folder: ``masks/*`` is all below ``masks``. By default those
            of `find_left_out`.
        **options: Options of `mmengine.dataset.BaseDataset`. ``ann_file`` lists images below their folder, one per
            line; by default all are read. ``backend_args`` is that of `mmengine.fileio`.

    Raises:
        DataError: There are no images.
    """

    def __init__(self, *, extensions=SUFFIXES, left_out=None, backend_args=None, **options):
        self._config = dict(options, type=type(self), extensions=extensions, left_out=left_out,
                            backend_args=backend_args)
        super().__init__(**options)

    def load_data_list(self) -> list:
        """Return one record per image."""
        source = UnlabelledSource(self._config)
        # of a broken link the data check says that it is ignored
        paths = [path for path, _ in source.images() if source.list or source.is_elsewhere or os.path.exists(path)]
        if not paths:
            raise DataError(source.nothing())
        if self._config['left_out'] is None and source.left_out:
            print_log(source.describe(), logger='current', level=logging.WARNING)
        return [dict(img_path=path) for path in paths]


class UnlabelledSource(ClassImages):
    """The images of an `UnlabelledImages`.

    Args:
        dataset: Its config.

    Attributes:
        left_out: What the images that are left out are, by pattern.
    """

    def __init__(self, dataset):
        super().__init__(dataset)
        self.is_labelled, self.advice, self.left_out = False, '', {}
        self.suffixes = tuple(suffix.lower() for suffix in dataset.get('extensions') or SUFFIXES)
        self._found, self._amount = None, ''

    def images(self) -> list:
        """Return the images in order: pairs of a path, as a string, and None."""
        if self.list:
            return super().images()
        images, _ = self._names()
        return [(self._path(name), None) for name in images]

    def unread(self) -> list:
        """Return the paths of images whose suffix is not among those of the data set; other files do not matter."""
        return [] if self.list else [self._path(name) for name in self._names()[1]]

    def nothing(self) -> str:
        """Say that there are no images, and what to do."""
        return (f'{self.source} has no images below it: looked for {", ".join(self.suffixes)}'
                + (f', without {listed(self.left_out)}' if self.left_out else '')
                + '. Set --data-root DIR to a folder of images, or extensions of the data set to your suffixes')

    def describe(self) -> str:
        """Say which images are left out, and how to use them."""
        kinds = defaultdict(list)
        for pattern, kind in self.left_out.items():
            kinds[kind].append(pattern)
        words = '; '.join(f'{kind} ({listed(patterns)})' for kind, patterns in kinds.items())
        return (f'{self._amount} are left out: {words}. To change it: --train-images DIR, or --cfg-options '
                '"train_dataloader.dataset.left_out=[]" to use every image')

    def _names(self):
        """Return the names of images, and those of images with other suffixes."""
        if self._found is None:
            names, patterns = self._listed(), self.dataset.get('left_out')
            images = sorted(name for name in names if name.lower().endswith(self.suffixes))
            if patterns is None:
                self.left_out = find_left_out(images, self._read)
            else:
                self.left_out = dict.fromkeys(patterns, 'left_out of the data set')
            total = len(images)
            if self.left_out:
                matches = re.compile('|'.join(map(translate, self.left_out))).match
                images = [name for name in images if not matches(name)]
            self._amount = f'{total - len(images):,} of {counted(total, "images")}'
            Image.init()
            others = tuple(set(Image.EXTENSION) - set(self.suffixes))
            self._found = images, sorted(name for name in names if name.lower().endswith(others))
        return self._found

    def _listed(self):
        """Return the names of all files below the folder."""
        if not self.is_elsewhere:
            start = len(os.path.join(self.folder, ''))  # os.path.relpath takes 10 s for a million
            return [path[start:] for path in names_below(self.folder)]
        try:
            return list(fileio.list_dir_or_file(self.source, list_dir=False, recursive=True,
                                                backend_args=self.dataset.get('backend_args')))
        except Exception as error:  # any error of any backend
            raise DataError(f'{self.source} cannot be read: {error}') from error

    def _path(self, name):
        return f'{self.source.rstrip("/")}/{name}' if self.is_elsewhere else os.path.join(self.folder, name)

    def _read(self, name):
        path = self._path(name)
        if not self.is_elsewhere and not os.path.isfile(path):  # a pipe would block
            raise OSError(path)
        return fileio.get(path, backend_args=self.dataset.get('backend_args'))
