# SegFormer's head on XCiT small 12, patch 16, ADE20k, from ImageNet weights.
# No result is published, and none is measured here.
_base_ = [
    '_base_/models/segformer_xcit.py', '_base_/datasets/ade20k.py', '_base_/schedules/adamw_poly_160k.py',
    '_base_/mmseg_runtime.py'
]
model = dict(
    backbone=dict(
        drop_path_rate=0.05, init_cfg=dict(type='Pretrained', checkpoint='xcit://small_12_p16_384_dist')))
