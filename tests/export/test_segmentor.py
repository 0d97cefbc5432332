"""The graph of a segmentor compared with mmseg's prediction, in PyTorch and onnxruntime; which parts it rejects."""
import copy

import numpy as np
import pytest
import torch
from export.exported import IMAGES, export
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope
from mmseg.registry import MODELS
from torch import nn

from helpers.segmentors import check_labels, let_many_classes_win, predicted, segmentor
from xcit_dense.errors import ConfigError
from xcit_dense.export.finishing import images
from xcit_dense.export.segmentor import TRANSLATIONS, SegmentorGraph


def exported(model, path):
    """The graph of a segmentor with scores, in onnxruntime."""
    inputs = dict(image=torch.from_numpy(images(2, 83, 120)), size=torch.zeros(2, dtype=torch.int64))
    return export(SegmentorGraph(model, scores=True), path, inputs, (IMAGES, None), ('labels', 'scores'), TRANSLATIONS)


@pytest.mark.slow
def test_labels_and_scores_are_those_of_the_checkpoint(tmp_path):
    """Also of the fused one, for blank images, and with its size asked for. Other sizes are in test_every_config.py."""
    model = segmentor(backbone__out_strides=(4, 8), neck__in_channels=[32] * 2, backbone__arch=dict(
        _delete_=True, embed_dims=32, depth=2, num_heads=4, patch_size=16, out_indices=(0, 1)))
    run = exported(model, tmp_path / 'model.onnx')
    fused, size, image = copy.deepcopy(model), np.zeros(2, np.int64), images(2, 97, 161)
    fused.backbone.fuse()
    found = run(image=image, size=size)
    for each in (model, fused):
        check_labels(found, predicted(each, image))
    asked = run(image=image, size=np.array((97, 161)))
    assert all(np.array_equal(asked[name], found[name]) for name in found)
    for value in (0, 114, 255):
        image = np.full((1, 70, 90, 3), value, np.uint8)
        check_labels(run(image=image, size=size), predicted(model, image), classes=1)


def test_the_model_is_left_as_it_is():
    model = segmentor()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parts = {name: type(module) for name, module in model.named_modules()}
    graph = SegmentorGraph(model)
    assert not any(module.training for module in graph.modules())
    assert model.training and not model.backbone.is_fused and 'predict_by_feat' not in vars(model.decode_head)
    assert parts == {name: type(module) for name, module in model.named_modules()}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any('auxiliary' in name for name, _ in graph.named_parameters())


ONE = dict(in_channels=16, in_index=3, channels=16, num_classes=9)
FOUR = dict(in_channels=[16] * 4, in_index=[0, 1, 2, 3], channels=16, num_classes=9)
FCN = dict(ONE, type='FCNHead', in_index=0)
FPN = dict(FOUR, type='FPNHead', feature_strides=[4, 8, 16, 32])
NORM = dict(type='SegDataPreProcessor', mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)


@MODELS.register_module()
class FourMaps(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3, 16, 7, 4, 3), *(nn.Conv2d(16, 16, 3, 2, 1) for _ in range(3))])

    def forward(self, x):
        maps = [x]
        for layer in self.layers:
            maps.append(layer(maps[-1].tanh()))
        return maps[1:]


def with_head(head, **options):
    init_default_scope('mmseg')
    cfg = dict(type='EncoderDecoder', backbone=dict(type='FourMaps'), decode_head=head, data_preprocessor=NORM,
               test_cfg=dict(mode='whole'))
    return MODELS.build(ConfigDict(dict(cfg, **options))).eval()


def check(model, run, classes=2):
    """Compare a function of ``image`` and ``size``, arrays, with a model's own prediction of so many classes."""
    for shape in ((2, 83, 120), (1, 45, 33), (1, 31, 250)):
        image = images(*shape)
        for size in (None, (60, 150)):
            found = run(image=image, size=torch.tensor(size or (0, 0)).numpy())
            check_labels(found, predicted(model, image, size), classes, model.decode_head.threshold)


@pytest.mark.parametrize('head, options', [
    (FCN, dict(data_preprocessor=dict(NORM, test_cfg=dict(size_divisor=32), pad_val=1))),
    (FCN, dict(data_preprocessor=dict(NORM, size=(512, 512), bgr_to_rgb=False))), (dict(FCN, align_corners=True), {}),
    (dict(FCN, num_classes=2, out_channels=1, threshold=0.4), dict(data_preprocessor=dict(
        NORM, test_cfg=dict(size_divisor=64)))),
    (dict(FCN, norm_cfg=dict(type='SyncBN')), dict(auxiliary_head=[dict(FCN, in_index=2)])),
    (FPN, dict(neck=dict(type='FPN', in_channels=[16] * 4, out_channels=16, num_outs=4))),
    (FCN, dict(type='LowMemoryEncoderDecoder', neck=dict(type='MultiLevelNeck', in_channels=[16] * 4,
                                                         out_channels=16))),
    (dict(ONE, type='EncHead', in_channels=[16] * 4, in_index=[0, 1, 2, 3], num_codes=4), {}),
    (dict(ONE, type='DAHead', pam_channels=8), {}),
], ids=['padded', 'bgr', 'align_corners', 'threshold_padded', 'auxiliary', 'fpn',
        'low_memory', 'se_loss', 'three_outputs'])
def test_labels_are_those_of_mmseg(head, options):
    model = let_many_classes_win(with_head(head, **options))
    graph = SegmentorGraph(model, scores=True)

    def run(**arrays):
        with torch.no_grad():
            return dict(zip(('labels', 'scores'), graph(*map(torch.as_tensor, arrays.values())), strict=True))

    check(model, run)


def test_more_than_256_classes():
    graph = SegmentorGraph(with_head(dict(FCN, num_classes=257)))
    labels = graph(torch.from_numpy(images(1, 40, 50)), torch.zeros(2, dtype=torch.int64))
    assert (labels.dtype, labels.shape) == (torch.int32, (1, 40, 50))


HEADS = dict(  # layers of others are in test_parts.py, or in configs of the package
    ANNHead=dict(FOUR, in_channels=[16, 16], in_index=[2, 3], project_channels=8),
    DepthwiseSeparableASPPHead=dict(ONE, dilations=(1, 2), c1_in_channels=16, c1_channels=8),
    SETRMLAHead=dict(FOUR, in_index=[3] * 4, channels=32, mla_channels=8))


@pytest.mark.slow
@pytest.mark.parametrize('name', HEADS)
def test_heads_of_mmseg(name, tmp_path):
    model = let_many_classes_win(with_head(dict(HEADS[name], type=name)))
    run = exported(model, tmp_path / 'model.onnx')
    check(model, run, classes=1)  # small images have maps of one row, of which some heads make one class


def test_what_a_graph_cannot_hold_is_named():
    """A data_preprocessor: `test_parts.py`."""
    model = with_head(FCN)
    model.test_cfg.update(mode='slide', crop_size=(64, 64), stride=(32, 32))
    with pytest.raises(ConfigError, match='test_cfg.*slide'):
        SegmentorGraph(model)
