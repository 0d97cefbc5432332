"""The checks of a COCO annotation file that need no images."""
import gc
from collections import Counter
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import numpy as np

from ..._utils.text import shown
from .coco_file import FAR, PARTS, Use, check_masks, columns_of, read_coco
from .findings import ERROR, Finding
from .image_files import choose_samples

#: Boxes that extend beyond the image by less have rounded coordinates.
_ROUNDING = 1.
#: Wrong boxes are drawn if no number is larger than this.
_DRAWN = 1e5


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
    if fault:
        kind = 'not-coco' if Path(path).exists() else 'not-there'
        return dict(findings=[Finding(kind, str(path), value=fault)], images=[], categories=[], counts={}, samples=[])
    return _Check(path, content, use).run()


@contextmanager
def without_garbage_collection():
    """Turn off the search for reference cycles among millions of new objects: JSON has none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Check:

    def __init__(self, path, content, use):
        self.path, self.use = str(path), use
        self.content = content
        self.findings = []
        self.rows, self.columns = {}, {}
        for part, fields in PARTS.items():
            self.rows[part], self.columns[part], faults = columns_of(content[part], fields)
            for row, fault in faults:
                record = content[part][row]
                self.add('bad-record', part, row, record.get('id') if isinstance(record, dict) else None, fault)

    def add(self, kind, part, row, id, value=''):
        id = id if isinstance(id, (int, float, str)) else None
        self.findings.append(Finding(kind, self.path, part, int(row), id, value))

    def add_where(self, kind, part, wrong, values=lambda place: ''):
        """Add a finding for every record of a part where ``wrong`` is true; ``values`` returns its text."""
        self.add_at(kind, np.flatnonzero(wrong), values, part)

    def add_at(self, kind, places, values, part='annotations'):
        """Add a finding for each record at ``places``; ``values`` returns its text."""
        for place in places.tolist():
            self.add(kind, part, self.rows[part][place], self.columns[part]['id'][place], values(place))

    def run(self):
        self.check_names()
        self.check_images()
        annotations, images = self.columns['annotations'], self.columns['images']
        image = self.image = places_of(images['id'], annotations['image_id'])
        category = places_of(self.columns['categories']['id'], annotations['category_id'])
        self.add_where('orphan', 'annotations', image < 0, lambda i: shown(annotations['image_id'][i]))
        self.add_where('unknown-category', 'annotations', category < 0, lambda i: shown(annotations['category_id'][i]))
        self.add_where('annotation-id-twice', 'annotations', _repeated(annotations['id']))
        if self.use.tested:
            zero = np.array([id in (0, '0') for id in annotations['id']], bool)
            self.add_where('annotation-id-0', 'annotations', zero)
        used = self.used(image, category)
        places = np.flatnonzero(used)
        sizes = np.stack([images['width'], images['height']], 1)[image[places]]
        self.check_boxes(places, sizes)
        self.with_mask = np.zeros(len(image), bool)
        if self.use.evaluated:
            self.with_mask[places] = True
        elif self.use.masks:
            self.with_mask[places] = self.kept(places, sizes)
        read = self.with_mask[places]
        self.check_masks(places[read], sizes[read])
        return self.summary(image, category)

    def used(self, image, category):
        """Return which annotations the data set reads: those of used images and classes, without an ``ignore`` mark."""
        used = (image >= 0) & (category >= 0)
        used[used] = self.usable[image[used]]
        used &= self.wanted(category)
        if not self.use.tested:
            records = self.content['annotations']
            used &= np.array([not records[row].get('ignore') for row in self.rows['annotations'].tolist()], bool)
        return used

    def wanted(self, category):
        """Return which annotations have a class that the config wants, by the indices of their categories."""
        names = self.columns['categories']['name']
        wanted = set(names if self.use.classes is None else self.use.classes)
        return np.array([*(name in wanted for name in names), False], bool)[category]  # -1 is the last

    def kept(self, places, sizes):
        """Return which annotations at ``places`` become training objects: mmdet drops the others."""
        boxes, area = self.columns['annotations']['bbox'][places], self.columns['annotations']['area'][places]
        return _meets(boxes, sizes) & (boxes[:, 2:] >= 1).all(1) & ~(area <= 0)

    def check_names(self):
        """Find category ids and names, image ids and files that occur more than once."""
        categories, images = self.columns['categories'], self.columns['images']
        ids, names = Counter(categories['id']), Counter(categories['name'])
        wanted = set(categories['name'] if self.use.classes is None else self.use.classes)
        with_wanted = {id for id, name in zip(categories['id'], categories['name'], strict=True) if name in wanted}
        for row, id, name in zip(self.rows['categories'], categories['id'], categories['name'], strict=True):
            if ids[id] > 1 and id in with_wanted:
                self.add('category-id-twice', 'categories', row, id, repr(name))
            if names[name] > 1 and name in wanted:
                self.add('category-name-twice', 'categories', row, id, repr(name))
        files = images['file_name']
        # the same image twice: the first is kept
        again = _repeated(list(zip(images['id'], files, images['width'], images['height'], strict=True)))
        ids = Counter(id for id, doubled in zip(images['id'], again, strict=True) if not doubled)
        twice = np.array([ids[id] > 1 for id in images['id']], bool)  # it is unknown which one the annotations mean
        self.add_where('image-twice', 'images', again & ~twice, lambda i: repr(files[i]))
        self.add_where('image-id-twice', 'images', twice, lambda i: repr(files[i]))
        self.add_where('file-name-twice', 'images', _repeated(files) & ~again & ~twice, lambda i: repr(files[i]))

    def check_images(self):
        """Find invalid image sizes."""
        images = self.columns['images']
        sizes = np.stack([images['width'], images['height']], 1)
        with np.errstate(invalid='ignore'):
            self.usable = (np.isfinite(sizes) & (sizes > 0) & (sizes == np.floor(sizes))).all(1)
        self.add_where('image-dimensions', 'images', ~self.usable, lambda i: f'{sizes[i, 0]:g} x {sizes[i, 1]:g}')

    def check_boxes(self, places, sizes):
        """Find wrong boxes and areas of the annotations at ``places``; ``sizes`` are those of their images."""
        boxes, area = self.columns['annotations']['bbox'], self.columns['annotations']['area']
        self.add_at('area-not-finite', places[~np.isfinite(area[places])], lambda i: f'{area[i]:g}')
        self.add_at('area-empty', places[np.isfinite(area[places]) & (area[places] <= 0)], lambda i: f'{area[i]:g}')
        finite, meets = np.isfinite(boxes[places]).all(1), _meets(boxes[places], sizes)
        for kind, wrong in (('box-infinite', meets), ('box-not-finite', ~meets)):
            self.add_at(kind, places[~finite & wrong], lambda i: _words(boxes[i]))
        places, sizes, meets = places[finite], sizes[finite], meets[finite]
        low, extent = boxes[places, :2], boxes[places, 2:]
        negative = (extent < 0).any(1)
        empty = ~negative & (extent < 1).any(1)
        outside = ~negative & ~empty & ~meets
        inside = ~negative & ~empty & meets
        absurd = inside & (np.abs(boxes[places]) > FAR * sizes.max(1, keepdims=True)).any(1)
        rounded = ((low >= -_ROUNDING) & (low + extent <= sizes + _ROUNDING)).all(1)
        for kind, wrong in (('box-absurd', absurd), ('box-negative', negative), ('box-empty', empty),
                            ('box-outside', outside), ('box-sticks-out', inside & ~absurd & ~rounded)):
            self.add_at(kind, places[wrong], lambda i: f'{_words(boxes[i])} in an image of {self.size_of(i)}')

    def size_of(self, place):
        """Return the size of the image of an annotation as text."""
        image, images = self.image[place], self.columns['images']
        return f'{images["width"][image]:g} x {images["height"][image]:g}'

    def check_masks(self, places, sizes):
        """Find wrong masks of the annotations at ``places``; ``sizes`` are those of their images."""
        records, rows = self.content['annotations'], self.rows['annotations'][places]
        segmentations = [records[row].get('segmentation') for row in rows.tolist()]
        seen = set()
        for index, kind, value in check_masks(segmentations, sizes[:, 0], sizes[:, 1]):
            if kind == 'mask-malformed' and not self.use.evaluated and _is_left_out(segmentations[index]):
                kind = 'mask-no-counts'
            self.with_mask[places[index]] = False  # is not drawn
            if (index, kind) not in seen and (self.use.evaluated or kind != 'polygon-first'):
                seen.add((index, kind))
                self.add(kind, 'annotations', rows[index], self.columns['annotations']['id'][places[index]], value)

    def summary(self, image, category):
        """Return the result of `check_coco`; ``image`` and ``category`` are indices, one for each annotation."""
        images, categories = self.columns['images'], self.columns['categories']
        known = (image >= 0) & (category >= 0)
        learned = np.zeros(len(images['id']), bool)
        learned[image[known & self.wanted(category)]] = True
        pairs = np.unique(category[known] * len(images['id']) + image[known])
        per_class = [np.bincount(places, minlength=len(categories['id'])).tolist()
                     for places in (pairs // max(len(images['id']), 1), category[known])]
        with_objects = np.unique(image[image >= 0])
        return dict(
            findings=self.findings,
            images=[[row, *image] for row, *image, usable in zip(
                self.rows['images'].tolist(), images['id'], images['file_name'], images['width'].tolist(),
                images['height'].tolist(), learned.tolist(), self.usable.tolist(), strict=True) if usable],
            categories=[list(entry) for entry in zip(self.rows['categories'].tolist(), categories['id'],
                                                     categories['name'], *per_class, strict=True)],
            counts={'images': len(self.content['images']),
                    'images without annotations': len(images['id']) - len(with_objects),
                    'annotations': len(self.content['annotations']), 'categories': len(self.content['categories'])},
            samples=self.samples(image))

    def samples(self, image):
        """Return some images with their annotations, those with findings first."""
        known = image >= 0  # images with invalid sizes are not used, nor are their annotations
        known[known] = self.usable[image[known]]
        found = []
        for part, owners in (('images', np.where(self.usable, np.arange(len(self.usable)), -1)),
                             ('annotations', np.where(known, image, -1))):
            of_row = np.full(len(self.content[part]), -1)
            of_row[self.rows[part]] = owners
            found += [(int(of_row[f.row]), f) for f in self.findings if f.part == part and of_row[f.row] >= 0]
        rows = self.rows['annotations']
        wrong = [f for _, f in found if f.part == 'annotations']
        marked = np.isin(rows, [f.row for f in wrong])
        faulty = np.isin(rows, [f.row for f in wrong if f.severity == ERROR])
        good = np.setdiff1d(image[known & ~faulty], image[known & faulty])
        chosen = choose_samples(found, good.tolist())
        annotations = {place: [] for place in chosen}
        boxes = self.columns['annotations']['bbox']
        with np.errstate(invalid='ignore'):
            drawable = known & (np.abs(boxes) < _DRAWN).all(1) & (boxes[:, 2:] >= 0).all(1)
        for place in np.flatnonzero(np.isin(image, list(chosen)) & drawable).tolist():
            record = self.content['annotations'][rows[place]]
            annotations[int(image[place])].append(dict(
                category_id=record['category_id'], bbox=record['bbox'], marked=bool(marked[place]),
                segmentation=record.get('segmentation') if self.with_mask[place] and not faulty[place] else None))
        return [dict(file=self.columns['images']['file_name'][place], annotations=annotations[place],
                     captions=captions) for place, captions in chosen.items()]


def places_of(ids, wanted):
    """Return the index of each wanted id among the ids: the last if several are equal, -1 if there is none."""
    index = {id: place for place, id in enumerate(ids)}
    return np.fromiter(map(index.get, wanted, repeat(-1)), np.int64, len(wanted))


def _meets(boxes, sizes):
    """Return which boxes overlap their image, by the rule of mmdet; boxes with NaN do not."""
    with np.errstate(invalid='ignore'):
        low, high = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
        return (np.minimum(high, sizes) - np.maximum(low, 0) > 0).all(1)


def _is_left_out(segmentation):
    """Whether mmdet drops an object for its mask; other unknown masks stop the run."""
    return isinstance(segmentation, dict) and (segmentation.get('size') is None
                                               or not isinstance(segmentation.get('counts'), (list, str)))


def _repeated(ids):
    """Return for each id whether it occurred before."""
    seen = set()
    if len(set(ids)) == len(ids):
        return np.zeros(len(ids), bool)
    return np.array([id in seen or seen.add(id) is not None for id in ids], bool)


def _words(numbers):
    return '[' + ', '.join(f'{number:g}' for number in numbers) + ']'
