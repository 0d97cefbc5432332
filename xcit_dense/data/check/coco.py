"""The check of a data set with a COCO annotation file."""
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..._utils.files import stamp_of
from ..._utils.text import shown
from ..files import recall, remember
from ..pipelines import loads_masks
from .agreement import check_names
from .coco_file import FAR, PARTS, check_masks, columns_of, places_of, read_coco, repeated, without_garbage_collection
from .findings import ERROR, Finding, Report
from .image_files import ImageCheck, choose_samples

#: Boxes that extend beyond the image by less have rounded coordinates.
_ROUNDING = 1.
#: Wrong boxes are drawn if no number is larger than this.
_DRAWN = 1e5
#: An image file with one of these findings is not opened again for drawing.
_CLOSED = ('image-missing', 'image-unreadable', 'image-huge')


class Use(NamedTuple):
    """How an annotation file is used.

    Args:
        masks: Whether the pipeline reads the masks.
        tested: Whether it is test data: nothing is filtered out then.
        evaluated: Whether the metric reads the masks, including those that the data set drops.
        classes: The names that the config wants, or None if any will do. Objects of other classes are ignored.
    """
    masks: bool
    tested: bool = False
    evaluated: bool = False
    classes: tuple | None = None


def check_coco_set(dataset, wanted, use_cache: bool, judged) -> Report:
    """Check an annotation file, whose result is kept until it changes, and the headers of its images.

    Args:
        dataset: The config of the data set.
        wanted: The class names of the config, or None if any will do.
        use_cache: Whether to reuse results for files with the same size and time.
        judged: Whether a metric reads its masks; None if that is unknown.
    """
    path = dataset.ann_file
    masks, tested = loads_masks(dataset), bool(dataset.get('test_mode'))
    use = Use(masks, tested, masks and tested if judged is None else judged and tested, wanted)
    kind = f'coco {use!r}'
    stamp = stamp_of(path) if use_cache and path.is_file() else None
    known = recall(kind, path) if stamp else None
    if known and known['stamp'] == stamp:
        found = known['found']
    else:
        found = check_coco(path, use)
        if stamp:
            remember(kind, path, dict(stamp=stamp, found=found))
    check = ImageCheck(dataset, path, use_cache)
    check.findings = [Finding(*finding) for finding in found['findings']]
    if found['categories']:
        check.findings += check_names(path, wanted, [name for _, _, name, *_ in found['categories']])
    folder, of_file = dataset.folder('img').absolute(), len(check.findings)
    images = [image for image in found['images'] if not _is_filtered(dataset, *image[3:])]
    files = [os.path.join(folder, name) for _, _, name, *_ in images]
    for file, state, (row, id, _, *size, _) in zip(files, check.read(files), images, strict=True):
        for kind, value in check.faults_of(file, state, size):
            check.add(kind, file, 'images', row, value, id)
    return Report(path, check.findings, found['counts'],
                  [(name, images, amount) for _, _, name, images, amount in found['categories']],
                  samples=_samples(found, folder, check.findings[of_file:]))


def filter_of(dataset) -> dict:
    """Return the rules by which training drops images; a test uses all images."""
    return {} if dataset.get('test_mode') else dataset.get('filter_cfg') or {}


def _is_filtered(dataset, width, height, is_learned):
    """Whether mmdet drops an image for its size, or because it has no object of a class that counts."""
    rules = filter_of(dataset)
    return min(width, height) < rules.get('min_size', 0) or rules.get('filter_empty_gt', False) and not is_learned


def _samples(found, folder, of_files):
    """Return the images to draw: first those whose files have findings, then those of `check_coco`."""
    names = {id: name for _, id, name, *_ in found['categories']}
    known = {os.path.join(folder, sample['file']): sample for sample in found['samples']}
    closed = {finding.file for finding in of_files if finding.kind in _CLOSED}
    chosen = choose_samples([(finding.file, finding) for finding in of_files if finding.file not in closed], [])
    samples = []
    for file in [*chosen, *(file for file in known if file not in chosen and file not in closed)]:
        sample = known.get(file, dict(annotations=[], captions=[]))
        samples.append(dict(
            file=file, captions=[*chosen.get(file, []), *sample['captions']],
            annotations=[dict(a, name=names.get(a['category_id'], '?')) for a in sample['annotations']]))
    return samples


def check_coco(path, use: Use) -> dict:
    """Check an annotation file without its images.

    Args:
        path: The file.
        use: How the file is used.

    Returns:
        ``findings``; ``images``, for each usable image a list of index, id, file name, width, height and whether it has
        an object of a class that counts; ``categories``, for each a list of index, id, name, number of images and of
        annotations; ``counts``; ``samples``, some images with their annotations and captions. All of it fits in JSON.
    """
    with without_garbage_collection():
        return _check(path, use)  # which frees the content before garbage collection is on again


def _check(path, use):
    content, fault = read_coco(path, use.tested)
    if content:
        return _Check(path, content, use).run()
    finding = Finding('not-coco' if Path(path).exists() else 'not-there', str(path), value=fault)
    return dict(findings=[finding], images=[], categories=[], counts={}, samples=[])


