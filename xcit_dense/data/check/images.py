"""The checks of image files, alone and with label maps, and which images are drawn."""
import os

import numpy as np

from ..._utils.text import counted, shown, type_name
from ...errors import DataError
from ..channels import FULL, LoadImageChannels
from ..files import read_files, read_header
from ..folders import files_below, label_map_of, names_in_list, unread_images
from ..label_maps import LabelMaps, names_path_of, without_class
from ..pipelines import image_loader, image_suffixes, is_known_loader, turns_images
from .findings import ERROR, Finding, Report, each_kind_first

#: The row of ignored pixels in the table of classes.
IGNORED_NAME = '(ignored)'
#: So many images are chosen for drawing, at most so many of them with findings.
_SAMPLES, _FOUND = 16, 12


class ImageCheck:
    """What the checks of all kinds of data share: findings, and a look at image files as the pipeline reads them.

    ``source`` is what is checked: the annotation file, or the folder of images. For ``turned`` see `turns_images`.
    """

    def __init__(self, dataset, source, use_cache: bool):
        self.dataset, self.source, self.use_cache = dataset, source, use_cache
        self.findings = []
        (kind, step), self.turned = image_loader(dataset), turns_images(dataset)
        # a user's step, of which nothing is known
        self._own = '' if is_known_loader(kind, step) else kind.__name__
        # how many channels the config reads from an array, if it reads arrays
        self._channels = step.get('channels') if kind is LoadImageChannels else None
        self._cuts = not self._own and self._channels is None and step.get('color_type') != 'unchanged'

    def add(self, kind, file, part='', row=None, value='', id=None):
        row = os.fspath(row) if isinstance(row, os.PathLike) else row
        self.findings.append(Finding(kind, str(file), part, row, id, value))

    def read(self, images, reader=None, kind: str = 'headers') -> list:
        """Return the states of image files as `read_files` does; adds a finding if a user's step reads them."""
        if self._own:
            self.add('not-checked', self.source, value=(
                f'only {self._own}, a step of the pipeline, knows how its images are read'))
        states = read_files(images, reader or read_header, kind, self.source, self.use_cache, 'images')
        highest = max((state.content.get('highest', 0) for state in states if state.content), default=0)
        if 0 < highest < FULL and self._cuts:
            self.add('image-depth', self.source, value=f'{highest:,}, which leaves {highest // 256 + 1} grey values')
        return states

    def faults_of(self, state, size=None):
        """Yield kinds and values of the problems of an image that was read; the annotation file may have its size."""
        if self._own:
            return
        if state.fault:
            yield f'image-{state.fault}', state.value
            return
        channels = state.content.get('channels')
        if channels and self._channels is None:
            yield 'image-unreadable', 'it is an array, which needs LoadImageChannels instead of LoadImageFromFile'
        elif channels and channels != self._channels:
            yield 'image-unreadable', f'it has {counted(channels, "channels")}, but the config reads {self._channels}'
        elif size and size != (real := state.content['turned' if self.turned else 'size']):
            is_turned = self.turned and state.content['size'] == size
            yield ('image-rotated' if is_turned else 'image-size',
                   f'{real[0]} x {real[1]}, not {size[0]:g} x {size[1]:g} (width x height)')


def choose_samples(found, images) -> dict:
    """Return captions by image of some to draw: with findings of every kind, then others, spread over the data set.

    ``found`` has pairs of an image and its `Finding`; of the other ``images``, those without errors are chosen.
    """
    captions, faulty = {}, {image for image, finding in found if finding.severity == ERROR}
    for place in each_kind_first([finding for _, finding in found]):
        image, finding = found[place]
        if image in captions or len(captions) < _FOUND:
            captions.setdefault(image, []).append(finding._replace(file=os.path.basename(finding.file)).sentence)
    good = [image for image in images if image not in captions and image not in faulty]
    spread = np.linspace(0, len(good) - 1, min(_SAMPLES - len(captions), len(good))).round().astype(int)
    return {**captions, **{good[place]: [] for place in spread.tolist()}}


def check_label_maps(dataset, names, use_cache: bool, ignored=(), trained: bool = True) -> Report:
    """Check images and label maps; without ``names`` any label will do. For the options see `LabelMaps`."""
    check = _Check(dataset, names, LabelMaps(dataset, ignored, use_cache), trained, use_cache)
    images = check.images()
    headers = check.read(images)
    maps, owners = None, {}
    if dataset.prefixes.get('seg_map_path') and check.maps.is_read:
        maps = [label_map_of(image, check.source, check.maps.folder, check.maps.suffix, check.suffix, check.maps.ending)
                for image in images]
        states = check.maps.read(maps)
    for place, (image, header) in enumerate(zip(images, headers, strict=True)):
        for kind, value in check.faults_of(header):
            check.add(kind, image, 'image', image, value)
        if header.content:
            check.drawn[str(image)] = None
        if maps:
            if (owner := owners.setdefault(maps[place], image)) != image:
                check.add('map-shared', image, 'image', image, str(owner))
            check.label_map(image, header, maps[place], states[place])
    return check.report(images)


