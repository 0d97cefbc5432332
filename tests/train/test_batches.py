"""Predictions of images of different sizes in one batch are those of the images alone."""
from importlib import import_module

import pytest
import torch
from mmengine.structures import InstanceData

from helpers.models import randomise
from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import make_config
from xcit_dense.train import build_runner

#: Heights and widths: the third is padded like the first, the fifth is the first turned.
SIZES = (96, 64), (32, 128), (90, 61), (32, 128), (64, 96)


def samples_of(framework, sizes):
    name = dict(mmpretrain='DataSample', mmdet='DetDataSample', mmseg='SegDataSample')[framework]
    kind = getattr(import_module(f'{framework}.structures'), name)
    return [kind(metainfo=dict(img_shape=size, ori_shape=(size[0] * 2, size[1] * 3), scale_factor=(1 / 3, 1 / 2)))
            for size in sizes]


def values_of(sample):
    """Return all that was predicted for an image, as a list of tensors."""
    if 'pred_score' in sample:
        return [sample.pred_score]
    found = sample.pred_instances if 'pred_instances' in sample else sample.seg_logits
    order = found.scores.argsort(descending=True) if isinstance(found, InstanceData) else slice(None)
    return [value[order].double() if torch.is_tensor(value) else value for value in found.values()]


@pytest.mark.parametrize('config, options', (
    (TINY_CONFIG, {'model.type': 'FasterRCNN', 'model.roi_head.mask_roi_extractor': None,
                   'model.roi_head.mask_head': None}),  # mmdet pastes masks in float32
    (TINY_SEG_CONFIG, {'model.decode_head.num_classes': 5}), (TINY_CLS_CONFIG, {})), ids=('det', 'seg', 'cls'))
def test_an_image_in_a_batch_has_the_result_that_it_has_alone(config, options, demo_data, class_folders, tmp_path):
    data = class_folders if config == TINY_CLS_CONFIG else demo_data
    cfg = make_config(config, data, tmp_path, **options)
    model = randomise(build_runner(cfg).model).double().eval()
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in SIZES]

    def predict(step, *places):
        batch = dict(inputs=[images[i] for i in places],
                     data_samples=samples_of(cfg.default_scope, [SIZES[i] for i in places]))
        with torch.no_grad():
            return [values_of(sample) for sample in getattr(model, step)(batch)]

    wanted, counts = [predict('val_step', place)[0] for place in range(len(SIZES))], []
    model.backbone.register_forward_hook(lambda _, args, __: counts.append(len(args[0])))
    for step in ('val_step', 'test_step'):
        for got, values in zip(predict(step, *range(len(SIZES))), wanted, strict=True):
            assert values[0].numel() and len(got) == len(values)
            for a, b in zip(got, values, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)
    assert counts == ([2, 2, 1] if cfg.default_scope == 'mmdet' else [1, 2, 1, 1]) * 2  # one size stays together
