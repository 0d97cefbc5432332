# CondInst on XCiT small 12, patch 16, COCO 2017, from ImageNet weights.
# No result is published, and none is measured here.
_base_ = [
    '_base_/models/condinst_xcit.py', '_base_/datasets/coco_instance.py', '_base_/schedules/adamw_3x.py',
    '_base_/mmdet_runtime.py'
]
model = dict(
    backbone=dict(
        drop_path_rate=0.05, init_cfg=dict(type='Pretrained', checkpoint='xcit://small_12_p16_384_dist')))
