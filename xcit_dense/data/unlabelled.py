"""Images without labels: all below a folder, except label maps and held-out images; and the views of them for DINO."""
import logging
import os
import re
from collections import defaultdict
from fnmatch import translate
from glob import escape

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.dataset import BaseDataset
from mmengine.logging import print_log
from mmengine.registry import DATASETS, TRANSFORMS
from PIL import Image, ImageFilter

from .._utils.text import counted, listed
from ..errors import DataError
from .class_folders import ClassImages
from .datasets import is_elsewhere
from .files import FORMATS
from .folders import IMAGE_SUFFIXES, MAP_SUFFIXES, MAPS, names_below, part_in, plain

#: Suffixes of images by default; upper or lower case.
SUFFIXES = (*IMAGE_SUFFIXES, '.ppm', '.pgm')
#: A label map has at most so many different values, counted in about so many pixels; a photograph has more.
_VALUES, _PIXELS = 64, 1 << 16
#: So many files of a group are read to see whether all are label maps.
_LOOKED_AT = 32
_NAMES = {*MAPS, 'gtcoarse', 'segmentationobject', 'stuffthingmaps'}
_PARTS = dict(val='images for validation', test='images for test')
#: Probability of a blur of the first global view, the second and the local ones; the range of its radius in pixels.
_BLURS, _RADII = (1., 0.1, 0.5), (0.1, 2.)


@DATASETS.register_module()
class UnlabelledImages(BaseDataset):
    """All images below a folder, in the order of their paths. Their folders mean nothing.

    Links to folders are followed; files and folders whose names begin with a dot are ignored.

    Args:
        extensions: Suffixes of images, in lower case; in the data they may be in upper case.
        left_out: Patterns of paths to ignore, below the folder: ``masks/*`` is all below ``masks``. By default those
            of `find_left_out`.
        **options: Options of `mmengine.dataset.BaseDataset`. ``ann_file`` lists images below their folder, one per
            line; by default all are read.

    Raises:
        DataError: There are no images, or they are not on a disk.
    """

    def __init__(self, *, extensions=SUFFIXES, left_out=None, **options):
        self._config = dict(options, type=type(self), extensions=extensions, left_out=left_out)
        UnlabelledSource(self._config)  # refuses addresses, before mmengine asks for their backends
        super().__init__(**options)

    def load_data_list(self) -> list:
        """Return one record per image."""
        source = UnlabelledSource(self._config)
        # of a broken link the data check says that it is ignored
        paths = [path for path, _ in source.images() if source.list or os.path.exists(path)]
        if not paths:
            raise DataError(source.nothing())
        if self._config['left_out'] is None and source.left_out:
            print_log(source.describe(), logger='current', level=logging.WARNING)
        return [dict(img_path=path) for path in paths]


class UnlabelledSource(ClassImages):
    """The images of an `UnlabelledImages`.

    Args:
        dataset: Its config.

    Raises:
        DataError: They are not on a disk.

    Attributes:
        left_out: What the images that are left out are, by pattern.
    """

    def __init__(self, dataset):
        if is_elsewhere(dict(dataset, pipeline=())):
            raise DataError(f'UnlabelledImages lists folders on a disk, not {dataset.get("data_root")}: mount or copy '
                            'them, and set --data-root DIR')
        super().__init__(dataset)
        dataset = self.dataset
        self.is_labelled, self.advice, self.left_out = False, '', {}
        self.suffixes = tuple(suffix.lower() for suffix in dataset.get('extensions') or SUFFIXES)
        self._found, self._amount = None, ''

    def images(self) -> list:
        """Return the images in order: pairs of a path, as a string, and None."""
        if self.list:
            return super().images()
        return [(os.path.join(self.folder, name), None) for name in self._names()[0]]

    def unread(self) -> list:
        """Return the paths of images whose suffix is not among those of the data set; other files do not matter."""
        return [] if self.list else [os.path.join(self.folder, name) for name in self._names()[1]]

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
            start = len(os.path.join(self.folder, ''))  # os.path.relpath takes 10 s for a million
            names, patterns = [path[start:] for path in names_below(self.folder)], self.dataset.get('left_out')
            images = sorted(name for name in names if name.lower().endswith(self.suffixes))
            self.left_out = find_left_out(images, self.folder) if patterns is None else dict.fromkeys(
                patterns, 'left_out of the data set')
            total = len(images)
            if self.left_out:
                matches = re.compile('|'.join(map(translate, self.left_out))).match
                images = [name for name in images if not matches(name)]
            self._amount = f'{total - len(images):,} of {counted(total, "images")}'
            Image.init()
            others = tuple(set(Image.EXTENSION) - set(self.suffixes))
            self._found = images, sorted(name for name in names if name.lower().endswith(others))
        return self._found


def find_left_out(names, folder) -> dict:
    """Return what not to train on: label maps, and images of the validation and the test if there are training ones.

    Files are label maps if they are below a folder with a usual name of such folders, or have a usual ending
    (``_mask.png``), and all of them that are read have few values. Images are for validation or test if a folder
    beside theirs, or beside one above it, has the same name with "train" in place of "val" or "test".

    Args:
        names: The images, relative to their folder.
        folder: The folder.

    Returns:
        What they are, by pattern.
    """
    names = [name.replace(os.sep, '/') for name in names]
    patterns = _patterns_of_maps(names, folder)
    matches = re.compile('|'.join(map(translate, patterns)) or '(?!)').match
    images = [name for name in names if not matches(name)]
    return dict.fromkeys(patterns, 'label maps') | _held_out(images) if images else {}


