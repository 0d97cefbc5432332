"""The checks of images by class: in class folders, or in a list."""
import hashlib
import os
from collections import Counter, defaultdict
from pathlib import Path

from ..._utils.files import hash_of
from ..._utils.text import counted, listed, shown
from ...errors import DataError
from ..class_folders import ClassImages, are_imagenet_names, imagenet_classes
from ..classes import difference_of
from ..datasets import LOADERS
from ..files import read_files, read_header
from .agreement import listed_names
from .findings import Finding, Report
from .images import ImageCheck, choose_samples

#: So many of its last bytes tell whether a file may be a copy of another.
_TAIL = 4096


def check_class_images(source, wanted, trained: bool, use_cache: bool) -> Report:
    """Check the images of a `ClassImages` and their classes; for the options see `check_data_set`."""
    check = _Check(source, wanted, trained, use_cache)
    if not check.labels():
        return check.report([])
    if not (images := source.images()):
        check.add('no-images', source.source, value=f'looked for {", ".join(sorted(source.suffixes))}')
    check.unread()
    headers = check.read([path for path, _ in images], read_image, 'class images')
    for (path, label), header in zip(images, headers, strict=True):
        check.image(path, label, header)
    check.folders(images)
    check.two_classes()
    return check.report(images)


def check_labels(dataset, wanted) -> list:
    """Return only the findings of `check_class_images` on classes and lines, without a look at the images."""
    check = _Check(ClassImages(dataset), wanted, False, False)
    check.labels()
    return check.findings


def read_image(path) -> dict:
    """Return the result of `read_header`, and a ``mark`` that all copies of the file, and few other files, share: its
    size and a digest of its last bytes."""
    header = read_header(path)
    with open(path, 'rb') as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        return dict(header, mark=f'{size} {hashlib.blake2b(file.read(), digest_size=8).hexdigest()}')


