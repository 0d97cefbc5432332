# Mask R-CNN on XCiT small 12, patch 8, COCO 2017, from ImageNet weights.
# Published by the authors, not measured here: box AP 47.0, mask AP 42.3.
_base_ = '_base_/maskrcnn_xcit_coco.py'
model = dict(
    backbone=dict(
        arch='small_12_p8',
        drop_path_rate=0.05,
        init_cfg=dict(type='Pretrained', checkpoint='xcit://small_12_p8_384_dist')),
    neck=dict(in_channels=[384] * 4))
