"""Measure the objects of a detection data set: sizes and shapes, how many there are, and their classes."""
from dataclasses import dataclass, field, replace

import numpy as np

from ..._utils.files import stamp_of
from ..._utils.text import counted
from ...data.check.agreement import wanted_classes
from ...data.check.coco_file import columns_of, places_of, read_coco, without_garbage_collection
from ...data.datasets import LOADERS, datasets
from ...data.files import recall, remember

#: Boxes whose sizes and shapes are examined: more would not show more.
_SAMPLE = 20_000


@dataclass(frozen=True)
class Objects:
    """The objects that a detector is trained on: no crowds, and none that mmdet ignores.

    Attributes:
        images: Numbers (n, 3): width and height in pixels, and how many images have that size.
        per_image: Numbers (n, 2): a number of objects from 1 up, and how many images have that number.
        boxes: An evenly spaced sample (n, 4): width and height of the image, then of the box, in pixels.
        classes: By name, the number of objects, and the number of images that have one.
        too_small: The number of images that the ``min_size`` of ``filter_cfg`` removes.
        empty: The number of images that its ``filter_empty_gt`` removes.
    """
    images: np.ndarray
    per_image: np.ndarray
    boxes: np.ndarray
    classes: dict = field(default_factory=dict)
    too_small: int = 0
    empty: int = 0

    @property
    def count(self) -> int:
        """The number of images that are used."""
        return int(self.images[:, 2].sum()) - self.empty

    @property
    def total(self) -> int:
        """The number of objects."""
        return int(self.per_image.prod(1).sum())

    @property
    def in_words(self) -> str:
        """How much there is."""
        return f'{counted(self.total, "objects")} in {counted(self.count, "images")}'

    @property
    def examples(self) -> dict:
        """By name, of how many objects a class is learnt."""
        return {name: objects for name, (objects, _) in self.classes.items()}

    def most(self, percent: float) -> int:
        """Return the largest number of objects per image in this percentage of the images that have objects."""
        return int(np.percentile(np.repeat(*self.per_image.T), percent, method='inverted_cdf'))


def measure_objects(cfg, loader: str = LOADERS[0]):
    """Measure the objects of a loader's COCO files; the result is cached until a file changes.

    Returns:
        `Objects`; None if the data is of another kind, not on a local disk, or has no objects.
    """
    found = []
    for dataset in datasets(cfg, [loader]):
        if dataset.reader != 'CocoDataset' or dataset.is_elsewhere:
            return None
        measured = _measure_file(dataset, bool(cfg.get('classes_from_data')))
        if measured is None:
            return None
        found.append(measured)
    found = _joined(found) if found else None
    return found if found is not None and len(found.boxes) else None


def _joined(parts):
    if len(parts) == 1:
        return parts[0]
    classes = {name: [sum(part.classes.get(name, (0, 0))[i] for part in parts) for i in (0, 1)]
               for name in dict.fromkeys(name for part in parts for name in part.classes)}
    arrays = {name: np.concatenate([getattr(part, name) for part in parts])
              for name in ('images', 'per_image', 'boxes')}
    return Objects(**arrays, classes=classes, too_small=sum(part.too_small for part in parts),
                   empty=sum(part.empty for part in parts))


def _measure_file(dataset, from_data):
    path = dataset.ann_file
    wanted = wanted_classes(dataset, from_data)
    kind = f'objects {wanted!r}'
    try:
        stamp = stamp_of(path)
    except OSError:
        return None
    known = recall(kind, path)
    if known and known['stamp'] == stamp:
        content = known['content']
    else:
        with without_garbage_collection():
            content = _measure(path, wanted)
        remember(kind, path, dict(stamp=stamp, content=content))
    if content is None:
        return None
    arrays = {name: np.array(content[name], float if name == 'boxes' else int).reshape(-1, columns)
              for name, columns in (('images', 3), ('per_image', 2), ('boxes', 4))}
    return _without_small(Objects(**arrays, classes=content['classes']), dataset)


def _without_small(objects, dataset):
    """Remove the images that are filtered by size; their objects still count in the other numbers."""
    rules = {} if dataset.get('test_mode') else dataset.get('filter_cfg') or {}
    small = objects.images[:, :2].min(1, initial=2**31) < rules.get('min_size', 0)
    kept = objects.boxes[:, :2].min(1, initial=2**31) >= rules.get('min_size', 0)
    images, too_small = objects.images[~small], int(objects.images[small, 2].sum())
    # those that are small have objects, as far as is known
    count = int(images[:, 2].sum())
    empty = min(max(count + too_small - int(objects.per_image[:, 1].sum()), 0), count - 1)
    return replace(objects, images=images, boxes=objects.boxes[kept], too_small=too_small,
                   empty=empty if rules.get('filter_empty_gt') and len(objects.boxes) else 0)


def _measure(path, wanted):
    """Return the values of `Objects` for a file, as JSON values; None if it is no COCO file."""
    content, fault = read_coco(path)
    if fault:
        return None
    rows, images, _ = columns_of(content['images'], dict(id='id', width='number', height='number'))
    _, categories, _ = columns_of(content['categories'], dict(id='id', name='text'))
    rows, columns, _ = columns_of(content['annotations'], dict(image_id='id', category_id='id', bbox='box',
                                                               area='number'))
    names = categories['name']
    image, category = places_of(images['id'], columns['image_id']), places_of(categories['id'], columns['category_id'])
    records = content['annotations']
    marked = np.array([bool(records[row].get('iscrowd') or records[row].get('ignore')) for row in rows.tolist()], bool)
    chosen = np.array([*(wanted is None or name in wanted for name in names), False], bool)
    sizes = np.stack([images['width'], images['height']], 1)
    boxes = columns['bbox']
    with np.errstate(invalid='ignore'):
        used = (image >= 0) & chosen[category] & ~marked & (columns['area'] > 0) & (boxes[:, 2:] >= 1).all(1)
        used &= np.isfinite(boxes).all(1) & (sizes[image] > 0).all(1) if len(sizes) else False
    image, category, boxes = image[used], category[used], boxes[used]
    some = np.unique(np.linspace(0, len(boxes) - 1, min(len(boxes), _SAMPLE)).astype(int)) if len(boxes) else []
    objects = np.bincount(category, minlength=len(names))
    pairs = np.unique(category * max(len(sizes), 1) + image) // max(len(sizes), 1)
    with_one = np.bincount(pairs, minlength=len(names))
    counts = np.bincount(image)
    return dict(
        images=_counted(sizes), per_image=_counted(counts[counts > 0, None]),
        boxes=np.concatenate([sizes[image[some]], boxes[some, 2:]], 1).tolist() if len(boxes) else [],
        classes={name: [int(objects[place]), int(with_one[place])] for place, name in enumerate(names)
                 if chosen[place]})


def _counted(rows):
    """Return the unique rows (n, k) of numbers as lists, each with its count."""
    values, counts = np.unique(rows.astype(int), axis=0, return_counts=True)
    return np.concatenate([values, counts[:, None]], 1).tolist()
