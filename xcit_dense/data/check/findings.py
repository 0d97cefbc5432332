"""Everything that the data check can find, as sentences, and the report on one data set."""
import os
from collections import Counter
from typing import NamedTuple

from ..._utils.text import counted, printable, singular

ERROR, WARNING = 'error', 'warning'


class Kind(NamedTuple):
    """One kind of finding: how bad it is, whether ``--drop`` drops its record, and its text."""
    severity: str
    drops: bool
    text: str


#: A table with more classes than this shows only some of them.
_ROWS = 200
_IGNORED = 'training silently ignores it'

#: Every kind by its name. What would certainly stop or spoil a run is an error; what the frameworks cut, ignore or do
#: not look at is a warning.
KINDS = {
    'not-checked': Kind(WARNING, False, 'was not checked: {value}'),
    # the annotation file
    'not-there': Kind(ERROR, False, 'does not exist'),
    'not-coco': Kind(ERROR, False, 'is not a COCO annotation file: {value}'),
    'bad-record': Kind(ERROR, True, 'cannot be used: {value}'),
    'category-id-twice': Kind(ERROR, False, 'has the same id as another category; its name is {value}'),
    'category-name-twice': Kind(ERROR, False, 'has the name {value}, as another category does'),
    'image-twice': Kind(WARNING, True, 'is listed twice, both times with the file {value}'),
    'image-id-twice': Kind(ERROR, True, 'has the same id as another image; its file is {value}'),
    'file-name-twice': Kind(WARNING, True, 'has the file {value}, as another image does'),
    'annotation-id-twice': Kind(ERROR, True, 'has the same id as an earlier annotation'),
    'annotation-id-0': Kind(WARNING, False, 'has the id 0, which means "no object" to pycocotools: it counts a '
                            'detection of this object as wrong. The tools here evaluate as if ids began at 1; others '
                            'do not'),
    'unknown-category': Kind(WARNING, True, f'has the category {{value}}, which the file does not list; {_IGNORED}'),
    'orphan': Kind(WARNING, True, f'belongs to the image {{value}}, which the file does not list; {_IGNORED}'),
    'image-dimensions': Kind(ERROR, True, 'has a width and height of {value}; they must be whole numbers above 0'),
    # boxes: x, y, width, height
    'box-not-finite': Kind(WARNING, True, f'has the box {{value}} with values that are not finite; {_IGNORED}'),
    'box-infinite': Kind(ERROR, True, 'has the box {value}: width and height must be finite numbers'),
    'box-absurd': Kind(ERROR, True, 'has the box {value}: a value is more than 10 times the longer side of the image'),
    'box-negative': Kind(WARNING, True, f'has the box {{value}}: a negative width or height; {_IGNORED}'),
    'box-empty': Kind(WARNING, True, f'has the box {{value}}: less than a pixel wide or high; {_IGNORED}'),
    'box-outside': Kind(WARNING, True, f'has the box {{value}}: entirely outside its image; {_IGNORED}'),
    'box-sticks-out': Kind(WARNING, False, 'has the box {value}: it extends beyond its image and is cut at the border'),
    'area-not-finite': Kind(WARNING, True, 'has the area {value}; only the evaluation by object size uses it'),
    'area-empty': Kind(WARNING, True, f'has the area {{value}}, which must be above 0; {_IGNORED}'),
    # masks
    'mask-missing': Kind(ERROR, True, 'has no segmentation, but the pipeline of the config loads masks'),
    'mask-malformed': Kind(ERROR, True, 'has a segmentation that is neither polygons nor RLE: {value}'),
    'mask-no-counts': Kind(WARNING, True, f'has a mask (RLE) without counts or size: {{value}}; {_IGNORED}'),
    'polygon-points': Kind(WARNING, False, 'has a polygon of {value} (it needs an even count of at least 6); training '
                                           'silently ignores this polygon'),
    'polygon-none': Kind(WARNING, True, 'has no valid polygon, only one of {value} (it needs an even count of at least '
                                        '6); training silently ignores the object'),
    'polygon-first': Kind(ERROR, True, 'begins with a polygon of {value}: the evaluation fails on fewer than 5'),
    'polygon-not-finite': Kind(ERROR, True, 'has a polygon with coordinates that are not finite: {value}'),
    'polygon-absurd': Kind(ERROR, True, 'has a polygon with a coordinate beyond 10 times the longer side of the image: '
                                         '{value}'),
    'polygon-outside': Kind(ERROR, True, 'has only polygons that are entirely outside its image: {value}'),
    'rle-size': Kind(ERROR, True, 'has a mask (RLE) of a different size than its image: {value}'),
    'rle-counts': Kind(ERROR, True, 'has a mask (RLE) whose counts do not fit its size: {value}'),
    'rle-malformed': Kind(ERROR, True, 'has a mask (RLE) whose counts cannot be read: {value}'),
    # image files
    'image-missing': Kind(ERROR, True, 'does not exist'),
    'image-outside': Kind(WARNING, False, 'is outside the data root: {value}'),
    'image-unreadable': Kind(ERROR, True, 'cannot be read: {value}'),
    'image-cut-off': Kind(WARNING, True, 'has no end marker ({value}): it may be cut off'),
    'image-huge': Kind(WARNING, False, 'is so large that its size was not checked: {value}'),
    'image-size': Kind(ERROR, True, 'has a different size than in the annotation file: {value}'),
    'image-rotated': Kind(ERROR, True, 'is rotated on loading, as its EXIF orientation says, and then has a '
                                       'different size than in the annotation file: {value}'),
    # folders of images and label maps
    'no-images': Kind(ERROR, False, 'has no images: {value}'),
    'image-left-out': Kind(WARNING, False, 'is ignored: {value}'),
    'map-missing': Kind(ERROR, True, 'does not exist; it is the label map of {value}'),
    'map-shared': Kind(ERROR, True, 'has the same label map as {value}'),
    'map-unreadable': Kind(ERROR, True, 'cannot be read: {value}'),
    'map-16-bit': Kind(ERROR, True, 'is not a label map: a pixel must be one number from 0 to 255, but the file has '
                                    'the mode {value}, with larger numbers or fractions'),
    'map-colour': Kind(ERROR, True, 'is not a label map: a pixel must be one number from 0 to 255, but the file has '
                                    'colours (mode {value}). To convert it: --palette FILE, with a line "name r g b" '
                                    'for each class'),
    'map-size': Kind(ERROR, True, 'has a different size than its image: {value}. Resize it without interpolation'),
    'map-ratio': Kind(WARNING, False, 'has a different size than its image but the same aspect ratio; the pipeline '
                                      'resizes both: {value}'),
    'map-labels': Kind(ERROR, True, 'has labels without a class: {value}'),
    'map-ignored': Kind(WARNING, True, 'has no pixel with a class, so training learns nothing from it'),
    'map-without-image': Kind(WARNING, False, 'is a label map without an image'),
    # images of classes
    'list-line': Kind(ERROR, True, 'cannot be used: {value}'),
    'list-label': Kind(ERROR, True, 'has a label without a class: {value}'),
    'files-left-out': Kind(WARNING, False, 'has {value}'),
    'image-two-classes': Kind(WARNING, True, 'is in several classes: {value}'),
    'image-in-training': Kind(WARNING, True, 'is also in the training data: {value}'),
    'class-empty': Kind(WARNING, False, 'has no images, so this class is never learned'),
    'class-unread': Kind(ERROR, False, 'has no files that are read as images, so this class would never be learned: '
                                       '{value}'),
    'class-hidden': Kind(ERROR, False, 'is a hidden folder, but the data set treats it as a class: delete it, or move '
                                       'it out of the folder of the classes'),
    'class-numbers': Kind(ERROR, False, 'has folders named by the class numbers of ImageNet, but the data set sorts '
                                        'them as text, so {value}'),
    'class-ids': Kind(WARNING, False, 'has folders that are not the WordNet ids of ImageNet, but the config has the '
                                      'classes of ImageNet, one for each folder in sorted order: {value}'),
    'class-single': Kind(ERROR, False, 'has only one class, {value}, so there is nothing to tell apart. Each folder '
                                       'in it is a class'),
    # classes
    'class-missing': Kind(ERROR, False, 'does not have {value}'),
    'class-unused': Kind(WARNING, False, 'has {value}'),
    'class-order': Kind(ERROR, False, 'has the classes in a different order than the config, but the framework '
                                      'numbers them in the order of the file: {value}'),
    'class-list': Kind(ERROR, False, 'must have one unique class name per line and no empty lines: {value}'),
    'class-count': Kind(ERROR, False, '{value}'),
    'class-spare': Kind(WARNING, False, '{value}'),
    'class-test': Kind(WARNING, False, '{value}'),
    'class-explicit': Kind(ERROR, False, 'cannot be used: {value}'),
    'class-void': Kind(WARNING, False, 'has class names that may mean "no class": {value}'),
    # data sets and evaluators together
    'data-set-twice': Kind(WARNING, False, 'reads the same files as {value}: each image counts twice. If you meant two '
                           'data sets, set the data_root of each in the config or with --cfg-options; --data-root sets '
                           'the same one for all'),
    'evaluator-data': Kind(ERROR, False, 'evaluates against different data than its loader reads: {value}'),
    'evaluator-more': Kind(WARNING, False, 'evaluates against more images than its loader reads: {value}'),
}


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
    def drops(self) -> bool:
        """Whether ``--drop`` drops its record."""
        return KINDS[self.kind].drops

    @property
    def sentence(self) -> str:
        """The finding as a sentence, without control characters from the data."""
        return self._say(f'{self.file}: ' if self._record else self.file)

    @property
    def caption(self) -> str:
        """The sentence without what the drawn image already shows."""
        return self._say('' if self._record else os.path.basename(self.file))

    @property
    def _record(self):
        if self.part not in ('images', 'annotations', 'categories', 'lines'):
            return ''
        return f'{self.part}[{self.row}]' if self.id is None else f'{singular(self.part)} {self.id!r}'

    def _say(self, where):
        return printable(f'{where}{self._record} {KINDS[self.kind].text.format(value=self.value)}')


