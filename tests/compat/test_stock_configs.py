"""A sample of the stock configs, one or two for each operator of mmcv; all: python -m benchmarks.stock_configs."""
import pytest

from benchmarks.stock_configs import find, survey, without_weights
from helpers.refusals import stock

#: By path, an operator that a step and a prediction call.
SAMPLE = {
    'mmdet/dcn/faster-rcnn_r50-dconv-c3-c5_fpn_1x_coco.py': 'deform_conv_backward_parameters',
    'mmdet/dcn/faster-rcnn_r50_fpn_dpool_1x_coco.py': 'deform_roi_pool_backward',
    'mmdet/dcnv2/faster-rcnn_r50-mdconv-c3-c5_fpn_1x_coco.py': 'modulated_deform_conv_backward',
    'mmdet/carafe/faster-rcnn_r50_fpn-carafe_1x_coco.py': 'carafe_backward',
    'mmdet/pisa/faster-rcnn_r50_fpn_pisa_1x_coco.py': None,  # nms_match, if there are enough boxes
    'mmdet/guided_anchoring/ga-rpn_r50-caffe_fpn_1x_coco.py': 'masked_im2col_forward',
    'mmdet/cornernet/cornernet_hourglass104_32xb3-210e-mstest_coco.py': 'softnms',
    'mmdet/reppoints/reppoints-moment_r50_fpn_1x_coco.py': 'deform_conv_forward',
    'mmdet/tood/tood_r50_fpn_1x_coco.py': 'deform_conv_forward',
    'mmdet/detectors/detectors_cascade-rcnn_r50_1x_coco.py': 'deform_conv_forward',
    'mmdet/dino/dino-4scale_r50_8xb2-12e_coco.py': None,  # on a CPU, mmcv's plain form of deformable attention
    'mmdet/mask2former/mask2former_r50_8xb2-lsj-50e_coco.py': None,
    'mmseg/psanet/psanet_r50-d8_4xb4-80k_ade20k-512x512.py': 'psamask_backward',
    'mmseg/mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py': None}


@pytest.mark.slow
def test_stock_configs_build_train_and_predict():
    if not stock('mmdet').is_dir():
        pytest.skip('the forks ship no stock configs')
    found = {}
    for framework in ('mmdet', 'mmseg'):
        configs, unread = find(framework, f'^({"|".join(name for name in SAMPLE if name.startswith(framework))})$')
        assert not unread
        found.update(configs)
    results = survey(found)
    assert {name: result['error'] for name, result in results.items() if result['step'] != 'done'} == {}
    for name, operator in SAMPLE.items():
        assert operator is None or operator in results[name]['operators'], (name, results[name])


def test_only_what_names_weights_is_taken_away():
    model = dict(pretrained=None, backbone=dict(pretrained=True, init_cfg=dict(type='Pretrained', checkpoint='x')))
    assert without_weights(model) == dict(pretrained=None, backbone=dict(pretrained=False, init_cfg=None))
