"""Sizes in the data and in the config: of the objects to detect, of resized images, tokens and anchors."""
import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..._utils.text import counted, type_name
from ...archs import get_arch
from ...data.check.agreement import wanted_classes
from ...data.check.coco_file import read_coco
from ...data.datasets import LOADERS, datasets, only_dataset
from ...data.files import cached

#: Below this IoU an anchor does not learn a box well, whatever the assigner allows.
NO_ANCHOR = 0.3
#: The share of the boxes of a class that may have no anchor, or no point.
LOST = 0.15
#: A class with fewer objects (or images that have it) is hard to learn.
RARE = 10
#: The share of the objects (or of the images with label maps) and the number from which on a class decides by itself.
_COUNTS, _STRAY = 0.01, 3
#: Enlarging images by more adds no detail; the largest factors by which the number of pixels of an image and of a step,
#: and so memory and time, may grow; and a smaller factor would change little.
_MOST_ENLARGED, _MORE_PIXELS, _MORE_IN_STEP, _LEAST_FACTOR = 1.5, 7, 2, 1.15
#: What else helps where tokens are larger than eight pixels.
FINER = '; use a backbone with patch 8 (p8): four times the tokens'
#: The smallest batch that fitting chooses.
LEAST_BATCH = 2
#: Boxes whose sizes and shapes are examined: more would not show more.
_SAMPLE = 20_000


@dataclass(frozen=True)
class Objects:
    """The objects that a detector is trained on: no crowds, and none that mmdet ignores.

    Attributes:
        images: Numbers (n, 3): width and height in pixels, and how many images have that size.
        per_image: Numbers (n, 2): a number of objects from 1 up, and how many images have that number.
        boxes: A random sample (n, 4), the same each time: width and height of the image, then of the box, in pixels.
        labels: The classes (n, ) of the boxes, by their place in ``classes``.
        classes: By name, the number of objects, and the number of images that have one, or a crowd.
        rarest: By name, the number of images of which it is the rarest class; other classes may be missing.
        most_beside: How many objects 99% of the images have at most; or, if they are more, 90% of those with a class
            that has enough objects to decide.
        too_small: The number of images that the ``min_size`` of ``filter_cfg`` removes.
        empty: The number of images that its ``filter_empty_gt`` removes.
    """
    images: np.ndarray
    per_image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    classes: dict
    rarest: dict
    most_beside: int
    too_small: int
    empty: int

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

    @cached_property
    def of_classes(self) -> dict:
        """Which of the boxes (n, ) are of a class, for each with enough objects to decide, by words that follow
        ``boxes``. Those of the others are one more, if they have enough together; all of them are ``''``, if there is
        one class, or if all are small."""
        parts, others, left = {}, np.ones(len(self.labels), bool), self.total
        for place, (name, (count, _)) in enumerate(self.classes.items()):
            which = self.labels == place
            if len(self.classes) > 1 and which.any() and decides(count, self.total):
                parts[f' of the class {name!r}'], others, left = which, others & ~which, left - count
        if others.any() and (not parts or decides(left, self.total)):
            parts[' of the other classes' if parts else ''] = others
        return parts

    def ranked(self, values, of=np.median) -> list:
        """Return the classes, as in `of_classes`, each with the median of its boxes' ``values`` (n, ), or with another
        function ``of`` them; the least first."""
        found = [(words, of(values[which])) for words, which in self.of_classes.items()]
        return sorted(found, key=lambda pair: pair[1])

    def resized(self, step) -> np.ndarray:
        """Return widths and heights of the boxes (n, 2) after a step of `resize_of`."""
        return self.boxes[:, 2:] * zooms(step, self.boxes[:, :2])

    def repeated(self, share: float) -> int:
        """Return how many images an epoch has, if mmengine's ``ClassBalancedDataset`` has this ``oversample_thr``."""
        return self.count + sum((math.ceil(math.sqrt(share / (self.classes[name][1] / self.count))) - 1) * images
                                for name, images in self.rarest.items())

    def most(self, percent: float) -> int:
        """Return the largest number of objects per image in this percentage of the images that have objects."""
        return int(np.percentile(np.repeat(*self.per_image.T), percent, method='inverted_cdf'))


