"""Masks of mmdet's detectors as run lengths, pasted within the box of each object instead of the whole image."""
import sys
import time
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from pycocotools import mask as mask_api
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from ..runtime import places_in_masks, sample_mask

#: Pixels that are pasted at once on a GPU, in memory of 20 bytes each.
_PASTED = 1 << 22
#: How near to the threshold, for each cell of a mask, values are computed as mmdet does: what the rounding of places
#: and products can change is a tenth of it.
_NEAR = 2e-6


def cut_masks(model):
    """Let a detector of mmdet return its masks as `RunLengths`, without pictures of the whole image.

    On this object, two methods are replaced: ``predict``, after which masks that are tensors of bool are encoded, and
    ``_predict_by_feat_single`` of an ``FCNMaskHead``, as in Mask R-CNN and cascades, which pastes the masks of an
    image. Other models, and heads with a method of their own, stay as they are.
    """
    known = sys.modules.get('mmdet.models')
    if known is None or not isinstance(model, known.BaseDetector) or 'predict' in vars(model):
        return
    model.predict = partial(_predict, model)
    for head in model.modules():
        if getattr(type(head), '_predict_by_feat_single', None) is known.FCNMaskHead._predict_by_feat_single:
            head._predict_by_feat_single = partial(_masks_of_image, head)


def _predict(model, *args, **options):
    samples = type(model).predict(model, *args, **options)
    for sample in samples:
        found = sample.get('pred_instances')
        masks = getattr(found, 'masks', None)
        if isinstance(masks, torch.Tensor) and masks.dtype == torch.bool:
            found.masks = RunLengths.of(masks)
    return samples


def _masks_of_image(head, mask_preds, bboxes, labels, img_meta, rcnn_test_cfg, rescale=False, activate_map=False):
    """Return the `RunLengths` of an image; arguments are those of ``FCNMaskHead._predict_by_feat_single``."""
    threshold = rcnn_test_cfg.mask_thr_binary
    # pixels outside of the boxes too, or 256 levels; or places that are rounded to bfloat16
    if threshold <= 0 or bboxes.dtype == torch.bfloat16:
        return type(head)._predict_by_feat_single(head, mask_preds, bboxes, labels, img_meta, rcnn_test_cfg, rescale,
                                                  activate_map)
    scale, sides = bboxes.new_tensor(img_meta['scale_factor']).repeat((1, 2)), img_meta['ori_shape'][:2]
    if rescale:
        bboxes /= scale
    else:
        sides = [int(np.round(side * scale[0, axis].item())) for side, axis in zip(sides, (1, 0), strict=True)]
    if activate_map:  # perhaps an array
        mask_preds = torch.as_tensor(mask_preds, dtype=bboxes.dtype, device=bboxes.device)
    masks = mask_preds[:, 0] if head.class_agnostic else mask_preds[range(len(bboxes)), labels]
    return paste(masks if activate_map else masks.sigmoid(), bboxes, *sides, threshold)


class _Lazy:
    """What is read as an array or a tensor only when somebody does."""

    def __getattr__(self, name):
        if name.startswith('_') or not hasattr(torch.Tensor, name):  # such as the methods that `copy` looks for
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda part: part.tensor() if isinstance(part, _Lazy) else part, (args, kwargs or {}))
        return function(*args, **kwargs)

    def tensor(self):
        """Return the masks as a tensor of bool."""
        return torch.from_numpy(np.asarray(self))


for _name in ('and', 'or', 'xor', 'invert', 'gt', 'ge', 'lt', 'le', 'add', 'radd', 'sub', 'mul', 'rmul', 'truediv'):
    _name = f'__{_name}__'
    setattr(_Lazy, _name, lambda self, *other, _name=_name: getattr(self.tensor(), _name)(*other))


class RunLength(_Lazy, dict):
    """The mask (H, W) of an object as COCO's compressed RLE: a dict with ``size`` and ``counts``."""

    def __getitem__(self, place):
        return super().__getitem__(place) if isinstance(place, str) else self.tensor()[place]

    def __array__(self, dtype=None, copy=None):
        return mask_api.decode(self).astype(dtype or bool)


