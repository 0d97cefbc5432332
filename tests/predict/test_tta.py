"""Test-time augmentation: what is merged, compared with the frameworks' own and with merging by hand."""
import copy

import pytest
import torch
from mmdet.models import DetTTAModel
from mmdet.structures import DetDataSample
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData, PixelData
from mmseg.models import SegTTAModel
from mmseg.structures import SegDataSample
from torch import nn

from xcit_dense.for_mmdet import MaskTTAModel
from xcit_dense.for_mmseg import LowMemorySegTTAModel

HEIGHT, WIDTH = 12, 20
TTA_CFG = ConfigDict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=3)


class Given(nn.Module):
    """A model that returns samples that it was given, view by view."""
    out_channels = 3

    def __init__(self, *views):
        super().__init__()
        self.views, self.decode_head = list(views), ConfigDict(threshold=0.4)

    def test_step(self, data):
        return copy.deepcopy(self.views[data['inputs']])


def merged(kind, *views, **options):
    with torch.no_grad():
        return kind(module=Given(*views), **options).test_step(
            dict(inputs=list(range(len(views))), data_samples=[None] * len(views)))


def detected(flip, *objects, masks=True):
    """A view of one image with objects: box, score, label, as they stand in the view; a mask fills its box."""
    sample = DetDataSample(metainfo=dict(ori_shape=(HEIGHT, WIDTH), flip=flip,
                                         flip_direction='horizontal' if flip else None))
    boxes = torch.tensor([box for box, *_ in objects], dtype=torch.float).reshape(-1, 4)
    sample.pred_instances = InstanceData(bboxes=boxes, scores=torch.tensor([score for _, score, _ in objects]),
                                         labels=torch.tensor([label for *_, label in objects], dtype=torch.long))
    if masks:
        sample.pred_instances.masks = torch.zeros(len(objects), HEIGHT, WIDTH, dtype=torch.bool)
        for mask, (x1, y1, x2, y2) in zip(sample.pred_instances.masks, boxes.int().tolist(), strict=True):
            mask[y1:y2, x1:x2] = True
    return [sample]


A, B, C = (1, 1, 6, 6), (2, 7, 9, 11), (12, 2, 18, 9)
FLIPPED_A, FLIPPED_C = (14, 1, 19, 6), (2, 2, 8, 9)
VIEWS = ([detected, False, (A, 0.6, 0), (B, 0.3, 1)], [detected, True, (FLIPPED_A, 0.9, 0), (FLIPPED_C, 0.5, 0)],
         [detected, False], [detected, True, (FLIPPED_A, 0.8, 1), (FLIPPED_C, 0.1, 0)])


def views(masks):
    return [make(flip, *objects, masks=masks) for make, flip, *objects in VIEWS]


def test_objects_of_all_views_are_merged():
    """The better of two boxes stays, in the place that it has in the image; so does its mask."""
    result, = merged(MaskTTAModel, *views(True), tta_cfg=TTA_CFG)
    found = result.pred_instances
    assert found.bboxes.tolist() == [list(A), list(A), list(C)] and found.labels.tolist() == [0, 1, 0]
    assert found.scores.tolist() == pytest.approx([0.9, 0.8, 0.5])  # three at most
    for mask, (x1, y1, x2, y2) in zip(found.masks, found.bboxes.int().tolist(), strict=True):
        assert mask.sum() == mask[y1:y2, x1:x2].sum() == (x2 - x1) * (y2 - y1)


def test_boxes_are_those_of_mmdet():
    ours, = merged(MaskTTAModel, *views(False), tta_cfg=TTA_CFG)
    theirs, = merged(DetTTAModel, *views(False), tta_cfg=TTA_CFG)
    for name in ('bboxes', 'scores', 'labels'):
        assert torch.equal(ours.pred_instances[name], theirs.pred_instances[name])
    assert 'masks' not in ours.pred_instances and len(ours.pred_instances) == 3


def test_an_image_without_objects_has_none():
    result, = merged(MaskTTAModel, detected(False), detected(True), tta_cfg=TTA_CFG)
    assert len(result.pred_instances) == 0 and result.pred_instances.masks.shape == (0, HEIGHT, WIDTH)


@pytest.mark.parametrize('channels', (3, 1))
def test_scores_of_views_are_merged_as_in_mmseg(channels, monkeypatch):
    """To the last bit, with the ground truth of the first view."""
    monkeypatch.setattr(Given, 'out_channels', channels)
    truth = PixelData(data=torch.randint(0, 3, (1, HEIGHT, WIDTH)))
    seen = [[SegDataSample(metainfo=dict(img_path=f'{image}.png', flip=bool(view)),
                           seg_logits=PixelData(data=torch.randn(channels, HEIGHT, WIDTH)),
                           **dict(gt_sem_seg=truth) if not view else {}) for image in range(2)] for view in range(4)]
    ours, theirs = (merged(kind, *seen) for kind in (LowMemorySegTTAModel, SegTTAModel))
    for image, (got, wanted) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.equal(got.pred_sem_seg.data.squeeze().float(), wanted.pred_sem_seg.data.squeeze().float())
        assert got.gt_sem_seg.data is not None and got.img_path == wanted.img_path == f'{image}.png'
        assert len(got.pred_sem_seg.data.unique()) == (channels if channels > 1 else 2)
        assert not got.flip  # what is drawn and judged is the image as it is
