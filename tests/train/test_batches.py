"""Predictions of images of different sizes in one batch are those of the images alone."""
import json

import cv2
import pytest
import torch
from mmengine.structures import InstanceData

from helpers.models import randomise
from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import make_config
from helpers.tools import run_tool
from xcit_dense.train import build_runner

#: Heights and widths: the third is padded like the first, the fifth is the first turned.
SIZES = (96, 64), (32, 128), (90, 61), (32, 128), (64, 96)


def samples_of(framework, sizes):
    if framework == 'mmpretrain':
        from mmpretrain.structures import DataSample as kind
    elif framework == 'mmdet':
        from mmdet.structures import DetDataSample as kind
    else:
        from mmseg.structures import SegDataSample as kind
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
    """By the model of a run."""
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


@pytest.mark.slow
def test_a_test_in_batches_finds_what_predict_finds(trained, root, tmp_path):
    """Boxes, scores and masks of images of three sizes, whatever the batch; so the AP is the same too."""
    path, objects = root / 'annotations/instances_val2017.json', dict(iscrowd=0, category_id=1, area=320)
    content = json.loads(path.read_text()) | dict(annotations=[])
    for image, (height, width) in zip(content['images'], ((64, 30), (24, 56), (50, 40)), strict=True):
        file = root / 'val2017' / image['file_name']
        cv2.imwrite(str(file), cv2.imread(str(file))[:height, :width])
        image.update(height=height, width=width)
        content['annotations'].append(dict(objects, id=image['id'], image_id=image['id'], bbox=[4, 4, 20, 16],
                                           segmentation=[[4, 4, 24, 4, 24, 20, 4, 20]]))
    path.write_text(json.dumps(content))
    everything = 'model.test_cfg.rcnn.score_thr=0'
    run_tool('predict.py', TINY_CONFIG, trained[0], root / 'val2017', '--out', tmp_path / 'predicted', '--cfg-options',
             everything)
    wanted = json.loads((tmp_path / 'predicted/results.json').read_text())
    for size in (1, 3):
        run_tool('test.py', TINY_CONFIG, trained[0], '--data-root', root, '--work-dir', tmp_path / f'{size}',
                 '--cfg-options', everything, f'test_dataloader.batch_size={size}',
                 f'test_evaluator.outfile_prefix={tmp_path}/{size}')
        for kind in ('bbox', 'segmentation'):
            got = json.loads((tmp_path / f'{size}.{kind[:4]}.json').read_text())
            assert len(got) == len(wanted) > 50
            for a, b in zip(got, wanted, strict=True):
                assert (a['image_id'], a['category_id']) == (b['image_id'], b['category_id'])
                assert a['score'] == pytest.approx(b['score'], abs=1e-5)
                assert a[kind] == (pytest.approx(b[kind], abs=1e-3) if kind == 'bbox' else b[kind])