class ObjectMasks:
    """The masks of the n objects in an image, kept one by one, of which subclasses give one or some; `numpy.asarray`
    makes an array (n, H, W) of them. Arguments are the masks (`each`), and height and width of the image."""

    def __init__(self, masks, height: int, width: int):
        self.each, self.shape = list(masks), torch.Size((len(masks), height, width))

    def __len__(self):
        return len(self.each)

    def __array__(self, dtype=None, copy=None):
        whole = np.empty(self.shape, dtype or bool)
        for place, mask in enumerate(self):
            whole[place] = mask
        return whole


class RunLengths(_Lazy, ObjectMasks):
    """`RunLength` of each mask, as the metrics of mmdet take them.

    Everything else is that of the tensor (n, H, W) of bool, such as ``masks.numpy()`` or ``masks[0].sum()``: it is made
    then.

    Attributes:
        seconds: How long they took.
    """
    dtype = torch.bool

    def __init__(self, masks, height: int, width: int, seconds: float = 0.):
        super().__init__(masks, height, width)
        self.seconds = seconds

    @classmethod
    def of(cls, masks):
        """Return the `RunLengths` of a tensor (n, H, W), whose pixels other than 0 are of the objects; anything else
        stays as it is."""
        if not isinstance(masks, torch.Tensor):
            return masks
        masks, found, (height, width) = masks.bool(), [], masks.shape[1:]
        masks = masks.numpy() if masks.is_cpu else masks
        rows, columns = (_array(masks.any(axis)) for axis in (2, 1))
        began = time.perf_counter()  # a GPU has finished the model
        for mask, own_rows, own_columns in zip(masks, rows, columns, strict=True):
            # in the box of the object, as only its pixels are copied
            (top, bottom), (left, right) = _ends(own_rows), _ends(own_columns)
            found.append(encode_part(_array(mask[top:bottom, left:right]), left, top, height, width))
        return cls(found, height, width, time.perf_counter() - began)

    @staticmethod
    def cat(parts):
        """Join masks of one image; mmengine asks for it."""
        return RunLengths([mask for part in parts for mask in part], *parts[0].shape[1:])

    def to(self, *args, **options):
        """Return the masks themselves, which are on no device; or a tensor, if a type is given."""
        kind = next((value for value in (*args, *options.values()) if isinstance(value, torch.dtype)), None)
        return self if kind is None else self.tensor().to(kind)

    def __eq__(self, other):
        return self.tensor() == other

    def __ne__(self, other):
        return self.tensor() != other

    def __repr__(self):
        return f'RunLengths of {tuple(self.shape)}'

    __hash__ = object.__hash__  # as that of a tensor

    def __getitem__(self, place):
        if isinstance(place, (int, np.integer)):  # and no tensor of one element
            return self.each[place]
        if isinstance(place, slice):
            return RunLengths(self.each[place], *self.shape[1:])
        return self.tensor()[place.cpu() if isinstance(place, torch.Tensor) else place]

    def astype(self, dtype):
        """Return the masks as an array (n, H, W); mmdet's visualizer asks for it."""
        return np.asarray(self, dtype)


def _array(values):
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


def _ends(found):
    places = np.flatnonzero(found)
    return (places[0], places[-1] + 1) if len(places) else (0, 0)


def paste(masks, boxes, height: int, width: int, threshold: float) -> RunLengths:
    """Return the masks of boxes in an image as mmdet pastes them, to the last bit.

    Args:
        masks: Probabilities (n, h, w).
        boxes: Left, top, right, bottom (n, 4) in pixels.
        threshold: From which probability on a pixel belongs to the object; above 0.
    """
    masks, corners = masks.detach().float(), boxes.detach().cpu().numpy().T
    began, (cells_y, cells_x) = time.perf_counter(), masks.shape[1:]
    # on a GPU mmdet pastes into the whole image, and the outer cells end half a cell beyond the box
    beyond_x, beyond_y = (1 + (not masks.is_cpu) * np.ceil((corners[axis + 2] - corners[axis]) / cells / 2)
                          for axis, cells in enumerate((cells_x, cells_y)))
    left, w, x = places_in_masks(*corners[::2], width, beyond_x)
    top, h, y = places_in_masks(*corners[1::2], height, beyond_y)
    sizes = np.stack([w, h + 2], 1) * ((w > 0) & (h > 0))[:, None]
    found = (_on_cpu if masks.is_cpu else _on_gpu)(masks, x, y, sizes, threshold)
    numbers, places = map(np.concatenate, zip((np.empty(0, int), ) * 2, *found, strict=True))
    order = np.argsort(numbers, kind='stable')
    numbers, (column, row) = numbers[order], np.divmod(places[order], sizes[numbers[order], 1])
    places = (column + left[numbers]) * height + row + top[numbers]
    return RunLengths(encode(numbers, places, len(boxes), height, width), height, width, time.perf_counter() - began)


