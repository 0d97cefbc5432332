"""The check of a data set with a COCO annotation file."""
import os
from collections import Counter
from pathlib import Path

import numpy as np

from ..._utils.text import counted, shown
from ..files import cached
from ..pipelines import loads_masks
from .agreement import check_names
from .coco_file import FAR, PARTS, columns_of, faults_of_mask, places_of, read_coco, repeated
from .findings import Finding, Report
from .images import ImageCheck, choose_samples

#: Boxes that extend beyond the image by less have rounded coordinates.
_ROUNDING = 1.
#: The share of the images or objects that may be left out without a warning.
_FEW = 0.1
#: So many boxes show that all are written as corners.
_SURE = 10
#: Reasons of which other findings tell.
_OTHER_CLASSES, _NO_SIZE = 'of other classes', 'of images without a valid size'
#: What helps if objects are left out for a reason.
_ADVICE = {
    'marked as crowds': 'Set "iscrowd": 0 in the file if these are single objects (CVAT exports brush masks as '
                        'crowds); in Pascal VOC, objects that are difficult are crowds',
    'with a box': 'A box must be x, y, width and height in pixels',
    'whose image_id': 'Write image_id as the id of the image: 1 is not "1"'}


def check_coco_set(dataset, wanted, use_cache: bool) -> Report:
    """Check an annotation file, whose result is kept until it changes, and the headers of its images."""
    path, rules = dataset.ann_file, {} if dataset.get('test_mode') else dataset.get('filter_cfg') or {}
    use = (loads_masks(dataset), bool(dataset.get('test_mode')), wanted, rules.get('min_size', 0))
    found = cached(f'coco {use!r}', path, lambda: check_coco(path, *use), use_cache)
    check = ImageCheck(dataset, path, use_cache)
    check.findings = [Finding(*finding) for finding in found['findings']]
    if found['categories']:
        check.findings += check_names(path, wanted, [name for name, *_ in found['categories']])
    folder, of_files, total = dataset.folder('img').absolute(), [], counted(len(found['images']), 'images')
    large = [image for image in found['images'] if min(image[3:5]) >= rules.get('min_size', 0)]
    images = [image for image in large if image[5] or not rules.get('filter_empty_gt')]  # that are read in training
    empty = len(large) - len(images)
    if empty > _FEW * len(found['images']) and images:
        check.findings.append(Finding('images-unused', str(path), value=(
            f'{empty:,} of {total}, which have no objects. To learn from them as background: --cfg-options '
            f'{dataset.key or "train_dataloader.dataset"}.filter_cfg.filter_empty_gt=False')))
    left_out = {'images without objects': empty, 'images with a side below min_size': len(found['images']) - len(large),
                **{f'objects {why}': number for why, number in found.get('unused', {}).items()}}
    files = [os.path.join(folder, name) for _, _, name, *_ in images]
    for file, state, (row, id, _, *size, _) in zip(files, check.read(files), images, strict=True):
        for kind, value in check.faults_of(state, size):
            check.add(kind, file, 'images', row, value, id)
            if not state.fault:
                of_files.append((file, check.findings[-1]))
    captions = choose_samples(of_files, [])
    samples = {os.path.join(folder, sample['file']): sample for sample in found['samples']}
    known = dict(judged=found.get('used'), left_out=[counted(n, why) for why, n in left_out.items() if n]
                 ) if dataset.get('indices') is None else {}  # of a part it is not known which objects are used
    return Report(path, check.findings, found['counts'], found['categories'], **known, samples=[
        dict(file=file, captions=[*captions.get(file, ()), *samples.get(file, {}).get('captions', ())],
             annotations=samples.get(file, {}).get('annotations', ())) for file in {**captions, **samples}])


