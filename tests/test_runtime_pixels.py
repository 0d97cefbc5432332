"""The runtime resizes as OpenCV does and pastes masks as mmdet does, to the last bit."""
import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import LoadImageFromFile
from mmdet.datasets.transforms import Resize
from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
from PIL import Image

from helpers.onnx_files import write_segmentor
from xcit_dense import runtime
from xcit_dense.runtime import Model, paste_masks, resize_linear


def test_numpy_resizes_as_opencv_to_the_last_bit(monkeypatch):
    monkeypatch.setattr(runtime, 'cv2', None)
    random, pairs = np.random.default_rng(0), [((480, 640), (800, 1067)), ((1000, 1500), (512, 512))]
    for _ in range(40):
        a, b, height, width, low, small = random.integers(1, (120, 120, 120, 120, 5, 5)).tolist()
        olds = (a, b), (2 * height, 2 * width), (2 * height, b), (a, 2 * width), (low, small)
        pairs += [(old, (height, width)) for old in olds]
    for old, new in pairs:
        image = random.integers(0, 256, (*old, 3), np.uint8)
        wanted = cv2.resize(image, new[::-1], interpolation=cv2.INTER_LINEAR)
        assert np.array_equal(resize_linear(image, new[1], new[0]), wanted), (old, new)


@pytest.mark.parametrize('opencv', (True, False))
@pytest.mark.parametrize('rule, options', (
    (dict(rule='keep_ratio', scale=[133, 80]), dict(scale=(133, 80), keep_ratio=True)),
    (dict(rule='keep_ratio', scale=[64, 256]), dict(scale=(64, 256), keep_ratio=True)),
    (dict(rule='fixed', size=[70, 50]), dict(scale=(70, 50), keep_ratio=False)),
    (dict(rule='none'), None)))
def test_images_are_prepared_as_mmdet_prepares_them(opencv, rule, options, tmp_path, monkeypatch):
    model = Model(write_segmentor(tmp_path / 'm.onnx', resize=rule))
    if not opencv:
        monkeypatch.setattr(runtime, 'cv2', None)
    random = np.random.default_rng(0)
    for height, width in ((40, 50), (50, 40), (97, 161), (33, 200), (160, 100), (80, 133), (1, 3)):
        Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(tmp_path / 'x.png')
        data = LoadImageFromFile()(dict(img_path=str(tmp_path / 'x.png')))
        data = Resize(**options)(data) if options else data
        assert np.array_equal(model.prepare(tmp_path / 'x.png'), data['img'][..., ::-1]), (height, width)


def pasted_by_mmdet(masks, boxes, height, width, threshold=.5):
    pasted = np.zeros((len(masks), height, width), bool)
    for mask, box, whole in zip(torch.from_numpy(masks)[:, None], torch.from_numpy(boxes), pasted, strict=True):
        part, place = _do_paste_mask(mask[None], box[None], height, width)
        whole[place] = (part[0] >= threshold).numpy()
    return pasted


KINDS = {'usual': (.0, 1., 60.), 'reaching outside': (-.1, 1.1, 200.), 'tiny': (0., 1., .5),
         'without extent': (0., 1., 0.), 'huge': (.3, .7, 5000.)}


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('height, width', ((90, 140), (301, 57)))
def test_masks_are_pasted_as_by_mmdet_to_the_last_bit(kind, height, width):
    random = np.random.default_rng(0)
    low, high, extent = KINDS[kind]
    middle = random.uniform(low, high, (25, 2)) * (width, height)
    half = extent * random.exponential(1, (25, 2))
    boxes = np.concatenate([middle - half, middle + half], 1).astype(np.float32)
    boxes[:, 2:] = boxes[:, 2:].clip(0)  # where a box lies wholly outside mmdet's own fails
    boxes[:, :2] = boxes[:, :2].clip(max=(width, height))
    masks = random.uniform(0, 1, (25, 26, 30)).astype(np.float32)
    for threshold in (.5, .8):
        wanted = pasted_by_mmdet(masks, boxes, height, width, threshold)
        assert np.array_equal(paste_masks(masks, boxes, height, width, threshold), wanted)
        assert wanted.any() or kind == 'tiny' or threshold == .8


def test_boxes_outside_or_without_numbers_have_empty_masks_and_large_ones_are_pasted_in_parts():
    masks = np.ones((4, 28, 28), np.float32)
    boxes = np.array([[-50, -50, -20, -20], [500, 10, 600, 20], [10, 500, 20, 600], [np.nan, 0, np.inf, 9]], np.float32)
    assert paste_masks(masks, boxes, 40, 60).shape == (4, 40, 60)
    assert not paste_masks(masks, boxes, 40, 60).any()
    assert paste_masks(masks[:0], boxes[:0], 40, 60).shape == (0, 40, 60)
    mask = np.random.default_rng(0).uniform(0, 1, (1, 28, 28)).astype(np.float32)
    box = np.array([[3, 5, 1990, 1480]], np.float32)  # more pixels than are computed at a time
    assert np.array_equal(paste_masks(mask, box, 1500, 2000), pasted_by_mmdet(mask, box, 1500, 2000))
