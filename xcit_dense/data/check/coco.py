"""The checks of a COCO annotation file: all that can be told without its images."""
import gc
from collections import Counter
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import numpy as np

from ...text import shown
from ..files import read_json
from .findings import ERROR, Finding, choose_samples
from .masks import FAR, check_masks
from .records import columns_of

PARTS = dict(
    images=dict(id='id', file_name='text', width='number', height='number'),
    categories=dict(id='id', name='text'),
    annotations=dict(id='id', image_id='id', category_id='id', bbox='box', area='number'),
)
#: Boxes that stick out by less are rounded coordinates.
_ROUNDING = 1.
#: Boxes with faults are drawn where no number is larger.
_DRAWN = 1e5


def check_coco(path, with_mask: bool, tested: bool) -> dict:
    """Check an annotation file without its images.

    Args:
        path: The file.
        with_mask: Whether the masks are used too.
        tested: Whether a model is tested with it; pycocotools then reads what training leaves out.

    Returns:
        ``findings``; ``images``, a list of place, id, file name, width and height of those that can be used;
        ``categories``, a list of place, id, name, number of images and of annotations; ``counts``; ``samples``, some
        images with their annotations and captions. JSON can hold all of it.
    """
    with _without_garbage_collection():
        return _check(path, with_mask, tested)  # which lets go of the content before the search is on again


def _check(path, with_mask, tested):
    content, fault = read_coco(path)
    if fault:
        kind = 'not-coco' if Path(path).exists() else 'not-there'
        return dict(findings=[Finding(kind, str(path), value=fault)], images=[], categories=[], counts={}, samples=[])
    return _Check(path, content).run(with_mask, tested)


def read_coco(path):
    """Return the content of an annotation file, and what keeps it from being one or None."""
    try:
        content = read_json(path)
    except (OSError, RecursionError) as error:
        return None, f'it cannot be read: {error}'
    except ValueError as error:
        return None, f'it is no JSON: {error}'
    if not isinstance(content, dict):
        return None, f'it must be an object, not {shown(content)}'
    for part in PARTS:
        if not isinstance(content.get(part), list):
            return None, f'it has no list {part!r}'
        if not content[part] and part != 'annotations':
            return None, f'its list {part!r} is empty'
    return content, None


