"""The checks of folders of images and label maps."""
from pathlib import Path

import numpy as np

from ...text import shown
from ..datasets import folder_of, prefixes_of, setting_of
from ..files import IGNORED, read_files, read_maps
from ..folders import files_below, label_map_of
from .files import faults_of_header, read_header, turns_images
from .findings import ERROR, Finding, Report, choose_samples

IGNORED_NAME = '(ignored)'


def check_label_maps(dataset, names, roots, suffixes, exact: bool, use_cache: bool) -> Report:
    """Check the images and label maps of a data set.

    Args:
        dataset: Its config.
        names: The class of each label, or None where any label will do.
        roots: Files must lie in one of these folders.
        suffixes: What the names of images end with, in lower case.
        exact: Whether the data set reads those alone that end with its ``img_suffix``.
        use_cache: Whether to believe what was read of a file that has the same size and time.
    """
    folder, maps_folder = folder_of(dataset, 'img_path'), folder_of(dataset, 'seg_map_path')
    check = _Check(dataset, names, folder, maps_folder, exact)
    images = check.images(suffixes)
    headers = read_files(images, read_header, roots, 'headers', folder, use_cache, 'images')
    maps = None
    if prefixes_of(dataset).get('seg_map_path'):
        maps = [check.map_of(image) for image in images]
        states = read_maps(maps, maps_folder, roots, use_cache)
    for place, (image, header) in enumerate(zip(images, headers, strict=True)):
        check.image(image, header)
        if maps:
            check.label_map(image, header, maps[place], states[place])
    if maps:
        check.pairs(images, maps)
    return check.report(images)


class _Check:

    def __init__(self, dataset, names, folder, maps_folder, exact):
        self.dataset, self.names = dataset, names
        self.folder, self.maps_folder = folder, maps_folder
        self.suffix = setting_of(dataset, 'img_suffix', '.jpg') if exact else None
        self.map_suffix = setting_of(dataset, 'seg_map_suffix', '.png')
        self.first = 1 if setting_of(dataset, 'reduce_zero_label', False) else 0
        self.ignored = {setting_of(dataset, 'ignore_index', IGNORED), IGNORED, *range(self.first)}
        self.turned = turns_images(dataset)
        self.findings = []
        self.drawn = {}  # the label map of each image, or None, where both can be opened
        self.total_without = 0
        self.totals = np.zeros((256, 2), np.int64)  # images and pixels of each label
        self.total_ignored = np.zeros(2, np.int64)

    def add(self, kind, file, image='', value=''):
        self.findings.append(Finding(kind, str(file), 'image' if image else '', str(image) or None, None, value))

    def images(self, suffixes):
        """Return the images as the data set lists them, and find those that it does not see."""
        if self.dataset.get('ann_file'):
            return self.listed_images()
        ends = tuple(filter(None, (self.suffix, )))
        found = [path for path in self.files_below(self.folder)
                 if path.suffix.lower() in suffixes or path.name.endswith(ends)]
        images = [path for path in found if self.suffix is None or path.name.endswith(self.suffix) and path.is_file()]
        if not images:
            self.add('no-images', self.folder, value=f'looked for {self.suffix or ", ".join(suffixes)}')
        for path in sorted(set(found) - set(images)):  # a link that leads nowhere has the suffix
            self.add('image-left-out', path, value=f'existing {self.suffix}')
        return images

    def files_below(self, folder):
        """Return the files that the data set sees."""
        return files_below(folder, hidden_folders=self.suffix is not None)

    def listed_images(self):
        """Return the images of a data set that names them in a file, one a line."""
        path = Path(self.dataset.get('data_root') or '', self.dataset['ann_file']).expanduser()
        try:
            names = [line.strip() for line in path.read_text().splitlines()]
        except (OSError, ValueError):
            self.add('not-there', path)
            return []
        return [self.folder / f'{name}{self.suffix or ""}' for name in names if name]

    def map_of(self, image):
        """Return the path of the label map of an image."""
        return label_map_of(image, self.folder, self.maps_folder, self.map_suffix, self.suffix)

    def image(self, path, header):
        """Add the faults of an image."""
        if header.fault:
            self.add(f'image-{header.fault}', path, path, header.value)
        else:
            for kind, value in faults_of_header(header.content):
                self.add(kind, path, path, value)
            if 'size' in header.content:
                self.drawn[str(path)] = None

    def label_map(self, image, header, path, state):
        """Add the faults of a label map, and count its labels."""
        if state.fault:
            self.add(f'map-{state.fault}', path, image, str(image) if state.fault == 'missing' else state.value)
            return
        content = state.content
        if 'labels' not in content:
            self.add('map-16-bit' if content['mode'].startswith(('I', 'F')) else 'map-colour', path, image,
                     content['mode'])
            return
        size = (header.content or {}).get('turned' if self.turned else 'size')
        if size and size != content['size']:
            words = [f'{width} x {height}' for width, height in (content['size'], size)]
            self.add('map-size', path, image, f'{words[0]}, not {words[1]} (width x height)')
        labels = np.array(content['labels']).reshape(-1, 2)
        self.totals[labels[:, 0]] += np.stack([np.ones(len(labels), np.int64), labels[:, 1]], 1)
        ignored = labels[np.isin(labels[:, 0], list(self.ignored)), 1]
        self.total_ignored += [len(ignored) > 0, ignored.sum()]
        if self.names is not None:
            wrong = [label for label in labels[:, 0].tolist()
                     if label not in self.ignored and label >= self.first + len(self.names)]
            if wrong:
                self.add('map-labels', path, image, f'{shown(wrong)}; the labels of classes are {self.first} to '
                         f'{self.first + len(self.names) - 1}, and ignored ones {sorted(self.ignored)}')
        if len(ignored) == len(labels):
            self.total_without += 1
            self.add('map-ignored', path, image)
        if str(image) in self.drawn:
            self.drawn[str(image)] = str(path)

    def pairs(self, images, maps):
        """Find label maps of two images and of none."""
        owners = {}
        for image, path in zip(images, maps, strict=True):
            if path in owners:
                self.add('map-shared', image, image, str(owners[path]))
            owners.setdefault(path, image)
        if not self.dataset.get('ann_file'):
            for path in self.files_below(self.maps_folder):
                if path.name.endswith(self.map_suffix) and path not in owners:
                    self.add('map-without-image', path)

    def report(self, images):
        """Return the report, with some images to draw."""
        used = np.flatnonzero(self.totals[:, 0]).tolist()
        highest = max((label for label in used if label not in self.ignored), default=-1)
        names = self.names if self.names is not None else [str(label) for label in range(self.first, highest + 1)]
        classes = [(name, *self.totals[label].tolist()) for label, name in enumerate(names, self.first) if label < 256]
        if self.total_ignored.any():
            classes.append((IGNORED_NAME, *self.total_ignored.tolist()))
        faulty = {finding.row for finding in self.findings if finding.severity == ERROR}
        chosen = choose_samples([(finding.row, finding) for finding in self.findings if finding.row in self.drawn],
                                [image for image in self.drawn if image not in faulty])
        counts = {'images': len(images), 'images without labels': self.total_without, 'classes': len(names)}
        return Report(self.folder, self.findings, counts, classes, 'pixels', [
            dict(file=image, map=self.drawn[image], first=self.first, ignored=sorted(self.ignored), captions=captions)
            for image, captions in chosen.items()])