class _Check:

    def __init__(self, path, content, use):
        self.path, self.content, self.use = str(path), content, use
        self.findings = []
        self.of_image = []  # an image and a finding on it or its annotations
        self.rows, self.columns, self.owner = {}, {}, {}
        for part, fields in PARTS.items():
            self.rows[part], self.columns[part], faults = columns_of(content[part], fields)
            for row, fault in faults:
                record = content[part][row]
                self.add('bad-record', part, row, record.get('id') if isinstance(record, dict) else None, fault)
        images, categories, annotations = (self.columns[part] for part in PARTS)
        self.sizes = np.stack([images['width'], images['height']], 1)
        with np.errstate(invalid='ignore'):
            self.usable = (np.isfinite(self.sizes) & (self.sizes > 0) & (self.sizes == np.floor(self.sizes))).all(1)
        # of each annotation, as indices: -1 is none, and the last
        self.image = places_of(images['id'], annotations['image_id'])
        self.category = places_of(categories['id'], annotations['category_id'])
        self.wanted = set(categories['name'] if use.classes is None else use.classes)
        self.counts = np.array([*(name in self.wanted for name in categories['name']), False], bool)[self.category]
        # the usable image of each record: images with invalid sizes are not used, nor are their annotations
        self.owner['images'] = np.where(self.usable, np.arange(len(self.usable)), -1)
        self.owner['annotations'] = np.append(self.owner['images'], -1)[self.image]

    def add(self, kind, part, row, id, value=''):
        id = id if isinstance(id, (int, float, str)) else None
        self.findings.append(Finding(kind, self.path, part, int(row), id, value))

    def add_at(self, kind, part, place, value=''):
        """Add a finding for the record at a place in the columns."""
        self.add(kind, part, self.rows[part][place], self.columns[part]['id'][place], value)
        if part in self.owner and (image := int(self.owner[part][place])) >= 0:
            self.of_image.append((image, self.findings[-1]))

    def add_where(self, kind, part, wrong, words=lambda place: ''):
        """Add a finding for every record of a part where ``wrong`` is true; ``words`` returns its text."""
        for place in np.flatnonzero(wrong).tolist():
            self.add_at(kind, part, place, words(place))

    def run(self):
        self.check_categories()
        self.check_images()
        self.check_links()
        used = (self.owner['annotations'] >= 0) & self.counts
        records, sizes = self.content['annotations'], np.vstack([self.sizes, [np.nan] * 2])[self.image]
        if not self.use.tested:
            used &= np.array([not records[row].get('ignore') for row in self.rows['annotations'].tolist()], bool)
        self.check_masks(self.check_boxes(used, sizes), sizes)
        return self.summary()

    def check_categories(self):
        """Find ids and names of categories that occur more than once; the config may ignore them."""
        columns = self.columns['categories']
        ids, names = Counter(columns['id']), Counter(columns['name'])
        pairs = list(zip(columns['id'], columns['name'], strict=True))
        with_wanted = {id for id, name in pairs if name in self.wanted}
        for place, (id, name) in enumerate(pairs):
            if ids[id] > 1 and id in with_wanted:
                self.add_at('category-id-twice', 'categories', place, repr(name))
            if names[name] > 1 and name in self.wanted:
                self.add_at('category-name-twice', 'categories', place, repr(name))

    def check_images(self):
        """Find ids and files of images that occur more than once, and invalid sizes."""
        images, sizes = self.columns['images'], self.sizes
        files = images['file_name']
        # the same image twice: the first is kept
        again = repeated(list(zip(images['id'], files, images['width'], images['height'], strict=True)))
        ids = Counter(id for id, doubled in zip(images['id'], again, strict=True) if not doubled)
        twice = np.array([ids[id] > 1 for id in images['id']], bool)  # it is unknown which one the annotations mean
        for kind, wrong in (('image-twice', again & ~twice), ('image-id-twice', twice),
                            ('file-name-twice', repeated(files) & ~again & ~twice)):
            self.add_where(kind, 'images', wrong, lambda i: repr(files[i]))
        self.add_where('image-dimensions', 'images', ~self.usable, lambda i: f'{sizes[i, 0]:g} x {sizes[i, 1]:g}')

    def check_links(self):
        """Find annotations of images and categories that are not there, and ids that cannot be used."""
        columns = self.columns['annotations']
        self.add_where('orphan', 'annotations', self.image < 0, lambda i: shown(columns['image_id'][i]))
        self.add_where('unknown-category', 'annotations', self.category < 0, lambda i: shown(columns['category_id'][i]))
        self.add_where('annotation-id-twice', 'annotations', repeated(columns['id']))
        if self.use.tested:
            self.add_where('annotation-id-0', 'annotations', [id in (0, '0') for id in columns['id']])

    def check_boxes(self, used, sizes):
        """Find wrong boxes and areas of the annotations that are used.

        Returns:
            Which annotations have a mask that is read: mmdet drops those without a box, a metric reads all.
        """
        boxes, area = self.columns['annotations']['bbox'], self.columns['annotations']['area']
        for kind, wrong in (('area-not-finite', ~np.isfinite(area)), ('area-empty', np.isfinite(area) & (area <= 0))):
            self.add_where(kind, 'annotations', used & wrong, lambda i: f'{area[i]:g}')
        low, extent, finite = boxes[:, :2], boxes[:, 2:], np.isfinite(boxes).all(1)
        with np.errstate(invalid='ignore'):
            high = low + extent
            meets = (np.minimum(high, sizes) - np.maximum(low, 0) > 0).all(1)  # the rule of mmdet
            faults = {  # the first counts
                'box-infinite': ~finite & meets,
                'box-not-finite': ~finite,
                'box-negative': (extent < 0).any(1),
                'box-empty': (extent < 1).any(1),
                'box-outside': ~meets,
                'box-absurd': (np.abs(boxes) > FAR * sizes.max(1, keepdims=True)).any(1),
                'box-sticks-out': ((low < -_ROUNDING) | (high > sizes + _ROUNDING)).any(1)}
        first = np.select(list(faults.values()), range(len(faults)), -1)
        for number, kind in enumerate(faults):
            self.add_where(kind, 'annotations', used & (first == number), lambda i, number=number: (
                f'[{", ".join(f"{side:g}" for side in boxes[i])}]'
                + (f' in an image of {sizes[i, 0]:g} x {sizes[i, 1]:g}' if number > 1 else '')))
        if self.use.evaluated or not self.use.masks:
            return used & self.use.evaluated
        return used & meets & (extent >= 1).all(1) & ~(area <= 0)

    def check_masks(self, read, sizes):
        """Find wrong masks of the annotations whose masks are read."""
        self.with_mask, places = read.copy(), np.flatnonzero(read)  # a wrong one is not drawn
        rows = self.rows['annotations'][places].tolist()
        segmentations = [self.content['annotations'][row].get('segmentation') for row in rows]
        for index, kind, value in check_masks(segmentations, sizes[places]):
            self.with_mask[places[index]] = False
            if self.use.evaluated and kind == 'mask-no-counts':  # mmdet drops the object, the metric does not
                kind = 'mask-malformed'
            if self.use.evaluated or kind != 'polygon-first':
                self.add_at(kind, 'annotations', places[index], value)

    def summary(self):
        """Return the result of `check_coco`."""
        images, categories = self.columns['images'], self.columns['categories']
        image, category = self.image, self.category
        known, number = (image >= 0) & (category >= 0), max(len(images['id']), 1)
        learned = np.zeros(number, bool)
        learned[image[known & self.counts]] = True
        pairs = np.unique(category[known] * number + image[known])
        per_class = [np.bincount(places, minlength=len(categories['id'])).tolist()
                     for places in (pairs // number, category[known])]
        lists = [images['id'], images['file_name'], *self.sizes.T.tolist(), learned[:len(images['id'])].tolist()]
        entries = zip(self.rows['images'].tolist(), *lists, strict=True)
        with_objects = np.unique(image[image >= 0])
        return dict(
            findings=self.findings,
            images=[list(entry) for entry, usable in zip(entries, self.usable, strict=True) if usable],
            categories=[list(entry) for entry in zip(self.rows['categories'].tolist(), categories['id'],
                                                     categories['name'], *per_class, strict=True)],
            counts={'images': len(self.content['images']),
                    'images without annotations': len(images['id']) - len(with_objects),
                    'annotations': len(self.content['annotations']), 'categories': len(self.content['categories'])},
            samples=self.samples())

    def samples(self):
        """Return some images with their annotations, those with findings first."""
        image, rows, boxes = self.owner['annotations'], self.rows['annotations'], self.columns['annotations']['bbox']
        wrong = [finding for _, finding in self.of_image if finding.part == 'annotations']
        marked = np.isin(rows, [finding.row for finding in wrong])
        faulty = np.isin(rows, [finding.row for finding in wrong if finding.severity == ERROR])
        good = np.setdiff1d(image[(image >= 0) & ~faulty], image[faulty])
        chosen = choose_samples(self.of_image, good.tolist())
        annotations = {place: [] for place in chosen}
        with np.errstate(invalid='ignore'):
            drawable = (np.abs(boxes) < _DRAWN).all(1) & (boxes[:, 2:] >= 0).all(1)
        for place in np.flatnonzero(np.isin(image, list(chosen)) & drawable).tolist():
            record = self.content['annotations'][rows[place]]
            annotations[int(image[place])].append(dict(
                category_id=record['category_id'], bbox=record['bbox'], marked=bool(marked[place]),
                segmentation=record.get('segmentation') if self.with_mask[place] and not faulty[place] else None))
        return [dict(file=self.columns['images']['file_name'][place], annotations=annotations[place],
                     captions=captions) for place, captions in chosen.items()]