def _held_out(names):
    """Return the parts for which images are held out, by pattern."""
    folders = {os.path.dirname(name) for name in names}
    while above := {os.path.dirname(folder) for folder in folders} - folders:
        folders |= above
    beside = defaultdict(list)
    for folder in sorted(folders):
        above, name = os.path.split(folder)
        part, rest = part_in(name)
        beside[above, rest].append((part, folder))
    return {f'{escape(folder)}/*': _PARTS[part] for found in beside.values() if 'train' in dict(found)
            for part, folder in found if part in _PARTS}


def _patterns_of_maps(names, root):
    groups = defaultdict(list)
    for name in names:
        stem, suffix = os.path.splitext(name)
        if suffix.lower() in MAP_SUFFIXES:
            folder, ending = os.path.dirname(name), re.search('[_.-][^_.-]*$', os.path.basename(stem))
            while folder and plain(os.path.basename(folder)) not in _NAMES:
                folder = os.path.dirname(folder)
            if folder:
                groups[f'{escape(folder)}/*{escape(suffix)}'].append(name)
            elif ending and plain(ending[0]) in _NAMES:
                groups[f'*{escape(ending[0] + suffix)}'].append(name)
    return sorted(pattern for pattern, members in groups.items() if _are_maps(members, root))


def _are_maps(names, root):
    """Whether some of the images, evenly chosen, have few values; those that cannot be read do not count."""
    counts = [count for name in names[::-(-len(names) // _LOOKED_AT)] if (count := _values(os.path.join(root, name)))]
    return bool(counts) and max(counts) <= _VALUES


def _values(path):
    """Return the number of different values of an image; None if it cannot be read."""
    if not os.path.isfile(path):  # a pipe would block
        return None
    try:
        with Image.open(path, formats=FORMATS) as image:
            pixels = np.asarray(image)
    except Exception:  # PIL raises many types of errors; the data check reports the file
        return None
    step = max(int((pixels.shape[0] * pixels.shape[1] / _PIXELS) ** 0.5), 1)
    values = pixels[::step, ::step]
    if values.ndim > 2:  # of bytes; as one number, whose sorting is much faster
        values = values @ (1 << 8 * np.arange(values.shape[2]))
    return len(np.unique(values))


@TRANSFORMS.register_module()
class MultiCrop(BaseTransform):
    """Cuts views out of an image: two global ones of most of it, and local ones of small parts at a lower resolution.

    Each view is flipped and changed in colour by itself. Paper: `Emerging Properties in Self-Supervised Vision
    Transformers <https://arxiv.org/abs/2104.14294>`_. All random numbers are from torch's generator.

    Args:
        global_size: Side of the global views in pixels.
        local_size: Side of the local views in pixels.
        num_local: Number of local views.
        global_ratio: The least and the largest share of the area of the image in a global view.
        local_ratio: The same for a local view.
        blurs: Whether to blur and solarise some views. In small views, little would be left.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(self, global_size: int = 224, local_size: int = 96, num_local: int = 10, *,
                 global_ratio=(0.25, 1.), local_ratio=(0.05, 0.25), blurs: bool = True):
        for name, value, least in (('global_size', global_size, 1), ('local_size', local_size, 1),
                                   ('num_local', num_local, 0)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f'{name} of MultiCrop must be a whole number of at least {least}, got {value!r}')
        for name, (low, high) in dict(global_ratio=global_ratio, local_ratio=local_ratio).items():
            if not 0 < low <= high <= 1:
                raise ValueError(f'{name} of MultiCrop must be two numbers above 0 and at most 1, the lower one '
                                 f'first; got {low!r}, {high!r}')
        self.global_size, self.local_size, self.num_local = global_size, local_size, num_local
        blur = _BLURS if blurs else (0., 0., 0.)
        self.views = [_view(global_size, global_ratio, blur[0]), _view(global_size, global_ratio, blur[1], blurs),
                      *[_view(local_size, local_ratio, blur[2])] * num_local]

    def transform(self, results: dict) -> dict:
        """Replace ``img`` (H, W, 3), uint8 and BGR, by a list of the views, the global ones first.

        Raises:
            DataError: The image has another type or number of channels.
        """
        image = results['img']
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise DataError(f'MultiCrop needs images of three channels of bytes, as LoadImageFromFile reads them; got '
                            f'the shape {image.shape} and the type {image.dtype}')
        image = Image.fromarray(np.ascontiguousarray(image[..., ::-1]))
        results['img'] = [np.ascontiguousarray(np.asarray(view(image))[..., ::-1]) for view in self.views]
        return results

    @property
    def summary(self) -> str:
        """The numbers and sizes of the views as text."""
        return f'2 of {self.global_size} x {self.global_size} pixels and {self.num_local} of ' \
               f'{self.local_size} x {self.local_size}'

    def __repr__(self):
        return f'{type(self).__name__}({self.summary})'


def _view(size, ratio, blur, solarises=False):
    """Return a function from an image to a view of it, both of PIL."""
    from torchvision import transforms  # takes over a second
    steps = [transforms.RandomResizedCrop(size, ratio, interpolation=transforms.InterpolationMode.BICUBIC),
             transforms.RandomHorizontalFlip(),
             transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
             transforms.RandomGrayscale(0.2)]
    if blur:
        steps.append(transforms.RandomApply([_blurred], blur))
    if solarises:
        steps.append(transforms.RandomSolarize(128, 0.2))
    return transforms.Compose(steps)


def _blurred(image):
    return image.filter(ImageFilter.GaussianBlur(torch.empty(1).uniform_(*_RADII).item()))
