"""The checks of the image files of a data set, and which images are drawn."""
import os

import numpy as np

from ..._utils.text import counted
from ..channels import LoadImageChannels
from ..pipelines import image_loader, turns_images
from .findings import ERROR, Finding, each_kind_first

#: This many images with findings, and the same number without, are kept for drawing.
_SAMPLES = 16


def is_outside(path, roots) -> bool:
    """Whether a path is outside some folders; links inside the folders count as inside."""
    def lies_in(file, folders):
        return any(file.startswith(os.path.join(folder, '')) for folder in folders)

    return not lies_in(os.path.normpath(path), map(os.path.normpath, roots)) and not lies_in(
        os.path.realpath(path), map(os.path.realpath, roots))


class Images:
    """How the pipeline of a data set reads images.

    Args:
        dataset: The config of the data set.

    Attributes:
        turned: Whether it rotates them as their EXIF orientation says.
        own: The name of a user's step that reads them, of which nothing is known, so that they are not checked; or ''.
    """

    def __init__(self, dataset):
        loader, self.turned = image_loader(dataset), turns_images(dataset)
        self.own = '' if loader.is_standard else loader.kind.__name__
        # how many channels the config reads from an array, if it reads arrays
        self._channels = loader.step.get('channels') if loader.kind is LoadImageChannels else None
        self._skips = bool(loader.step.get('ignore_empty')) and not dataset.get('test_mode')

    def unchecked(self, source) -> list:
        """Return a finding if the images are read by a user's step."""
        why = f'only {self.own}, a step of the pipeline, knows how its images are read'
        return [Finding('not-checked', str(source), value=why)] if self.own else []

    def faults_of(self, state, size=None) -> list:
        """Return kinds and values of the problems of an image.

        Args:
            state: What `read_files` found with `read_header`.
            size: The width and height in the annotation file, if there is one.
        """
        if state.fault == 'missing' and self._skips:
            return [('image-left-out', 'the pipeline skips images that are not there')]
        return [] if self.own else list(self._look(state, size))

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
