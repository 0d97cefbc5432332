"""The image size of a config: in the pipelines of its data, its preprocessor and its sliding window.

A box is the width and height that images are resized to fit into, in either orientation if their aspect ratio is kept.
Everything that is measured in pixels is scaled by the factor by which an image of 4:3 grows or shrinks. A classifier
has one side instead: that of its crops.
"""
import logging
import math

from mmengine.config import Config
from mmengine.logging import print_log

from .._utils.text import type_name
from ..data.datasets import LOADERS, datasets, dicts_in
from ..errors import ConfigError
from .check.top_level import option_for
from .own import own_files, own_keys
from .tasks import task_of
from .testing import find_resolution, is_side, square_side

#: Keys that hold one or more boxes, or a side for a classifier; and keys of crops and canvases, as height and width.
_BOXES, _CROPS = ('scale', 'scales', 'img_scale'), ('crop_size', 'random_size_range', 'stride', 'size')
#: Steps and keys that have such a name but hold no pixels.
_NO_PIXELS = ('RandomAffine.scale', 'SegRescale.scale', 'RandomErasing.scale')
_NOTHING = ('--image-size: no known step in the pipelines of this config resizes images. Set the sizes of your steps '
            'yourself, such as --cfg-options {}.dataset.pipeline.1.scale="(640,640)"')
#: From this ratio of long to short side on, the long side does not limit any usual image.
_ELONGATED = 2.5


def set_image_size(cfg: Config, size, loaders=LOADERS):
    """Resize images to fit into a box, and scale everything else that is measured in pixels.

    - Detection: images are resized to fit into the box; a range of scales keeps its ratio to it.
    - Segmentation: the same. If the box of the config limits only the shorter side, as ADE20k's 2048x512, that side
      gets the given size. Crops, the preprocessor and a sliding window are scaled too.
    - Classification: the size is that of the crop; the crop ratio of the test stays the same.
    - DINO: the size is that of the global views; the local ones keep their ratio to it, as multiples of 16 pixels.

    The size is a side in pixels, or width and height. The pipelines of ``loaders`` change, with the first also the
    preprocessor. `ConfigError` if the size is out of range, or the config does not show where images are resized.
    """
    box, task = _read_size(size), task_of(cfg)
    if task.has_square_images:
        if box[0] != box[1]:
            raise ConfigError(f'--image-size must be one side for this config, whose crops are square; got {box[0]} '
                              f'{box[1]}')
        if not (_set_views(cfg, box[0]) or _set_sides(cfg, box[0], loaders)):
            raise ConfigError(_NOTHING.format(loaders[-1]))
        return
    before, boxes = box_of(cfg), _boxes_of(cfg, LOADERS[0])
    if before is None:
        raise ConfigError(_NOTHING.format(loaders[-1]))
    long, short = max(before), min(before)
    is_elongated = box[0] == box[1] and long > _ELONGATED * short
    new = tuple(round(side * box[0] / short) for side in before) if is_elongated else box
    if new == before:
        return
    # training scales around that of the test keep their ratio to it; for others the largest takes its place
    extents = [_extent(pair) for pair in boxes]
    around = not extents or min(extents) <= _extent(before) <= max(extents)
    wide = task.framework == 'mmdet'
    trained = _View(before if around else max(boxes, key=_extent), new, width_first=wide)
    for loader in filter(cfg.get, loaders):
        view = trained if loader == LOADERS[0] else _View(before, new, width_first=wide)
        cfg[loader] = _in_pipelines(cfg[loader], view)
    if LOADERS[0] in loaders:
        if cfg.get('custom_hooks'):
            cfg.custom_hooks = _in_pipelines(cfg.custom_hooks, trained)
        for owner in (cfg, cfg.get('model') or {}):
            if isinstance(owner.get('data_preprocessor'), dict):
                owner['data_preprocessor'] = _converted(owner['data_preprocessor'], trained)
    test_cfg = (cfg.get('model') or {}).get('test_cfg')
    if isinstance(test_cfg, dict) and test_cfg.get('mode') == 'slide':
        cfg.model.test_cfg = _converted(test_cfg, trained)


