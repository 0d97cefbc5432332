"""What the data check can find, in words, and what it says of one data set."""
import os
from collections import Counter
from typing import NamedTuple

import numpy as np

from ...text import counted, printable, singular

ERROR, WARNING = 'error', 'warning'


class Kind(NamedTuple):
    """One kind of finding: how bad, whether ``--drop`` leaves its record out, and its words."""
    severity: str
    drops: bool
    text: str


#: A table of more classes than so many shows some of them.
_ROWS = 200
#: Images with findings, and as many without, are kept for drawing.
_SAMPLES = 16
_LEFT_OUT = 'which training leaves out without a word'

#: Every kind by its name. What would surely end or spoil a run is an error; what the frameworks cut, leave out or
#: do not look at is a warning.
KINDS = {
    'not-checked': Kind(WARNING, False, 'was not checked: {value}'),
    # the annotation file
    'not-there': Kind(ERROR, False, 'is not there'),
    'not-coco': Kind(ERROR, False, 'is no COCO annotation file: {value}'),
    'bad-record': Kind(ERROR, True, 'cannot be used: {value}'),
    'category-id-twice': Kind(ERROR, False, 'has an id that others have too; its name is {value}'),
    'category-name-twice': Kind(ERROR, False, 'has the name {value}, which others have too'),
    'image-twice': Kind(WARNING, True, 'is there before with the same file, {value}'),
    'image-id-twice': Kind(ERROR, True, 'has an id that another image has too; its file is {value}'),
    'file-name-twice': Kind(WARNING, True, 'has the file {value}, which another image has too'),
    'annotation-id-twice': Kind(ERROR, True, 'has an id that an annotation before it has too'),
    'annotation-id-0': Kind(WARNING, False, 'has the id 0, which pycocotools takes for no object, so that whatever '
                            'finds it counts as wrong: the tools here judge as if ids began at 1, others do not'),
    'unknown-category': Kind(WARNING, True, f'has the category {{value}}, which the file does not list, {_LEFT_OUT}'),
    'orphan': Kind(WARNING, True, f'belongs to the image {{value}}, which the file does not list, {_LEFT_OUT}'),
    'image-dimensions': Kind(ERROR, True, 'has a width and height of {value}; they must be whole numbers above 0'),
    # boxes: x, y, width, height
    'box-not-finite': Kind(WARNING, True, f'has the box {{value}}: no finite numbers, {_LEFT_OUT}'),
    'box-infinite': Kind(ERROR, True, 'has the box {value}: width and height must be finite numbers'),
    'box-absurd': Kind(ERROR, True, 'has the box {value}: more than 10 times as far away as its image is long'),
    'box-negative': Kind(WARNING, True, f'has the box {{value}}: a negative width or height, {_LEFT_OUT}'),
    'box-empty': Kind(WARNING, True, f'has the box {{value}}: less than a pixel wide or high, {_LEFT_OUT}'),
    'box-outside': Kind(WARNING, True, f'has the box {{value}}: wholly outside its image, {_LEFT_OUT}'),
    'box-sticks-out': Kind(WARNING, False, 'has the box {value}: it sticks out of its image, and is cut there'),
    'area-not-finite': Kind(WARNING, True, 'has the area {value}: it is for the evaluation alone, by sizes'),
    'area-empty': Kind(WARNING, True, f'has the area {{value}}: an object without area, {_LEFT_OUT}'),
    # masks
    'mask-missing': Kind(ERROR, True, 'has no segmentation, and the pipeline of the config loads masks'),
    'mask-malformed': Kind(ERROR, True, 'has a segmentation that is neither polygons nor RLE: {value}'),
    'mask-no-counts': Kind(WARNING, True, f'has a mask (RLE) without counts or size: {{value}}: an object {_LEFT_OUT}'),
    'polygon-points': Kind(WARNING, False, f'has a polygon of {{value}}, {_LEFT_OUT}: it must have 6 or more, and an '
                                           'even number'),
    'polygon-none': Kind(WARNING, True, 'has a polygon of {value} and none of 6 or more, and an even number: an object '
                                        f'{_LEFT_OUT}'),
    'polygon-first': Kind(ERROR, True, 'begins with a polygon of {value}: fewer than 5 end the evaluation'),
    'polygon-not-finite': Kind(ERROR, True, 'has a polygon with coordinates that are no finite numbers: {value}'),
    'polygon-absurd': Kind(ERROR, True, 'has a polygon more than 10 times as far away as its image is long: {value}'),
    'polygon-outside': Kind(ERROR, True, 'has its polygons wholly outside its image: {value}'),
    'rle-size': Kind(ERROR, True, 'has a mask (RLE) of another size than its image: {value}'),
    'rle-counts': Kind(ERROR, True, 'has a mask (RLE) whose counts do not fit its size: {value}'),
    'rle-malformed': Kind(ERROR, True, 'has a mask (RLE) whose counts cannot be read: {value}'),
    # image files
    'image-missing': Kind(ERROR, True, 'is not there'),
    'image-outside': Kind(WARNING, False, 'lies outside the data root: it is {value}'),
    'image-unreadable': Kind(ERROR, True, 'cannot be read: {value}'),
    'image-cut-off': Kind(WARNING, True, 'has no end mark ({value}): it may be cut off'),
    'image-huge': Kind(WARNING, False, 'is so large that its size was not looked at: {value}'),
    'image-size': Kind(ERROR, True, 'has another size than the annotation file says: {value}'),
    'image-rotated': Kind(ERROR, True, 'is turned on reading, as its EXIF mark asks, and then has another size than '
                                       'the annotation file says: {value}'),
    # folders of images and label maps
    'no-images': Kind(ERROR, False, 'has no image: {value}'),
    'image-left-out': Kind(WARNING, False, 'is left out: {value}'),
    'map-missing': Kind(ERROR, True, 'is not there; it is the label map of {value}'),
    'map-shared': Kind(ERROR, True, 'has the same label map as {value}'),
    'map-unreadable': Kind(ERROR, True, 'cannot be read: {value}'),
    'map-16-bit': Kind(ERROR, True, 'is no label map: a pixel must be one number from 0 to 255, the file has the mode '
                                    '{value}, with larger numbers or fractions'),
    'map-colour': Kind(ERROR, True, 'is no label map: a pixel must be one number from 0 to 255, the file has the mode '
                                    '{value}, colours. --palette FILE, with a line "name r g b" for each class, '
                                    'converts it'),
    'map-size': Kind(ERROR, True, 'has another size than its image: {value}'),
    'map-ratio': Kind(WARNING, False, 'has another size than its image in the same ratio, and the pipeline resizes '
                                      'both: {value}'),
    'map-labels': Kind(ERROR, True, 'has labels that no class has: {value}'),
    'map-ignored': Kind(WARNING, True, 'has no pixel with a class: nothing is learned from it'),
    'map-without-image': Kind(WARNING, False, 'is the label map of no image'),
    # images of classes
    'list-line': Kind(ERROR, True, 'cannot be used: {value}'),
    'list-label': Kind(ERROR, True, 'has a label that no class has: {value}'),
    'files-left-out': Kind(WARNING, False, 'has {value}'),
    'image-two-classes': Kind(WARNING, True, 'has two classes: {value}'),
    'image-in-training': Kind(WARNING, True, 'is a picture of the training data, too: {value}'),
    'class-empty': Kind(WARNING, False, 'has no image, and this class is never learnt'),
    'class-unread': Kind(ERROR, False, 'has files, and none that is read, so that this class would never be learnt: '
                                       '{value}'),
    'class-hidden': Kind(ERROR, False, 'is a hidden folder, and the data set takes it for a class: delete it, or move '
                                       'it out of the folder of the classes'),
    'class-numbers': Kind(ERROR, False, 'has the numbers of the classes of ImageNet as folders, and the data set sorts '
                                        'them as text, so that {value}'),
    'class-ids': Kind(WARNING, False, 'has other folders than the WordNet ids of ImageNet, whose classes the data set '
                                      'has, in the order of their names: {value}'),
    'class-single': Kind(ERROR, False, 'has one class alone, {value}, and there is nothing to tell apart. Each folder '
                                       'in it is a class'),
    # classes
    'class-missing': Kind(ERROR, False, 'does not have {value}'),
    'class-unused': Kind(WARNING, False, 'has {value}'),
    'class-order': Kind(ERROR, False, 'has the classes in another order than the config, and the framework numbers '
                                      'them in the order of the file: {value}'),
    'class-list': Kind(ERROR, False, 'must have one class name a line, each once, none empty: {value}'),
    'class-count': Kind(ERROR, False, '{value}'),
    'class-spare': Kind(WARNING, False, '{value}'),
    'class-test': Kind(WARNING, False, '{value}'),
    'class-explicit': Kind(ERROR, False, 'cannot be used: {value}'),
    'class-void': Kind(WARNING, False, 'names as a class what may stand for none: {value}'),
    # data sets and evaluators beside each other
    'data-set-twice': Kind(WARNING, False, 'reads the same files as {value}: each image counts twice. Where two data '
                           'sets were meant, give each its data_root in the config or with --cfg-options; --data-root '
                           'gives all the same'),
    'evaluator-data': Kind(ERROR, False, 'judges by other data than its loader reads: {value}'),
    'evaluator-more': Kind(WARNING, False, 'judges by more than its loader reads: {value}'),
}


