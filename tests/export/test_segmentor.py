"""The graph of a segmentor, in onnxruntime, compared with the segmentor's own prediction."""
import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers.exported import IMAGES, TRACED, export, images
from helpers.segmentors import check_labels, predicted, segmentor
from xcit_dense.export.resizing import TRANSLATIONS
from xcit_dense.export.segmentor import SegmentorGraph
from xcit_dense.models import XCiT

ARCH = dict(_delete_=True, embed_dims=32, depth=4, num_heads=4, patch_size=16, out_indices=(0, 1, 2, 3))
#: Sizes of images: as traced, smaller, larger, odd, narrow.
SIZES = (TRACED[1:3], (64, 64), (45, 33), (201, 177), (31, 250))
#: Sizes of the labels: larger, smaller, both, in one direction alone.
OTHERS = ((150, 211), (31, 40), (40, 200), (83, 40))


def export_segmentor(model, path):
    """A segmentor's graph with scores, traced once, in onnxruntime."""
    inputs = dict(image=torch.from_numpy(images(*TRACED)), size=torch.zeros(2, dtype=torch.int64))
    return export(SegmentorGraph(model, scores=True), path, inputs, (IMAGES, None), ('labels', 'scores'), TRANSLATIONS)


def check_parity(exported):
    """Compare over sizes and batches, with and without another size of the labels."""
    for batch, shape, size in [(1, shape, None) for shape in SIZES] + [(3, (45, 33), None), (3, (70, 90), OTHERS[0])] \
            + [(1, TRACED[1:3], size) for size in OTHERS]:
        image = images(batch, *shape, 3, seed=batch + shape[0])
        found = exported.run(image=image, size=np.array(size or (0, 0)))
        assert found['labels'].dtype == np.uint8
        check_labels(found, predicted(exported.model, image, size))


@pytest.fixture(scope='module')
def semantic_fpn(tmp_path_factory):
    """A tiny Semantic FPN and its graph in onnxruntime."""
    torch.manual_seed(0)
    model = segmentor()
    return SimpleNamespace(model=model, run=export_segmentor(model, tmp_path_factory.mktemp('onnx') / 'model.onnx'))


def test_labels_and_scores_are_those_of_the_checkpoint(semantic_fpn):
    check_parity(semantic_fpn)


def test_they_are_those_of_the_fused_checkpoint(semantic_fpn):
    fused = copy.deepcopy(semantic_fpn.model)
    fused.backbone.fuse()
    image = images(2, 97, 161, 3)
    check_labels(semantic_fpn.run(image=image, size=np.zeros(2, np.int64)), predicted(fused, image))


def test_blank_images(semantic_fpn):
    for value in (0, 114, 255):
        image = np.full((1, 70, 90, 3), value, np.uint8)
        found = semantic_fpn.run(image=image, size=np.zeros(2, np.int64))
        check_labels(found, predicted(semantic_fpn.model, image), classes=1)


def test_the_size_of_the_image_may_be_asked_for(semantic_fpn):
    image = images(1, 61, 77, 3)
    wanted, found = (semantic_fpn.run(image=image, size=np.array(size)) for size in ((0, 0), (61, 77)))
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


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


P8 = dict(ARCH, patch_size=8)
UPERNET = {f'decode_head__{key}': value for key, value in dict(in_channels=[32] * 4, channels=16).items()}


@pytest.mark.slow
@pytest.mark.parametrize('config, options', [
    ('semfpn_xcit_n12_p8_ade20k', dict(backbone__arch=P8, neck__in_channels=[32] * 4)),
    ('upernet_xcit_n12_p16_ade20k', dict(UPERNET, backbone__arch=ARCH, auxiliary_head=None)),
    ('upernet_xcit_n12_p8_ade20k', dict(UPERNET, backbone__arch=P8, auxiliary_head=None)),
    ('upernet_xcit_s12_p16_feature2pyramid_ade20k', dict(UPERNET, backbone__arch=ARCH, neck__embed_dim=32,
                                                         auxiliary_head=None)),
    ('segformer_xcit_s12_p16_ade20k', dict(UPERNET, backbone__arch=ARCH)),
], ids=['semantic_fpn_p8', 'upernet_p16', 'upernet_p8', 'feature2pyramid', 'segformer'])
def test_other_configs(config, options, tmp_path):
    model = segmentor(config, **options)
    assert isinstance(model.backbone, XCiT)
    check_parity(SimpleNamespace(model=model, run=export_segmentor(model, tmp_path / 'model.onnx')))