class Report:
    """The result of the check of one data set.

    Args:
        source: The annotation file, or the folder of images.
        findings: All of them.
        counts: Numbers by name: ``images``, ``images without annotations`` and so on.
        classes: For each class its name, the number of images that have it, and its number of annotations or pixels.
        unit: The unit of the last of these: ``annotations`` or ``pixels``; ``images`` where both numbers are the same.
        samples: The images that `xcit_dense.data.check.draw` draws.
        images: Images that have one class each: path, label or None, and a mark that all copies of the file share.
        folder: The folder that their names are relative to.
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
            found = alike([finding for finding in self.findings if finding.kind == kind])
            lines.append(f'  {KINDS[kind].severity}: {kind}, {grouped[kind]:,}')
            lines += [f'    {in_one_line(*group)}' for group in found[:first]]
            if more := sum(count for _, count in found[first:]):
                lines.append(f'    and {more:,} more')
        return '\n'.join(lines)

    def histogram(self) -> str:
        """Return a table of the classes with their images and annotations or pixels, then the classes without any."""
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
            lines[0] += f'  (the {_ROWS // 2} largest and the {_ROWS // 2} smallest of {len(order)})'
        top = max((amount for *_, amount in used), default=1) / total
        for name, images, amount in used:
            share = amount / total
            # where all classes are small, the largest fills the line
            bar = '#' * round(40 * share / (top if is_same else 1))
            lines.append(f'  {printable(name)[:width]:{width}}  {images:>9,}'
                         + ('' if is_same else f'  {amount:>15,}') + f'  {share:>6.1%} {bar}')
        without = [printable(name) for name, _, amount in self.classes if not amount]
        if without:
            lines.append(f'  without {self.unit}: {", ".join(without)}')
        return '\n'.join(line.rstrip() for line in lines)


def alike(findings) -> list:
    """Group findings of the same kind and value, in the order of the first of each.

    Returns:
        Pairs of the first finding and the size of its group. Those without a value count as the same.
    """
    groups = {}
    for finding in findings:
        groups.setdefault((finding.kind, finding.value), []).append(finding)
    return [(group[0], len(group)) for group in groups.values()]


def in_one_line(finding, count: int) -> str:
    """Return a finding as a sentence, with how often it occurs."""
    return finding.sentence if count == 1 else f'{count:,} times, for example: {finding.sentence}'


def each_kind_first(findings) -> list:
    """Return the indices of findings in a new order: the first of each kind, errors before warnings, the second..."""
    seen, order = Counter(), []
    for finding in findings:
        order.append((seen[finding.kind], finding.severity))
        seen[finding.kind] += 1
    return sorted(range(len(order)), key=order.__getitem__)
