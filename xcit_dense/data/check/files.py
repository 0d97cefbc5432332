"""The checks of the image files of a data set."""
import os
from collections import Counter

from ...text import counted, shown
from ..asking import Asked
from ..channels import LoadImageChannels
from ..files import NOT_REGULAR, read_files, read_header
from ..pipelines import image_loader, turns_images
from .findings import ERROR, KINDS

#: Once the step has read this many doubtful files of one suffix in a row, the others are accepted: each read is a
#: whole file.
_ENOUGH = 200


def check_images(report_file, folder, entries, roots, pipeline, use_cache: bool):
    """Yield the problems of the image files of an annotation file.

    Args:
        report_file: The annotation file, for the cache.
        folder: The folder that the names are relative to.
        entries: For each image its index in the file, id, name, width and height.
        roots: The folders that the images should be in.
        pipeline: The `Images` of the data set.
        use_cache: As for `read_files`.

    Yields:
        Kind, path, index, id and value.
    """
    paths = [os.path.join(folder, name) for _, _, name, _, _ in entries]
    states = read_files(paths, read_header, 'headers', report_file, use_cache, 'images')
    for path, state, (row, id, name, width, height) in zip(paths, states, entries, strict=True):
        if is_outside(path, roots):
            yield 'image-outside', path, row, id, f'{os.path.abspath(path)}, named {shown(name)} in the file'
        found = pipeline.faults_of(state, path, [width, height], img_id=id)
        yield from ((kind, path, row, id, value) for kind, value in found)
    pipeline.keep()


def is_outside(path, roots) -> bool:
    """Whether a path is outside some folders; links inside the folders count as inside."""
    def lies_in(file, folders):
        return any(file.startswith(os.path.join(folder, '')) for folder in folders)

    return not lies_in(os.path.normpath(path), map(os.path.normpath, roots)) and not lies_in(
        os.path.realpath(path), map(os.path.realpath, roots))


class Images:
    """How the pipeline of a data set reads images; if the header leaves a doubt, its own loading step decides.

    Args:
        dataset: The config of the data set.
        source: Its annotation file or folder, for the cache.
        use_cache: As for `read_files`.
    """

    def __init__(self, dataset, source, use_cache: bool = True):
        self.loader, self.turned = image_loader(dataset), turns_images(dataset)
        # how many channels the config reads from an array, if it reads arrays
        self._channels = self.loader.step.get('channels') if self.loader.kind is LoadImageChannels else None
        self.tested = bool(dataset.get('test_mode'))
        self._asked = Asked(self.loader, 'images', source, use_cache)
        self._good = Counter()  # by suffix, doubtful files that the step has read in a row

    def keep(self):
        """Keep the answers of the step for the next run."""
        self._asked.keep()

    def faults_of(self, state, path, size=None, **record) -> list:
        """Return kinds and values of the problems of an image.

        Args:
            state: What `read_files` found with `read_header`.
            path: The path of the file.
            size: The width and height in the annotation file, if there is one.
            **record: What else the data set passes to its pipeline.
        """
        faults = list(self._look(state, size))
        if all(KINDS[kind].severity != ERROR for kind, _ in faults) or not self._is_asked(state, path):
            return faults
        if size:
            record.update(width=size[0], height=size[1])
        suffix = os.path.splitext(path)[1]
        if self._good[suffix] > _ENOUGH:
            return []
        real, words = self._asked.of(path, _size_of, img_path=path, instances=[], seg_map_path=None, **record)
        if real is None and not words and not self.tested:
            return [('image-left-out', 'the pipeline skips images that it cannot read')]
        if real is None:
            self._good[suffix] = 0
            return [(kind, words if words and not self.loader.is_standard else value) for kind, value in faults]
        self._good[suffix] += 1
        return list(self._compare(real, size, 'image-size')) if real else []

    def _is_asked(self, state, path):
        if state.fault == 'missing' or not state.fault:  # the frameworks' own step reads the same as this check
            return self.loader.kind is not None and not self.loader.reads_as_known
        return self.loader.kind is not None and (state.value != NOT_REGULAR or os.path.isdir(path))

    def _look(self, state, size):
        if state.fault:
            yield f'image-{state.fault}', state.value
            return
        yield from faults_of_header(state.content)
        channels = state.content.get('channels')
        if channels and self._channels is None and self.loader.is_standard:
            yield 'image-unreadable', 'it is an array, which needs LoadImageChannels instead of LoadImageFromFile'
            return
        if channels and self._channels not in (None, channels):
            yield 'image-unreadable', f'it has {counted(channels, "channels")}, but the config reads {self._channels}'
            return
        if 'size' in state.content and size:
            turned = self.turned and state.content['size'] == size
            yield from self._compare(state.content['turned' if self.turned else 'size'], size,
                                     'image-rotated' if turned else 'image-size')

    def _compare(self, real, size, kind):
        if size and real != size:
            yield kind, f'{real[0]} x {real[1]}, not {size[0]:g} x {size[1]:g} (width x height)'


def _size_of(loaded):
    """Return the width and height of what a step loaded; None if it loaded nothing, [] if the size is unknown."""
    if loaded is None:
        return None
    # a user's first step may not be a loader, or return no array
    shape = loaded.get('ori_shape') if isinstance(loaded, dict) else None
    return [int(side) for side in shape[1::-1]] if shape else []


def faults_of_header(header):
    """Yield kind and value of the signs of damage in a header."""
    for name, kind in (('cut_off', 'image-cut-off'), ('huge', 'image-huge')):
        if name in header:
            yield kind, header[name]