def _read_size(size):
    sides = list(size) if isinstance(size, (list, tuple)) else [size]
    if len(sides) not in (1, 2) or not all(isinstance(side, int) and side >= 16 for side in sides):
        raise ConfigError('--image-size must be the side of a square, or width and height, of at least 16 pixels; got '
                          + ' '.join(map(str, sides)))
    return (sides[0], sides[-1])


def _set_views(cfg, size):
    """Set the sizes of the views in the training pipeline; return whether there are any."""
    found = [(type_name(step.get('type')), step) for step in dicts_in(cfg.get(LOADERS[0]))]
    if 'MultiView' in dict(found):
        raise ConfigError('--image-size: the views of MultiView have sizes of their own. Set them in the pipeline, or '
                          'use MultiCrop')
    steps = [step for kind, step in found if kind == 'MultiCrop']
    for step in steps:
        ratio = step.get('local_size', 96) / step.get('global_size', 224)
        step.update(global_size=size, local_size=max(round(size * ratio / 16), 1) * 16)
    return bool(steps)


def _set_sides(cfg, size, loaders):
    """Scale all sides of a classifier so that the crop of its test gets a new one; return whether it has one now."""
    before = next((side for name in reversed(LOADERS) for dataset in _datasets(cfg, name)
                   for side in [find_resolution(dataset)[0] or _last_side(dataset)] if side), None)
    for loader in filter(cfg.get, loaders) if before else ():
        cfg[loader] = _in_pipelines(cfg[loader], _View((before, before), (size, size), grid=1))
    return before is not None


def _last_side(dataset):
    """Return the last side that a pipeline resizes or crops to."""
    sides = [square_side(step.get(key)) for step in dicts_in(dataset.get('pipeline')) for key in ('scale', 'crop_size')]
    return next(filter(None, reversed(sides)), None)


def box_of(cfg):
    """Return width and height of the box of the test or, without one, of the training; None if there is no box."""
    return next((box for name in reversed(LOADERS) for box in _boxes_of(cfg, name)), None)


def test_size_of(cfg):
    """Return the size of the test as the option accepts it: a list of a side, or width and height; None if unknown."""
    for dataset in _datasets(cfg, LOADERS[-1]):
        if side := find_resolution(dataset)[0]:
            return [side]
    boxes = _boxes_of(cfg, LOADERS[-1])
    if not boxes:
        return None
    long, short = max(boxes[0]), min(boxes[0])
    return [short] if short == long or long > _ELONGATED * short else list(boxes[0])


def use_trained_size(cfg, trained, source):
    """Let a config test at the size of that in a checkpoint, and log it; a size that the user wrote only has a warning.
    """
    size, now = test_size_of(trained), test_size_of(cfg)
    if not size or not now or list(size) == list(now):
        return
    is_own = not cfg.filename or not own_files(cfg)[0] or now != test_size_of(
        Config.fromfile(cfg.filename, import_custom_modules=False)) or any(
        option_for(key) == '--image-size' for key in own_keys(cfg) if key.startswith(LOADERS[-1]))
    words, other = (' '.join(map(str, sides)) for sides in (size, now))
    if not is_own:
        set_image_size(cfg, tuple(size), LOADERS[-1:])
    print_log(f'{source} was trained to be tested at {words}, ' + (
        f'but this config tests at {other}. Use --image-size {words} to test as in the training' if is_own else
        f'which is used here too; the config has {other}'), logger='current', level=logging.WARNING)


def _extent(box):
    """Return the height of an image of 4:3 that is resized into a box."""
    return min(max(box) * 3 / 4, min(box))


