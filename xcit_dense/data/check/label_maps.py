"""The checks of folders of images and label maps."""
from pathlib import Path

import numpy as np

from ..._utils.text import shown
from ...errors import DataError
from ..folders import files_below, label_map_of, names_in_list
from ..label_maps import LabelMaps, without_class
from ..pipelines import image_suffixes, resizes
from .findings import Report
from .image_files import ImageCheck, samples_of

IGNORED_NAME = '(ignored)'


def check_label_maps(dataset, names, exact: bool, use_cache: bool, ignored=(),
                     trained: bool = True, stops: bool = False) -> Report:
    """Check the images and label maps of a data set.

    Args:
        dataset: Its config.
        names: The class of each label, or None if any label will do.
        exact: Whether the data set reads only images that end with its ``img_suffix``.
        use_cache: Whether to reuse results for files with the same size and time.
        ignored: Labels that heads or metrics ignore, as they come out of the pipeline.
        trained: Whether it is trained on.
        stops: Whether training fails on labels that are 255 after loading.
    """
    check = _Check(dataset, names, LabelMaps(dataset, ignored, use_cache), exact, trained, stops, use_cache)
    images = check.images()
    headers = check.read(images)
    maps = None
    if dataset.prefixes.get('seg_map_path') and check.maps.is_read:
        maps = [label_map_of(image, check.source, check.maps.folder, check.maps.suffix, check.suffix, check.maps.ending)
                for image in images]
        states = check.maps.read(maps)
    for place, (image, header) in enumerate(zip(images, headers, strict=True)):
        for kind, value in check.faults_of(image, header):
            check.add(kind, image, 'image', image, value)
        if 'size' in (header.content or {}):
            check.drawn[str(image)] = None  # its label map, or None
        if maps:
            check.label_map(image, header, maps[place], states[place])
    if maps:
        check.pairs(images, maps)
    return check.report(images)