def check_coco(path, masks: bool, tested: bool = False, classes: tuple | None = None, min_size: int = 0):
    """Check an annotation file without its images.

    Args:
        masks: Whether the pipeline or a metric reads the masks.
        tested: Whether it is test data: nothing is filtered out then.
        classes: The names that the config wants, or None if any will do. Objects of other classes are ignored.
        min_size: The shorter side in pixels below which training leaves an image out.

    Returns:
        ``findings``; ``images``, for each usable image a list of index, id, file name, width, height and whether it
        has objects that count; ``categories``, for each a list of name, number of images and of annotations;
        ``counts``; ``used``, the number of objects that are learned or evaluated, and ``unused``, that of the others by
        their reason; ``samples``, some images with their annotations and captions. All of it fits in JSON.
    """
    content, fault = read_coco(path, tested)
    if content:
        return _Check(path, content, masks, tested, classes, min_size).run()
    finding = Finding('not-coco' if Path(path).exists() else 'not-there', str(path), value=fault)
    return dict(findings=[finding], images=[], categories=[], counts={}, samples=[])


class _Check:

    def __init__(self, path, content, masks, tested, classes, min_size):
        self.path, self.content, self.masks, self.tested = str(path), content, masks, tested
        self.findings = []
        self.of_image = []  # a usable image and a finding on it or its annotations
        self.rows, self.columns = {}, {}
        # of annotations that were converted from another format, findings name the user's own files
        self.converted = [image for image in content['images'] if isinstance(image, dict) and image.get('label_file')]
        self.label_files = {repr(image.get('id')): image['label_file'] for image in self.converted}
        for part, fields in PARTS.items():
            self.rows[part], self.columns[part], faults = columns_of(content[part], fields)
            for row, fault in faults:
                record = content[part][row]
                self.add('bad-record', part, row, record.get('id') if isinstance(record, dict) else None, fault)
        images, categories, annotations = (self.columns[part] for part in PARTS)
        self.sizes = np.stack([images['width'], images['height']], 1)
        with np.errstate(invalid='ignore'):
            usable = ((self.sizes > 0) & (self.sizes % 1 == 0)).all(1)  # infinity % 1 is no number
        # of each annotation, as indices: -1 is none, and the last
        self.image = places_of(images['id'], annotations['image_id'])
        self.category = places_of(categories['id'], annotations['category_id'])
        self.wanted = set(categories['name'] if classes is None else classes)
        counts = np.array([*(name in self.wanted for name in categories['name']), False], bool)[self.category]
        # images with invalid sizes are not used, nor are their annotations
        self.usable = dict(images=usable, annotations=np.append(usable, False)[self.image])
        self.used = self.named = self.usable['annotations'] & counts
        self.of_image_size = np.vstack([self.sizes, [np.nan] * 2])[self.image]
        low, extent = np.hsplit(annotations['bbox'], 2)
        with np.errstate(invalid='ignore'):
            self.high = low + extent
            meets = (np.minimum(self.high, self.of_image_size) - np.maximum(low, 0) > 0).all(1)  # the rule of mmdet
        self.ignored = ~meets | (extent < 1).any(1)
        self.why = {'whose image_id no image has': self.image < 0, _NO_SIZE: ~self.usable['annotations'],
                    'whose category_id no category has': self.category < 0, _OTHER_CLASSES: ~counts}
        if not tested:
            self.used = self.named & ~self.marked('ignore')
            self.why |= {'of images below min_size': self.of_image_size.min(1) < min_size,
                         'marked "ignore"': self.marked('ignore'),
                         'with a box outside the image, below a pixel, or not a number': self.ignored,
                         'with an area of 0': annotations['area'] <= 0}
        self.why['marked as crowds (iscrowd)'] = self.marked('iscrowd')

    def marked(self, key):
        records = self.content['annotations']
        return np.array([bool(records[row].get(key)) for row in self.rows['annotations'].tolist()], bool)

    def add(self, kind, part, row, id, value=''):
        id, record = id if isinstance(id, (int, float, str)) else None, self.content[part][row]
        file = part == 'annotations' and isinstance(record, dict) and self.label_files.get(repr(record.get('image_id')))
        self.findings.append(Finding(kind, f'{file}, {record.get("label_place", "")}', value=value) if file else
                             Finding(kind, self.path, part, int(row), id, value))

    def add_at(self, kind, part, place, value=''):
        """Add a finding for the record at a place in the columns."""
        self.add(kind, part, self.rows[part][place], self.columns[part]['id'][place], value)
        if part in self.usable and self.usable[part][place]:
            self.of_image.append((place if part == 'images' else int(self.image[place]), self.findings[-1]))

    def add_where(self, kind, part, wrong, words=lambda place: ''):
        """Add a finding for every record of a part where ``wrong`` is true; ``words`` returns its text."""
        for place in np.flatnonzero(wrong).tolist():
            self.add_at(kind, part, place, words(place))

    def run(self):
        """Return the result of `check_coco`."""
        self.check_ids()
        with_mask = self.check_masks(self.check_boxes())
        used, unused = self.check_use()
        images, categories = self.columns['images'], self.columns['categories']
        known, number = (self.image >= 0) & (self.category >= 0), max(len(images['id']), 1)
        pairs = np.unique(self.category[known] * number + self.image[known])
        per_class = [np.bincount(places, minlength=len(categories['id'])).tolist()
                     for places in (pairs // number, self.category[known])]
        learned = np.isin(np.arange(len(images['id'])), self.image[self.named]).tolist()
        entries = zip(self.rows['images'].tolist(), images['id'], images['file_name'], *self.sizes.T.tolist(), learned,
                      strict=True)
        empty = len(images['id']) - len(np.unique(self.image[self.image >= 0]))
        return dict(
            findings=self.findings,
            images=[list(entry) for entry, usable in zip(entries, self.usable['images'], strict=True) if usable],
            categories=[list(entry) for entry in zip(categories['name'], *per_class, strict=True)],
            counts={'images': len(self.content['images']), 'images without annotations': empty,
                    'annotations': len(self.content['annotations']), 'categories': len(self.content['categories'])},
            used=used, unused=unused, samples=self.samples(with_mask))

    def check_ids(self):
        """Find ids and names that occur more than once, or that no record has, and invalid sizes of images."""
        images, categories, annotations = (self.columns[part] for part in PARTS)
        ids, names, files, sizes = categories['id'], categories['name'], images['file_name'], self.sizes
        used = {id for id, name in zip(ids, names, strict=True) if name in self.wanted}  # the config may ignore others
        for kind, wrong in (('category-id-twice', [ids.count(id) > 1 and id in used for id in ids]),
                            ('category-name-twice', [names.count(name) > 1 and name in self.wanted for name in names])):
            self.add_where(kind, 'categories', wrong, lambda i: repr(names[i]))
        # the same image may be listed twice; of different ones it is unknown which one the annotations mean
        known = Counter(id for id, *_ in set(zip(images['id'], files, *sizes.T.tolist(), strict=True)))
        twice = np.array([known[id] > 1 for id in images['id']], bool)
        self.add_where('image-id-twice', 'images', twice, lambda i: repr(files[i]))
        self.add_where('file-name-twice', 'images', repeated(files) & ~twice, lambda i: repr(files[i]))
        self.add_where('image-dimensions', 'images', ~self.usable['images'],
                       lambda i: f'{sizes[i, 0]:g} x {sizes[i, 1]:g}')
        self.findings += [Finding('label-file', str(image['label_file']), value=image['label_problem'])
                          for image in self.converted if image.get('label_problem')]
        self.add_where('orphan', 'annotations', self.image < 0, lambda i: shown(annotations['image_id'][i]))
        self.add_where('unknown-category', 'annotations', self.category < 0,
                       lambda i: shown(annotations['category_id'][i]))
        self.add_where('annotation-id-twice', 'annotations', repeated(annotations['id']))

    def check_use(self):
        """Count the objects that are used, and the others by reason; find out if those are many, or all."""
        left, unused, total = np.ones(len(self.image), bool), {}, len(self.content['annotations'])
        for why, is_out in self.why.items():
            if number := int((left & is_out).sum()):
                unused[why] = number
            left &= ~is_out
        if self.tested and self.ignored[left].all():  # such as fractions: none could be found
            left[:] = False
        used = int(left.sum())
        lost = sum(unused.values()) - unused.get(_OTHER_CLASSES, 0) - unused.get(_NO_SIZE, 0)
        if not self.tested and lost > _FEW * total:
            words = ', '.join(f'{number:,} {why}' for why, number in unused.items())
            advice = [text for why, text in _ADVICE.items() if any(key.startswith(why) for key in unused)]
            self.findings.append(Finding('objects-lost', self.path, value='. '.join(
                [f'{total - used:,} of {counted(total, "objects")}: {words}', *advice])))
        return used, unused

    def check_boxes(self):
        """Find wrong boxes and areas of the annotations that are used; return those whose masks are read.

        Training ignores some for their boxes, a metric reads all.
        """
        boxes, area, sizes = (*(self.columns['annotations'][name] for name in ('bbox', 'area')), self.of_image_size)
        self.add_where('area-empty', 'annotations', self.used & (area <= 0), lambda i: f'{area[i]:g}')
        low, ignored = boxes[:, :2], self.ignored
        with np.errstate(invalid='ignore'):
            absurd = np.isinf(boxes).any(1) | (np.abs(boxes) > FAR * sizes.max(1, keepdims=True)).any(1)
            sticks_out = ((low < -_ROUNDING) | (self.high > sizes + _ROUNDING)).any(1)
            corners = ((boxes[:, 2:] > low) & (boxes[:, 2:] <= sizes + _ROUNDING)).all(1)[self.used]
            far_out = (self.high > 1.1 * sizes).any(1)[self.used]
        if len(corners) >= _SURE and corners.all() and far_out.mean() > 2 * _FEW:
            self.findings.append(Finding('box-corners', self.path, value=counted(len(corners), 'boxes')))
        for kind, wrong in (('box-ignored', ignored), ('box-absurd', absurd & ~ignored),
                            ('box-sticks-out', sticks_out & ~absurd & ~ignored)):
            self.add_where(kind, 'annotations', self.used & wrong, lambda i: (
                f'[{", ".join(f"{side:g}" for side in boxes[i])}] in an image of {sizes[i, 0]:g} x {sizes[i, 1]:g}'))
        return self.masks & self.used & (self.tested | ~ignored & ~(area <= 0))

    def check_masks(self, read):
        """Find wrong masks of the annotations whose masks are read, and return which of these are right."""
        records, rows, sizes = self.content['annotations'], self.rows['annotations'].tolist(), self.sizes
        for place in np.flatnonzero(read).tolist():
            size = map(int, sizes[self.image[place]])
            record = records[rows[place]]
            for kind, value in faults_of_mask(record.get('segmentation'), *size, self.tested).items():
                read[place] = False
                self.add_at(kind, 'annotations', place, value)
        return read

    def samples(self, with_mask):
        """Return some images with their annotations, those with findings first."""
        image, boxes = self.image, self.columns['annotations']['bbox']
        rows, names = self.rows['annotations'].tolist(), [*self.columns['categories']['name'], '?']
        marked = {finding.row for _, finding in self.of_image if finding.part == 'annotations'}
        chosen = choose_samples(self.of_image, np.unique(image[self.usable['annotations']]).tolist())
        annotations = {place: [] for place in chosen}
        drawable = np.isfinite(boxes).all(1) & (boxes[:, 2:] >= 0).all(1)
        for place in np.flatnonzero(np.isin(image, list(chosen)) & drawable).tolist():
            record = self.content['annotations'][rows[place]]
            annotations[int(image[place])].append(dict(
                name=names[self.category[place]], bbox=record['bbox'], marked=rows[place] in marked,
                segmentation=record['segmentation'] if with_mask[place] else None))
        return [dict(file=self.columns['images']['file_name'][place], annotations=annotations[place],
                     captions=captions) for place, captions in chosen.items()]
