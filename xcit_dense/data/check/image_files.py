"""The checks of the image files of a data set, and which images are drawn."""
import os

import numpy as np

from ..._utils.text import counted
from ..channels import LoadImageChannels
from ..files import read_files, read_header
from ..pipelines import image_loader, turns_images
from .findings import ERROR, Finding, each_kind_first

#: This many images with findings, and the same number without, are kept for drawing.
_SAMPLES = 16


def _is_outside(path, roots) -> bool:
    """Whether a path is outside some folders; links inside the folders count as inside."""
    def lies_in(file, folders):
        return any(file.startswith(os.path.join(folder, '')) for folder in folders)

    return not lies_in(os.path.normpath(path), map(os.path.normpath, roots)) and not lies_in(
        os.path.realpath(path), map(os.path.realpath, roots))


class ImageCheck:
    """What the checks of all kinds of data share: findings, and a look at image files as the pipeline reads them.

    Args:
        dataset: The config of the data set.
        source: What is checked: the annotation file, or the folder of images.
        use_cache: Whether to reuse results for files with the same size and time.

    Attributes:
        findings: What was found so far.
        drawn: What a contact sheet needs for each image that can be opened, by its path.
        turned: Whether the pipeline rotates images as their EXIF orientation says.
    """

    def __init__(self, dataset, source, use_cache: bool):
        self.dataset, self.source, self.use_cache = dataset, source, use_cache
        self.findings, self.drawn = [], {}
        loader, self.turned = image_loader(dataset), turns_images(dataset)
        # a user's step, of which nothing is known
        self._own = '' if loader.is_standard else loader.kind.__name__
        # how many channels the config reads from an array, if it reads arrays
        self._channels = loader.step.get('channels') if loader.kind is LoadImageChannels else None
        # images should be in the data root, or in the folders that the config names, which may be links to other places
        root = dataset.root.absolute()
        folders = [dataset.folder(key).absolute() for key, name in dataset.prefixes.items() if name]
        self._roots = [*([root] if dataset.get('data_root') else []), *folders] or [root]
        self._skips = bool(loader.step.get('ignore_empty')) and not dataset.get('test_mode')

    def add(self, kind, file, part='', row=None, value='', id=None):
        """Add a finding; see `Finding`."""
        row = os.fspath(row) if isinstance(row, os.PathLike) else row
        self.findings.append(Finding(kind, str(file), part, row, id, value))

    def read(self, images, reader=None, kind: str = 'headers') -> list:
        """Return the states of image files as `read_files` does; adds a finding if a user's step reads them."""
        if self._own:
            self.add('not-checked', self.source, value=(
                f'only {self._own}, a step of the pipeline, knows how its images are read'))
        return read_files(images, reader or read_header, kind, self.source, self.use_cache, 'images')

    def faults_of(self, path, state, size=None) -> list:
        """Return kinds and values of the problems of an image.

        Args:
            path: Its file.
            state: What `read` found.
            size: The width and height in the annotation file, if there is one.
        """
        faults = [('image-outside', os.path.abspath(path))] if _is_outside(path, self._roots) else []
        if state.fault == 'missing' and self._skips:
            return [*faults, ('image-left-out', 'the pipeline skips images that are not there')]
        return faults if self._own else [*faults, *self._look(state, size)]

    def _look(self, state, size):
        if state.fault:
            yield f'image-{state.fault}', state.value
            return
        for key, kind in (('cut_off', 'image-cut-off'), ('huge', 'image-huge')):  # signs of damage
            if key in state.content:
                yield kind, state.content[key]
        channels = state.content.get('channels')
        if channels and self._channels is None:
            yield 'image-unreadable', 'it is an array, which needs LoadImageChannels instead of LoadImageFromFile'
        elif channels and channels != self._channels:
            yield 'image-unreadable', f'it has {counted(channels, "channels")}, but the config reads {self._channels}'
        elif 'size' in state.content and size:
            real = state.content['turned' if self.turned else 'size']
            if real != size:
                is_turned = self.turned and state.content['size'] == size
                yield ('image-rotated' if is_turned else 'image-size',
                       f'{real[0]} x {real[1]}, not {size[0]:g} x {size[1]:g} (width x height)')


def samples_of(findings, images) -> dict:
    """Return the captions by image of some ``images`` to draw; the rows of the findings are images."""
    faulty = {finding.row for finding in findings if finding.severity == ERROR}
    return choose_samples([(finding.row, finding) for finding in findings if finding.row in images],
                          [image for image in images if image not in faulty])


def choose_samples(found, good) -> dict:
    """Choose images to draw: some with findings of every kind, then others, spread over the data set.

    Args:
        found: Pairs of an image and its `Finding`.
        good: Images without errors.

    Returns:
        The captions by image.
    """
    captions = {}
    for place in each_kind_first([finding for _, finding in found]):
        image, finding = found[place]
        if image in captions or len(captions) < _SAMPLES:
            captions.setdefault(image, []).append(finding.caption)
    good = [image for image in good if image not in captions]
    spread = np.linspace(0, len(good) - 1, min(_SAMPLES, len(good))).round().astype(int)
    return {**captions, **{good[place]: [] for place in spread.tolist()}}
