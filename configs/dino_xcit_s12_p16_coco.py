# DINO, the detector (not the training without labels), on XCiT small 12, patch 16, COCO 2017 boxes, from ImageNet
# weights.
# No result is published, and none is measured here.
_base_ = [
    '_base_/models/dino_xcit.py', '_base_/datasets/coco_detr.py', '_base_/schedules/adamw_detr_12e.py',
    '_base_/mmdet_runtime.py'
]
model = dict(
    backbone=dict(
        drop_path_rate=0.05, init_cfg=dict(type='Pretrained', checkpoint='xcit://small_12_p16_384_dist')))