@contextmanager
def _without_garbage_collection():
    """Spare Python the search for cycles, of which JSON has none, among millions of new objects."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Check:

    def __init__(self, path, content):
        self.path = str(path)
        self.content = content
        self.findings = []
        self.rows, self.columns = {}, {}
        for part, fields in PARTS.items():
            self.rows[part], self.columns[part], faults = columns_of(content[part], fields)
            for row, fault in faults:
                record = content[part][row]
                self.add('bad-record', part, row, record.get('id') if isinstance(record, dict) else None, fault)

    def add(self, kind, part, row, id, value=''):
        id = id if isinstance(id, (int, str)) else None
        self.findings.append(Finding(kind, self.path, part, int(row), id, value))

    def add_where(self, kind, part, wrong, values):
        """Add a finding for every record of a part where ``wrong`` is true; ``values`` gives the words of one."""
        for place in np.flatnonzero(wrong).tolist():
            self.add(kind, part, self.rows[part][place], self.columns[part]['id'][place], values(place))

    def run(self, with_mask, tested):
        self.check_names()
        self.check_images()
        annotations = self.columns['annotations']
        image = _places(self.columns['images']['id'], annotations['image_id'])
        category = _places(self.columns['categories']['id'], annotations['category_id'])
        self.add_where('orphan', 'annotations', image < 0, lambda i: shown(annotations['image_id'][i]))
        self.add_where('unknown-category', 'annotations', category < 0, lambda i: shown(annotations['category_id'][i]))
        self.add_where('annotation-id-twice', 'annotations', _repeated(annotations['id']), lambda i: '')
        images = self.columns['images']
        sizes = np.stack([images['width'], images['height']], 1)
        known = image >= 0
        known[known] = self.usable[image[known]]
        self.check_boxes(np.flatnonzero(known), sizes[image[known]])
        if with_mask:
            self.check_masks(np.flatnonzero(known), sizes[image[known]], tested)
        return self.summary(image, category, with_mask)

    def check_names(self):
        """Find category ids and names, image ids and files that are there more than once."""
        categories, images = self.columns['categories'], self.columns['images']
        ids, names = Counter(categories['id']), Counter(categories['name'])
        for row, id, name in zip(self.rows['categories'], categories['id'], categories['name'], strict=True):
            if ids[id] > 1:
                self.add('category-id-twice', 'categories', row, id, repr(name))
            if names[name] > 1:
                self.add('category-name-twice', 'categories', row, id, repr(name))
        files = images['file_name']
        again = _repeated(list(zip(images['id'], files, strict=True)))  # the same image twice: the first can stay
        ids = Counter(id for id, doubled in zip(images['id'], again, strict=True) if not doubled)
        twice = np.array([ids[id] > 1 for id in images['id']], bool)  # which of them the annotations mean is unknown
        self.add_where('image-id-twice', 'images', again | twice, lambda i: repr(files[i]))
        self.add_where('file-name-twice', 'images', _repeated(files) & ~again & ~twice, lambda i: repr(files[i]))

    def check_images(self):
        """Find sizes that are none."""
        images = self.columns['images']
        sizes = np.stack([images['width'], images['height']], 1)
        with np.errstate(invalid='ignore'):
            self.usable = (np.isfinite(sizes) & (sizes > 0) & (sizes == np.floor(sizes))).all(1)
        self.add_where('image-dimensions', 'images', ~self.usable, lambda i: f'{sizes[i, 0]:g} x {sizes[i, 1]:g}')

    def check_boxes(self, places, sizes):
        """Find boxes and areas of the annotations at ``places``, of which the sizes of the images are known."""
        boxes = self.columns['annotations']['bbox']
        area = self.columns['annotations']['area']
        finite = np.isfinite(boxes).all(1)
        self.add_where('box-not-finite', 'annotations', ~finite, lambda i: _words(boxes[i]))
        self.add_where('area-not-finite', 'annotations', ~np.isfinite(area), lambda i: f'{area[i]:g}')
        self.add_where('area-empty', 'annotations', np.isfinite(area) & (area <= 0), lambda i: f'{area[i]:g}')
        places, sizes = places[finite[places]], sizes[finite[places]]
        low, extent = boxes[places, :2], boxes[places, 2:]
        absurd = (np.abs(boxes[places]) > FAR * sizes.max(1, keepdims=True)).any(1)
        negative = ~absurd & (extent < 0).any(1)
        empty = ~absurd & ~negative & (extent < 1).any(1)
        outside = ~absurd & ~negative & ((low >= sizes) | (low + extent <= 0)).any(1)
        rounded = (low >= -_ROUNDING) & (low + extent <= sizes + _ROUNDING)
        for kind, wrong in (('box-absurd', absurd), ('box-negative', negative), ('box-empty', empty),
                            ('box-outside', outside & ~empty),
                            ('box-sticks-out', ~rounded.all(1) & ~absurd & ~negative & ~empty & ~outside)):
            for place, (width, height) in zip(places[wrong].tolist(), sizes[wrong], strict=True):
                self.add(kind, 'annotations', self.rows['annotations'][place],
                         self.columns['annotations']['id'][place],
                         f'{_words(boxes[place])} in an image of {width:g} x {height:g}')

    def check_masks(self, places, sizes, tested):
        """Find masks of the annotations at ``places``, of which the sizes of the images are known."""
        records, rows = self.content['annotations'], self.rows['annotations'][places]
        segmentations = [records[row].get('segmentation') for row in rows.tolist()]
        seen = set()
        for index, kind, value in check_masks(segmentations, sizes[:, 0], sizes[:, 1]):
            if (index, kind) not in seen and (tested or kind != 'polygon-first'):
                seen.add((index, kind))
                self.add(kind, 'annotations', rows[index], self.columns['annotations']['id'][places[index]], value)

    def summary(self, image, category, with_mask):
        """Return what `check_coco` does. ``image`` and ``category`` are the places of those of each annotation."""
        images, categories = self.columns['images'], self.columns['categories']
        known = (image >= 0) & (category >= 0)
        pairs = np.unique(category[known] * len(images['id']) + image[known])
        per_class = [np.bincount(places, minlength=len(categories['id'])).tolist()
                     for places in (pairs // max(len(images['id']), 1), category[known])]
        with_objects = np.unique(image[image >= 0])
        return dict(
            findings=self.findings,
            images=[[row, *image] for row, *image, usable in zip(
                self.rows['images'].tolist(), images['id'], images['file_name'], images['width'].tolist(),
                images['height'].tolist(), self.usable.tolist(), strict=True) if usable],
            categories=[list(entry) for entry in zip(self.rows['categories'].tolist(), categories['id'],
                                                     categories['name'], *per_class, strict=True)],
            counts={'images': len(self.content['images']),
                    'images without annotations': len(images['id']) - len(with_objects),
                    'annotations': len(self.content['annotations']), 'categories': len(self.content['categories'])},
            samples=self.samples(image, with_mask))

    def samples(self, image, with_mask):
        """Return some images with their annotations, first those that have findings."""
        known = image >= 0  # annotations of images whose size is none are not looked at, nor are those images
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
            drawable = known & (~faulty | (np.abs(boxes) < _DRAWN).all(1) & (boxes[:, 2:] >= 0).all(1))
        for place in np.flatnonzero(np.isin(image, list(chosen)) & drawable).tolist():
            record = self.content['annotations'][rows[place]]
            annotations[int(image[place])].append(dict(
                category_id=record['category_id'], bbox=record['bbox'], marked=bool(marked[place]),
                segmentation=record.get('segmentation') if with_mask and not faulty[place] else None))
        return [dict(file=self.columns['images']['file_name'][place], annotations=annotations[place],
                     captions=captions) for place, captions in chosen.items()]


def _places(ids, wanted):
    """Return the place of each wanted id among the ids, the last where several are the same, -1 where there is none."""
    index = {id: place for place, id in enumerate(ids)}
    return np.fromiter(map(index.get, wanted, repeat(-1)), np.int64, len(wanted))


def _repeated(ids):
    """Return for each id whether it was there before."""
    seen = set()
    if len(set(ids)) == len(ids):
        return np.zeros(len(ids), bool)
    return np.array([id in seen or seen.add(id) is not None for id in ids], bool)


def _words(numbers):
    return '[' + ', '.join(f'{number:g}' for number in numbers) + ']'
