"""Everything that the data check can find, as sentences, and the report on one data set."""
from collections import Counter
from dataclasses import dataclass, field
from os import PathLike
from typing import NamedTuple

from ..._utils.text import counted, printable, singular

ERROR, WARNING = 'error', 'warning'


class Kind(NamedTuple):
    """One kind of finding: how bad it is, and its text."""
    severity: str
    text: str


#: A table with more classes than this shows only some of them.
_ROWS = 200

#: Every kind by its name. What would certainly stop or spoil a run is an error; what the frameworks cut, ignore or do
#: not look at is a warning.
KINDS = {kind: Kind(severity, text) for severity, texts in {
    ERROR: {
        'bad-record': 'cannot be used: {value}',
        'image-id-twice': 'has the same id as another image; its file is {value}',
        'annotation-id-twice': 'has the same id as an earlier annotation',
        'image-dimensions': 'has a width and height of {value}; they must be whole numbers above 0',
        'box-absurd': 'has the box {value}: a value is infinite, or beyond 10 times the longer side of the image',
        'mask-missing': 'has no segmentation, but the pipeline of the config loads masks. Add its mask, or '
            'use a detector without masks: fasterrcnn_xcit_s12_p16_custom or fasterrcnn_xcit_n12_p16_small',
        'mask-malformed': 'has a segmentation that is neither polygons nor RLE: {value}',
        'polygon-first': 'begins with a polygon of {value}: the evaluation fails on fewer than 5',
        'polygon-absurd': 'has a polygon with a coordinate that is not finite, or beyond 10 times the longer side of '
            'the image: {value}',
        'polygon-outside': 'has only polygons that are entirely outside its image: {value}',
        'rle-size': 'has a mask (RLE) of a different size than its image: {value}',
        'rle-counts': 'has a mask (RLE) whose counts are no numbers from 0, or do not fit its size: {value}',
        'image-missing': 'does not exist',
        'image-unreadable': 'cannot be read: {value}',
        'image-size': 'has a different size than in the annotation file: {value}',
        'image-rotated': 'is rotated on loading, as its EXIF orientation says, and then has a different size than its '
            'annotations: {value}. If they were drawn on the unrotated image, let all data sets read it that way, with '
            'color_type of LoadImageFromFile: --cfg-options train_dataloader.dataset.pipeline.0.color_type='
            'color_ignore_orientation, and the same for val_dataloader and test_dataloader',
        'map-missing': 'does not exist; it is the label map of {value}. JPEG files are not read: they change labels',
        'map-shared': 'has the same label map as {value}',
        'map-unreadable': 'cannot be read: {value}',
        'map-mode': 'is not a label map: a pixel must be one number from 0 to 255, but the file has the mode {value}. '
            'To convert colours: --palette FILE, with a line "name r g b" for each class. Replace other numbers by 0 '
            'to 254 for classes, and 255 for pixels without one',
        'map-size': 'has a different size than its image: {value}. Resize it without interpolation',
        'map-labels': 'has labels without a class: {value}',
        'list-line': 'cannot be used: {value}',
        'list-label': 'has a label without a class: {value}',
        'not-there': 'does not exist',
        'not-coco': 'is not a COCO annotation file: {value}',
        'category-id-twice': 'has the same id as another category; its name is {value}',
        'category-name-twice': 'has the name {value}, as another category does',
        'no-images': 'has no images: {value}',
        'objects-unused': 'has nothing to learn from: {value}',
        'box-corners': 'has boxes of two corners: all {value} are in their images as x1, y1, x2, y2, and many are not '
            'as x, y, width, height, which COCO means. Write width and height instead of the second corner',
        'nothing-judged': 'has no object that {value} evaluates, so each validation would be -1 or 0. Objects that '
            'are crowds, whose image_id no image has, or whose boxes are not in pixels do not count. Use another file, '
            'or training images: --val-annotations FILE, or --train-annotations FILE with --val-share 0.2',
        'class-unread': 'has no files that are read as images, so this class would never be learned: {value}',
        'class-hidden': 'is a hidden folder, but the data set treats it as a class: delete it, or move it out of the '
            'folder of the classes',
        'class-numbers': 'has folders named by the class numbers of ImageNet, but the data set sorts them as text, '
            'so {value}',
        'class-single': 'has only one class, {value}, so there is nothing to tell apart. Each folder in it is a class',
        'class-missing': 'does not have {value}. For your own classes use a *_custom config, or set '
            'classes_from_data = True in your config or with --cfg-options',
        'class-order': 'has the classes in a different order than the config, but the framework numbers them in the '
            'order of the file: {value}',
        'class-list': '{value}',
        'class-count': '{value}',
        'class-explicit': 'cannot be used: {value}',
        'evaluator-data': 'evaluates against different data than its loader reads: {value}',
    },
    WARNING: {
        # the frameworks leave it out or repeat it
        'file-name-twice': 'has the file {value}, as another image does',
        'unknown-category': 'has the category {value}, which the file does not list; training silently ignores it',
        'orphan': 'belongs to the image {value}, which the file does not list; training silently ignores it',
        'box-ignored': 'has the box {value}: it is outside its image, less than a pixel wide or high, or not a number; '
            'training silently ignores it',
        'area-empty': 'has the area {value}, which must be above 0; training silently ignores it',
        'map-ignored': 'has no pixel with a class, so training learns nothing from it',
        'image-two-classes': 'is in several classes: {value}',
        'image-in-training': 'is also in the training data: {value}',
        # training can use it as it is
        'objects-lost': 'has many objects that training ignores: {value}',
        'images-unused': 'has images that training leaves out (filter_empty_gt): {value}',
        'not-checked': 'was not checked: {value}',
        'box-sticks-out': 'has the box {value}: it extends beyond its image and is cut at the border',
        'polygon-points': 'has a polygon of {value} (it needs an even count of at least 6); training silently '
            'ignores this polygon, and the object if it has no other',
        'image-left-out': 'is ignored: {value}',
        'image-depth': 'has 16-bit images, of which only the upper 8 bits are read, and the highest value is '
            '{value}: use LoadImageChannels (docs/own_data_channels.md), or scale the images to 8 bits',
        'map-ratio': 'has a different size than its image but the same aspect ratio; the pipeline resizes both: '
            '{value}',
        'label-file': '{value}',
        'files-left-out': 'has {value}',
        'class-empty': 'has no images, so this class is never learned',
        'class-ids': 'has folders that are not the WordNet ids of ImageNet, but the config has the classes of '
            'ImageNet, one for each folder in sorted order: {value}',
        'class-unused': 'has {value}',
        'class-spare': '{value}',
        'class-test': '{value}',
        'class-void': 'has class names that may mean "no class": {value}',
        'data-set-twice': 'reads the same files as {value}: each image counts twice. If you meant two data sets, set '
            'the data_root of each in the config or with --cfg-options; --data-root sets the same one for all',
    },
}.items() for kind, text in texts.items()}


