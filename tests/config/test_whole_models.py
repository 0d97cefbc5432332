"""Every config runs through its whole model."""
import itertools

import pytest
import torch
from mmengine.structures import InstanceData, PixelData

from helpers.paths import ROOT
from helpers.recipes import DENSE, FAMILIES, RECIPES, build, path_of
from xcit_dense import arch_names
from xcit_dense.config.loading import load_config

OTHERS = sorted({f'{name}.py' for name in DENSE} - {path_of(*recipe).name for recipe in RECIPES})


def run_through(cfg):
    """Loss, a step back, and a prediction of a whole model on one small random image."""
    if cfg.default_scope == 'mmseg':
        cfg.model.data_preprocessor.size = (64, 96)  # or it pads to 512 x 512
    model = build(cfg)
    image = torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8)
    meta = dict(img_shape=(64, 96), ori_shape=(64, 96), scale_factor=(1., 1.), batch_input_shape=(64, 96))
    if cfg.default_scope == 'mmdet':
        from mmdet.structures import DetDataSample
        from mmdet.structures.mask import BitmapMasks
        sample = DetDataSample(metainfo=meta)
        sample.gt_instances = InstanceData(
            bboxes=torch.tensor([[8., 8., 40., 50.]]), labels=torch.tensor([1]),
            masks=BitmapMasks(torch.ones(1, 64, 96, dtype=torch.uint8).numpy(), 64, 96))
        sample.ignored_instances = InstanceData(bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long))
    else:
        from mmseg.structures import SegDataSample
        sample = SegDataSample(metainfo=dict(meta, img_padding_size=(0, 0, 0, 0)))
        sample.gt_sem_seg = PixelData(data=torch.randint(0, 4, (1, 64, 96)))
    batch = dict(inputs=[image, image], data_samples=[sample, sample])
    losses, _ = model.parse_losses(model(**model.data_preprocessor(batch, training=True), mode='loss'))
    losses.backward()
    assert torch.isfinite(losses)
    lacking = [name for name, p in model.named_parameters() if p.grad is None]
    assert not lacking, lacking[:5]
    with torch.no_grad():
        found, = model.eval().test_step(dict(inputs=[image], data_samples=[sample]))
    if cfg.default_scope == 'mmdet':
        assert len(found.pred_instances.bboxes) <= cfg.model.test_cfg.get('rcnn', cfg.model.test_cfg).max_per_img
    else:
        assert found.pred_sem_seg.data.shape == (1, 64, 96) and found.pred_sem_seg.data.max() < 150


@pytest.mark.parametrize('family, arch', [
    pytest.param(family, arch, marks=pytest.mark.slow if '_24_' in arch else ())
    for family, arch in zip(itertools.cycle(FAMILIES), arch_names(), strict=False)
])
def test_each_arch_runs_through_a_whole_model(family, arch):
    run_through(load_config(path_of(family, arch), pretrained=False))


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=pytest.mark.slow if any(
        word in name for word in ('_custom', '_fsdp', '_finetune')) else ())
    for name in OTHERS  # these as the 42
])
def test_the_other_configs_run_through_their_whole_model(name):
    run_through(load_config(ROOT / 'configs' / name, pretrained=False))