def measure_objects(cfg):
    """Measure the training's COCO file as `Objects`, which are cached until it changes; None if the data is several
    data sets, of another kind, not on a local disk, or has no objects."""
    dataset = only_dataset(cfg, LOADERS[0], ('CocoDataset', ))
    if dataset is None:
        return None
    path, wanted = dataset.ann_file, wanted_classes(dataset, bool(cfg.get('classes_from_data')))
    rules = {} if dataset.get('test_mode') else dict(dataset.get('filter_cfg') or {})
    try:
        content = cached(f'objects {wanted!r} {rules!r}', path, lambda: _measure(path, wanted, rules))
        if not content or not content['boxes']:
            return None
        arrays = {name: np.array(content[name], float if name == 'boxes' else int).reshape(shape)
                  for name, shape in (('images', (-1, 3)), ('per_image', (-1, 2)), ('boxes', (-1, 4)), ('labels', -1))}
    except (KeyError, TypeError, ValueError):  # fields that the check of the data reports
        return None
    return Objects(**{**content, **arrays})


def _measure(path, wanted, rules):
    """Return the values of `Objects` for a file and a ``filter_cfg``, as JSON values; None if it is no COCO file."""
    content, fault = read_coco(path)
    if fault:
        return None
    sizes = {image['id']: (image['width'], image['height']) for image in content['images']
             if min(image['width'], image['height']) >= rules.get('min_size', 0)}
    names = {category['id']: category['name'] for category in content['categories']
             if wanted is None or category['name'] in wanted}
    records = [(record['image_id'], names[record['category_id']], record) for record in content['annotations']
               if record['image_id'] in sizes and record['category_id'] in names]
    kept = [(image, name, record) for image, name, record in records if _is_kept(record, *sizes[image])]
    objects = [(image, name, record['bbox'][2:]) for image, name, record in kept if not record.get('iscrowd')]
    some = np.sort(np.random.default_rng(0).permutation(len(objects))[:_SAMPLE]).tolist()  # no class is left out
    per_image = Counter(image for image, *_ in objects)
    amounts = Counter(name for _, name, _ in objects)
    beside, pairs = {name: [] for name in names.values()}, {(image, name) for image, name, _ in kept}
    for image, name in pairs:
        beside[name].append(per_image[image])
    rarest = dict(sorted(pairs, key=lambda pair: -len(beside[pair[1]])))  # by image
    large = [counts for name, counts in beside.items() if decides(amounts[name], len(objects))]
    places = {name: place for place, name in enumerate(beside)}
    return dict(
        images=[[*size, count] for size, count in sorted(Counter(sizes.values()).items())],
        per_image=sorted(Counter(per_image.values()).items()),
        boxes=[[*sizes[image], *box] for image, _, box in map(objects.__getitem__, some)],
        labels=[places[name] for _, name, _ in map(objects.__getitem__, some)],
        classes={name: [amounts[name], len(counts)] for name, counts in beside.items()},
        rarest=Counter(rarest.values()),
        most_beside=max((int(np.percentile(counts, share, method='inverted_cdf')) for share, counts in (
            (99, [*per_image.values()]), *((90, counts) for counts in large)) if counts), default=0),
        too_small=len(content['images']) - len(sizes),
        empty=len(sizes) - len({image for image, *_ in records}) if rules.get('filter_empty_gt') else 0)


def _is_kept(record, width, height):
    """Whether mmdet keeps an object, or a crowd, of an image."""
    x, y, w, h = record['bbox']
    return (not record.get('ignore') and record['area'] > 0 and min(w, h) >= 1
            and min(x + w, width) > max(x, 0) and min(y + h, height) > max(y, 0))


class Anchors(NamedTuple):
    """The anchors of a detector.

    Attributes:
        key: The place of their generator in the config.
        shapes: Widths and heights (n, 2) in pixels, of all levels.
        positive: The IoU with a box from which an anchor learns it.
        least: The IoU below which a box has no anchor at all.
    """
    key: str
    generator: dict
    shapes: np.ndarray
    positive: float
    least: float


def resize_of(cfg):
    """Return the config of the step that resizes the images of the validation or, without one, of the training; an
    empty dict if images keep their size, None if the step is of an unknown type."""
    tested = datasets(cfg, LOADERS[1:2]) or datasets(cfg, LOADERS[:1])
    steps = [(type_name(kind or step['type']), step) for kind, step in tested[0].steps] if tested else []
    name, step = next((pair for pair in steps if 'Resize' in pair[0]), ('', None))
    if step is None:
        return {}
    return step if name in ('Resize', 'FixScaleResize') and ('scale' in step or 'scale_factor' in step) else None


def zooms(step, sizes) -> np.ndarray:
    """Return by how much a step of `resize_of` enlarges images of some sizes (n, 2) in pixels, in width and height."""
    sizes = np.asarray(sizes, float)
    scale, factor = step.get('scale'), step.get('scale_factor')
    if scale is None:
        return np.broadcast_to(np.asarray(factor or 1., float), sizes.shape)
    scale = np.broadcast_to(np.asarray(scale, float), 2)
    if not step.get('keep_ratio', False):
        return scale / sizes
    return np.repeat(np.minimum(max(scale) / sizes.max(1), min(scale) / sizes.min(1))[:, None], 2, 1)


