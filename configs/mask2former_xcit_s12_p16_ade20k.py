# Mask2Former on XCiT small 12, patch 16, ADE20k, from ImageNet weights.
# No result is published, and none is measured here.
_base_ = [
    '_base_/models/mask2former_segmentor_xcit.py', '_base_/datasets/ade20k_shortest_edge.py',
    '_base_/schedules/adamw_mask2former_160k.py', '_base_/mmseg_runtime.py'
]
model = dict(
    backbone=dict(
        drop_path_rate=0.05, init_cfg=dict(type='Pretrained', checkpoint='xcit://small_12_p16_384_dist')))

custom_imports = dict(
    imports=['xcit_dense', 'xcit_dense.for_mmseg', 'mmdet.models'], allow_failed_imports=False)
default_hooks = dict(checkpoint=dict(interval=5000))
