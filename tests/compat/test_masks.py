"""Masks as run lengths: the bytes of pycocotools for what mmdet pastes, and the tensors that others may ask for."""
import copy
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from mmdet.models import FCNMaskHead
from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
from mmdet.registry import MODELS
from mmdet.structures.mask import encode_mask_results
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData
from pycocotools import mask as mask_api
from torch.nn.functional import interpolate

from helpers.paths import TINY_CONFIG
from xcit_dense.compat import masks
from xcit_dense.compat.masks import RunLengths, cut_masks, paste
from xcit_dense.config.loading import load_config
from xcit_dense.models.trunk import Trunk
from xcit_dense.runtime import paste_masks

#: Height and width of the image, cells of a mask, the scale of boxes, and the threshold.
IMAGES = [(height, width, cells, scale, threshold) for height, width in ((1, 1), (1, 40), (97, 3), (130, 211))
          for cells, scale, threshold in (
              (28, 0.2, 0.5), (14, 1, 0.3), (7, 0.02, 0.75), (28, 2, 0.05), (56, 0.6, 0.95))]


def boxes_in(height, width, scale, count=40):
    """Return boxes across all borders, of one pixel, without a pixel, of whole pixels, and beyond the image."""
    middle = (torch.rand(count, 2) * 1.4 - 0.2) * torch.tensor([width, height])
    sides = torch.rand(count, 2) ** 2 * max(height, width) * scale
    boxes = torch.cat([middle - sides / 2, middle + sides / 2], 1)
    boxes[::5] = boxes[::5].round()
    boxes[1::7, 2:] = boxes[1::7, :2] + 1
    boxes[2::9, 3] = boxes[2::9, 1]
    return boxes


def pasted(values, box, height, width, threshold):
    """Return the mask of the image as mmdet pastes it on a CPU."""
    whole = np.zeros((height, width), np.uint8)
    if all(max(box[axis].floor() - 1, 0) < min(box[axis + 2].ceil() + 1, (width, height)[axis]) for axis in (0, 1)):
        part, place = _do_paste_mask(values[None, None], box[None], height, width, skip_empty=True)
        whole[place] = (part[0] >= threshold).numpy()
    return mask_api.encode(np.asfortranarray(whole))


@pytest.mark.parametrize('route', ('_on_cpu', '_on_gpu'))
@pytest.mark.parametrize('smooth', (True, False))
def test_they_are_the_bytes_of_pycocotools(route, smooth, monkeypatch):
    """Also where values equal the threshold, and on the route of a GPU, with masks of one size after the other."""
    monkeypatch.setattr(masks, '_on_cpu', getattr(masks, route))
    monkeypatch.setattr(masks, '_PASTED', 5000)
    for height, width, cells, scale, threshold in IMAGES:
        boxes = boxes_in(height, width, scale)
        values = torch.randn(len(boxes), 3, 3) if smooth else torch.randn(len(boxes), cells, cells)
        values = interpolate(values[:, None] * 4, size=(cells, cells), mode='bilinear').sigmoid()[:, 0]
        values[::4] = (values[::4] * 20).round() / 20
        values[5, 3, 2], values[6, 1, 1] = float('nan'), float('inf')
        wanted = [pasted(*pair, height, width, threshold) for pair in zip(values, boxes, strict=True)]
        found = paste(values, boxes, height, width, threshold)
        assert [dict(mask) for mask in found] == wanted and found.shape == (len(boxes), height, width)
        whole = torch.from_numpy(np.stack([mask_api.decode(mask) for mask in wanted])).bool()
        assert [dict(mask) for mask in RunLengths.of(whole)] == wanted
        theirs = paste_masks(values.numpy(), boxes.numpy(), height, width, threshold)
        assert (theirs != whole.numpy())[7:].mean() < 1e-3
        assert len(paste(values[:0], boxes[:0], height, width, 0.5)) == 0


def test_they_are_also_tensors():
    """What another project's metric, hook or visualizer may ask for."""
    whole = torch.rand(5, 20, 30) > 0.7
    whole[2], whole[3] = False, True
    found = RunLengths.of(whole)
    for one in (found, pickle.loads(pickle.dumps(found)), copy.deepcopy(found), found.to('cpu')):
        assert len(one) == 5 and one.shape == (5, 20, 30) and one.dtype == torch.bool
        assert torch.equal(one.detach().cpu(), whole) and (one.astype(np.uint8) == whole.numpy()).all()
        assert torch.equal(one[:, 3], whole[:, 3]) and torch.equal(one[torch.tensor([4, 0])], whole[[4, 0]])
        assert torch.equal(one == 1, whole == 1) and torch.equal(one != whole[0], whole != whole[0]) and one in {one}
        assert torch.equal(one.to(torch.uint8), whole.byte()) and torch.equal(0.5 + 2 * one[1], 0.5 + 2 * whole[1])
        assert torch.equal(one[0] | one[1], whole[0] | whole[1]) and str(one) == 'RunLengths of (5, 20, 30)'
        assert torch.equal(~one, ~whole) and torch.equal(one & whole[:, :1], whole & whole[:, :1])
        assert torch.equal(sum(one), whole.sum(0))
        assert torch.equal(torch.stack([*one]), whole) and torch.equal(torch.any(one, 1), whole.any(1))
        assert one[1][3:5, 2:9].sum() == whole[1, 3:5, 2:9].sum() and np.array_equal(one[1], whole[1])
    assert encode_mask_results(found.numpy()) == [dict(mask) for mask in found]
    objects = InstanceData(masks=found, scores=torch.arange(5.)).cpu().numpy()
    assert [mask['counts'] for mask in objects[objects.scores > 2].masks] == [found[3]['counts'], found[4]['counts']]
    assert objects[objects.scores > 9].masks.shape == (0, 20, 30)
    for other in (found, whole.numpy(), [whole]):
        assert RunLengths.of(other) is other
    assert torch.equal(RunLengths.of(200 * whole.byte()).tensor(), whole)
    one = found[:1]
    for place in (torch.tensor([True]), torch.tensor([0]), np.array([True]), [0], torch.tensor(0), (0, 1)):
        assert torch.equal(one[place], whole[:1][place]), place
    with pytest.raises(AttributeError):
        found.not_there  # noqa: B018