class _View:
    """Converts sizes in pixels from the box of a config to a new one, and keeps the boxes that it has seen.

    New sides stay multiples of up to ``grid``. ``width_first``: ``crop_size`` has the width first, as in mmdet.
    """

    def __init__(self, before, after, grid=32, width_first=False):
        self._factor, self._grid = _extent(after) / _extent(before), grid
        self._before, self._after, self.seen, self._width_first = before, after, [], width_first

    def box(self, pair):
        """Return the new box for a box of the config; it keeps its ratio to the original one."""
        self.seen.append(tuple(pair))
        return self.canvas(pair)

    def canvas(self, pair):
        """Return the new sides of a canvas, which keeps its ratio to the original box but is none itself."""
        ratio = _extent(pair) / _extent(self._before)
        return type(pair)(max(round(side * ratio), 1) for side in self._after)

    def padded(self, pair):
        """Return the new width and height that images are padded to: of crops, where only short sides are limited."""
        if pair[0] == pair[1] and max(self._before) > _ELONGATED * min(self._before):
            return self.crop(pair)[::-1]
        return self.canvas(pair)

    def crop(self, sides, key='size'):
        """Return the new height and width of a crop, or the new side."""
        pair, short = isinstance(sides, (list, tuple)) and len(sides) == 2, min(self._before)
        if pair and (sorted(sides) == sorted(self._before) or list(sides) == [short, short]):
            width, height = self._after
            if max(self._after) > _ELONGATED * min(self._after):
                return type(sides)((min(self._after), ) * 2)
            return type(sides)((width, height) if self._width_first and key == 'crop_size' else (height, width))
        return type(sides)(map(self.side, sides)) if isinstance(sides, (list, tuple)) else self.side(sides)

    def side(self, side):
        """Return the new side for one in pixels; anything else, such as a fraction of the image, stays."""
        if self._factor == 1 or not isinstance(side, int) or isinstance(side, bool) or not side:
            return side
        grid = math.gcd(side, self._grid)
        return int(math.copysign(max(round(abs(side) * self._factor / grid), 1) * grid, side))


def _boxes_of(cfg, loader):
    """Return all boxes in the pipelines of a loader."""
    view = _View((4, 3), (4, 3))
    _in_pipelines(cfg.get(loader), view)
    return view.seen


def _in_pipelines(node, view):
    """Return a part of a config with the steps of all its pipelines converted to new sizes."""
    if isinstance(node, dict):
        return type(node)({key: (_converted if str(key).endswith('pipeline') else _in_pipelines)(value, view)
                           for key, value in node.items()})
    return type(node)(_in_pipelines(part, view) for part in node) if isinstance(node, (list, tuple)) else node


def _converted(node, view):
    """Return the steps of a pipeline, or another part with sizes, converted to new sizes."""
    if not isinstance(node, dict):
        return type(node)(_converted(part, view) for part in node) if isinstance(node, (list, tuple)) else node
    kind, changed = type_name(node.get('type')), type(node)(node)
    for key, value in node.items():
        if f'{kind}.{key}' in _NO_PIXELS or kind == 'ResizeShortestEdge' and key == 'scale' and 'max_size' in node:
            continue  # no pixels, or only the short side of a box
        if key in _BOXES:
            changed[key] = _boxes(value, view)
        elif (kind, key) == ('Pad', 'size'):  # width and height; in other steps it is height and width
            changed[key] = view.padded(value) if _is_box(value) else value
        elif (kind, key) == ('RandomAffine', 'border'):  # what it cuts off a mosaic on each side
            changed[key] = type(value)(-(side // 2) for side in view.canvas([-2 * side for side in value]))
        else:
            changed[key] = view.crop(value, key) if key in _CROPS else _converted(value, view)
    if kind == 'ResizeShortestEdge' and 'max_size' in node:
        scale = node['scale'][0] if isinstance(node['scale'], (list, tuple)) else node['scale']
        box = view.box((node['max_size'], scale))
        changed.update(max_size=max(box), scale=min(box))
    elif kind == 'FixShapeResize':
        changed['width'], changed['height'] = view.box((node['width'], node['height']))
    return changed


def _boxes(value, view):
    if _is_box(value):
        return view.box(value)
    return type(value)(_boxes(part, view) for part in value) if isinstance(value, (list, tuple)) else view.side(value)


def _is_box(value):
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_side, value))


def _datasets(cfg, loader):
    return datasets(cfg, [loader] if isinstance((cfg.get(loader) or {}).get('dataset'), dict) else [])