class Finding(NamedTuple):
    """One fault of a data set.

    Args:
        kind: One of `KINDS`.
        file: The file that has it.
        part: The list in the annotation file, such as ``annotations``; ``image`` for an image and its label map;
            ``lines`` of a list of images, ``files`` for the images themselves.
        row: The place in that list from 0, or the path of the image.
        id: The id of the record.
        value: What was found, in words.
    """
    kind: str
    file: str
    part: str = ''
    row: int | str | None = None
    id: int | str | None = None
    value: str = ''

    @property
    def severity(self) -> str:
        """``error`` or ``warning``."""
        return KINDS[self.kind].severity

    @property
    def drops(self) -> bool:
        """Whether ``--drop`` leaves its record out."""
        return KINDS[self.kind].drops

    @property
    def sentence(self) -> str:
        """The finding in words, without control characters out of the data."""
        return self._say(f'{self.file}: ' if self._record else self.file)

    @property
    def caption(self) -> str:
        """Likewise, without what the picture of the image says already."""
        return self._say('' if self._record else os.path.basename(self.file))

    @property
    def _record(self):
        if self.part not in ('images', 'annotations', 'categories', 'lines'):
            return ''
        return f'the {singular(self.part)} ' + (f'{self.part}[{self.row}]' if self.id is None else repr(self.id))

    def _say(self, where):
        return printable(f'{where}{self._record} {KINDS[self.kind].text.format(value=self.value)}')


