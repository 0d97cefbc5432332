"""Change the image size of a config: in the pipelines of its data, its preprocessor and its sliding window.

A box is the width and height that images are resized to fit into, in either orientation if their aspect ratio is kept.
Everything that is measured in pixels is scaled by the factor by which an image of 4:3 grows or shrinks.
"""
import logging
import math

from mmengine.config import Config
from mmengine.logging import print_log

from ..data.datasets import LOADERS, datasets, dicts_in
from ..errors import ConfigError
from ..text import type_name
from ..weights.contents import config_of_checkpoint
from .framework import framework_of
from .resolution import find_resolution, scale_sides

#: Keys that hold one or more boxes, or a side for a classifier; and keys of crops and canvases, as height and width.
_BOXES, _CROPS = ('scale', 'scales', 'img_scale'), ('crop_size', 'random_size_range', 'stride')
#: Steps whose ``size`` is width and height; in other steps it is height and width.
_SIZE_IS_BOX = ('Pad', )
#: Steps and keys that have such a name but hold no pixels.
_NO_PIXELS = ('RandomAffine.scale', 'SegRescale.scale', 'RandomErasing.scale')
#: From this ratio of long to short side on, the long side does not limit any usual image.
_ELONGATED = 2.5


def set_image_size(cfg: Config, size, loaders=LOADERS):
    """Resize images to fit into a box, and scale everything else that is measured in pixels.

    - Detection: images are resized to fit into the box; a range of scales keeps its ratio to it.
    - Segmentation: the same. If the box of the config limits only the shorter side, as ADE20k's 2048x512, that side
      gets the given size. Crops, the preprocessor and a sliding window are scaled too.
    - Classification: the size is that of the crop; the crop ratio of the test stays the same.
    - DINO: the size is that of the global views; the local ones keep their ratio to it, as multiples of 16 pixels.

    Args:
        cfg: The config.
        size: A side in pixels, or width and height.
        loaders: The loaders whose pipelines are changed; with the first, the preprocessor is changed too.

    Raises:
        ConfigError: The size is out of range, or the config does not show where images are resized.
    """
    box = _read_size(size)
    if framework_of(cfg) == 'mmpretrain':
        if box[0] != box[1]:
            raise ConfigError(f'--image-size must be one side for this config, whose crops are square; got {box[0]} '
                              f'{box[1]}')
        if not (_set_views(cfg, box[0]) or scale_sides(cfg, box[0], loaders)):
            raise ConfigError(_nothing_to_change(cfg, loaders))
        return
    before, boxes = box_of(cfg), _boxes_in(_pipelines(cfg, LOADERS[:1]))
    if before is None:
        raise ConfigError(_nothing_to_change(cfg, loaders))
    new = _new_box(before, box)
    if new == before:
        return
    # training scales around that of the test keep their ratio to it; for others the largest takes its place
    extents = [_extent(pair) for pair in boxes]
    around = not extents or min(extents) <= _extent(before) <= max(extents)
    trained = before if around else max(boxes, key=_extent)
    for loader in loaders:
        if cfg.get(loader):
            view = _View(trained if loader == LOADERS[0] else before, new)
            cfg[loader] = _in_pipelines(cfg[loader], view)
    view = _View(trained, new)
    if LOADERS[0] in loaders:
        if cfg.get('custom_hooks'):
            cfg.custom_hooks = _in_pipelines(cfg.custom_hooks, view)
        for owner in (cfg, cfg.get('model') or {}):
            if isinstance(owner.get('data_preprocessor'), dict):
                owner['data_preprocessor'] = view.step(owner['data_preprocessor'])
    test_cfg = (cfg.get('model') or {}).get('test_cfg')
    if isinstance(test_cfg, dict) and test_cfg.get('mode') == 'slide':
        cfg.model.test_cfg = view.step(test_cfg)