class _Check(ImageCheck):

    def __init__(self, source, wanted, trained, use_cache):
        super().__init__(source.dataset, source.source, use_cache)
        self.data, self.wanted, self.trained = source, wanted, trained
        self.names = ()  # by label; empty if any label will do
        self.images = []

    def labels(self) -> bool:
        """Check classes and lines, and return whether the data can be used at all."""
        try:
            self.classes()
            self.lines()
        except DataError as error:
            self.add('no-images' if os.path.exists(self.source) else 'not-there', self.source,
                     value=str(error).replace(f'{self.source} ', 'it ', 1))
            return False
        return True

    def classes(self):
        """Find the class names, and where those of the config and of the folders differ."""
        if not self.data.is_labelled:
            return
        if self.data.list:
            names, findings = listed_names(Path(self.data.names_file))
            self.names = self.wanted or names or ()
            self.findings += findings
            return
        found = self.names = self.data.classes()
        if self.trained and len(found) < 2:
            self.add('class-single', self.source, value=shown(found[0]))
        if not self.wanted:
            return
        if len(found) != len(self.wanted):
            difference = difference_of(found, self.wanted) if set(found) & set(self.wanted) else ''
            self.add('class-count', self.source, value=(
                f'has {counted(len(found), "class folders")}, but the config has {counted(len(self.wanted), "classes")}'
                + (f': {difference}' if difference else '')
                + (f'. For a part of ImageNet, {self.data.list_help}' if are_imagenet_names(self.wanted) else '')))
            return
        self.names = self.wanted
        if are_imagenet_names(self.wanted):
            self.imagenet(found)
        # different names are for display; the same names in a different order are wrong
        places = {name: place for place, name in enumerate(self.wanted)}
        if any(places.get(name, place) != place for place, name in enumerate(found)):
            self.add('class-order', self.source, value=difference_of(found, self.wanted))

    def imagenet(self, found):
        """Find folders that get other numbers than the classes of ImageNet, whose folders are WordNet ids."""
        numbers, ids = [int(name) for name in found if name.isdecimal()], list(imagenet_classes())
        if list(found) == ids or numbers == list(range(len(ids))):
            return
        is_shuffled = sorted(numbers) == list(range(len(ids)))
        place, name, wanted = next((place, *pair) for place, pair in enumerate(zip(found, ids, strict=True))
                                   if pair[0] != (str(place) if is_shuffled else pair[1]))
        self.add('class-numbers' if is_shuffled else 'class-ids', self.source, value=(
            f'{shown(name)} is class {place} ({wanted}). Rename each folder to its WordNet id, or '
            f'{self.data.list_help}'))

    def lines(self):
        for line in self.data.lines if self.data.list else ():
            if line.fault:
                self.add('list-line', self.source, 'lines', line.number, line.fault, line.number)
            elif self.names and line.label >= len(self.names):
                self.add('list-label', self.source, 'lines', line.number, (
                    f'{line.label}; the labels of {counted(len(self.names), "classes")} are 0 to '
                    f'{len(self.names) - 1}'), line.number)

    def unread(self):
        """Find files that the data set does not read, by their suffixes."""
        by_suffix = defaultdict(list)
        for path in self.data.unread():
            by_suffix[os.path.splitext(path)[1].lower()].append(path)
        for suffix, paths in sorted(by_suffix.items()):
            end = f'named *{suffix}' if suffix else 'without a suffix'
            names = listed((shown(os.path.relpath(path, self.data.folder)) for path in paths), 2)
            self.add('files-left-out', self.data.folder, value=(
                f'{counted(len(paths), "files")} {end}; only {", ".join(sorted(self.data.suffixes))} are read '
                f'({names})'))

    def image(self, path, label, header):
        if header.fault == 'missing' and not self.data.list:
            self.add('image-left-out', path, value='it is a broken link')
            return
        for kind, value in self.faults_of(header):
            self.add(kind, path, 'files', path, value)
        if not self.names or (label or 0) < len(self.names):  # the label has a class
            self.images.append((path, label, (header.content or {}).get('mark')))

    def folders(self, images):
        """Find class folders without images, and folders that are not classes."""
        if self.data.list or not self.data.is_labelled:
            return
        used = {label for _, label in images}
        unread = Counter(Path(path).relative_to(self.data.folder).parts[0] for path in self.data.unread())
        for label, name in enumerate(self.data.classes()):
            folder = os.path.join(self.data.folder, name)
            if name.startswith('.'):
                self.add('class-hidden', folder)
            elif self.trained and label not in used and unread[name]:
                self.add('class-unread', folder, value=(
                    f'{counted(unread[name], "files")} with other suffixes than '
                    f'{", ".join(sorted(self.data.suffixes))}. Convert them, or add their suffixes to extensions of '
                    'the data set'))
            elif self.trained and label not in used:
                self.add('class-empty', folder)

    def two_classes(self):
        """Find copies of one image in several classes."""
        for same in copies_between(self.images, self.source, self.use_cache):
            words = listed((f'{shown(self.name(label))} ({os.path.relpath(path, self.data.folder)})'
                            for path, label in same), 3)
            for path in dict.fromkeys(path for path, _ in same):
                self.add('image-two-classes', path, 'files', path, words)

    def name(self, label):
        """Return the name of a class, or its number if it has no name."""
        return '' if label is None else self.names[label] if label < len(self.names) else str(label)

    def report(self, images) -> Report:
        """Return the report, with some images to draw."""
        amounts = Counter(label for _, label in images if label is not None)
        labels = range(len(self.names)) if self.names else sorted(amounts)
        classes = [(self.name(label), amounts[label], amounts[label]) for label in labels]
        counts = {'images': len(images), **({'classes': len(classes)} if self.data.is_labelled or classes else {})}
        drawn = {path: self.name(label) for path, label, mark in self.images if mark}
        chosen = choose_samples([(finding.row, finding) for finding in self.findings if finding.row in drawn], drawn)
        samples = [dict(file=path, label=drawn[path], captions=captions) for path, captions in chosen.items()]
        return Report(self.source, self.findings, counts, classes, 'images', samples, self.images)


def copies_between(images, source, use_cache: bool) -> list:
    """Return those of some images (path, group, mark) that have copies in several groups: lists of path and group."""
    by_mark, by_content = defaultdict(list), defaultdict(list)
    for path, group, mark in images:
        by_mark[mark].append((path, group))
    alike = [members for mark, members in by_mark.items() if mark and len({group for _, group in members}) > 1]
    paths = list(dict.fromkeys(path for members in alike if len({path for path, _ in members}) > 1
                               for path, _ in members))
    states = read_files(paths, hash_of, 'digests', source, use_cache, 'copies')
    digests = {path: state.content for path, state in zip(paths, states, strict=True)}
    for path, group in (member for members in alike for member in members):
        by_content[digests.get(path) or path].append((path, group))
    return [same for same in by_content.values() if len({group for _, group in same}) > 1]


def add_shared(reports, use_cache: bool = True):
    """Add findings to the reports of other data for images that are also in the training data: `check_data_sets`."""
    trained = [(path, True, mark) for names, report in reports.items() if names.startswith(LOADERS[0])
               for path, _, mark in report.images or ()]
    for names, report in reports.items():
        if names.startswith(LOADERS[0]) or not report.images or not trained:
            continue
        own = [(path, False, mark) for path, _, mark in report.images]
        for same in copies_between(trained + own, report.source, use_cache):
            first = next(path for path, is_trained in same if is_trained)
            report.findings += [Finding('image-in-training', path, 'files', path, None,
                                        'the same file' if path == first else first)
                                for path, is_trained in same if not is_trained]
