"""The label maps of a data set, for the check and for reading classes from them."""
import os
from pathlib import Path

import numpy as np

from .asking import Asked
from .channels import ARRAY_SUFFIXES
from .datasets import IMAGE_SUFFIXES, ann_file_of, folder_of, reader_of, setting_of
from .files import IGNORED, NOT_REGULAR, FileState, labels_of, read_maps
from .folders import files_below, label_map_of, names_in_list
from .labels import first_label, labels_of_classes, own_ignored
from .pipelines import map_loader


class LabelMaps:
    """The label maps of a data set; if a file leaves a doubt, the pipeline's own loading step decides.

    Args:
        dataset: Its config.
        ignored: Labels that heads or metrics ignore, as they come out of the pipeline.
        use_cache: Whether to reuse results for files with the same size and time.

    Attributes:
        folder: The folder of the maps.
        suffix: The end of their names.
        ending: The part before the suffix that only the names of images have.
        first: The label of the first class in the files: 1 with ``reduce_zero_label``.
        ignored: The labels in the files that mean "no class".
        skipped: Those of them that the data set itself ignores: they use up no class number, and higher labels move
            down.
        unlabelled: The labels in the files that are 255 after loading.
        is_read: Whether a known step reads the maps.
    """

    def __init__(self, dataset, ignored=(), use_cache: bool = True):
        self.folder = folder_of(dataset, 'seg_map_path')
        self.suffix = setting_of(dataset, 'seg_map_suffix', '.png')
        self.first, self.skipped = first_label(dataset), own_ignored(dataset)
        self.unlabelled = {IGNORED, *range(self.first), *self.skipped}
        self.ignored = {setting_of(dataset, 'ignore_index', IGNORED), *self.unlabelled,
                        *(label + self.first for label in ignored if label != IGNORED)}
        self.loader = map_loader(dataset)
        self.is_read = not dataset.get('pipeline') or self.loader.kind is not None
        self._images, self._image_suffix = folder_of(dataset, 'img_path'), setting_of(dataset, 'img_suffix', '.jpg')
        self.ending = dataset.get('image_ending') or ''
        self._list = ann_file_of(dataset) if dataset.get('ann_file') else None
        self._is_exact = reader_of(dataset) == 'BaseSegDataset'
        self._asked, self._use_cache = Asked(self.loader, 'maps', self.folder, use_cache), use_cache

    def read(self, paths) -> list:
        """Return the states of files as `read_maps` does; see `doubted` and `ask` for whether they are final."""
        return read_maps(paths, self.folder, self._use_cache)

    def labels(self, count: int) -> list:
        """Return the labels in the files for ``count`` classes."""
        return labels_of_classes(self.first, self.skipped, count)

    def in_words(self, count: int) -> str:
        """Return a text on which labels ``count`` classes have, and which are ignored."""
        labels, left_out = self.labels(count), sorted(self.ignored - set(range(self.first)))
        return (f'the labels {labels[0]} to {labels[-1]}' if labels else 'no labels') + (
            f'; {", ".join(map(str, left_out))} {"is" if len(left_out) == 1 else "are"} ignored')

    def paths(self, whole: bool = False) -> list:
        """Return the label maps of the data set: those of its list of images, or all in the folder if it has no list.

        Args:
            whole: Whether to disregard the list.
        """
        folder = self.folder.absolute()
        if whole or not self._list:
            return [path for path in files_below(folder) if path.name.endswith(self.suffix)]
        images = self._images.absolute()
        # data sets that read one kind of image list names without suffixes
        return [label_map_of(images / name, images, folder, self.suffix, '' if self._is_exact else None, self.ending)
                for name in names_in_list(self._list)]

    def wrong_labels(self, content, count: int) -> list:
        """Return the labels of a map that are neither one of ``count`` classes nor ignored."""
        known = {*self.ignored, *self.labels(count)}
        return [label for label, _ in content['labels'] if label not in known]

    def doubted(self, state) -> bool:
        """Whether the step of the pipeline may be able to read a file whose state has a problem."""
        is_unreadable = state.fault == 'unreadable' and state.value != NOT_REGULAR
        return self.loader.kind is not None and (is_unreadable or not self.loader.is_standard)

    def ask(self, path, image=None):
        """Return the state of a file according to the pipeline's own step; None if the step cannot use it.

        Args:
            path: The label map.
            image: Its image; by default the one with its name.
        """
        content, _ = self._asked.of(path, self._content, img_path=str(image or self._image_of(path)),
                                    seg_map_path=str(path), seg_fields=[], label_map=None,
                                    reduce_zero_label=bool(self.first))
        return None if content is None else FileState('', '', content)

    def keep(self):
        """Keep the answers of the step for the next run."""
        self._asked.keep()

    def settled(self, paths, names) -> list:
        """Return the states of files; doubtful files are read by the pipeline's own step.

        Args:
            paths: The files.
            names: The classes, or None if the labels define them.
        """
        states = [self._settle(path, state, names)
                  for path, state in zip(paths, self.read(paths), strict=True)]
        self.keep()
        return states

    def _settle(self, path, state, names):
        is_good = 'labels' in (state.content or {}) and (
            self.loader.is_standard if names is None else not self.wrong_labels(state.content, len(names)))
        if is_good or not self.doubted(state):
            return state
        return self.ask(path) or state

    def _content(self, loaded):
        """Return the same as `read_map` for the result of the step, or None."""
        labels = (loaded or {}).get('gt_seg_map') if isinstance(loaded, (dict, type(None))) else None
        if getattr(labels, 'ndim', 0) != 2 or labels.min() < 0 or labels.max() > IGNORED:
            return None
        if self.first:  # as in the file
            labels = np.where(labels == IGNORED, IGNORED, labels + 1)
        return dict(size=list(labels.shape[::-1]), mode='L', labels=labels_of(labels))

    def _image_of(self, path):
        stem = os.path.relpath(path, self.folder).removesuffix(self.suffix)
        ends = (self._image_suffix, *IMAGE_SUFFIXES, *map(str.upper, IMAGE_SUFFIXES), *ARRAY_SUFFIXES)
        images = [Path(self._images, f'{stem}{self.ending}{end}') for end in ends]
        return next((image for image in images if image.exists()), images[0])
