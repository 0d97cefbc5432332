# RetinaNet on XCiT small 12, patch 16, COCO 2017 boxes, from ImageNet weights.
# No result is published, and none is measured here.
_base_ = [
    '_base_/models/retinanet_xcit.py', '_base_/datasets/coco_detection.py', '_base_/schedules/adamw_3x.py',
    '_base_/mmdet_runtime.py'
]
model = dict(
    backbone=dict(
        out_indices=(5, 7, 11),  # RetinaNet has no use for stride 4
        out_strides=(8, 16, 32),
        drop_path_rate=0.05,
        init_cfg=dict(type='Pretrained', checkpoint='xcit://small_12_p16_384_dist')),
    neck=dict(in_channels=[384] * 3))