@pytest.mark.parametrize('rescale', (True, False))
@pytest.mark.parametrize('threshold', (0.5, 0, -1))
@pytest.mark.parametrize('agnostic', (True, False))
def test_a_head_gives_what_that_of_mmdet_gives(rescale, threshold, agnostic):
    """Boxes are changed in place, as there. Thresholds up to 0 concern pixels outside of the boxes, or give levels."""
    head = FCNMaskHead(num_classes=3, class_agnostic=agnostic)
    ours = copy.deepcopy(head)
    detector = init_detector(ours)
    for again in (copy.deepcopy(detector), pickle.loads(pickle.dumps(detector))):
        assert again.mask._predict_by_feat_single.args == (again.mask, ) and again.predict.args == (again, )
    boxes, logits = boxes_in(90, 120, 0.5).clamp(min=0, max=85), torch.randn(40, 1 if agnostic else 3, 28, 28)
    args = torch.randint(3, (40, )), dict(scale_factor=(0.75, 0.5), ori_shape=(180, 160)), ConfigDict(
        mask_thr_binary=threshold), rescale
    (wanted, theirs), (found, same) = ((one._predict_by_feat_single(logits, given, *args), given)
                                       for one in (head, ours) for given in [boxes.clone()])
    assert torch.equal(theirs, same) and (theirs != boxes).any() == rescale
    assert isinstance(found, RunLengths) == (threshold > 0) and torch.equal(found.to('cpu').cpu(), wanted)


class Detector(MODELS.get('MaskRCNN')):
    """A detector of mmdet that is only its mask head."""

    def __init__(self, head):
        torch.nn.Module.__init__(self)
        self.mask = head


def init_detector(head):
    model = Detector(head)
    cut_masks(model)
    cut_masks(model)
    return model


@pytest.mark.parametrize('name', ('maskrcnn', *(pytest.param(name, marks=pytest.mark.slow) for name in (
    'cascade', 'condinst', 'mask2former'))))
def test_every_detector_predicts_what_it_did(name):
    """As does a copy of it, which has its own weights."""
    config = TINY_CONFIG if name in ('maskrcnn', 'cascade') else f'{name}_xcit_n12_p16_small'
    cfg = load_config(config, pretrained=False)
    init_default_scope('mmdet')
    if name == 'cascade':
        cfg.model = load_config('cascade_maskrcnn_xcit_s12_p16_coco', pretrained=False).model
        cfg.model.backbone.arch, cfg.model.neck.in_channels = 'nano_12_p16', [128] * 4
        for head in cfg.model.roi_head.bbox_head:
            head.fc_out_channels = 32
    if name in ('maskrcnn', 'cascade'):
        cfg.model.test_cfg.rcnn.update(score_thr=0, max_per_img=20)
    model = MODELS.build(cfg.model).eval()
    assert any(isinstance(part, Trunk) for part in model.modules())
    own = copy.deepcopy(model)
    cut_masks(own)
    own = copy.deepcopy(own)
    from mmdet.structures import DetDataSample
    results = []
    for one in (model, own):
        sample = DetDataSample(metainfo=dict(img_shape=(96, 128), ori_shape=(150, 200), scale_factor=(0.64, 0.64),
                                             batch_input_shape=(96, 128), pad_shape=(96, 128)))
        torch.manual_seed(0)
        with torch.no_grad():
            results += one.predict(torch.randn(1, 3, 96, 128), [sample])
    wanted, found = (sample.pred_instances for sample in results)
    assert len(found) and isinstance(found.masks, RunLengths) and not isinstance(wanted.masks, RunLengths)
    assert torch.equal(wanted.masks.bool(), found.masks.cpu()) and torch.equal(wanted.bboxes, found.bboxes)
    assert [dict(mask) for mask in found.masks] == encode_mask_results(wanted.masks.numpy())
    if name == 'maskrcnn':  # 256 levels stay
        own.roi_head.test_cfg.mask_thr_binary = -1
        with torch.no_grad():
            assert own.predict(torch.randn(1, 3, 96, 128), [sample])[0].pred_instances.masks.dtype == torch.uint8


def test_the_masks_of_many_objects_take_little_memory():
    """Those of 500 in an image of 1024 x 1024 pixels take 500 MiB as pictures."""
    middle = torch.rand(500, 2) * 1000
    values = torch.rand(500, 28, 28)
    tracemalloc.start()
    found = paste(values, torch.cat([middle - 12, middle + 12], 1), 1024, 1024, 0.5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 500 and peak < 15 << 20 and found.seconds > 0