def _on_cpu(masks, x, y, sizes, threshold):
    """Return for each mask its number, repeated, and its `changes`."""
    found, (low, high) = [], (threshold + sign * _NEAR * max(masks.shape[1:]) for sign in (-1, 1))
    for number in np.flatnonzero(sizes[:, 0]):
        (w, h), mask = sizes[number], masks[number]
        across, down = x[number, 1:w + 1], y[number, :h]
        inside, near = np.empty((w, h), bool), []
        for columns, values in sample_mask(mask.numpy(), across, down):
            inside[columns] = values >= high
            # also NaN, which spreads in products
            near.append(np.flatnonzero((values < low) == inside[columns]) + columns.start * h)
        if len(near := np.concatenate(near)):
            column, row = np.divmod(near, h)
            grid = torch.from_numpy(np.stack([across[column], down[row]], 1))[None, None]
            exact = F.grid_sample(mask[None, None], grid, align_corners=False)[0, 0, 0]
            inside[column, row] = (exact >= threshold).numpy()
        places = changes(inside)
        found.append((np.full(len(places), number), places))
    return found


def _on_gpu(masks, x, y, sizes, threshold):
    """Return the same; masks of similar size are pasted at once, as each launch takes as long as thousands of pixels.
    """
    found, steps = [], (np.log2(sizes.clip(1)) * 1.5).round() @ [1, 100]
    x, y = (torch.from_numpy(places).to(masks.device) for places in (x, y))
    for step in np.unique(steps[sizes[:, 0] > 0]):
        group = np.flatnonzero(steps == step)
        w, h = sizes[group].max(0)
        for part in np.array_split(group, -(-len(group) * w * h // _PASTED)):
            grid = torch.stack(torch.broadcast_tensors(x[part, 1:w + 1, None], y[part, None, :h]), 3)
            inside = F.grid_sample(masks[part, None], grid, align_corners=False)[:, 0] >= threshold
            column, row = np.divmod(changes(inside), h)
            numbers = part[column // w]
            found.append((numbers, column % w * sizes[numbers, 1] + row))
    return found


def changes(columns):
    """Return which pixels differ from the one before (k, ), counted down the columns of a mask (..., 1 + h + 1) bool,
    an array or a tensor, that are each between two pixels that are False."""
    flat = columns.reshape(-1)
    differ = flat[1:] != flat[:-1]
    return np.flatnonzero(differ) if isinstance(differ, np.ndarray) else differ.nonzero()[:, 0].cpu().numpy()


def encode_part(mask, left: int, top: int, height: int, width: int) -> RunLength:
    """Return the mask of an image of which a part (h, w) bool, from a column and a row on, is given."""
    columns = np.pad(mask.T, ((0, 0), (1, 1)))
    column, row = np.divmod(changes(columns), columns.shape[1])
    places = (column + left) * height + row + top
    return encode(np.zeros(len(places), int), places, 1, height, width)[0]


def encode(numbers, places, count: int, height: int, width: int) -> list:
    """Return a `RunLength` for each of some masks, as pycocotools encodes the image.

    Args:
        numbers, places: At which pixels a mask changes, counted down the columns, and which mask, both ascending. Where
            it ends with a column, it has ended there, and starts again with the next.
        count: How many masks there are.
    """
    size = height * width
    again = (np.diff(places) == 0) & (np.diff(numbers) == 0)
    kept = ~(np.append(again, False) | np.append(False, again)[:len(places)]) & (places < size)
    places, ends = places[kept], np.searchsorted(numbers[kept], np.arange(count + 1))
    counts = np.diff(np.insert(places, ends.repeat(2)[1:-1], [0, size] * count)).tolist()
    ends = (ends + 2 * np.arange(count + 1)).tolist()  # with start and end of the image around those of each mask
    codes = [dict(counts=counts[first:end - 1], size=[height, width]) for first, end in pairwise(ends)]
    return [RunLength(code) for code in (mask_api.frPyObjects(codes, height, width) if codes else ())]
