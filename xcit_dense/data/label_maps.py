"""How the label maps of a data set are read, by the check and by what takes classes from them."""
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
    """The label maps of a data set: what a look at a file leaves in doubt, the pipeline's own step is asked.

    Args:
        dataset: Its config.
        ignored: Labels that heads or metrics leave out, as they come out of the pipeline.
        use_cache: Whether to believe what was found in files that have the same size and time.

    Attributes:
        folder: That of the maps.
        suffix: What their names end with.
        ending: What the names of images have before the suffix, and theirs have not.
        first: The label of the first class in the files: 1 with ``reduce_zero_label``.
        ignored: The labels in the files that stand for no class.
        skipped: Those of them that no class has the number of, for the data set itself leaves them out: labels behind
            them move up.
        unlabelled: The labels in the files that are 255 after loading.
        is_read: Whether anything is known to read them.
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
        """Return the states of files as `read_maps` does; `doubted` and `ask` tell which of them hold."""
        return read_maps(paths, self.folder, self._use_cache)

    def labels(self, count: int) -> list:
        """Return the labels in the files of so many classes."""
        return labels_of_classes(self.first, self.skipped, count)

    def in_words(self, count: int) -> str:
        """Say which labels so many classes have, and which are ignored."""
        labels, left_out = self.labels(count), sorted(self.ignored - set(range(self.first)))
        return (f'labels {labels[0]} to {labels[-1]}, and ' if labels else '') + (
            f'{", ".join(map(str, left_out))} {"is" if len(left_out) == 1 else "are"} ignored')

    def paths(self, whole: bool = False) -> list:
        """Return the label maps of the data set: those of its list of images, or, where it has none, all in the folder.

        Args:
            whole: Whether to leave the list aside.
        """
        folder = self.folder.absolute()
        if whole or not self._list:
            return [path for path in files_below(folder) if path.name.endswith(self.suffix)]
        images = self._images.absolute()
        # a data set that reads one kind of image lists names without suffixes
        return [label_map_of(images / name, images, folder, self.suffix, '' if self._is_exact else None, self.ending)
                for name in names_in_list(self._list)]

    def wrong_labels(self, content, count: int) -> list:
        """Return the labels of a map that stand for none of so many classes, and are not ignored."""
        known = {*self.ignored, *self.labels(count)}
        return [label for label, _ in content['labels'] if label not in known]

    def doubted(self, state) -> bool:
        """Whether the step of the pipeline may see more in a file than its state with a fault says."""
        is_unreadable = state.fault == 'unreadable' and state.value != NOT_REGULAR
        return self.loader.kind is not None and (is_unreadable or not self.loader.is_standard)

    def ask(self, path, image=None):
        """Return the state of a file by what the pipeline's own step makes of it; None where it cannot use it.

        Args:
            path: That of the label map.
            image: That of its image; by default one of its name.
        """
        content, _ = self._asked.of(path, self._content, img_path=str(image or self._image_of(path)),
                                    seg_map_path=str(path), seg_fields=[], label_map=None,
                                    reduce_zero_label=bool(self.first))
        return None if content is None else FileState('', '', content)

    def keep(self):
        """Remember what was asked for the next run."""
        self._asked.keep()

    def settled(self, paths, names) -> list:
        """Return the states of files, those in doubt as the pipeline's own step reads them.

        Args:
            paths: Theirs.
            names: The classes, or None where the labels say them.
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
        """Return what `read_map` does of what the step made, or None."""
        labels = (loaded or {}).get('gt_seg_map') if isinstance(loaded, (dict, type(None))) else None
        if getattr(labels, 'ndim', 0) != 2 or labels.min() < 0 or labels.max() > IGNORED:
            return None
        if self.first:  # as they are in the file
            labels = np.where(labels == IGNORED, IGNORED, labels + 1)
        return dict(size=list(labels.shape[::-1]), mode='L', labels=labels_of(labels))

    def _image_of(self, path):
        stem = os.path.relpath(path, self.folder).removesuffix(self.suffix)
        ends = (self._image_suffix, *IMAGE_SUFFIXES, *map(str.upper, IMAGE_SUFFIXES), *ARRAY_SUFFIXES)
        images = [Path(self._images, f'{stem}{self.ending}{end}') for end in ends]
        return next((image for image in images if image.exists()), images[0])