class _Check(ImageCheck):

    def __init__(self, dataset, names, maps, trained, use_cache):
        super().__init__(dataset, dataset.folder('img_path'), use_cache)
        self.names, self.maps, self.trained = names, maps, trained
        # a resize that keeps the ratio makes both the same size; a metric compares with the original image
        self.resizes = trained and any('Resize' in getattr(kind, '__name__', '') for kind, _ in dataset.steps)
        # where only images that end with it are read
        self.suffix = dataset.setting('img_suffix', '.jpg') if dataset.reader == 'BaseSegDataset' else None
        self.drawn = {}  # of each image that can be opened its label map, or None
        self.total_without = 0
        self.totals = np.zeros((256, 2), np.int64)  # images and pixels of each label
        self.total_ignored = np.zeros(2, np.int64)
        self.without_class = []  # label map, image and its labels without a class

    def images(self):
        """Return the images as the data set lists them, and find those that it does not read."""
        files = files_below(self.source, hidden_folders=self.suffix is not None)
        if words := unread_images(files, (*image_suffixes(self.dataset), self.maps.suffix[-4:])):
            self.add('files-left-out', self.source, value=words)
        if self.dataset.get('ann_file'):
            try:
                return [self.source / f'{name}{self.suffix or ""}' for name in names_in_list(self.dataset.ann_file)]
            except DataError:
                self.add('not-there', self.dataset.ann_file)
                return []
        found = [path for path in files if path.suffix.lower() in image_suffixes(self.dataset)
                 or path.name.endswith(self.suffix or '/')]
        images = [path for path in found if self.suffix is None or path.name.endswith(self.suffix) and path.is_file()]
        if not images:
            looked_for = self.suffix or ', '.join(image_suffixes(self.dataset))
            self.add('no-images', self.source, value=f'looked for {looked_for}')
        for path in sorted(set(found) - set(images)):  # a broken link may have the suffix
            self.add('image-left-out', path, value=f'the data set reads only existing {self.suffix} files')
        return images

    def label_map(self, image, header, path, state):
        """Add the problems of a label map, and count its labels."""
        content = state.content
        if state.fault:
            value = str(image) if state.fault == 'missing' else state.value
            self.add(f'map-{state.fault}', path, 'image', image, value)
            return
        if 'labels' not in content:
            self.add('map-mode', path, 'image', image, content['mode'])
            return
        size = (header.content or {}).get('turned' if self.turned else 'size')
        if size and size != content['size']:
            words = [f'{width} x {height}' for width, height in (content['size'], size)]
            is_resized = self.resizes and size[0] * content['size'][1] == size[1] * content['size'][0]
            kind, file = ('map-ratio', path) if is_resized else ('map-size', path)
            if header.content['size'] == content['size']:
                kind, file, words = 'image-rotated', image, words[::-1]
            self.add(kind, file, 'image', image, f'{words[0]}, not {words[1]} (width x height)')
        if self.names is not None:
            known = {*self.maps.ignored, *self.maps.labels(len(self.names))}
            if wrong := [label for label, _ in content['labels'] if label not in known]:
                self.without_class.append((path, image, wrong))
        labels = np.array(content['labels']).reshape(-1, 2)
        self.totals[labels[:, 0]] += np.stack([np.ones(len(labels), np.int64), labels[:, 1]], 1)
        ignored = labels[np.isin(labels[:, 0], list(self.maps.ignored)), 1]
        self.total_ignored += [len(ignored) > 0, ignored.sum()]
        if len(ignored) == len(labels):
            self.total_without += 1
            self.add('map-ignored', path, 'image', image)
        if str(image) in self.drawn:
            self.drawn[str(image)] = str(path)

    def report(self, images):
        """Return the report, with the findings that need the counts over all label maps, and some images to draw."""
        labels = sorted({label for _, _, wrong in self.without_class for label in wrong})
        words = without_class({label: tuple(self.totals[label].tolist()) for label in labels})
        for path, image, wrong in self.without_class:
            self.add('map-labels', path, 'image', image, (
                f'{shown(wrong)}. Classes have {self.maps.in_words(len(self.names))}. {words}'))
        used = np.flatnonzero(self.totals[:, 0]).tolist()
        highest = max((label for label in used if label not in self.maps.ignored), default=-1)
        own = None if self.dataset.get('metainfo') else self.dataset.own_classes
        if own and 0 < 2 * (count := highest + 1 - self.maps.first) <= len(own):
            first = f'labels of only the first {count} of the {len(own)} classes of {type_name(self.dataset["type"])}'
            all_used = set(used) >= {*range(self.maps.first, highest + 1)}  # a few images of the benchmark leave gaps
            if 4 * count <= len(own) and all_used and self.trained and not names_path_of(self.dataset).exists():
                self.add('class-missing', self.source, value=f'most of what the config learns: it has {first}'
                         + ', while label 0 is ignored' * self.maps.first)
            else:
                self.add('class-unused', self.source, value=f'{first}. If they are your own: --cfg-options '
                         'classes_from_data=True')
        names = self.names if self.names is not None else [
            str(label) for label in range(self.maps.first, highest + 1) if label not in self.maps.skipped]
        labels = self.maps.labels(len(names))
        classes = [(name, *self.totals[label].tolist()) for label, name in zip(labels, names, strict=True)
                   if label < 256]
        if self.total_ignored.any():
            classes.append((IGNORED_NAME, *self.total_ignored.tolist()))
        counts = {'images': len(images), 'images without labels': self.total_without, 'classes': len(names)}
        chosen = choose_samples([(found.row, found) for found in self.findings if found.row in self.drawn], self.drawn)
        return Report(self.source, self.findings, counts, classes, 'pixels', [
            dict(file=image, map=self.drawn[image], labels=labels, ignored=sorted(self.maps.ignored), captions=captions)
            for image, captions in chosen.items()])
