"""Images without labels: all below a folder, except label maps and held-out images; and the views of them for DINO."""
import logging
import os
import re
from collections import defaultdict
from fnmatch import translate
from functools import cached_property
from glob import escape

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.dataset import BaseDataset
from mmengine.logging import print_log
from mmengine.registry import DATASETS, TRANSFORMS
from PIL import Image, ImageFilter

from .._utils.text import counted, listed
from ..errors import ConfigError, DataError
from .class_folders import ClassImages
from .datasets import is_elsewhere
from .folders import IMAGE_SUFFIXES, MAP_SUFFIXES, MAPS, OTHER_SUFFIXES, names_below, part_in, plain

#: Suffixes of images by default; upper or lower case.
SUFFIXES = (*IMAGE_SUFFIXES, '.ppm', '.pgm')
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
        source = UnlabelledSource(self._config)
        # of a broken link the data check says that it is ignored
        paths = [path for path, _ in source.images() if source.list or os.path.exists(path)]
        if not paths:
            raise DataError(source.nothing())
        if self._config['left_out'] is None and source.left_out:
            print_log(source.describe(), logger='current', level=logging.WARNING)
        return [dict(img_path=path) for path in paths]


class UnlabelledSource(ClassImages):
    """The images of an `UnlabelledImages`; a `DataError` if they are not on a disk.

    ``left_out`` has by pattern what the images that are left out are.
    """

    def __init__(self, dataset):
        if is_elsewhere(dict(dataset, pipeline=())):
            raise DataError(f'UnlabelledImages lists folders on a disk, not {dataset.get("data_root")}: mount or copy '
                            'them, and set --data-root DIR')
        super().__init__(dataset)
        self.is_labelled, self.advice, self.left_out = False, '', {}
        self.suffixes = tuple(suffix.lower() for suffix in self.dataset.get('extensions') or SUFFIXES)

    def images(self) -> list:
        """Return the images in order: pairs of a path, as a string, and None."""
        if self.list:
            return super().images()
        return [(os.path.join(self.folder, name), None) for name in self._names[0]]

    def unread(self) -> list:
        """Return the paths of images whose suffix is not among those of the data set; other files do not matter."""
        return [] if self.list else [os.path.join(self.folder, name) for name in self._names[1]]

    def nothing(self) -> str:
        """Say that there are no images, and what to do."""
        return (f'{self.source} has no images below it: looked for {", ".join(self.suffixes)}'
                + (f', without {listed(self.left_out)}' if self.left_out else '')
                + '. Set --data-root DIR to a folder of images, or extensions of the data set to your suffixes')

    def describe(self) -> str:
        """Say which images are left out, and how to use them."""
        words = listed(f'{pattern} ({kind})' for pattern, kind in self.left_out.items())
        return (f'{self._amount} are left out: {words}. To change it: --train-images DIR, or --cfg-options '
                '"train_dataloader.dataset.left_out=[]" to use every image')

    @cached_property
    def _names(self):
        """The names of images, and those of images with other suffixes."""
        start = len(os.path.join(self.folder, ''))  # os.path.relpath takes 10 s for a million
        names, patterns = [path[start:] for path in names_below(self.folder)], self.dataset.get('left_out')
        images = sorted(name for name in names if name.lower().endswith(self.suffixes))
        self.left_out = find_left_out(images) if patterns is None else dict.fromkeys(
            patterns, 'left_out of the data set')
        used = _without(images, self.left_out)
        self._amount = f'{len(images) - len(used):,} of {counted(len(images), "images")}'
        others = tuple({*SUFFIXES, *OTHER_SUFFIXES} - set(self.suffixes))
        return used, sorted(name for name in names if name.lower().endswith(others))


def find_left_out(names) -> dict:
    """Return by pattern what not to train on: label maps, and images of validation and test if there are training ones.

    Files, relative to their folder, are label maps if they are below a folder with a usual name of such folders, or
    have a usual ending (``_mask.png``). Images are for validation or test if a folder beside theirs, or beside one
    above it, has the same name with "train" in place of "val" or "test".
    """
    patterns = _patterns_of_maps(names)
    images = _without(names, patterns)
    return dict.fromkeys(patterns, 'label maps') | _held_out(images) if images else {}


def _without(names, patterns):
    """Return the names that match none of some patterns."""
    matches = re.compile('|'.join(map(translate, patterns)) or '(?!)').match
    return [name for name in names if not matches(name)]


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


def _patterns_of_maps(names):
    patterns = set()
    for name in names:
        stem, suffix = os.path.splitext(name)
        if suffix.lower() in MAP_SUFFIXES:
            folder, ending = os.path.dirname(name), re.search('[_.-][^_.-]*$', os.path.basename(stem))
            while folder and plain(os.path.basename(folder)) not in _NAMES:
                folder = os.path.dirname(folder)
            if folder:
                patterns.add(f'{escape(folder)}/*{escape(suffix)}')
            elif ending and plain(ending[0]) in _NAMES:
                patterns.add(f'*{escape(ending[0] + suffix)}')
    return sorted(patterns)


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
        ConfigError: ``num_local`` is below 0.
    """

    def __init__(self, global_size: int = 224, local_size: int = 96, num_local: int = 10, *,
                 global_ratio=(0.25, 1.), local_ratio=(0.05, 0.25), blurs: bool = True):
        if num_local < 0:
            raise ConfigError(f'num_local of MultiCrop must be at least 0, got {num_local}')
        blur = _BLURS if blurs else (0., 0., 0.)
        self.views = [_view(global_size, global_ratio, blur[0]), _view(global_size, global_ratio, blur[1], blurs),
                      *[_view(local_size, local_ratio, blur[2])] * num_local]

    def transform(self, results: dict) -> dict:
        """Replace ``img`` (H, W, 3), uint8 and BGR, by a list of the views, the global ones first."""
        image = Image.fromarray(np.ascontiguousarray(results['img'][..., ::-1]))
        results['img'] = [np.ascontiguousarray(np.asarray(view(image))[..., ::-1]) for view in self.views]
        return results


def _view(size, ratio, blur, solarises=False):
    """Return a function from an image to a view of it, both of PIL."""
    from torchvision import transforms  # takes over a second
    return transforms.Compose([
        transforms.RandomResizedCrop(size, ratio, interpolation=transforms.InterpolationMode.BICUBIC),
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
        transforms.RandomGrayscale(0.2),
        *[transforms.RandomApply([_blurred], blur)] * bool(blur),
        *[transforms.RandomSolarize(128, 0.2)] * solarises])


def _blurred(image):
    return image.filter(ImageFilter.GaussianBlur(torch.empty(1).uniform_(*_RADII).item()))