def mean_zoom(step, measured) -> float:
    """Return by how much the images of the data are enlarged on average."""
    return np.average(zooms(step, measured.images[:, :2]).mean(1), weights=measured.images[:, 2])


def patch_of(cfg):
    """Return the side of a token in pixels; None if the backbone is not from this package."""
    backbone = (cfg.get('model') or {}).get('backbone') or {}
    with suppress(ValueError):
        return get_arch(backbone.get('arch')).patch_size if type_name(backbone.get('type')) == 'XCiT' else None


def anchors_of(cfg):
    """Return the `Anchors` of a detector whose boxes are assigned by their IoU, None for any other."""
    from mmdet.registry import TASK_UTILS  # only where there is a detector
    model = cfg.get('model') or {}
    key = next((key for key in ('rpn_head', 'bbox_head') if isinstance(model.get(key), dict)
                and model[key].get('anchor_generator')), None)
    rules = model.get('train_cfg') or {}
    rules = (rules.get('rpn') if key == 'rpn_head' else rules) or {}
    assigner = rules.get('assigner') or {}
    if key is None or type_name(assigner.get('type')) != 'MaxIoUAssigner':
        return None
    generator = model[key]['anchor_generator']
    try:
        built = TASK_UTILS.build(dict(generator))
        corners = np.concatenate([level.cpu().numpy() for level in built.base_anchors])
    except Exception:  # a user-defined one may do anything, and the anchors are only reported
        return None
    weak = assigner.get('match_low_quality', True)
    return Anchors(f'model.{key}.anchor_generator', generator, corners[:, 2:] - corners[:, :2],
                   assigner['pos_iou_thr'], assigner.get('min_pos_iou', 0.) if weak else assigner['pos_iou_thr'])


def best_ious(boxes, shapes, apart=0.) -> np.ndarray:
    """Return the largest IoU (n) of each box (n, 2) with any shape (m, 2), both widths and heights. Their centres are
    ``apart`` (m, 1) pixels in both axes."""
    boxes, shapes = np.asarray(boxes, float)[:, None], np.asarray(shapes, float)
    common = np.minimum(np.minimum(boxes, shapes), (boxes + shapes) / 2 - apart).clip(0).prod(2)
    return (common / (boxes.prod(2) + shapes.prod(1) - common)).max(1, initial=0)


def decides(count: int, total: int) -> bool:
    """Whether a class with so many of the objects, or in so many of the images, is enough to decide by itself."""
    return count >= max(_COUNTS * total, min(_STRAY, total))


def are_poor(best, least: float) -> bool:
    """Whether anchors do not fit boxes, by the boxes' `best_ious` and the IoU below which a box has no anchor."""
    return bool(np.median(best) < 0.55 or (best < max(least, NO_ANCHOR)).mean() > LOST)


def poor_classes(best, least: float, objects) -> list:
    """Return the classes whose boxes the anchors do not fit, see `are_poor`, as in `Objects.ranked`."""
    return [words for words, _ in objects.ranked(best) if are_poor(best[objects.of_classes[words]], least)]


def evenly(length: int, most: int) -> np.ndarray:
    """Return so many places of a sequence, evenly spaced; in a shorter one, some of them several times."""
    return np.linspace(0, length - 1, most).astype(int)


def rounded(value, unit):
    """Return a number rounded to a multiple of a unit, which is at least the unit."""
    return max(int(round(value / unit)), 1) * unit


def larger(step, measured, factor, otherwise: str):
    """Return advice to enlarge the images by a factor, or by as much as makes sense, or to do something else."""
    now = mean_zoom(step, measured)
    if now > _MOST_ENLARGED / 1.1:
        return f'images are enlarged {now:.2g} times, and larger images would show no more{otherwise}'
    longer = np.average(measured.images[:, :2].max(1), weights=measured.images[:, 2])
    return f'use --image-size {math.ceil(min(now * factor, _MOST_ENLARGED) * longer / 32) * 32}'


def bounded(cfg, step, measured, least, factor):
    """Return a factor that needs not too much memory with the least batch, and that invents no detail of images."""
    pixels = min(_MORE_PIXELS, _MORE_IN_STEP * (cfg.train_dataloader.get('batch_size') or least) / least)
    factor = min(factor, pixels ** 0.5, _MOST_ENLARGED / mean_zoom(step, measured))
    return factor if factor > _LEAST_FACTOR else 1.