def _set_views(cfg, size):
    """Set the sizes of the views in the training pipeline; return whether there are any."""
    found = [(type_name(step.get('type')), step) for step in dicts_in(_pipelines(cfg, LOADERS[:1]))]
    if 'MultiView' in dict(found):
        raise ConfigError('--image-size: the views of MultiView have sizes of their own. Set them in the pipeline, or '
                          'use MultiCrop')
    steps = [step for kind, step in found if kind == 'MultiCrop']
    for step in steps:
        ratio = step.get('local_size', 96) / step.get('global_size', 224)
        step.update(global_size=size, local_size=max(round(size * ratio / 16), 1) * 16)
    return bool(steps)


def box_of(cfg):
    """Return width and height of the box of the test or, without one, of the training; None if there is no box.

    Args:
        cfg: A config, or the readable part of one.
    """
    found = [box for name in reversed(LOADERS) for box in _boxes_in(_pipelines(cfg, [name]))]
    return found[0] if found else None


def test_size_of(cfg):
    """Return the size of the test as the option accepts it: a list of a side, or width and height; None if unknown.

    Args:
        cfg: As for `box_of`.
    """
    for dataset in _datasets(cfg, LOADERS[-1:]):
        side, _ = find_resolution(dataset)
        if side:
            return [side]
    boxes = _boxes_in(_pipelines(cfg, LOADERS[-1:]))
    if not boxes:
        return None
    long, short = max(boxes[0]), min(boxes[0])
    return [short] if short == long or long > _ELONGATED * short else list(boxes[0])


def compare_test_size(cfg, checkpoint, source):
    """Log a warning if a checkpoint is from a run that tested at another size than a config.

    Args:
        cfg: The config.
        checkpoint: The content of the checkpoint, or None.
        source: Where the checkpoint is from.
    """
    trained, tested = test_size_of(config_of_checkpoint(checkpoint)), test_size_of(cfg)
    if trained and tested and list(trained) != list(tested):
        words = ' '.join(map(str, trained))
        print_log(f'{source} was trained with --image-size {words}, but this config tests at '
                  f'{" ".join(map(str, tested))}. Use --image-size {words} to test as in the training',
                  logger='current', level=logging.WARNING)


def _read_size(size):
    sides = list(size) if isinstance(size, (list, tuple)) else [size]
    if len(sides) not in (1, 2) or not all(isinstance(side, int) and side >= 16 for side in sides):
        raise ConfigError('--image-size must be the side of a square, or width and height, of at least 16 pixels; got '
                          + ' '.join(map(str, sides)))
    return (sides[0], sides[-1])


def _new_box(before, box):
    long, short = max(before), min(before)
    if box[0] == box[1] and long > _ELONGATED * short:
        return tuple(round(side * box[0] / short) for side in before)
    return box


def _extent(box):
    """Return the height of an image of 4:3 that is resized into a box."""
    return min(max(box) * 3 / 4, min(box))