class _Check(ImageCheck):

    def __init__(self, dataset, names, maps, exact, trained, stops, use_cache):
        super().__init__(dataset, dataset.folder('img_path'), use_cache)
        self.names, self.maps = names, maps
        self.suffix = dataset.setting('img_suffix', '.jpg') if exact else None
        self.stops_at = maps.unlabelled if stops else set()
        # a resize that keeps the ratio makes both the same size; a metric compares with the original image
        self.resizes = trained and resizes(dataset)
        self.total_without = 0
        self.totals = np.zeros((256, 2), np.int64)  # images and pixels of each label
        self.total_ignored = np.zeros(2, np.int64)
        self.without_class = []  # label map, image and its labels without a class

    def images(self):
        """Return the images as the data set lists them, and find those that it does not read."""
        if self.dataset.get('ann_file'):
            return self.listed_images()
        ends = tuple(filter(None, (self.suffix, )))
        found = [path for path in self.files_below(self.source)
                 if path.suffix.lower() in image_suffixes(self.dataset) or path.name.endswith(ends)]
        images = [path for path in found if self.suffix is None or path.name.endswith(self.suffix) and path.is_file()]
        if not images:
            looked_for = self.suffix or ', '.join(image_suffixes(self.dataset))
            self.add('no-images', self.source, value=f'looked for {looked_for}')
        for path in sorted(set(found) - set(images)):  # a broken link may have the suffix
            self.add('image-left-out', path, value=f'the data set reads only existing {self.suffix} files')
        return images

    def files_below(self, folder):
        """Return the files that the data set reads."""
        return files_below(folder, hidden_folders=self.suffix is not None)

    def listed_images(self):
        """Return the images of a data set that lists them in a file, one per line."""
        path = Path(self.dataset.get('data_root') or '', self.dataset['ann_file']).expanduser()
        try:  # mmseg's own data set does not know marks and separators of Windows
            names = names_in_list(path) if self.suffix is None else map(str.strip, path.read_text().splitlines())
        except (DataError, OSError, ValueError):
            self.add('not-there', path)
            return []
        return [self.source / f'{name}{self.suffix or ""}' for name in names if name]

    def label_map(self, image, header, path, state):
        """Add the problems of a label map, and count its labels."""
        for kind, value in self.faults_of_map(image, header, path, state):
            if kind == 'map-labels':  # the counts are known at the end
                self.without_class.append((path, image, value))
            else:
                self.add(kind, path, 'image', image, value)
        if 'labels' in (state.content or {}):
            self.count(image, path, state.content['labels'])
            if str(image) in self.drawn:
                self.drawn[str(image)] = str(path)

    def faults_of_map(self, image, header, path, state):
        """Return kinds and values of the problems of a label map."""
        if state.fault:
            return [(f'map-{state.fault}', str(image) if state.fault == 'missing' else state.value)]
        content, faults = state.content, []
        if 'labels' not in content:
            return [('map-16-bit' if content['mode'].startswith(('I', 'F')) else 'map-colour', content['mode'])]
        size = (header.content or {}).get('turned' if self.turned else 'size')
        if size and size != content['size']:
            words = [f'{width} x {height}' for width, height in (content['size'], size)]
            is_resized = self.resizes and size[0] * content['size'][1] == size[1] * content['size'][0]
            faults.append(('map-ratio' if is_resized else 'map-size', f'{words[0]}, not {words[1]} (width x height)'))
        if self.names is not None:
            wrong = self.maps.wrong_labels(content, len(self.names))
            wrong += [label for label, _ in content['labels'] if label in self.stops_at]
            if wrong:
                faults.append(('map-labels', wrong))
        return faults

    def count(self, image, path, labels):
        """Count the labels of a map."""
        labels = np.array(labels).reshape(-1, 2)
        self.totals[labels[:, 0]] += np.stack([np.ones(len(labels), np.int64), labels[:, 1]], 1)
        ignored = labels[np.isin(labels[:, 0], list(self.maps.ignored)), 1]
        self.total_ignored += [len(ignored) > 0, ignored.sum()]
        if len(ignored) == len(labels):
            self.total_without += 1
            self.add('map-ignored', path, 'image', image)

    def labels_without_class(self):
        """Add the findings on labels without a class, with the counts over all label maps."""
        labels = sorted({label for _, _, wrong in self.without_class for label in wrong})
        words = without_class({label: tuple(self.totals[label].tolist()) for label in labels})
        for path, image, wrong in self.without_class:
            self.add('map-labels', path, 'image', image, (
                f'{shown(wrong)}. Classes have {self.maps.in_words(len(self.names))}. {words}'))

    def pairs(self, images, maps):
        """Find label maps that two images share, and label maps without an image."""
        owners = {}
        for image, path in zip(images, maps, strict=True):
            if path in owners:
                self.add('map-shared', image, 'image', image, str(owners[path]))
            owners.setdefault(path, image)
        if not self.dataset.get('ann_file'):
            for path in self.files_below(self.maps.folder):
                if path.name.endswith(self.maps.suffix) and path not in owners:
                    self.add('map-without-image', path)

    def report(self, images):
        """Return the report, with some images to draw."""
        self.labels_without_class()
        used = np.flatnonzero(self.totals[:, 0]).tolist()
        highest = max((label for label in used if label not in self.maps.ignored), default=-1)
        names = self.names if self.names is not None else [
            str(label) for label in range(self.maps.first, highest + 1) if label not in self.maps.skipped]
        labels = self.maps.labels(len(names))
        classes = [(name, *self.totals[label].tolist()) for label, name in zip(labels, names, strict=True)
                   if label < 256]
        if self.total_ignored.any():
            classes.append((IGNORED_NAME, *self.total_ignored.tolist()))
        counts = {'images': len(images), 'images without labels': self.total_without, 'classes': len(names)}
        return Report(self.source, self.findings, counts, classes, 'pixels', [
            dict(file=image, map=self.drawn[image], labels=labels, ignored=sorted(self.maps.ignored), captions=captions)
            for image, captions in samples_of(self.findings, self.drawn).items()])