class Finding(NamedTuple):
    """One problem of a data set.

    Args:
        kind: One of `KINDS`.
        file: The file that has it.
        part: The list in the annotation file, such as ``annotations``; ``image`` for an image and its label map;
            ``lines`` for a list of images, ``files`` for the images themselves.
        row: The index in that list from 0, or the path of the image.
        id: The id of the record.
        value: What was found, as text.
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
    def sentence(self) -> str:
        """The finding as a sentence, without control characters from the data."""
        record = ''
        if self.part in ('images', 'annotations', 'categories', 'lines'):
            record = f': {self.part}[{self.row}]' if self.id is None else f': {singular(self.part)} {self.id!r}'
        return printable(f'{self.file}{record} {KINDS[self.kind].text.format(value=self.value)}')


@dataclass
class Report:
    """The result of the check of one data set.

    Args:
        source: The annotation file, or the folder of images.
        findings: All of them.
        counts: Numbers by name: ``images``, ``images without annotations`` and so on.
        classes: For each class its name, the number of images that have it, and its number of annotations or pixels.
        unit: The unit of the last of these: ``annotations`` or ``pixels``; ``images`` where both numbers are the same.
        samples: The images that `xcit_dense.data.check.outputs` draws.
        images: Images that have one class each: path, label or None, and a mark that all copies of the file share.
        judged: How many objects of a COCO file are used; None for other data.
        left_out: Why images and objects of the file are not used, with their numbers; None for other data.
    """
    source: str | PathLike
    findings: list = field(default_factory=list)
    counts: dict = field(default_factory=dict)
    classes: list = ()
    unit: str = 'annotations'
    samples: list = ()
    images: list | None = None
    judged: int | None = None
    left_out: list | None = None

    @property
    def errors(self) -> list:
        """The findings that would stop or spoil a training."""
        return [finding for finding in self.findings if finding.severity == ERROR]

    @property
    def warnings(self) -> list:
        """The findings that a training can continue with."""
        return [finding for finding in self.findings if finding.severity == WARNING]

    def summary(self, first: int = 3) -> str:
        """Return counts and the findings grouped by kind, errors before warnings, with the first few of each."""
        numbers = ', '.join(counted(number, name) for name, number in self.counts.items())
        lines = [printable(f'{self.source}: {numbers}'.rstrip())]
        grouped = Counter(finding.kind for finding in self.findings)
        for kind in sorted(grouped, key=lambda kind: (KINDS[kind].severity, -grouped[kind])):
            lines.append(f'  {KINDS[kind].severity}: {kind}, {grouped[kind]:,}')
            found = [finding for finding in self.findings if finding.kind == kind]
            lines += [f'    {line}' for line in in_lines(found, first)]
        return '\n'.join(lines)

    def histogram(self) -> str:
        """Return a table of the classes with their images and annotations or pixels, then the classes without any."""
        if not self.classes:
            return ''
        total, top = sum(amount for *_, amount in self.classes), max(amount for *_, amount in self.classes)
        width = min(max(len(printable(name)) for name, _, _ in self.classes), 30)
        has_both = self.unit != 'images'
        lines = [f'  {"class":{width}}  {"images":>9}' + f'  {self.unit:>15}' * has_both]
        used = [entry for entry in self.classes if entry[2]]
        if len(used) > _ROWS:
            order = sorted(used, key=lambda entry: -entry[2])
            used = [*order[:_ROWS // 2], *order[-_ROWS // 2:]]
            lines[0] += f'  (the {_ROWS // 2} largest and the {_ROWS // 2} smallest of {len(order)})'
        for name, images, amount in used:
            lines.append(f'  {printable(name)[:width]:{width}}  {images:>9,}' + f'  {amount:>15,}' * has_both
                         + f'  {amount / total:>6.1%} {"#" * round(40 * amount / top)}')
        if without := [printable(name) for name, _, amount in self.classes if not amount]:
            lines.append(f'  without {self.unit}: {", ".join(without)}')
        return '\n'.join(line.rstrip() for line in lines)


def in_lines(findings, first: int) -> list:
    """Return the first few findings as sentences, one of every kind before the second of a kind, and how many are left.

    Those of the same kind and value share a line.
    """
    groups = {}
    for finding in findings:
        groups.setdefault((finding.kind, finding.value), []).append(finding)
    groups = list(groups.values())
    order = each_kind_first([group[0] for group in groups])
    lines = [f'{len(group):,} times, for example: {group[0].sentence}' if len(group) > 1 else group[0].sentence
             for group in (groups[place] for place in order[:first])]
    left = sum(len(groups[place]) for place in order[first:])
    return [*lines, f'and {left:,} more'] if left else lines


def each_kind_first(findings) -> list:
    """Return the indices of findings in a new order: the first of each kind, errors before warnings, the second..."""
    seen, order = Counter(), []
    for finding in findings:
        order.append((seen[finding.kind], finding.severity))
        seen[finding.kind] += 1
    return sorted(range(len(order)), key=order.__getitem__)