class _View:
    """Converts sizes in pixels from one box to another."""

    def __init__(self, before, after):
        self._before, self._after = before, after
        self._factor = _extent(after) / _extent(before)

    def box(self, pair):
        """Return the new box for a box of the config; it keeps its ratio to the original one."""
        ratio = _extent(pair) / _extent(self._before)
        return tuple(max(round(side * ratio), 1) for side in self._after)

    def crop(self, sides):
        """Return the new height and width of a crop, or the new side; a multiple of 32, 16 or 8 stays one."""
        short = min(self._before)
        whole = isinstance(sides, (list, tuple)) and len(sides) == 2 and (
            sorted(sides) == sorted(self._before) or list(sides) == [short, short] != list(self._before))
        if whole:
            width, height = self._after
            long = max(self._after) > _ELONGATED * min(self._after)
            return type(sides)((min(self._after), ) * 2 if long else (height, width))
        if isinstance(sides, (list, tuple)):
            return type(sides)(map(self._side, sides))
        return self._side(sides)

    def _side(self, side):
        if not isinstance(side, int) or isinstance(side, bool) or not side:
            return side  # a fraction of the image
        grid = math.gcd(side, 32)
        near = max(round(abs(side) * self._factor / grid), 1) * grid
        return int(math.copysign(side if self._factor == 1 else near, side))

    def step(self, step):
        """Return a step of a pipeline, or another dict with sizes, converted to the new box."""
        kind, changed = type_name(step.get('type')), type(step)(step)
        for key, value in step.items():
            if f'{kind}.{key}' in _NO_PIXELS:
                continue
            if key in _BOXES:
                changed[key] = self._boxes(value)
            elif key in _CROPS or key == 'size' and kind not in _SIZE_IS_BOX:
                changed[key] = self.crop(value)
            elif key == 'size' and _is_box(value):
                changed[key] = type(value)(self.box(value))
            elif key == 'border' and kind == 'RandomAffine':  # what it cuts off a mosaic on each side
                changed[key] = type(value)(-(side // 2) for side in self.box([-2 * side for side in value]))
            elif isinstance(value, (dict, list, tuple)):  # transforms inside others
                changed[key] = self._inside(value)
        if kind == 'ResizeShortestEdge' and 'max_size' in step:
            box = self.box((step['max_size'], _first(step['scale'])))
            changed.update(max_size=max(box), scale=min(box))
        elif kind == 'FixShapeResize':
            changed['width'], changed['height'] = self.box((step['width'], step['height']))
        return changed

    def _inside(self, node):
        if isinstance(node, dict):
            return self.step(node)
        return type(node)(map(self._inside, node)) if isinstance(node, (list, tuple)) else node

    def _boxes(self, value):
        if _is_box(value):
            return type(value)(self.box(value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._boxes, value))
        return self._side(value)


def _in_pipelines(node, view):
    """Return a part of a config with the steps of all its pipelines converted to the new size."""
    if isinstance(node, dict):
        return type(node)({key: [view.step(step) for step in value] if _is_pipeline(key, value)
                           else _in_pipelines(value, view) for key, value in node.items()})
    return type(node)(_in_pipelines(part, view) for part in node) if isinstance(node, (list, tuple)) else node


def _is_pipeline(key, value):
    return str(key).endswith('pipeline') and isinstance(value, (list, tuple)) and all(
        isinstance(step, dict) for step in value)


def _pipelines(cfg, loaders):
    """Return the pipelines of some loaders, the outermost of each first."""
    found = []

    def visit(node):
        for key, value in node.items() if isinstance(node, dict) else ():
            if _is_pipeline(key, value):
                found.append(value)
        for value in node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ():
            visit(value)

    for loader in loaders:
        visit(cfg.get(loader) or {})
    return found


def _boxes_in(pipelines):
    """Return all boxes in some pipelines, in their order."""
    found = []
    for step in dicts_in(pipelines):
        kind = type_name(step.get('type'))
        if kind == 'ResizeShortestEdge' and 'max_size' in step:
            found.append((step['max_size'], _first(step['scale'])))
        elif kind == 'FixShapeResize':
            found.append((step['width'], step['height']))
        for key in _BOXES:
            value = step.get(key)
            if f'{kind}.{key}' in _NO_PIXELS or value is None:
                continue
            pairs = [value] if _is_box(value) else value if isinstance(value, (list, tuple)) else []
            found += [tuple(pair) for pair in pairs if _is_box(pair)]
    return found


def _is_box(value):
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(
        isinstance(side, int) and side > 0 for side in value)


def _first(value):
    return value[0] if isinstance(value, (list, tuple)) else value


def _datasets(cfg, loaders):
    return datasets(cfg, [name for name in loaders if isinstance((cfg.get(name) or {}).get('dataset'), dict)])


def _nothing_to_change(cfg, loaders):
    loader = next((name for name in reversed(loaders) if cfg.get(name)), LOADERS[-1])
    steps = [type_name(step.get('type')) for pipeline in _pipelines(cfg, [loader]) for step in pipeline]
    return (f'--image-size: no known step in the pipelines of this config resizes images; {loader} has '
            f'{", ".join(filter(None, steps)) or "no steps"}. Set the sizes of your steps yourself, such as '
            f'--cfg-options {loader}.dataset.pipeline.1.scale="(640,640)"')