class Report:
    """What the check of one data set found.

    Args:
        source: The annotation file, or the folder of images.
        findings: All of them.
        counts: Numbers by name: ``images``, ``images without annotations`` and so on.
        classes: For each class its name, the images that have it, and its annotations or pixels.
        unit: What the last of these is: ``annotations`` or ``pixels``; ``images`` where they are the same.
        samples: What `xcit_dense.data.check.draw` draws.
        images: Those that have one class each: path, label or None, and what all copies of the file share.
        folder: What their names are relative to.
    """

    def __init__(self, source, findings=(), counts=None, classes=(), unit='annotations', samples=(), images=None,
                 folder=None):
        self.source = str(source)
        self.findings = list(findings)
        self.counts = counts or {}
        self.classes = list(classes)
        self.unit = unit
        self.samples = list(samples)
        self.images, self.folder = images, folder

    @property
    def errors(self) -> list:
        """The findings that must not be trained on."""
        return [finding for finding in self.findings if finding.severity == ERROR]

    @property
    def warnings(self) -> list:
        """The findings that training survives."""
        return [finding for finding in self.findings if finding.severity == WARNING]

    def summary(self, first: int = 3) -> str:
        """Return counts, and the findings grouped by kind, errors before warnings, with the first few of each."""
        numbers = ', '.join(counted(number, name) for name, number in self.counts.items())
        lines = [printable(f'{self.source}: {numbers or "nothing to count"}')]
        grouped = Counter(finding.kind for finding in self.findings)
        for kind in sorted(grouped, key=lambda kind: (KINDS[kind].severity, -grouped[kind])):
            found = alike([finding for finding in self.findings if finding.kind == kind])
            lines.append(f'  {KINDS[kind].severity}: {kind}, {grouped[kind]:,}')
            lines += [f'    {in_one_line(*group)}' for group in found[:first]]
            if more := sum(count for _, count in found[first:]):
                lines.append(f'    and {more:,} more')
        return '\n'.join(lines)

    def histogram(self) -> str:
        """Return a table of the classes: images, and annotations or pixels; those without any after it."""
        if not self.classes:
            return ''
        total = sum(amount for _, _, amount in self.classes) or 1
        width = min(max(len(printable(name)) for name, _, _ in self.classes), 30)
        is_same = self.unit == 'images'
        lines = [f'  {"class":{width}}  {"images":>9}' + ('' if is_same else f'  {self.unit:>15}')]
        used = [entry for entry in self.classes if entry[2]]
        if len(used) > _ROWS:
            order = sorted(used, key=lambda entry: -entry[2])
            used = [*order[:_ROWS // 2], *order[-_ROWS // 2:]]
            lines[0] += f'  (of {len(order)}, the {_ROWS // 2} with most and the {_ROWS // 2} with fewest)'
        top = max((amount for *_, amount in used), default=1) / total
        for name, images, amount in used:
            share = amount / total
            # where all classes are small, the largest fills the line
            bar = '#' * round(40 * share / (top if is_same else 1))
            lines.append(f'  {printable(name)[:width]:{width}}  {images:>9,}'
                         + ('' if is_same else f'  {amount:>15,}') + f'  {share:>6.1%} {bar}')
        without = [printable(name) for name, _, amount in self.classes if not amount]
        if without:
            lines.append(f'  without any: {", ".join(without)}')
        return '\n'.join(line.rstrip() for line in lines)


def alike(findings) -> list:
    """Group findings of one kind and with the same words, in the order of the first of each.

    Returns:
        Pairs of the first and how many there are. Those without words are alike too.
    """
    groups = {}
    for finding in findings:
        groups.setdefault((finding.kind, finding.value), []).append(finding)
    return [(group[0], len(group)) for group in groups.values()]


def in_one_line(finding, count: int) -> str:
    """Return a finding in words, and how many others say the same."""
    return finding.sentence if count == 1 else f'{count:,} times, such as: {finding.sentence}'


def each_kind_first(findings) -> list:
    """Return the places of findings in another order: the first of each kind, errors before warnings, the second..."""
    seen, order = Counter(), []
    for finding in findings:
        order.append((seen[finding.kind], finding.severity))
        seen[finding.kind] += 1
    return sorted(range(len(order)), key=order.__getitem__)


def choose_samples(found, good) -> dict:
    """Choose images to draw: some that have findings, of every kind, then some others, spread over the data set.

    Args:
        found: Pairs of an image and its `Finding`.
        good: Images that have no errors.

    Returns:
        The captions by the image.
    """
    captions = {}
    for place in each_kind_first([finding for _, finding in found]):
        image, finding = found[place]
        if image in captions or len(captions) < _SAMPLES:
            captions.setdefault(image, []).append(finding.caption)
    good = [image for image in good if image not in captions]
    spread = np.linspace(0, len(good) - 1, min(_SAMPLES, len(good))).round().astype(int)
    return {**captions, **{good[place]: [] for place in spread.tolist()}}
